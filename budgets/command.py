"""`voicepipe report`: what the command does, without the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from budgets import gate
from budgets.compare import compare as compare_reports
from budgets.compare import comparison_text
from budgets.html import to_html
from budgets.perceived import Detectors
from budgets.quality import ListenBack
from budgets.report import build_report
from budgets.report_json import dumps
from budgets.text import to_text
from voicepipe.errors import ComponentError


def run_report(
    dirs: Sequence[Path],
    *,
    detectors: Detectors,
    html: Path | None = None,
    json: Path | None = None,
    compare: Path | None = None,
    gates: Sequence[str] = (),
    target_ms: float | None = None,
    listen_back: ListenBack | None = None,
) -> tuple[str, bool]:
    """Reports on all sessions in `dirs`; writes `html` and `json` when they are given.

    `compare` is a directory of other sessions to compare with, `gates` are `NAME=LIMIT`.
    `target_ms` stands in for the target that the sessions ran with; `listen_back` transcribes the
    agent's 16 kHz audio, for the TTS word error rate. Returns the text for the terminal and
    whether all gates are kept. Raises UsageError for a directory without a session and for a gate
    that is not known, ComponentError for a file that cannot be written.
    """
    limits = gate.parse_gates(gates)
    report = build_report(dirs, detectors=detectors, target_ms=target_ms, listen_back=listen_back)
    blocks = [to_text(report)]
    differences = []
    if compare is not None:
        other = build_report([compare], detectors=detectors, plan=report.plan)
        differences = compare_reports(report, other)
        blocks.append(comparison_text(differences))
    checked, ok = gate.check(report, limits)
    if checked:
        blocks.append(checked)
    if html is not None:
        _write(html, to_html(report, differences, checked))
    if json is not None:
        _write(json, dumps(report))
    return "\n\n".join(blocks), ok


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ComponentError(
            f"{path}: cannot be written: {error.strerror}: choose a folder that can be written"
        ) from error
