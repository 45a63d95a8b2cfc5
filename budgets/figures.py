"""Distributions as they are reported."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Distribution:
    """The finite ones of some measured values. Percentiles interpolate linearly; each figure is
    nan when there are no values."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        return cls(tuple(float(value) for value in values if math.isfinite(value)))

    @cached_property
    def _array(self) -> NDArray[np.float64]:
        return np.array(self.values, np.float64)

    @property
    def n(self) -> int:
        return len(self.values)

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self._array, percent)) if self.values else math.nan

    @property
    def mean(self) -> float:
        return float(self._array.mean()) if self.values else math.nan

    def share(self, *, above: float) -> float:
        """Share of the values that exceed a limit, 0..1."""
        return float((self._array > above).mean()) if self.values else math.nan

    def to_json(self) -> dict[str, object]:
        """n, p50, p90, p95, p99 (ms, to 0.1)."""
        return {"n": self.n, **{f"p{p}": tenths(self.percentile(p)) for p in PERCENTILES}}


def tenths(value: float) -> float | None:
    """To 0.1, and null where there is nothing: JSON knows no nan."""
    return round(value, 1) if math.isfinite(value) else None


def share(value: float) -> float | None:
    """A ratio to four digits."""
    return round(value, 4) if math.isfinite(value) else None


def ratio(part: float, whole: float) -> float:
    """nan when there is no whole."""
    return part / whole if whole else math.nan
