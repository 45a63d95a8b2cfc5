"""One conversation with one caller.

The session owns the floor, the history, at most one live turn (released: it may be heard) and at
most one held turn (made on weak evidence, inaudible). Deciding is synchronous: `_decide` handles
each event as it happens, and whatever must take effect at once (duck, hold, release, revoke) does.
What has to wait for something (ending a task before the next reply forks the conversation) is put
in order on the floor queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from voicepipe import events as ev
from voicepipe.budget import Budget
from voicepipe.errors import UsageError
from voicepipe.floor import Floor, FloorWatch
from voicepipe.history import History
from voicepipe.listening import Listening
from voicepipe.pipeline import StageFailure, StageLimits, spoken
from voicepipe.playout import Playout
from voicepipe.protocols import (
    Conversation,
    LanguageModel,
    Observer,
    SpeechToText,
    TextToSpeech,
    Transport,
    TurnDetection,
)
from voicepipe.turn import Voice

DEFAULT_SYSTEM = (
    "You are a friendly voice assistant on the phone. "
    "Answer in one or two short spoken sentences, without lists or markup."
)

DEFAULT_APOLOGY = "Sorry, something went wrong. Could you say that again?"


@dataclass(frozen=True, slots=True)
class Stages:
    """The models behind a session; shared by all sessions of a process."""

    stt: SpeechToText
    llm: LanguageModel
    tts: TextToSpeech
    turn: TurnDetection


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What differs from one kind of agent to another."""

    system: str = DEFAULT_SYSTEM
    apology: str = DEFAULT_APOLOGY
    """Said when a stage fails in a turn that the caller waits for; "" means silence."""
    limits: StageLimits = field(default_factory=StageLimits)
    budget: Budget = field(default_factory=Budget)


class Session:
    """A conversation over `transport`. `run` it once; it ends when the caller is gone.

    `observers` are called synchronously with every event, in order; they must not raise.
    """

    def __init__(
        self,
        transport: Transport,
        stages: Stages,
        config: SessionConfig | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._transport = transport
        self._stages = stages
        self._config = config or SessionConfig()
        self._observers = tuple(observers)
        self._history = History()
        self._detector = stages.turn.open()
        self._listening = Listening(
            self._detector, stages.stt, stages.turn.end_of_turn_model, self._decide
        )
        self._floor: Floor | None = None
        self._conversation: Conversation | None = None
        self._overlap_since_s = math.nan

    @property
    def history(self) -> History:
        """What was said so far, the agent's side as it was heard."""
        return self._history

    def type_text(self, text: str) -> None:
        """A typed user turn: answered at once, whoever speaks. Raises UsageError when `text` is
        blank or the session does not run."""
        if not text.strip():
            raise UsageError("typed turn: the text is blank: send at least one word")
        now_s = self._transport.now_s()
        self._decide(
            ev.EndOfTurn(
                t_media_s=now_s, text=text, speech_end_s=now_s, decided_s=now_s, reason="typed"
            )
        )

    async def run(self) -> None:
        """Hold the conversation until the transport's caller stream ends."""
        async with (
            self._stages.llm.open(self._config.system) as self._conversation,
            self._transport.open() as frames,
            asyncio.TaskGroup() as group,
        ):
            playout = Playout(self._transport)
            watch = FloorWatch(
                self._decide,
                lambda state: self._listening.take(self._detector.agent(state)),
                lambda ready: self._listening.take(self._detector.pipeline_ready(ready)),
            )
            self._floor = Floor(playout, self._conversation, self._history, watch)
            voice = Voice(self._stages.tts, playout.rate_hz, self._config.limits)
            group.create_task(self._prepare_apology(voice))
            group.create_task(self._floor.run(voice))
            await self._listening.run(frames)
            self._floor.close()

    async def _prepare_apology(self, voice: Voice) -> None:
        """Make the apology's sound while nothing else is wanted; proves that the voice works."""
        if not self._config.apology:
            return
        try:
            voice.apology = await spoken(
                voice.tts, self._config.apology, voice.sample_rate_hz, voice.limits.tts_s
            )
        except StageFailure as failure:
            self._decide(
                ev.Fault(t_media_s=self._transport.now_s(), kind=failure.kind, detail=str(failure))
            )

    # -- deciding ------------------------------------------------------------------------------

    def _decide(self, event: ev.Event) -> None:
        """Publish `event`, then do what follows from it."""
        event = replace(event, t_loop_s=self._transport.now_s())
        for observer in self._observers:
            observer(event)
        floor = self._floor
        if floor is None:
            raise UsageError("session: it does not run yet: await Session.run first")
        match event:
            case ev.SpeechStarted(overlap=True):
                self._overlap_since_s = event.t_media_s
                floor.duck()
            case ev.Transcript():
                self._prefill(event, floor)
            case ev.EagerEndOfTurn():
                floor.prepare(event.text)
            case ev.TurnResumed():
                floor.discard()
            case ev.EndOfTurn():
                floor.commit(event.text)
            case ev.TurnReopened():
                floor.reopen()
            case ev.AgentYielded() | ev.BargeIn(text=""):
                floor.silence(since_s=self._overlap_since_s)
            case ev.BargeIn():
                floor.interrupt(since_s=self._overlap_since_s)
            case ev.Backchannel() | ev.AgentResumed():
                floor.resume()

    def _prefill(self, transcript: ev.Transcript, floor: Floor) -> None:
        """Words that will not change any more go into the KV cache while the caller speaks."""
        if floor.idle and transcript.stable_text and self._conversation is not None:
            self._conversation.extend(transcript.stable_text)
