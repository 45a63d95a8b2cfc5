"""Gates: limits that a report has to keep, for CI."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from budgets.critical_path import STAGES
from budgets.figures import PERCENTILES, ratio
from budgets.ledger import UNATTRIBUTED
from budgets.report import Report
from voicepipe.errors import UsageError

Metric = Callable[[Report], float]


def _perceived(percent: int) -> Metric:
    return lambda report: report.perceived.percentile(percent)


def _stage(at: int, percent: int) -> Metric:
    return lambda report: report.stages[at].spent.percentile(percent)


_LATENCIES: dict[str, Metric] = {
    **{f"p{percent}": _perceived(percent) for percent in PERCENTILES},
    "mean": lambda report: report.perceived.mean,
    "content_p50": lambda report: report.content.percentile(50),
    "content_p90": lambda report: report.content.percentile(90),
    "reported_p50": lambda report: report.reported.percentile(50),
    "reported_p90": lambda report: report.reported.percentile(90),
    "stop_p50": lambda report: report.stops.percentile(50),
    "stop_p95": lambda report: report.stops.percentile(95),
}

_STAGES: dict[str, Metric] = {
    f"{stage}_p{percent}": _stage(at, percent)
    for at, stage in enumerate((*STAGES, UNATTRIBUTED))
    for percent in (50, 95)
}

_RATES: dict[str, Metric] = {
    "cutoffs": lambda report: ratio(report.audible_cutoffs, len(report.turns)),
    "false_eagers": lambda report: ratio(report.silent_false_eagers, len(report.turns)),
    "missed": lambda report: report.missed,
    "faults": lambda report: report.faults.total(),
    "discards": lambda report: ratio(
        sum(len(account.discards) for account in report.accounts), len(report.turns)
    ),
    "losses": lambda report: len(report.losses),
    "false_stops": lambda report: report.false_stops,
    "wer": lambda report: report.quality.stt.rate,
    "tts_wer": lambda report: report.quality.tts.rate,
    "wasted_tokens": lambda report: report.tokens.wasted_ratio,
}

AT_MOST: Mapping[str, Metric] = {**_LATENCIES, **_STAGES, **_RATES}
"""What must not exceed its limit. Latencies in ms; cutoffs, false_eagers and discards per turn;
missed, faults, losses and false_stops are counts; the others are ratios."""

AT_LEAST: Mapping[str, Metric] = {
    "turns": lambda report: len(report.turns),
    "measured": lambda report: report.perceived.n,
    "within_target": lambda report: 1.0 - report.perceived.share(above=report.target_ms),
    "hit_rate": lambda report: report.speculation.hit_rate,
    "prefix_hit_rate": lambda report: report.tokens.prefix_hit_rate,
    "acceptance_length": lambda report: report.tokens.acceptance_length,
}
"""What must not fall below its limit."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One limit."""

    name: str
    limit: float

    def line(self, report: Report) -> tuple[str, bool]:
        """What a person reads, and whether it is kept; a figure without data is not."""
        at_most = self.name in AT_MOST
        value = (AT_MOST if at_most else AT_LEAST)[self.name](report)
        ok = value <= self.limit if at_most else value >= self.limit
        found = "no data" if math.isnan(value) else f"{value:.4g}"
        bound = "at most" if at_most else "at least"
        verdict = "kept" if ok else "MISSED"
        return f"{verdict}  {self.name} {found}, {bound} {self.limit:g}", ok


def parse_gates(given: Sequence[str]) -> list[Gate]:
    """`NAME=LIMIT` each. Raises UsageError for a name that is not known (lists the known) and a
    limit that is no number."""
    gates = []
    for text in given:
        name, equals, limit = (part.strip() for part in text.partition("="))
        if name not in AT_MOST and name not in AT_LEAST:
            known = ", ".join(sorted({*AT_MOST, *AT_LEAST}))
            raise UsageError(f"unknown gate {name!r}: known are {known}")
        try:
            value = float(limit) if equals else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UsageError(f"gate {text!r}: give a limit, as in {name}=900")
        gates.append(Gate(name, value))
    return gates


def check(report: Report, gates: Sequence[Gate]) -> tuple[str, bool]:
    """One line for each gate, and whether all are kept."""
    lines = [gate.line(report) for gate in gates]
    return "\n".join(line for line, _ in lines), all(ok for _, ok in lines)
