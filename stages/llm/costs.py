"""What a step of the model costs, by its number of rows: measured, and measured again in use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate

from voicepipe.clock import process_time_s

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Steps that are measured."""

N_TRIES = 3
"""Measurements of each; the fastest counts, since whatever else runs only adds."""

ENOUGH_S = 0.1
"""Time spent on one count after which a single measurement has to do."""

UPDATE = 0.05
"""The weight of a step in use in the estimate: about the last twenty matter."""

MOST_SURPRISE = 2.0
"""A step in use counts at most this many times as long as expected: the system may have paused."""


class StepCosts:
    """Seconds of a step by number of rows, piecewise linear between the measured counts."""

    def __init__(self, seconds: dict[int, float]) -> None:
        if not seconds or min(seconds) < 1 or min(seconds.values()) <= 0:
            raise ValueError(f"no costs of steps: {seconds}")
        self._counts = sorted(seconds)
        self._seconds = list(accumulate((seconds[n] for n in self._counts), max))

    @property
    def table(self) -> dict[int, float]:
        """Seconds by number of rows, as known now."""
        return dict(zip(self._counts, self._seconds, strict=True))

    def of(self, n_rows: int) -> float:
        """Seconds of a step with `n_rows` rows."""
        low, high, share = self._between(n_rows)
        first_s, second_s = self._seconds[low], self._seconds[high]
        return first_s + max(second_s - first_s, 0.0) * share

    def learn(self, n_rows: int, seconds: float) -> None:
        """A step with `n_rows` rows took `seconds`."""
        ratio = min(seconds / self.of(n_rows), MOST_SURPRISE)
        low, high, share = self._between(n_rows)
        share = min(share, 1.0)
        self._seconds[low] *= 1 + UPDATE * (1 - share) * (ratio - 1)
        self._seconds[high] *= 1 + UPDATE * share * (ratio - 1)

    def _between(self, n_rows: int) -> tuple[int, int, float]:
        """Indices of the counts around `n_rows`, and how far it is from the first to the second;
        beyond the largest count the last two are extended."""
        counts = self._counts
        if n_rows <= counts[0] or len(counts) == 1:
            return 0, 0, 0.0
        high = min(bisect_left(counts, n_rows), len(counts) - 1)
        low = high - 1
        return low, high, (n_rows - counts[low]) / (counts[high] - counts[low])


def measure(step: Callable[[int], object], largest: int) -> StepCosts:
    """The costs of `step(n_rows)`, for counts up to `largest`."""
    seconds: dict[int, float] = {}
    for n in ROW_COUNTS:
        if n > largest:
            break
        times = []
        for _ in range(N_TRIES):
            start_s = process_time_s()
            step(n)
            times.append(process_time_s() - start_s)
            if sum(times) > ENOUGH_S:
                break
        seconds[n] = min(times)
    return StepCosts(seconds)
