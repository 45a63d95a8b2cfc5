"""How well a language model serves, whichever it is: figures from the times at which tokens came.

metrics = LlmMetrics(targets)
timer = ReplyTimer(asked_s)             # one for each reply; times of one clock, in seconds
timer.tokens(now_s, n)                  # a step made n tokens of any channel
timer.phrase(now_s)                     # the first speakable phrase is complete
metrics.add(timer.result(stats, heard=True))
metrics.summary().tpot_s.p50
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stages.llm.energy import EnergyMeter
from voicepipe.protocols import ReplyStats

N_REPLIES = 1024
"""Replies over which times are summed up: some hours of a call, an hour of twenty at once."""

MAX_TIMED_STEPS = 1024
"""Of one reply; a spoken one has far fewer. What comes later counts, but its times are not kept."""


@dataclass(frozen=True, slots=True)
class ReplyTimes:
    """One reply, measured. Times are from when it was asked for, nan for what never happened."""

    asked_s: float
    ttft_s: float
    """Time to first token, of any channel."""
    ttfp_s: float
    """Time to first phrase: the first complete speakable one."""
    e2e_s: float
    """To the last token."""
    n_tokens: int
    itl_s: tuple[float, ...]
    """Inter-token latencies: between steps; the further tokens of a step come at no cost."""
    stats: ReplyStats
    heard: bool

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first: (E2E - TTFT) / (n - 1)."""
        return (self.e2e_s - self.ttft_s) / (self.n_tokens - 1) if self.n_tokens > 1 else math.nan

    @property
    def ended_s(self) -> float:
        """When its last token came, on the clock of `asked_s`."""
        return self.asked_s + (self.e2e_s if self.n_tokens else 0.0)


class ReplyTimer:
    """Takes the times of one reply while it is made."""

    def __init__(self, asked_s: float) -> None:
        self._asked_s = asked_s
        self._first_s = self._last_s = self._phrase_s = math.nan
        self.n_tokens = 0
        """That came so far."""
        self._gaps: list[float] = []

    def tokens(self, now_s: float, n: int = 1) -> None:
        """A step made `n` tokens; 0 (a role, an empty event) stops no clock."""
        if n == 0:
            return
        if self.n_tokens == 0:
            self._first_s = now_s
        elif len(self._gaps) < MAX_TIMED_STEPS:
            self._gaps.append(now_s - self._last_s)
        self._last_s = now_s
        self.n_tokens += n

    def phrase(self, now_s: float) -> None:
        """A speakable phrase is complete; only the first counts."""
        if math.isnan(self._phrase_s):
            self._phrase_s = now_s

    def result(self, stats: ReplyStats, *, heard: bool) -> ReplyTimes:
        """`heard`: whether any of it was; the tokens of a reply that was dropped are wasted."""
        return ReplyTimes(
            asked_s=self._asked_s,
            ttft_s=self._first_s - self._asked_s,
            ttfp_s=self._phrase_s - self._asked_s,
            e2e_s=self._last_s - self._asked_s,
            n_tokens=self.n_tokens,
            itl_s=tuple(self._gaps),
            stats=stats,
            heard=heard,
        )


@dataclass(frozen=True, slots=True)
class Targets:
    """The service levels (SLOs) of one reply, in seconds; nothing is asked where infinite, except
    that there be a token and a phrase at all."""

    ttft_s: float = math.inf
    ttfp_s: float = math.inf
    tpot_s: float = math.inf

    def met_by(self, reply: ReplyTimes) -> bool:
        """What never happened meets no target; but one token has no time per further token."""
        tpot_s = reply.tpot_s if reply.n_tokens > 1 else 0.0
        return reply.ttft_s <= self.ttft_s and reply.ttfp_s <= self.ttfp_s and tpot_s <= self.tpot_s


@dataclass(frozen=True)
class Spread:
    """Of the finite ones of some times, in seconds; nan when there are none."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        return cls(tuple(value for value in values if math.isfinite(value)))

    @property
    def n(self) -> int:
        return len(self.values)

    @cached_property
    def p50(self) -> float:
        return self._percentile(50)

    @cached_property
    def p90(self) -> float:
        return self._percentile(90)

    @cached_property
    def p99(self) -> float:
        return self._percentile(99)

    def _percentile(self, percent: float) -> float:
        return float(np.percentile(self.values, percent)) if self.values else math.nan


@dataclass(frozen=True, slots=True)
class Summary:
    """Times of the last `N_REPLIES` replies; counts and rates of all since the beginning. A rate
    of nothing is nan."""

    n_replies: int
    ttft_s: Spread
    ttfp_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread
    acceptance_length: float
    """Tokens of one checking step: 1 + accepted / steps that checked drafts."""
    prefix_hit_rate: float
    """Prompt tokens that needed no computing / all."""
    wasted_ratio: float
    """Tokens generated for replies of which nothing was heard / all."""
    goodput_per_s: float
    """Replies a second that were heard and met every target, over the time of the kept ones."""
    tokens_per_joule: float | None
    """Generated tokens by energy of the processor, of all programs; None where it is not told."""


@dataclass(slots=True)
class _Totals:
    n_replies: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    wasted: int = 0
    accepted: int = 0
    verify_steps: int = 0

    def add(self, reply: ReplyTimes) -> None:
        stats = reply.stats
        self.n_replies += 1
        self.prompt += stats.prompt_tokens
        self.cached += stats.cached_tokens
        self.generated += stats.generated_tokens
        self.wasted += 0 if reply.heard else stats.generated_tokens
        self.accepted += stats.accepted_tokens
        self.verify_steps += stats.verify_steps


@dataclass
class LlmMetrics:
    """Collects replies; may be added to in one thread and summed up in another."""

    targets: Targets = field(default_factory=Targets)
    energy: EnergyMeter | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._replies: deque[ReplyTimes] = deque(maxlen=N_REPLIES)
        self._totals = _Totals()

    def add(self, reply: ReplyTimes) -> None:
        """A reply that is over, whatever became of it."""
        with self._lock:
            self._replies.append(reply)
            self._totals.add(reply)
            if self.energy:
                self.energy.joules()  # often enough for counters that wrap

    def summary(self) -> Summary:
        with self._lock:
            replies, totals = list(self._replies), replace(self._totals)
            joules = self.energy.joules() if self.energy else 0.0
        return Summary(
            n_replies=totals.n_replies,
            ttft_s=Spread.of(reply.ttft_s for reply in replies),
            ttfp_s=Spread.of(reply.ttfp_s for reply in replies),
            tpot_s=Spread.of(reply.tpot_s for reply in replies),
            itl_s=Spread.of(gap for reply in replies for gap in reply.itl_s),
            e2e_s=Spread.of(reply.e2e_s for reply in replies),
            acceptance_length=1.0 + _ratio(totals.accepted, totals.verify_steps),
            prefix_hit_rate=_ratio(totals.cached, totals.prompt),
            wasted_ratio=_ratio(totals.wasted, totals.generated),
            goodput_per_s=_goodput_per_s(replies, self.targets),
            tokens_per_joule=totals.generated / joules if joules else None,
        )


def _goodput_per_s(replies: Sequence[ReplyTimes], targets: Targets) -> float:
    if not replies:
        return math.nan
    from_s = min(reply.asked_s for reply in replies)
    to_s = max(reply.ended_s for reply in replies)
    n_good = sum(reply.heard and targets.met_by(reply) for reply in replies)
    return _ratio(n_good, to_s - from_s)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
