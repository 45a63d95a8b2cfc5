"""The transport of a WebSocket client, without a socket and in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from voicepipe.clock import VirtualLoop, run_virtual
from voicepipe.errors import UsageError
from voicepipe.frames import AudioFrame, Pcm
from voicepipe.playout import Playout
from voicepipe.transports.outbox import Outbox
from voicepipe.transports.websocket import LEAD_S, WebSocketTransport
from voicepipe.wire import Refused, Wire

Sent = list[tuple[float, str | bytes]]


class Line:
    """A sink that notes when each message left."""

    def __init__(self) -> None:
        self.sent: Sent = []

    async def send(self, message: str | bytes) -> None:
        self.sent.append((asyncio.get_running_loop().time(), message))

    def audio(self) -> list[tuple[float, bytes]]:
        return [(t, m) for t, m in self.sent if isinstance(m, bytes)]


def call(
    scenario: Callable[[WebSocketTransport], Coroutine[Any, Any, None]], *, rate_hz: int = 16_000
) -> Line:
    """Run `scenario` on a transport whose outbox is drained to a line."""

    async def main() -> Line:
        protocol, outbox, line = Wire(), Outbox(), Line()
        protocol.receive(f'{{"type": "start", "sample_rate": {rate_hz}}}')
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.drain(line))
            await scenario(WebSocketTransport(protocol, outbox))
            outbox.close()
        return line

    return run_virtual(main())


def tone(n: int) -> Pcm:
    return np.full(n, 9_000, np.int16)


def test_the_stream_goes_on_in_real_time_and_ends_with_the_client() -> None:
    ends: list[float] = []

    async def scenario(transport: WebSocketTransport) -> None:
        loop = asyncio.get_running_loop()
        transport.heard(tone(320))
        loop.call_later(1.0, transport.hang_up)
        assert not transport.opened.is_set()
        async with transport.open() as frames:
            assert transport.opened.is_set()
            async for frame in frames:
                ends.append(frame.end_s)
                assert transport.now_s() >= frame.end_s - 1e-6
        assert loop.time() == pytest.approx(1.0)

    call(scenario)
    assert ends == pytest.approx([(k + 1) / 100 for k in range(len(ends))])
    assert ends[-1] == pytest.approx(1.0, abs=0.03)


def test_audio_that_waits_while_the_loop_is_held_up_is_not_taken_for_missing() -> None:
    heard: list[AudioFrame] = []

    async def scenario(transport: WebSocketTransport) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        async def microphone() -> None:
            for k in range(100):
                await asyncio.sleep(max(0.0, (k + 1) * 0.02 - loop.time()))
                for _ in range(5):  # on its way from the socket through other tasks
                    await asyncio.sleep(0)
                transport.heard(tone(320))
                if k == 50:
                    loop.jump(0.35)  # something blocks everybody
            transport.hang_up()

        async with transport.open() as frames, asyncio.TaskGroup() as group:
            group.create_task(microphone())
            heard.extend([frame async for frame in frames])

    call(scenario)
    samples = np.concatenate([frame.samples for frame in heard])
    assert samples[np.flatnonzero(samples)[0] :].all()


def test_a_backlog_does_not_keep_others_from_running() -> None:
    heard: list[AudioFrame] = []

    async def scenario(transport: WebSocketTransport) -> None:
        transport.heard(tone(80_000))  # five seconds that are all due
        asyncio.get_running_loop().call_soon(transport.hang_up)
        async with transport.open() as frames:
            heard.extend([frame async for frame in frames])

    call(scenario)
    assert len(heard) < 5


def test_a_flooding_client_is_told() -> None:
    async def scenario(transport: WebSocketTransport) -> None:
        answers = [transport.heard(tone(96_000)) for _ in range(8)]
        assert answers[0] is None
        assert isinstance(answers[-1], Refused)
        assert answers[-1].code == "too_fast"

    call(scenario)


def test_playout_paces_a_fifth_of_a_second_ahead() -> None:
    async def scenario(transport: WebSocketTransport) -> None:
        async with transport.open():
            playout = Playout(transport)
            await asyncio.sleep(0.5)
            for _ in range(100):
                await playout.sleep_until_due(playout.next_start())
                await playout.send(AudioFrame(tone(320), 16_000, playout.next_start()))

    times = [t for t, _ in call(scenario).audio()]
    for k, t in enumerate(times):
        assert t == pytest.approx(max(0.5, 0.5 + k * 0.02 - LEAD_S), abs=0.001)


def test_a_burst_of_frames_is_held_back() -> None:
    async def scenario(transport: WebSocketTransport) -> None:
        async with transport.open():
            for k in range(100):
                await transport.play(AudioFrame(tone(320), 16_000, k * 320))

    audio = call(scenario).audio()
    sent_s = 0.0
    for t, message in audio:
        assert sent_s - t <= LEAD_S + 0.06
        sent_s += len(message) / 32_000
    assert sent_s == pytest.approx(2.0)


def test_a_frame_for_later_is_heard_later() -> None:
    """A client plays at once what it gets: the wait is sent as silence, or waited for."""

    async def scenario(transport: WebSocketTransport) -> None:
        async with transport.open():
            await transport.play(AudioFrame(tone(320), 16_000, 8_000))  # in 500 ms
            await transport.play(AudioFrame(tone(320), 16_000, 8_320 + 1_600))  # a gap of 100 ms

    (t, first), (_, second) = call(scenario).audio()
    samples = np.concatenate([np.frombuffer(m, "<i2") for m in (first, second)])
    loud = np.flatnonzero(samples) + round(t * 16_000)
    assert t == pytest.approx(0.3)
    assert loud[0] == 8_000
    assert loud[320] == 8_320 + 1_600
    assert len(loud) == 640


def test_clear_takes_back_what_was_not_sent_and_says_so() -> None:
    async def scenario(transport: WebSocketTransport) -> None:
        async with transport.open():
            for k in range(5):
                await transport.play(AudioFrame(tone(320), 16_000, k * 320))
            assert transport.clear(0) == 0  # the line had no chance to take anything yet
            await asyncio.sleep(1)
            for k in range(5):
                await transport.play(AudioFrame(tone(320), 16_000, 16_000 + k * 320))
            await asyncio.sleep(0.05)
            assert transport.clear(16_000) == 16_800

    line = call(scenario)
    kinds = ["audio" if isinstance(m, bytes) else m for _, m in line.sent]
    assert kinds == ['{"type": "clear"}', *["audio"] * 5, '{"type": "clear"}']


def test_a_frame_that_waits_while_the_sound_is_cleared_is_not_heard() -> None:
    async def scenario(transport: WebSocketTransport) -> None:
        async with transport.open(), asyncio.TaskGroup() as group:
            group.create_task(transport.play(AudioFrame(tone(320), 16_000, 16_000)))
            await asyncio.sleep(0.1)
            transport.clear(0)

    assert call(scenario).audio() == []


def test_what_was_heard_comes_from_the_clients_reports() -> None:
    async def scenario(transport: WebSocketTransport) -> None:
        async with transport.open():
            await asyncio.sleep(1.0)
            for k in range(10):
                await transport.play(AudioFrame(tone(160), 8_000, 8_000 + k * 160))
            assert transport.heard_until() is None
            await asyncio.sleep(0.1)
            transport.played(400)
            assert transport.heard_until() == 8_400
            await asyncio.sleep(0.05)
            assert transport.heard_until() == 8_800

    call(scenario, rate_hz=8_000)


def test_frames_of_another_rate_are_an_error() -> None:
    async def scenario(transport: WebSocketTransport) -> None:
        assert transport.output_rate_hz == 8_000
        with pytest.raises(UsageError, match="24000 Hz"):
            await transport.play(AudioFrame(tone(320), 24_000, 0))

    call(scenario, rate_hz=8_000)
