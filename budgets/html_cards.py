"""The small cards of report.html: what a session did, in counts and rates."""

from __future__ import annotations

from collections.abc import Iterable

from budgets.report import Report
from budgets.text import ms, number, percent, rate


def cards(report: Report) -> str:
    """All of them, side by side where there is room."""
    inside = _turn_taking(report) + _speculation(report) + _tokens(report) + _quality(report)
    return f'<div class="cards">{inside}</div>'


def _card(title: str, rows: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return f"<section><h3>{title}</h3><dl>{items}</dl></section>"


def _turn_taking(report: Report) -> str:
    stops = report.stops
    return _card(
        "Turn taking",
        [
            ("turns", str(len(report.turns))),
            ("audible cut-offs", str(report.audible_cutoffs)),
            ("silent false eagers", str(report.silent_false_eagers)),
            ("missed", str(report.missed)),
            ("reopened", str(report.reopened)),
            ("barge-ins measured", str(stops.n)),
            ("stop p50, ms", ms(stops.percentile(50))),
            ("stop p95, ms", ms(stops.percentile(95))),
            ("false stops", str(report.false_stops)),
            ("backchannels ignored", str(report.backchannels_ignored)),
        ],
    )


def _speculation(report: Report) -> str:
    found = report.speculation
    return _card(
        "Starting early",
        [
            ("eager turns", str(found.eager_turns)),
            ("hit rate", percent(found.hit_rate)),
            ("saved p50, ms", ms(found.saved.percentile(50))),
        ],
    )


def _tokens(report: Report) -> str:
    found = report.tokens
    return _card(
        "Language model",
        [
            ("prompt tokens", f"{found.prompt:,}"),
            ("prefix hit rate", percent(found.prefix_hit_rate)),
            ("generated tokens", f"{found.generated:,}"),
            ("wasted tokens", percent(found.wasted_ratio)),
            ("drafted tokens", f"{found.drafted:,}"),
            ("acceptance length", number(found.acceptance_length)),
        ],
    )


def _quality(report: Report) -> str:
    found = report.quality
    return _card(
        "Quality",
        [
            ("word error rate, STT", rate(found.stt.rate)),
            ("word error rate, TTS read back", rate(found.tts.rate)),
            ("low-confidence turns", str(found.low_confidence_turns)),
            ("words generated", f"{found.words_generated:,}"),
            ("words heard", f"{found.words_heard:,}"),
        ],
    )
