"""Two reports side by side: differences with the uncertainty that so few turns leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from budgets.report import Report
from budgets.text import ms, table

RESAMPLES = 2000
CONFIDENCE = 0.95

MIN_VALUES = 5
"""Fewer values on either side give no interval worth the name."""

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Of the values in the last axis."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure in both reports; `low` and `high` bound this less other at 95 %, nan where there
    is too little to compare."""

    name: str
    this: float
    other: float
    low: float
    high: float
    unit: str = "ms"

    @property
    def change(self) -> float:
        return self.this - self.other

    @property
    def verdict(self) -> str:
        """Lower is better for every figure that is compared."""
        if math.isnan(self.low):
            return "too few" if math.isfinite(self.change) else "no data"
        if self.high < 0:
            return "better"
        return "worse" if self.low > 0 else "no difference shown"


def compare(this: Report, other: Report, *, seed: int = 0) -> list[Difference]:
    """Differences, this less other.

    Intervals are percentile bootstraps over turns, each report resampled by itself (Efron and
    Tibshirani, 1993, ch. 13): 2,000 resamples, the same for the same seed. Turns of one session
    are taken as independent, which they are not quite: intervals are if anything too narrow.
    """
    rng = np.random.default_rng(seed)

    def difference(
        name: str, a: Sequence[float], b: Sequence[float], statistic: Statistic, unit: str = "ms"
    ) -> Difference:
        one, two = np.array(a, np.float64), np.array(b, np.float64)
        if min(len(one), len(two)) < MIN_VALUES:
            this_value = float(statistic(one)) if len(one) else math.nan
            other_value = float(statistic(two)) if len(two) else math.nan
            return Difference(name, this_value, other_value, math.nan, math.nan, unit)
        spread = statistic(_resampled(one, rng)) - statistic(_resampled(two, rng))
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(spread, (tail, 1 - tail))
        return Difference(
            name, float(statistic(one)), float(statistic(two)), float(low), float(high), unit
        )

    found = [
        difference(f"perceived p{p}", this.perceived.values, other.perceived.values, _percentile(p))
        for p in (50, 90, 95)
    ]
    found.append(difference("perceived mean", this.perceived.values, other.perceived.values, _mean))
    found.append(
        difference("content p50", this.content.values, other.content.values, _percentile(50))
    )
    found += [
        difference(f"{a.stage} p50", a.spent.values, b.spent.values, _percentile(50))
        for a, b in zip(this.stages, other.stages, strict=True)
    ]
    found.append(
        difference("cut-offs per turn", _cutoffs(this), _cutoffs(other), _mean, unit="per turn")
    )
    found.append(
        difference("barge-in stop p50", this.stops.values, other.stops.values, _percentile(50))
    )
    return found


def comparison_rows(differences: Sequence[Difference]) -> list[list[str]]:
    """As text, the heads first."""
    rows = [["compared", "this", "other", "change", "95 % interval", "verdict"]]
    for d in differences:
        show = ms if d.unit == "ms" else _per_turn
        interval = (
            "-" if math.isnan(d.low) else f"{_signed(d.low, d.unit)} to {_signed(d.high, d.unit)}"
        )
        change = "-" if math.isnan(d.change) else _signed(d.change, d.unit)
        rows.append([d.name, show(d.this), show(d.other), change, interval, d.verdict])
    return rows


def comparison_text(differences: Sequence[Difference]) -> str:
    return table(comparison_rows(differences))


def _signed(value: float, unit: str) -> str:
    return f"{value:+,.0f}" if unit == "ms" else f"{value:+.2f}"


def _per_turn(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _cutoffs(report: Report) -> list[float]:
    return [float(row.cut_off) for row in report.turns]


def _resampled(values: Floats, rng: np.random.Generator) -> Floats:
    """Shape [RESAMPLES, n]."""
    return values[rng.integers(0, len(values), (RESAMPLES, len(values)))]


def _percentile(percent: float) -> Statistic:
    def statistic(values: Floats) -> Floats:
        return np.asarray(np.percentile(values, percent, axis=-1))

    return statistic


def _mean(values: Floats) -> Floats:
    return np.asarray(values.mean(axis=-1))
