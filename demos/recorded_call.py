"""Recorded callers answered in real time by the whole real pipeline: `voicepipe demo`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path

from voicepipe import events as ev
from voicepipe.assemble import Agent
from voicepipe.clock import wall_time_s
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.recorder import recording
from voicepipe.transports import (
    MemoryTransport,
    RecordedTurn,
    WavTransport,
    call_transport,
    load_call,
)

CALL = Path(__file__).parent / "calls" / "index.jsonl"


class Narrator:
    """Prints a conversation as it happens; an `Observer`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._speech_end_s = 0.0

    def __call__(self, event: ev.Event) -> None:
        match event:
            case ev.EndOfTurn():
                self._speech_end_s = event.speech_end_s
                self._say(f"{event.t_loop_s:7.2f} s  caller  {event.text.strip()}")
            case ev.FirstAudio():
                waited_ms = (event.t_media_s - self._speech_end_s) * 1000
                self._say(f"{event.t_media_s:7.2f} s  agent   starts to speak, {waited_ms:.0f} ms")
            case ev.TurnFinished(status="completed" | "interrupted" | "failed"):
                cut = "" if event.status == "completed" else f"  [{event.status}]"
                self._say(f"{event.t_loop_s:7.2f} s  agent   {event.heard_text.strip()}{cut}")
            case ev.Backchannel() | ev.BargeIn() | ev.TurnReopened():
                self._say(f"{event.t_loop_s:7.2f} s  {type(event).__name__}")
            case ev.Fault():
                self._say(f"{event.t_loop_s:7.2f} s  FAULT   {event.kind}: {event.detail}")


async def play_call(
    transport: MemoryTransport,
    call: Sequence[RecordedTurn],
    agent: Agent,
    directory: Path,
    description: dict[str, object],
    say: Callable[[str], None],
) -> None:
    """Hold the call and record it into `directory`. Raises ComponentError when the recording
    broke off."""
    with recording(directory, transport, description) as (recorded, recorder):
        await agent.session(recorded, [recorder, Narrator(say)]).run()
        recorder.describe({"truth": truth_of(call, transport)})
    if recorder.error is not None:
        raise recorder.error


def truth_of(call: Sequence[RecordedTurn], transport: MemoryTransport) -> list[dict[str, object]]:
    """What was really said and when, in seconds on the call's clock, for the report."""
    return [
        {
            "text": turn.text,
            "kind": turn.kind,
            "speech_start_s": (at + turn.speech_start) / CALLER_RATE_HZ,
            "speech_end_s": (at + turn.speech_end) / CALLER_RATE_HZ,
            "pauses_s": [
                [(at + first) / CALLER_RATE_HZ, (at + last) / CALLER_RATE_HZ]
                for first, last in turn.pauses
            ],
        }
        for turn, at in zip(call, transport.said_at, strict=False)  # a call may end early
    ]


def caller(files: Sequence[Path]) -> tuple[MemoryTransport, list[RecordedTurn]]:
    """The transport for `files` (any audio), or for the recorded call when there are none."""
    if files:
        return WavTransport(*files), []
    call = load_call(CALL)
    return call_transport(call), call


def session_directory(out: Path) -> Path:
    """A folder below `out` named after now, that does not exist yet."""
    moment = datetime.datetime.fromtimestamp(wall_time_s(), datetime.UTC)
    name = moment.strftime("%Y%m%d-%H%M%S")
    candidate, n = out / name, 1
    while candidate.exists():
        n += 1
        candidate = out / f"{name}-{n}"
    return candidate
