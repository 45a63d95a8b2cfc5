"""The caller speaks while the agent does: a listener's "uh-huh", or a wish for the floor?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from turn_detection.backchannel import is_backchannel
from turn_detection.caller_turn import CallerTurn
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.wording import normalised

_MS = CALLER_RATE_HZ // 1000


@dataclass(frozen=True, slots=True)
class BargeInConfig:
    """When talking over the agent takes the floor from it."""

    judged_ms: int = 240
    """Speech after which the way it began is judged: with what detecting it and stopping the
    sound take, the agent is silent within 300 ms."""
    taken_from: float = 0.5
    """P(wish for the floor) that stops the agent at once."""
    longest_backchannel_ms: int = 900
    """Speech that goes on for longer takes the floor whatever it is."""
    min_words: int = 2
    """Words of an interim transcript that take it, when they are no backchannel."""
    no_words_s: float = 2.0
    """An agent that was stopped, and to whom nobody said a word, goes on after this."""
    reopened_within_s: float = 0.6
    """The caller who speaks up this soon after the reply became audible does not answer it, but
    was cut off by it."""
    reply_awaited_s: float = 5.0
    """For this long after the end of a turn, while no reply is to be heard, what the caller says
    belongs to that turn."""


class Verdict(Enum):
    """What speech over the agent was."""

    BARGE_IN = "barge-in"
    BACKCHANNEL = "backchannel"


@dataclass(slots=True)
class Overlap:
    """Speech over the agent (or between the end of a turn and its reply) not yet understood."""

    reopens: bool
    """It would go on with the turn before rather than begin one."""
    words_only: bool = False
    """Sound alone has stopped the agent for nothing before: now only words do."""
    wish: float | None = None
    """P(the caller wants the floor) by the sound of the beginning; None before it is judged."""

    def verdict(self, turn: CallerTurn, now: int, config: BargeInConfig) -> Verdict | None:
        """Decide, or None for not yet. `now` is the sample index."""
        n_words = len(normalised(turn.heard).split())
        acknowledges = is_backchannel(turn.heard)
        if n_words and not acknowledges and (n_words >= config.min_words or turn.final):
            return Verdict.BARGE_IN
        if not turn.speaking:
            return Verdict.BACKCHANNEL if turn.final else None
        if self.words_only:
            return None
        spoken = now - turn.first_voiced
        if spoken >= config.longest_backchannel_ms * _MS and not acknowledges:
            return Verdict.BARGE_IN
        return self._by_sound(spoken, config)

    def _by_sound(self, spoken: int, config: BargeInConfig) -> Verdict | None:
        if self.wish is None or spoken < config.judged_ms * _MS:
            return None
        return Verdict.BARGE_IN if self.wish >= config.taken_from else None
