"""The pictures of report.html: SVG that stretches to any width, so it holds marks and no text.

Text is HTML, placed over the marks in percent. Every function takes numbers only, so nothing here
needs escaping.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from budgets.critical_path import STAGES, WORK_STAGES
from budgets.figures import Distribution
from budgets.ledger import UNATTRIBUTED, Ledger

WIDTH = 1000.0
"""Of every drawing's own coordinates."""

TICK_STEPS_MS = (50, 100, 200, 250, 500, 1000, 2000, 5000, 10_000)
MAX_TICKS = 8
BIN_STEPS_MS = (10, 20, 25, 50, 100, 200, 500, 1000, 2000)
MAX_BINS = 48

LABEL_REM = 1.3
"""Height of one line of labels; report.css leaves room for four."""


class Scale:
    """Milliseconds to the horizontal coordinate, from 0 to a round number past `max_ms`."""

    def __init__(self, max_ms: float) -> None:
        self.step_ms = _step(max_ms, TICK_STEPS_MS, MAX_TICKS)
        self.end_ms = max(1.0, math.ceil(max_ms / self.step_ms)) * self.step_ms

    def x(self, ms: float) -> float:
        return min(max(ms, 0.0), self.end_ms) / self.end_ms * WIDTH

    def percent(self, ms: float) -> float:
        return self.x(ms) / WIDTH * 100

    @property
    def ticks_ms(self) -> list[float]:
        return [n * self.step_ms for n in range(round(self.end_ms / self.step_ms) + 1)]


def axis(scale: Scale) -> str:
    """The numbers below (or above) drawings of this scale."""
    labels = [
        f'<span style="left:{scale.percent(tick):.2f}%">{tick:,.0f}</span>'
        for tick in scale.ticks_ms
    ]
    return f'<div class="axis" aria-hidden="true">{"".join(labels)}</div>'


def histogram(figures: Distribution, target_ms: float) -> str:
    """Turns by perceived latency: bars left and right of the target, each turn a mark below."""
    scale = Scale(max([*figures.values, target_ms]) * 1.03)
    step = _step(scale.end_ms, BIN_STEPS_MS, MAX_BINS)
    counts: dict[int, int] = {}
    for value in figures.values:
        bin_ = math.floor(max(value, 0.0) / step)
        counts[bin_] = counts.get(bin_, 0) + 1
    highest = max(counts.values())
    marks = _grid(scale, 150)
    for bin_, n in sorted(counts.items()):
        x, end = scale.x(bin_ * step), scale.x((bin_ + 1) * step)
        height = 128.0 * n / highest
        kind = "late" if (bin_ + 0.5) * step > target_ms else "fine"
        marks += _rect(x + 1, 140 - height, end - x - 2, height, kind)
    for value in figures.values:
        marks += _line(scale.x(value), 142, 150, "rug")
    marks += _line(scale.x(target_ms), 0, 150, "target")
    lines, labels = "", ""
    for level, percent in enumerate((50, 90, 95), start=1):
        at = figures.percentile(percent)
        lines += _line(scale.x(at), 0, 150, "percentile")
        labels += _label(scale, at, level, f"p{percent} {at:,.0f}", "")
    labels += _label(scale, target_ms, 0, f"target {target_ms:,.0f}", " at-target")
    drawing = _svg(150, marks + lines, "Histogram of perceived latency in milliseconds")
    return f'<div class="chart"><div class="marks">{labels}</div>{drawing}{axis(scale)}</div>'


def budget_bar(figures: Distribution, budget_ms: float, scale: Scale) -> str:
    """One stage: to p95 in a light shade, to p50 in a full one, and a tick at its budget."""
    marks = ""
    if figures.n:
        marks += _rect(0, 3, scale.x(figures.percentile(95)), 12, "range")
        marks += _rect(0, 3, scale.x(figures.percentile(50)), 12, "median")
    if not math.isnan(budget_ms):
        marks += _line(scale.x(budget_ms), 0, 18, "budget")
    return _svg(18, marks, "")


def waterfall(ledger: Ledger, target_ms: float, scale: Scale) -> str:
    """One turn: above, the rows of the ledger, end to end; below, what the stages really did."""
    marks, at = "", 0.0
    for stage in STAGES:
        ms = ledger.rows_ms[stage]
        marks += _span(scale, at, at + ms, 2, 16, stage)
        at += max(ms, 0.0)
    rest = ledger.rows_ms.get(UNATTRIBUTED, 0.0)
    marks += _span(scale, min(at, at + rest), max(at, at + rest), 2, 16, UNATTRIBUTED)
    for stage in WORK_STAGES:
        if (work := ledger.work.get(stage)) is not None:
            end = work.start_ms + work.took_ms
            marks += _span(scale, work.start_ms, end, 21, 5, f"{stage} work")
    marks += _line(scale.x(target_ms), 0, 28, "target")
    return _svg(28, _grid(scale, 28) + marks, _told(ledger))


def waterfall_scale(ledgers: Iterable[Ledger], target_ms: float) -> Scale:
    """Wide enough for every turn."""
    ends = [target_ms * 1.1]
    for ledger in ledgers:
        ends.append(sum(max(ms, 0.0) for ms in ledger.rows_ms.values()))
        ends += [work.start_ms + work.took_ms for work in ledger.work.values()]
    return Scale(max(ends))


def stages_scale(figures: Sequence[Distribution], budgets_ms: Sequence[float]) -> Scale:
    values = [f.percentile(95) for f in figures if f.n] + [b for b in budgets_ms if b == b]
    return Scale(max(values, default=1.0))


def _told(ledger: Ledger) -> str:
    rows = (f"{stage} {ms:,.0f} ms" for stage, ms in ledger.rows_ms.items())
    return ", ".join(rows)


def _step(extent: float, steps: Sequence[int], at_most: int) -> int:
    return next((step for step in steps if extent / step <= at_most), steps[-1])


def _svg(height: float, marks: str, title: str) -> str:
    role = f'role="img" aria-label="{title}"' if title else 'aria-hidden="true"'
    told = f"<title>{title}</title>" if title else ""
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" height="{height:g}" '
        f'preserveAspectRatio="none" {role}>{told}{marks}</svg>'
    )


def _span(scale: Scale, start: float, end: float, y: float, height: float, kind: str) -> str:
    x = scale.x(start)
    width = scale.x(end) - x
    return _rect(x, y, width, height, kind) if width > 0 else ""


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y:.2f}" '
        f'width="{max(width, 0.0):.2f}" height="{height:.2f}"/>'
    )


def _line(x: float, top: float, bottom: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.2f}" x2="{x:.2f}" y1="{top:g}" y2="{bottom:g}"/>'


def _grid(scale: Scale, height: float) -> str:
    return "".join(_line(scale.x(tick), 0, height, "grid") for tick in scale.ticks_ms)


def _label(scale: Scale, at_ms: float, level: int, text: str, kind: str) -> str:
    """A label on its own line, on the side of its mark where there is room."""
    percent = scale.percent(at_ms)
    side = f"right:{100 - percent:.2f}%" if percent > 70 else f"left:{percent:.2f}%"
    flip = " left-of" if percent > 70 else ""
    top = f"top:{level * LABEL_REM:.2f}rem"
    return f'<span class="mark{flip}{kind}" style="{side};{top}"><b>{text}</b></span>'
