"""Whole conversations in virtual time, with scripted stages: for tests of the session."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stages.llm import ScriptedLLM
from stages.stt.scripted import Line, ScriptedSTT
from stages.tts import ScriptedTTS
from turn_detection import Endpointing, ScriptedEndOfTurn, ScriptedVAD
from voicepipe import Session, SessionConfig, Stages
from voicepipe import events as ev
from voicepipe.clock import run_virtual
from voicepipe.frames import CALLER_RATE_HZ, Pcm
from voicepipe.history import Message
from voicepipe.protocols import LanguageModel, SpeechToText, TextToSpeech, TurnDetection
from voicepipe.transports import CallerTurn, Cue, MemoryTransport

REPLY = "Well, that is a very good question, and here is a long answer to it, just for you."


def voiced(seconds: float) -> Pcm:
    """Noise as loud as speech."""
    noise = np.random.default_rng(7).normal(0, 3000, round(seconds * CALLER_RATE_HZ))
    return np.clip(noise, -32768, 32767).astype(np.int16)


def silent(seconds: float) -> Pcm:
    return np.zeros(round(seconds * CALLER_RATE_HZ), np.int16)


def says(seconds: float = 1.0, cue: Cue | None = None, *, expects_reply: bool = True) -> CallerTurn:
    """A caller turn without a pause."""
    return CallerTurn(voiced(seconds), cue or Cue(), expects_reply)


def hesitates(before_s: float, gap_s: float, after_s: float) -> CallerTurn:
    """A caller turn with a pause inside."""
    return CallerTurn(np.concatenate([voiced(before_s), silent(gap_s), voiced(after_s)]))


def scripted(
    lines: Sequence[Line] = ("What is the time?",),
    *,
    stt: SpeechToText | None = None,
    llm: LanguageModel | None = None,
    tts: TextToSpeech | None = None,
    turn: TurnDetection | None = None,
) -> Stages:
    """Stages without models: the caller says `lines`, the agent answers `REPLY`."""
    return Stages(
        stt=stt or ScriptedSTT(lines),
        llm=llm or ScriptedLLM([REPLY]),
        tts=tts or ScriptedTTS(first_audio_ms=80),
        turn=turn or Endpointing(ScriptedEndOfTurn(), vad=ScriptedVAD()),
    )


@dataclass(frozen=True)
class Call:
    """What became of a conversation."""

    events: Sequence[ev.Event]
    history: Sequence[Message]
    transport: MemoryTransport
    n_tasks_left: int
    n_generators_left: int
    """Async generators that are still suspended somewhere."""

    def of(self, kind: type[ev.Event]) -> list[ev.Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def finished(self) -> list[ev.TurnFinished]:
        return [event for event in self.events if isinstance(event, ev.TurnFinished)]

    @property
    def faults(self) -> list[str]:
        return [event.kind for event in self.events if isinstance(event, ev.Fault)]


def converse(
    turns: Sequence[CallerTurn],
    stages: Stages | None = None,
    config: SessionConfig | None = None,
    during: Callable[[Session], object] | None = None,
    transport: MemoryTransport | None = None,
) -> Call:
    """Hold the conversation to its end; `during` is called once the session runs."""
    transport = transport or MemoryTransport(turns)

    async def main() -> Call:
        events: list[ev.Event] = []
        made: list[AsyncGenerator[object, None]] = []
        hooks = sys.get_asyncgen_hooks()

        def note(generator: AsyncGenerator[object, None]) -> None:
            made.append(generator)
            if hooks.firstiter is not None:
                hooks.firstiter(generator)

        sys.set_asyncgen_hooks(firstiter=note)
        session = Session(transport, stages or scripted(), config, [events.append])
        async with asyncio.TaskGroup() as group:
            running = group.create_task(session.run())
            await asyncio.sleep(0.1)
            if during is not None:
                during(session)
            await running
        return Call(
            events,
            session.history.messages,
            transport,
            n_tasks_left=len(asyncio.all_tasks()) - 1,
            n_generators_left=sum(map(_is_suspended, made)),
        )

    return run_virtual(main())


def _is_suspended(generator: AsyncGenerator[object, None]) -> bool:
    return isinstance(generator, types.AsyncGeneratorType) and generator.ag_frame is not None
