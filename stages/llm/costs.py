"""What a step of the model costs, by its rows and threads: measured, and measured again in use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import accumulate

from voicepipe.clock import process_time_s

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Steps that are measured."""

N_TRIES = 3
"""Measurements of each; the fastest counts, since whatever else runs only adds."""

ENOUGH_S = 0.1
"""Time spent on one count after which a single measurement has to do."""

UPDATE = 0.1
"""The weight of a step in use in the estimate: about the last ten matter."""

PROBE_UPDATE = 0.7
"""The weight of a probe, and of the step before it: they decide."""

MOST_SURPRISE = 2.0
"""Other steps count at most this many times as long as expected: the system may have paused."""

FIRST_PROBE, LAST_PROBE = 16, 64
"""Steps between trials of the slower number of threads: doubled when it still is, the first again
when it is not."""

SURPRISE, SURPRISE_PROBE = 1.4, 4
"""After two steps that took so much longer than expected the next one is a trial, but not sooner
after the last."""

WORST_PROBE = 3.0
"""What is expected to take this many times as long is not tried."""


class StepCosts:
    """Seconds of a step by number of rows, piecewise linear between the measured counts."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        if not seconds or min(seconds) < 1 or min(seconds.values()) <= 0:
            raise ValueError(f"no costs of steps: {dict(seconds)}")
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

    def learn(self, n_rows: int, ratio: float, weight: float) -> None:
        """A step with `n_rows` rows took `ratio` times as long as expected."""
        low, high, share = self._between(n_rows)
        share = min(share, 1.0)
        self._seconds[low] *= 1 + weight * (1 - share) * (ratio - 1)
        self._seconds[high] *= 1 + weight * share * (ratio - 1)

    def _between(self, n_rows: int) -> tuple[int, int, float]:
        """Indices of the counts around `n_rows`, and how far it is from the first to the second;
        beyond the largest count the last two are extended."""
        counts = self._counts
        if n_rows <= counts[0] or len(counts) == 1:
            return 0, 0, 0.0
        high = min(bisect_left(counts, n_rows), len(counts) - 1)
        low = high - 1
        return low, high, (n_rows - counts[low]) / (counts[high] - counts[low])


class ThreadCosts:
    """`StepCosts` by number of threads, and which number is fastest now: one for few rows and
    beside busy stages, more for many rows on an idle machine.

    What a step takes beyond what was expected (a long context, say) is expected of every number of
    threads from then on; only a probe, a step with another number, tells them apart.
    """

    def __init__(self, by_threads: Mapping[int, StepCosts]) -> None:
        self._by_threads = dict(by_threads)
        self._interval = FIRST_PROBE
        self._n_probes = self._since_probe = 0
        self._ratios = 1.0, 1.0
        """Time over expected time of the last two steps."""
        self._is_probe = False

    @property
    def table(self) -> dict[int, float]:
        """Seconds by number of rows."""
        counts = next(iter(self._by_threads.values())).table
        return {n: self.of(n) for n in counts}

    def of(self, n_rows: int) -> float:
        """Seconds of a step with `n_rows` rows."""
        return min(costs.of(n_rows) for costs in self._by_threads.values())

    def choose(self, n_rows: int, most: int) -> int:
        """The number of threads for the next step, at most `most`: the fastest, but in a probe."""
        numbers = [n for n in self._by_threads if n <= most]
        fastest = min(numbers, key=lambda n: self._by_threads[n].of(n_rows))
        self._since_probe += 1
        is_surprised = min(self._ratios) > SURPRISE
        is_due = self._since_probe >= (SURPRISE_PROBE if is_surprised else self._interval)
        limit_s = WORST_PROBE * self._by_threads[fastest].of(n_rows)
        others = [n for n in numbers if n != fastest and self._by_threads[n].of(n_rows) < limit_s]
        self._is_probe = is_due and bool(others)
        return others[self._n_probes % len(others)] if self._is_probe else fastest

    def learn(self, n_rows: int, n_threads: int, seconds: float) -> None:
        """The step that `choose` was asked about took `seconds`."""
        costs = self._by_threads[n_threads]
        ratio = seconds / costs.of(n_rows)
        if not self._is_probe:
            self._ratios = self._ratios[1], ratio
            for each in self._by_threads.values():
                each.learn(n_rows, min(ratio, MOST_SURPRISE), UPDATE)
            return
        for each in self._by_threads.values():
            each.learn(n_rows, ratio if each is costs else self._ratios[1], PROBE_UPDATE)
        found = costs.of(n_rows) == self.of(n_rows)
        self._interval = FIRST_PROBE if found else min(2 * self._interval, LAST_PROBE)
        self._n_probes += 1
        self._since_probe, self._ratios = 0, (1.0, 1.0)


def measure(step: Callable[[int], object], largest: int) -> StepCosts:
    """The costs of `step(n_rows)`, for counts up to `largest`."""
    seconds: dict[int, float] = {}
    for n in ROW_COUNTS:
        if n > largest:
            break
        times: list[float] = []
        while len(times) < N_TRIES and sum(times) < ENOUGH_S:
            start_s = process_time_s()
            step(n)
            times.append(process_time_s() - start_s)
        seconds[n] = min(times)
    return StepCosts(seconds)
