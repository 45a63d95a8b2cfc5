"""What the tests of the server share: a session that answers by rule, and ways to look at it."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.ws_client import AUDIBLE, Heard
from voicepipe import events as ev
from voicepipe.call import MakeSession
from voicepipe.frames import AudioFrame, Pcm
from voicepipe.protocols import Observer, Transport
from voicepipe.server import serve

PATIENCE_S = 20.0
ECHO_DELAY_S = 0.5


class EchoSession:
    """Says a tone of `reply_s`, exactly `ECHO_DELAY_S` after the last loud sample of the caller,
    at the pitch it was spoken to; a typed turn is answered at once."""

    def __init__(
        self, transport: Transport, observers: Sequence[Observer], reply_s: float = 0.2
    ) -> None:
        self._transport = transport
        self._observers = observers
        self._reply_s = reply_s
        self._n_turns = 0

    async def run(self) -> None:
        async with self._transport.open() as frames, asyncio.TaskGroup() as group:
            turn: list[Pcm] = []
            last_loud = 0
            replies: list[asyncio.Task[None]] = []
            async for frame in frames:
                loud = np.flatnonzero(np.abs(frame.samples.astype(int)) > 3_000)
                if len(loud):
                    turn.append(frame.samples)
                    last_loud = frame.start_sample + int(loud[-1])
                elif turn and frame.end_sample - last_loud > 1_600:
                    at_s = (last_loud + 1) / 16_000
                    self.tell(
                        ev.EndOfTurn(t_media_s=at_s, text="beep", speech_end_s=at_s, decided_s=at_s)
                    )
                    replies.append(
                        group.create_task(
                            self.reply(at_s + ECHO_DELAY_S, pitch(np.concatenate(turn), 16_000))
                        )
                    )
                    turn = []
            for reply in replies:
                reply.cancel()

    async def reply(self, at_s: float, hz: float) -> None:
        transport, rate_hz = self._transport, self._transport.output_rate_hz
        self._n_turns += 1
        number = self._n_turns
        n = round(self._reply_s * rate_hz)
        sound = (12_000 * np.cos(2 * np.pi * hz * np.arange(n) / rate_hz)).astype(np.int16)
        for k in range(0, n, rate_hz // 50):
            frame = AudioFrame(sound[k : k + rate_hz // 50], rate_hz, round(at_s * rate_hz) + k)
            await asyncio.sleep(max(0.0, frame.start_s - transport.now_s() - transport.lead_s))
            await transport.play(frame)
        self.tell(ev.FirstAudio(t_media_s=at_s, turn=number))
        await asyncio.sleep(max(0.0, at_s + self._reply_s - transport.now_s()))
        self.tell(
            ev.TurnFinished(
                t_media_s=transport.now_s(),
                turn=number,
                status="completed",
                user_text="beep",
                text=f"{hz:.0f}",
                heard_text=f"{hz:.0f}",
            )
        )

    def type_text(self, text: str) -> None:
        now_s = self._transport.now_s()
        self.tell(
            ev.EndOfTurn(
                t_media_s=now_s, text=text, speech_end_s=now_s, decided_s=now_s, reason="typed"
            )
        )

    def tell(self, event: ev.Event) -> None:
        for observer in self._observers:
            observer(event)


def pitch(samples: Pcm, rate_hz: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), n=rate_hz))
    return float(np.argmax(spectrum))


def beep(hz: float, seconds: float = 0.4) -> Pcm:
    t = np.arange(round(16_000 * seconds)) / 16_000
    return (12_000 * np.cos(2 * np.pi * hz * t)).astype(np.int16)


def timed(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main

    asyncio.run(bounded())


async def until(client: ClientConnection, kind: str) -> dict[str, object]:
    """The next message of that type; others, and audio, are skipped."""
    async for message in client:
        if isinstance(message, str):
            fields = json.loads(message)
            assert isinstance(fields, dict)
            if fields["type"] == kind:
                return fields
    pytest.fail(f"closed before a {kind} came")


@asynccontextmanager
async def client_of(
    make_session: MakeSession = EchoSession, **options: Any
) -> AsyncIterator[ClientConnection]:
    async with serve(make_session, port=0, **options) as port, connect(url(port)) as client:
        assert json.loads(await client.recv())["type"] == "ready"
        yield client


def url(port: int, path: str = "/ws") -> str:
    return f"ws://127.0.0.1:{port}{path}"


def perceived_s(heard: Heard) -> list[float]:
    """From the last sample of each clip to the first audible one of its reply, on the tape."""
    loud = np.abs(heard.agent.astype(int)) >= AUDIBLE
    return [
        (end + int(np.argmax(loud[end:])) - end) / heard.sample_rate_hz for _, end in heard.said_at
    ]


def reply_pitches(heard: Heard) -> set[float]:
    """Of each stretch of sound on the agent's track."""
    loud = np.flatnonzero(np.abs(heard.agent.astype(int)) >= AUDIBLE)
    stretches = np.split(loud, np.flatnonzero(np.diff(loud) > heard.sample_rate_hz // 20) + 1)
    return {
        round(pitch(heard.agent[each[0] : each[-1]], heard.sample_rate_hz), -1)
        for each in stretches
    }


def others() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def becomes_idle(before: set[asyncio.Task[Any]]) -> None:
    """Wait until no task is left that was not there before."""
    while left := others() - before:
        await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
