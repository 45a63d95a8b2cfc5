"""How sure it is that the turn is over, and how sure one has to be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from turn_detection.caller_turn import CallerTurn, seconds
from turn_detection.wording import Ending
from voicepipe.frames import CALLER_RATE_HZ

Reason = Literal["score", "timeout"]
"""Why a turn is over; see `events.EndOfTurn`."""

_SHORTEST_S = 0.1
"""Silence below this says nothing; keeps the logarithm finite."""


@dataclass(frozen=True, slots=True)
class EndScore:
    """q = sigmoid(audio * logit(p) + log_silence * ln(silence in s) + what the ending adds).

    q grows with silence, so one threshold on it is a threshold on p that falls with silence: after
    words that could be all, p = 0.98 is enough at 0.4 s, 0.9 at 0.53 s, 0.5 at 0.76 s and 0.1 at
    1.1 s; after words that end open p = 0.99 at 2.2 s.

    Provenance: a-posteriori estimate on half of the project's development calls (31 ends of
    synthetic callers, 32 of human ones, 6 hesitations; p by Smart Turn v3.2 every 100 ms, words by
    whisper tiny.en), around a prior set by hand so that p = 0.97 waits as long as people do before
    they answer a complete sentence. The prior dominates, on purpose: in such data hesitations never
    follow words that could be all, so it cannot tell how dangerous it is to be quick there.
    `python -m benchmarks.turn_fit` repeats the estimate.
    """

    audio: float = 0.5
    log_silence: float = 3.0
    complete: float = 2.2
    open: float = 0.0
    unfinished: float = -3.3

    def probability(self, p_audio: float, silence_s: float, end: Ending) -> float:
        """P(the turn is over). `p_audio` is nan when no model has judged: it then has no say."""
        words = {
            Ending.COMPLETE: self.complete,
            Ending.OPEN: self.open,
            Ending.UNFINISHED: self.unfinished,
        }
        z = self.log_silence * math.log(max(_SHORTEST_S, silence_s)) + words[end]
        if not math.isnan(p_audio):
            p = min(1 - 1e-3, max(1e-3, p_audio))
            z += self.audio * math.log(p / (1 - p))
        return 1.0 / (1.0 + math.exp(-z))


@dataclass(frozen=True, slots=True)
class PauseConfig:
    """How long to wait in a pause, and for what."""

    score: EndScore = field(default_factory=EndScore)
    first_score_s: float = 0.1
    """Silence at which the end-of-turn model is first asked; then, while the end is undecided,
    every `score_every_s`: it costs a core that the reply could use."""
    score_every_s: float = 0.2
    eager_from: float = 0.3
    stable_text_s: float = 0.15
    """An interim transcript that has not changed for this long is good enough to prepare for."""
    max_eager: int = 3
    """Preparations for one turn; a caller who stops and starts is answered when certain."""
    max_eager_turn_s: float = 10.0
    commit_from: float = 0.8
    ready_patience_s: float = 0.7
    """While the held reply has no sound yet, waiting costs nothing: the score is not acted on
    before this much silence."""
    longest_s: float = 1.5
    """T_max: silence that ends any turn with words in it,"""
    longest_unfinished_s: float = 3.0
    """unless the words end open or in a hesitation, a conjunction, a run of digits."""
    stt_patience_s: float = 2.0
    """After a pause for its final transcript; then the STT counts as silent."""


class PauseRules:
    """What follows from the state of a pause. Pure: the same turn and time, the same answer."""

    def __init__(self, config: PauseConfig) -> None:
        self.config = config

    def over(self, turn: CallerTurn, now: int) -> float:
        """P(the turn is over), by all that is known now."""
        silence_s = seconds(turn.silence(now))
        return self.config.score.probability(turn.probability, silence_s, turn.ending)

    def longest_s(self, turn: CallerTurn) -> float:
        """T_max of this turn."""
        unfinished = turn.ending is Ending.UNFINISHED
        return self.config.longest_unfinished_s if unfinished else self.config.longest_s

    @property
    def first_score(self) -> int:
        """Silence, in samples, at which the end-of-turn model is first asked."""
        return round(self.config.first_score_s * CALLER_RATE_HZ)

    def stt_overdue(self, turn: CallerTurn, now: int) -> bool:
        """Whether the final transcript of this pause has been awaited for too long."""
        waited = now - turn.paused_at
        missing = not turn.speaking and not turn.final
        return missing and waited >= self.config.stt_patience_s * CALLER_RATE_HZ

    def score_due(self, turn: CallerTurn, now: int) -> bool:
        """Whether the end-of-turn model should be asked about the audio up to `now`; if so, sets
        when next."""
        undecided = not turn.speaking and turn.decided_at is None
        if not undecided or now < turn.next_score_at:
            return False
        turn.next_score_at = now + round(self.config.score_every_s * CALLER_RATE_HZ)
        return True

    def may_prepare(self, turn: CallerTurn, now: int) -> bool:
        """Whether a reply to the text so far is worth preparing, inaudibly."""
        config = self.config
        settled = turn.final or (
            turn.covers_pause() and now - turn.heard_at >= config.stable_text_s * CALLER_RATE_HZ
        )
        return (
            bool(turn.text)
            and settled
            and turn.n_eager < config.max_eager
            and seconds(turn.last_voiced - turn.audio_from) <= config.max_eager_turn_s
            and (self._sounds_complete(turn) or self.over(turn, now) >= config.eager_from)
        )

    def _sounds_complete(self, turn: CallerTurn) -> bool:
        """The first final of a turn that reads like a whole sentence: the chances are good enough
        to prepare before the end-of-turn model has spoken, which takes longer than the words."""
        return turn.final and turn.n_eager == 0 and turn.ending is Ending.COMPLETE

    def ended(self, turn: CallerTurn, now: int, *, sound_ready: bool) -> Reason | None:
        """Whether the turn is over, by score or by T_max. `sound_ready` is false while a held
        reply is being made: then the score waits, for that is free. Keeps in `turn.decided_at`
        since when the score has stood, so that waiting for text or sound is not mistaken for
        deciding."""
        silence = turn.silence(now)
        if silence >= self.longest_s(turn) * CALLER_RATE_HZ:
            turn.decided_at = turn.decided_at or now
            return "timeout"
        if self.over(turn, now) < self.config.commit_from:
            turn.decided_at = None
            return None
        turn.decided_at = turn.decided_at or now
        if sound_ready or silence >= self.config.ready_patience_s * CALLER_RATE_HZ:
            return "score"
        return None
