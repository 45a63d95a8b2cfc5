"""The caller speaks while the agent does: a listener's "uh-huh", or a wish for the floor?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turn_detection.backchannel import is_backchannel, may_become_backchannel
from turn_detection.caller_turn import CallerTurn
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.wording import normalised

_MS = CALLER_RATE_HZ // 1000


@dataclass(frozen=True, slots=True)
class BargeInConfig:
    """When talking over the agent takes the floor from it.

    There are three steps. The agent *yields* as soon as sound over it is more than a noise: it
    pauses, and after a backchannel goes on at the sample where it paused. (No feature of the first
    200 ms tells "mm-hmm" from "wait", so waiting for words would cost every barge-in 200 ms.) It is
    *silenced* by the first word of an interim transcript that no backchannel begins with, or by
    sound for longer than a short "mm". It is *interrupted*, which cannot be taken back, by words
    that will not change any more.
    """

    yield_ms: int = 200
    """Speech at which the agent yields: with what noticing it takes, it is silent within 300 ms."""

    speech_ms: int = 600
    """Speech without any word yet that silences the agent; its end is noticed 100 ms late, so 500
    ms of sound are not enough."""
    longest_backchannel_ms: int = 900
    """Speech that silences it although all words so far are a backchannel's."""
    mumbled_below: float = 0.4
    """Of a short "mm-hmm" an STT makes words that nobody said, and doubts them: what is no longer
    than a backchannel is no words with less confidence than this. (Whisper tiny.en on the
    development calls: misheard hums 0.19-0.35, short answers 0.44-0.79, barge-ins 0.58-0.89.)"""
    trusted_ms: int = 600
    """Speech after which an interim transcript is trusted enough to interrupt: of less, an STT
    makes words that nobody said,"""
    trusted_words: int = 2
    """if it has this many words."""
    no_words_s: float = 2.0
    """An agent that was silenced, and to whom nobody said a word, goes on after this."""
    reopened_within_s: float = 0.6
    """The caller who speaks up this soon after the reply became audible does not answer it, but
    was cut off by it."""
    reply_awaited_s: float = 5.0
    """For this long after the end of a turn, while no reply is to be heard, what the caller says
    belongs to that turn."""


class Verdict(Enum):
    """What speech over the agent is."""

    BACKCHANNEL = "backchannel"
    """Nothing: the agent goes on at full volume."""
    SILENCE = "silence"
    """Probably a wish for the floor: the agent falls silent until that is certain."""
    INTERRUPT = "interrupt"
    """A wish for the floor: the reply is given up."""


def has_words(turn: CallerTurn, config: BargeInConfig) -> bool:
    """Whether the caller has said anything but a backchannel, for all that is known."""
    short = turn.heard_to - turn.first_voiced <= config.longest_backchannel_ms * _MS
    mumbled = short and turn.confidence < config.mumbled_below
    return bool(turn.heard) and not mumbled and not is_backchannel(turn.heard)


def demands_floor(turn: CallerTurn, config: BargeInConfig) -> bool:
    """Whether the caller has said so, and in words that can be trusted to stay."""
    n_words = len(normalised(turn.heard).split())
    spoken = turn.heard_to - turn.first_voiced
    lasting = n_words >= config.trusted_words and spoken >= config.trusted_ms * _MS
    return (turn.final or lasting) and has_words(turn, config)


@dataclass(slots=True)
class Overlap:
    """Speech over the agent (or between the end of a turn and its reply) not yet understood."""

    reopens: bool
    """It would go on with the turn before rather than begin one."""
    yielded: bool = False
    """The agent has paused."""
    words_only: bool = False
    """Sound has silenced the agent for nothing before: now only words interrupt it."""

    def yields(self, turn: CallerTurn, now: int, config: BargeInConfig) -> bool:
        """Whether the agent should pause now."""
        waits = self.yielded or self.reopens or self.words_only or not turn.speaking
        return not waits and now - turn.first_voiced >= config.yield_ms * _MS

    def verdict(self, turn: CallerTurn, now: int, config: BargeInConfig) -> Verdict | None:
        """Decide, or None for not yet. `now` is the sample index."""
        if demands_floor(turn, config):
            return Verdict.INTERRUPT
        if not turn.speaking:
            return Verdict.BACKCHANNEL if turn.final else None
        if self.words_only:
            return None
        patience_ms = config.longest_backchannel_ms if turn.heard else config.speech_ms
        overdue = now - turn.first_voiced >= patience_ms * _MS
        word = has_words(turn, config) and not may_become_backchannel(turn.heard)
        return Verdict.SILENCE if overdue or word else None
