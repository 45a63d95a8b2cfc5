"""One reply: one task, with one TaskGroup inside that owns everything made for it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from voicepipe.events import TurnStatus
from voicepipe.frames import AudioFrame
from voicepipe.pipeline import ReplyWatch, StageFailure, StageLimits, speak
from voicepipe.playout import Lease
from voicepipe.protocols import Reply, ReplyStats, TextToSpeech

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """How a turn ended. `heard_text` is the prefix of `text` whose sound was played; `stop_ms` is
    from the caller's first voiced sample to the end of the agent's sound, nan unless a barge-in
    cut it."""

    status: TurnStatus
    text: str
    heard_text: str
    fault: StageFailure | None
    stats: ReplyStats
    stop_ms: float


@dataclass(slots=True)
class Voice:
    """What every turn of a session speaks with."""

    tts: TextToSpeech
    sample_rate_hz: int
    limits: StageLimits = field(default_factory=StageLimits)
    apology: Sequence[AudioFrame] = ()
    """Spoken (from audio made beforehand) when a stage fails in a released turn; () is silence."""


class Turn:
    """One reply to one user text.

    `run` is the turn's task. To end it early set `intent`, revoke the lease, cancel the task and
    wait for it: the owner reads `outcome` afterwards, whatever became of the task. `reply` is set
    by `run`, since it forks the conversation as that stands when the turn really starts.
    """

    def __init__(self, number: int, text: str, lease: Lease, watch: ReplyWatch) -> None:
        self.number = number
        self.text = text
        self.lease = lease
        self.reply: Reply | None = None
        self.committed = not lease.held
        """Whether the caller's turn has ended, so that user text and reply may enter history."""
        self.intent: TurnStatus | None = None
        self.reopened = False
        """The caller went on: the user text lives on in the next turn, this one leaves no trace."""
        self.audible = False
        """Whether its first audible sample went out."""
        self.barged_since_s = math.nan
        """Media time of the first voiced sample of the barge-in that silenced it."""
        self._watch = watch
        self._fault: StageFailure | None = None

    async def run(self, reply: Reply, voice: Voice) -> None:
        """Make the reply and play it; returns once it was heard, or failed and was excused."""
        self.reply = reply
        try:
            await speak(
                reply,
                voice.tts,
                self.lease,
                self._watch,
                sample_rate_hz=voice.sample_rate_hz,
                limits=voice.limits,
            )
        except ExceptionGroup as group:
            self._fault = _first_failure(group)
            log.debug("turn %d failed", self.number, exc_info=group)
        if self._fault and self.committed and voice.apology:
            await self._apologise(voice.apology)

    async def _apologise(self, apology: Sequence[AudioFrame]) -> None:
        """What was made of the reply is played, then the apology, which is no part of its text."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.lease.play())
                for frame in apology:
                    await self.lease.write(replace(frame, text=""))
                self.lease.close()
        except ExceptionGroup as group_error:
            log.debug("turn %d: the apology failed too", self.number, exc_info=group_error)

    @property
    def outcome(self) -> TurnOutcome:
        """Valid once the task is over (or was cancelled before it began)."""
        status = self.intent or ("failed" if self._fault else "completed")
        stopped_s = self.lease.stopped_s
        return TurnOutcome(
            status=status,
            text=self.reply.text if self.reply else "",
            heard_text=self.lease.heard_text,
            fault=self._fault,
            stats=self.reply.stats if self.reply else ReplyStats(),
            stop_ms=math.nan if stopped_s is None else (stopped_s - self.barged_since_s) * 1000,
        )


def _first_failure(group: ExceptionGroup[Exception]) -> StageFailure:
    """The first leaf of the group, as a StageFailure."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, StageFailure):
        return error
    return StageFailure("transport_error", f"{type(error).__name__}: {error}")
