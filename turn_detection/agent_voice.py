"""What turn detection knows of the agent: whether it sounds, and to which turn of the caller's."""

from __future__ import annotations

from dataclasses import dataclass

from turn_detection.barge_in import BargeInConfig
from turn_detection.caller_turn import CallerTurn, sample_of
from voicepipe.events import Transcript
from voicepipe.frames import CALLER_RATE_HZ


@dataclass(slots=True)
class CommittedTurn:
    """The caller's turn that ended last. Positions are 16 kHz samples."""

    text: str
    audio_from: int
    first_voiced: int
    at: int
    """When its end was decided."""
    reply_at: int | None = None
    """When the reply to it became audible."""

    def contains(self, transcript: Transcript) -> bool:
        """Whether a transcript that comes only now is about this turn."""
        began_before = 0 < sample_of(transcript.start_s) <= self.first_voiced
        return began_before or sample_of(transcript.end_s) <= self.at


@dataclass(slots=True)
class AgentVoice:
    """The agent's side of the floor."""

    speaking: bool = False
    """Its sound flows, or is held back only by a barge-in that is not confirmed."""
    silenced_at: int | None = None
    """Since when a barge-in without words has stopped it."""
    false_stops: int = 0
    """How often that was for nothing since it began to speak."""
    answers: CommittedTurn | None = None

    @property
    def audible(self) -> bool:
        return self.speaking and self.silenced_at is None

    def begin(self, at: int) -> None:
        """Its sound begins to flow at sample `at`."""
        self.speaking = True
        self.false_stops = 0
        if self.answers is not None and self.answers.reply_at is None:
            self.answers.reply_at = at

    def end(self) -> None:
        """Its sound has ended, or was given up."""
        self.speaking = False
        self.silenced_at = None

    def resume(self) -> None:
        """It was stopped for nothing and goes on."""
        self.silenced_at = None
        self.false_stops += 1

    def commit(self, turn: CallerTurn, now: int) -> None:
        """The caller's turn is over and will be answered."""
        self.answers = CommittedTurn(turn.text, turn.audio_from, turn.first_voiced, now)

    def was_too_early(self, at: int, config: BargeInConfig) -> bool:
        """Whether a caller who speaks up at sample `at` goes on with the turn that is being
        answered, for the reply has hardly begun."""
        turn = self.answers
        if turn is None:
            return False
        if turn.reply_at is None:
            return at - turn.at <= config.reply_awaited_s * CALLER_RATE_HZ
        heard_of_it = at - turn.reply_at
        return self.speaking and heard_of_it <= config.reopened_within_s * CALLER_RATE_HZ
