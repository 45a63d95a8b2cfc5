"""The number that counts: the recorded call through the whole real pipeline, in real time.

`voicepipe bench e2e`. Perceived latency from the recordings of three calls, with the cut-offs
beside it.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.document import Row, publish, row
from budgets import build_report
from budgets.figures import Distribution
from demos import recorded_call
from voicepipe.assemble import Agent, describe, report_detectors
from voicepipe.config import AgentConfig

N_CALLS = 3


def run(json_file: Path | None = None) -> str:
    """Hold the calls, write `json_file` if given, return the table."""
    config = AgentConfig()
    agent = Agent(config)
    with tempfile.TemporaryDirectory() as folder:
        directories = [Path(folder) / str(n) for n in range(N_CALLS)]
        for directory in directories:
            transport, call = recorded_call.caller([])
            asyncio.run(
                recorded_call.play_call(
                    transport, call, agent, directory, describe(config), lambda _: None
                )
            )
        report = build_report(directories, detectors=report_detectors())
    waits = [("perceived, onset, ms", report.perceived), ("perceived, content, ms", report.content)]
    rows = [_row(what, figures) for what, figures in waits]
    rows += [_row(f"{stage.stage}, ms", stage.spent) for stage in report.stages]
    rows.append(_row("barge-in to silence, ms", report.stops))
    ratios = {
        "perceived_p50_ms": rows[0]["p50"],
        "perceived_p90_ms": rows[0]["p90"],
        "cutoffs_per_turn": round(report.audible_cutoffs / max(1, len(report.turns)), 4),
    }
    return publish("e2e", {"calls": N_CALLS, **describe(config)}, rows, ratios, json_file)


def _row(what: str, figures: Distribution) -> Row:
    """As `document.row`, from a distribution that the report has already made."""
    return row(what, figures.values)
