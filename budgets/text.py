"""The report for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from textwrap import fill
from unicodedata import category, east_asian_width

from budgets.figures import PERCENTILES, Distribution
from budgets.report import Report

WIDTH = 100

MAX_LINES = 12
"""Discards, slow turns and losses beyond this many are counted; report.html has them all."""


def to_text(report: Report) -> str:
    """Tables and lines of at most about `WIDTH` columns; times in ms."""
    blocks = [
        _headline(report),
        _latency(report),
        _stages(report),
        _behaviour(report),
        _listed(
            "slow turns", [f"{t.ledger.turn}: {t.why_slow}" for t in report.turns if t.why_slow]
        ),
        _listed("discarded", _discards(report)),
        _listed("could not be read", report.losses),
    ]
    return "\n\n".join(plain(block) for block in blocks if block)


def plain(text: str) -> str:
    """Without what could command a terminal: the text holds what callers and models said."""
    return "".join(c if c == "\n" or category(c)[0] != "C" else " " for c in text)


def ms(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.0f}"


def percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value * 100:.0f} %"


def rate(value: float) -> str:
    return "-" if math.isnan(value) else f"{value * 100:.1f} %"


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, the numbers to the right."""
    widths = [max(_width(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell + " " * (width - _width(cell)) if at == 0 else " " * (width - _width(cell)) + cell
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _headline(report: Report) -> str:
    return (
        f"budget report: {count(len(report.accounts), 'session')}, "
        f"{count(len(report.turns), 'turn')}, target {ms(report.target_ms)} ms"
    )


def _latency(report: Report) -> str:
    """The cut-off count stands beside every latency: speed bought with interruptions is none."""
    cutoffs = f"{report.audible_cutoffs} of {len(report.turns)}"
    heads = ["latency in ms", "n", *(f"p{p}" for p in PERCENTILES), "mean", "in target", "cut-offs"]
    rows = [heads]
    for name, figures in (
        ("perceived (onset)", report.perceived),
        ("perceived (content)", report.content),
        ("by events only", report.reported),
    ):
        within = percent(1.0 - figures.share(above=report.target_ms))
        rows.append([name, *_figures(figures), ms(figures.mean), within, cutoffs])
    rows.append(["sound against events", *_figures(report.instrument_gap), "", "", ""])
    return table(rows)


def _figures(figures: Distribution) -> list[str]:
    return [str(figures.n), *(ms(figures.percentile(p)) for p in PERCENTILES)]


def _stages(report: Report) -> str:
    work = {row.stage: row for row in report.work}
    heads = ["stage", "budget", *(f"p{p}" for p in PERCENTILES), "over budget"]
    rows = [[*heads, "work p50", "hidden p50"]]
    for row in report.stages:
        done = work.get(row.stage)
        took, hidden = ("", "") if done is None else _work(done.took, done.hidden)
        rows.append(
            [
                row.stage,
                "" if math.isnan(row.budget_ms) else ms(row.budget_ms),
                *_figures(row.spent)[1:],
                "" if math.isnan(row.budget_ms) else percent(row.over),
                took,
                hidden,
            ]
        )
    return table(rows)


def _work(took: Distribution, hidden: Distribution) -> tuple[str, str]:
    return ms(took.percentile(50)), ms(hidden.percentile(50))


def _behaviour(report: Report) -> str:
    turns = len(report.turns)
    found, tokens = report.speculation, report.tokens
    stops, quality = report.stops, report.quality
    lines = [
        (
            "turn taking",
            f"{count(turns, 'turn')}, {count(report.audible_cutoffs, 'audible cut-off')}, "
            f"{count(report.silent_false_eagers, 'silent false eager')}, {report.missed} missed, "
            f"{report.reopened} reopened",
        ),
        (
            "barge-in",
            f"{stops.n} measured, stopped after p50 {ms(stops.percentile(50))} ms, "
            f"p95 {ms(stops.percentile(95))} ms, {count(report.false_stops, 'false stop')}, "
            f"{count(report.backchannels_ignored, 'backchannel')} ignored",
        ),
        (
            "speculation",
            f"{count(found.eager_turns, 'eager turn')}, hit rate {percent(found.hit_rate)}, "
            f"saved p50 {ms(found.saved.percentile(50))} ms",
        ),
        (
            "tokens",
            f"{tokens.prompt:,} prompt ({percent(tokens.prefix_hit_rate)} cached), "
            f"{tokens.generated:,} generated ({percent(tokens.wasted_ratio)} wasted), "
            f"{tokens.drafted:,} drafted (acceptance length {number(tokens.acceptance_length)})",
        ),
        (
            "quality",
            f"stt wer {rate(quality.stt.rate)}, tts wer {rate(quality.tts.rate)}, "
            f"{count(quality.low_confidence_turns, 'low-confidence turn')}, "
            f"{quality.words_heard:,} of {count(quality.words_generated, 'word')} heard",
        ),
        ("given up", "; ".join(_given_up(report)) or "nothing"),
        (
            "faults",
            "; ".join(f"{kind} x{n}" for kind, n in sorted(report.faults.items())) or "none",
        ),
    ]
    return "\n".join(_wrapped(f"{name:<12} ", line) for name, line in lines)


def _given_up(report: Report) -> Iterator[str]:
    for row in report.degradations:
        saved = ms(row.saved.percentile(50))
        yield f"{row.stage}: {row.what} x{row.n} (saved p50 {saved} ms)"


def _discards(report: Report) -> list[str]:
    several = len(report.accounts) > 1
    return [
        f"{f'{account.name} ' if several else ''}turn {discard.turn}: {discard.reason}"
        for account in report.accounts
        for discard in account.discards
    ]


def _listed(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = [_wrapped("  ", line) for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shown.append(f"  and {len(lines) - MAX_LINES} more")
    return "\n".join([f"{title} ({len(lines)})", *shown])


def _wrapped(head: str, text: str) -> str:
    """Lines that go on below their own beginning."""
    return fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * max(4, len(head)))
