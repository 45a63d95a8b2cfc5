"""eot-bench's way of judging end-of-turn detectors: how often a caller is cut off in a pause, at a
given mean wait after a true end.

A detector gives a probability for each 0.1 s of a pause. It fires at the first one above a
threshold; it then acts, but not before `action_delay_s`, and in any case at `timeout_s`. A hold of
length d is cut off when d exceeds the moment of acting; a true end waits until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.turn_corpus import GRID_S, Pause

Floats = NDArray[np.float64]

THRESHOLDS = np.arange(0.0, 1.0001, 0.01)
ACTION_DELAYS_S = np.arange(0.2, 1.0001, 0.1)
TIMEOUTS_S = np.arange(1.0, 3.5001, 0.5)

N_BOOTSTRAP = 1000


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run a detector."""

    threshold: float
    action_delay_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Detector:
    """`score(pause, silence_s)` is the probability that the turn is over."""

    name: str
    score: Callable[[Pause, float], float]
    settings: tuple[Setting, ...]


def settings() -> tuple[Setting, ...]:
    """eot-bench's sweep."""
    return tuple(
        Setting(float(threshold), float(delay), float(timeout))
        for threshold in THRESHOLDS
        for delay in ACTION_DELAYS_S
        for timeout in TIMEOUTS_S
    )


def timer(name: str) -> Detector:
    """Silence alone."""
    delays = np.arange(0.2, 3.5001, 0.05)
    sweep = tuple(Setting(0.0, float(delay), 3.5) for delay in delays)
    return Detector(name, lambda _pause, _silence_s: 1.0, sweep)


def acts_s(detector: Detector, pauses: Sequence[Pause]) -> Floats:
    """When it acts in each pause, under each of its settings: [n_settings, n_pauses]."""
    thresholds = np.array([s.threshold for s in detector.settings])
    delays = np.array([s.action_delay_s for s in detector.settings])
    timeouts = np.array([s.timeout_s for s in detector.settings])
    grid_s = np.arange(1, round(TIMEOUTS_S[-1] / GRID_S) + 1) * GRID_S
    acts = np.empty((len(detector.settings), len(pauses)))
    for n, pause in enumerate(pauses):
        scores = np.array([detector.score(pause, silence_s) for silence_s in grid_s])
        above = scores[None, :] > THRESHOLDS[:, None]
        fires = np.where(above.any(axis=1), grid_s[above.argmax(axis=1)], np.inf)
        fire = fires[np.rint(thresholds / 0.01).astype(int)]
        acts[:, n] = np.minimum(np.maximum(delays, fire), timeouts)
    return acts


@dataclass(frozen=True, slots=True)
class Outcome:
    """A detector on some pauses, setting by setting."""

    cut_off: NDArray[np.bool_]
    """[n_settings, n_holds]"""
    wait_s: Floats
    """[n_settings, n_ends]"""
    hold_turns: tuple[str, ...]
    end_turns: tuple[str, ...]

    @property
    def cut_off_rate(self) -> Floats:
        """Of the pauses, by setting."""
        rates: Floats = self.cut_off.mean(axis=1)
        return rates

    def per_turn(self, setting: int) -> float:
        """Share of turns in which the caller was cut off."""
        cut = {t for t, c in zip(self.hold_turns, self.cut_off[setting], strict=True) if c}
        return len(cut) / len(set(self.end_turns))


def judge(detector: Detector, pauses: Sequence[Pause]) -> Outcome:
    """Run every setting on every pause."""
    acts = acts_s(detector, pauses)
    holds = np.array([pause.hold for pause in pauses])
    lengths = np.array([pause.length_s for pause in pauses if pause.hold])
    return Outcome(
        cut_off=lengths[None, :] > acts[:, holds],
        wait_s=acts[:, ~holds],
        hold_turns=tuple(p.clip.name for p in pauses if p.hold),
        end_turns=tuple(p.clip.name for p in pauses if not p.hold),
    )


def best_within(outcome: Outcome, mean_wait_s: float) -> int | None:
    """The setting that cuts off least among those that wait no longer on average; of several, the
    most patient: the budget is there to be used, and what saw no cut-off may yet meet one."""
    waits = outcome.wait_s.mean(axis=1)
    allowed = np.flatnonzero(waits <= mean_wait_s + 1e-9)
    if len(allowed) == 0:
        return None
    order = np.lexsort((-waits[allowed], outcome.cut_off_rate[allowed]))
    return int(allowed[order[0]])


def fastest_within(outcome: Outcome, cut_off_rate: float) -> int | None:
    """The setting that waits least among those that cut off no more often."""
    allowed = np.flatnonzero(outcome.cut_off_rate <= cut_off_rate + 1e-9)
    if len(allowed) == 0:
        return None
    return int(allowed[outcome.wait_s.mean(axis=1)[allowed].argmin()])


def interval(outcome: Outcome, setting: int, *, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the cut-off rate, drawing whole turns."""
    rng = np.random.default_rng(seed)
    turns = sorted(set(outcome.hold_turns))
    members = [[i for i, t in enumerate(outcome.hold_turns) if t == turn] for turn in turns]
    cut = outcome.cut_off[setting]
    rates = []
    for _ in range(N_BOOTSTRAP):
        drawn = [i for k in rng.integers(0, len(turns), len(turns)) for i in members[k]]
        rates.append(cut[drawn].mean())
    low, high = np.percentile(rates, [2.5, 97.5])
    return float(low), float(high)
