"""One client's call over real sockets on loopback, with a session that answers by rule."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.served import (
    ECHO_DELAY_S,
    EchoSession,
    becomes_idle,
    beep,
    client_of,
    others,
    perceived_s,
    reply_pitches,
    timed,
    until,
    url,
)
from tests.ws_client import converse
from voicepipe import events as ev
from voicepipe import wire
from voicepipe.call import Call, CallLimits, ServedSession
from voicepipe.clock import run_virtual
from voicepipe.errors import ComponentError
from voicepipe.frames import AudioFrame
from voicepipe.protocols import Observer, Transport
from voicepipe.server import serve
from voicepipe.transports import CallerTurn, Cue
from voicepipe.transports.outbox import PATIENCE_S

# -- the conversation ----------------------------------------------------------------------------


def test_the_clients_own_clock_finds_the_known_delay() -> None:
    """The instrument: last sample said to first sample heard, on the client's tape, is what the
    session meant, to 20 ms over loopback. Judged by the best of five turns: a busy machine delays
    one or the other, an error of a clock would show in all."""

    async def main() -> None:
        turns = [CallerTurn(beep(500, 0.2), Cue("agent_silence", 100)) for _ in range(5)]
        async with serve(EchoSession, port=0) as port, asyncio.TaskGroup() as group:
            calls = [
                group.create_task(
                    converse(url(port), turns, sample_rate_hz=hz, patience_s=3.0, hang_up_s=0.2)
                )
                for hz in (8_000, 16_000, 48_000)
            ]
        for heard in (call.result() for call in calls):
            assert min(perceived_s(heard)) == pytest.approx(ECHO_DELAY_S, abs=0.02)
            finals = [m["text"] for m in heard.of_type("transcript") if m["final"]]
            assert finals == ["beep", "500"] * 5
            assert heard.of_type("error") == []

    timed(main())


def test_two_clients_at_once_hear_only_their_own_agent() -> None:
    async def main() -> None:
        async with serve(EchoSession, port=0) as port, asyncio.TaskGroup() as group:
            calls = {
                hz: group.create_task(
                    converse(
                        url(port),
                        [CallerTurn(beep(hz, 0.2), Cue("agent_silence", hz / 10))] * 2,
                        sample_rate_hz=rate_hz,
                        patience_s=3.0,
                        hang_up_s=0.2,
                    )
                )
                for hz, rate_hz in ((500, 16_000), (900, 24_000))
            }
        for hz, call in calls.items():
            heard = call.result()
            spoken = [m["text"] for m in heard.of_type("transcript") if m["role"] == "agent"]
            assert {round(float(str(text)), -1) for text in spoken} == {hz}
            assert reply_pitches(heard) == {hz}
            assert len(heard.said_at) == len(spoken) == 2

    timed(main())


def test_state_transcript_event_and_turn_are_sent_in_order() -> None:
    class Ledger:
        def feed(self, event: ev.Event) -> dict[str, object] | None:
            return {"turn": event.turn} if isinstance(event, ev.TurnFinished) else None

    async def main() -> None:
        async with serve(EchoSession, port=0, ledger_of=Ledger) as port:
            heard = await converse(
                url(port), [CallerTurn(beep(500))], patience_s=3.0, hang_up_s=0.3
            )
        kinds = [
            message.get("state") or message["type"]
            for _, message in heard.messages
            if message["type"] != "event"
        ]
        assert kinds == [
            "ready",
            "listening",
            "transcript",
            "thinking",
            "speaking",
            "transcript",
            "listening",
            "turn",
        ]
        assert heard.of_type("turn") == [{"type": "turn", "ledger": {"turn": 1}}]
        happened = [message["event"] for message in heard.of_type("event")]
        assert [event["type"] for event in happened if isinstance(event, dict)] == [
            "EndOfTurn",
            "FirstAudio",
            "TurnFinished",
        ]

    timed(main())


def test_a_typed_turn_needs_no_audio() -> None:
    async def main() -> None:
        async with client_of() as client:
            await client.send('{"type": "text", "text": "Hello there"}')
            said = await until(client, "transcript")
            assert said == {
                "type": "transcript",
                "role": "user",
                "text": "Hello there",
                "final": True,
            }

    timed(main())


def test_clear_reaches_the_client() -> None:
    class Hasty(EchoSession):
        def type_text(self, text: str) -> None:
            self._transport.clear(0)

    async def main() -> None:
        async with client_of(Hasty) as client:
            await client.send('{"type": "text", "text": "stop"}')
            assert await until(client, "clear") == {"type": "clear"}

    timed(main())


def test_playback_reports_reach_the_transport() -> None:
    reported = asyncio.Event()

    class Asking(EchoSession):
        async def run(self) -> None:
            async with self._transport.open() as frames:
                await self._transport.play(AudioFrame(beep(500), 16_000, 0))
                async for _ in frames:
                    if self._transport.heard_until() is not None:
                        reported.set()

    async def main() -> None:
        async with client_of(Asking) as client:
            await client.send(bytes(640))
            while isinstance(await client.recv(), str):
                pass
            await client.send('{"type": "playback", "played_samples": 100}')
            await reported.wait()

    timed(main())


# -- what a client may do wrong ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "bad_json"),
        ("[1]", "bad_json"),
        ("{}", "bad_message"),
        (b"\1\2\3", "odd_bytes"),
        (bytes(wire.MAX_MESSAGE_BYTES + 2), "too_large"),
        ('{"type": "start", "sample_rate": 1}', "bad_rate"),
        ('{"type": "start", "session": "../x"}', "bad_session"),
        ('{"type": "playback", "played_samples": 1}', "bad_playback"),
        ('{"type": "text", "text": ""}', "bad_text"),
    ],
)
def test_a_malformed_message_gets_an_error_and_the_call_goes_on(
    message: str | bytes, code: str
) -> None:
    async def main() -> None:
        async with client_of() as client:
            await client.send(message)
            error = await until(client, "error")
            assert (error["code"], error["fatal"]) == (code, False)
            await client.send('{"type": "start"}')
            await client.send('{"type": "text", "text": "still there?"}')
            assert (await until(client, "transcript"))["text"] == "still there?"

    timed(main())


def test_a_message_beyond_reading_closes_the_connection() -> None:
    async def main() -> None:
        async with client_of() as client:
            await client.send(bytes(2 << 20))
            with pytest.raises(ConnectionClosed) as closed:
                await until(client, "error")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009

    timed(main())


def test_random_messages_leave_the_server_standing() -> None:
    async def main() -> None:
        random = np.random.default_rng(3)
        async with serve(EchoSession, port=0) as port:
            async with connect(url(port)) as client:
                for _ in range(300):
                    junk = random.bytes(int(random.integers(0, 200)))
                    await client.send(junk if random.random() < 0.5 else junk.decode("latin-1"))
                await client.send('{"type": "end"}')
                async for _ in client:
                    pass
                assert client.close_code == 1000
            async with connect(url(port)) as client:
                await client.send('{"type": "text", "text": "hello"}')
                await until(client, "transcript")

    timed(main())


# -- ends ----------------------------------------------------------------------------------------


def test_end_lets_the_session_end_by_itself() -> None:
    ended: list[bool] = []

    class Tidy(EchoSession):
        async def run(self) -> None:
            await super().run()
            ended.append(True)

    async def main() -> None:
        async with client_of(Tidy) as client:
            await client.send(bytes(640))
            await until(client, "state")
            await client.send('{"type": "end"}')
            async for _ in client:
                pass
            assert client.close_code == 1000
        assert ended == [True]

    timed(main())


def test_a_client_that_vanishes_mid_reply_leaves_nothing_running() -> None:
    class LongWinded(EchoSession):
        def __init__(self, transport: Transport, observers: Sequence[Observer]) -> None:
            super().__init__(transport, observers, reply_s=60.0)

    async def main() -> None:
        async with serve(LongWinded, port=0) as port:
            before, threads = others(), threading.active_count()
            client = await connect(url(port))
            loud, quiet = beep(500).tobytes(), bytes(6_400)
            await client.send(loud)
            await client.send(quiet)
            while not isinstance(await client.recv(), bytes):
                await client.send(quiet)
            client.transport.abort()
            await becomes_idle(before)
            assert threading.active_count() == threads

    timed(main())


def test_a_session_that_will_not_end_is_cancelled() -> None:
    cancelled: list[bool] = []

    class Deaf(EchoSession):
        async def run(self) -> None:
            async with self._transport.open():
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(True)
                    raise

    async def main() -> None:
        async with client_of(Deaf, limits=CallLimits(goodbye_s=0.1)) as client:
            await client.send(bytes(640))
            await until(client, "state")
            await client.send('{"type": "end"}')
            async for _ in client:
                pass
        assert cancelled == [True]

    timed(main())


def test_a_client_that_does_not_read_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    class Flooding(EchoSession):
        async def run(self) -> None:
            async with self._transport.open() as frames:
                async for _ in frames:
                    for _ in range(10):
                        self.tell(ev.Fault(t_media_s=0.0, kind="noise", detail="x" * 1_000))

    async def main() -> None:
        async with serve(Flooding, port=0) as port:
            before = others()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            writer.write(
                b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                + key.encode()
                + b"\r\n"
                + b"\x82\x82\0\0\0\0\0\0"  # one sample of audio, and never a read
            )
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await becomes_idle(before)
            writer.transport.abort()

    timed(main())
    assert any("client too slow, dropped" in record.message for record in caplog.records)


def test_a_dead_socket_ends_the_call_in_bounded_time() -> None:
    class Dead:
        """Said one thing once; takes nothing and does not even close."""

        async def __aiter__(self) -> AsyncIterator[str | bytes]:
            yield bytes(640)
            await asyncio.Event().wait()

        async def send(self, message: str | bytes) -> None:
            await asyncio.Event().wait()

        async def close(self, code: int = 1000, reason: str = "") -> None:
            await asyncio.Event().wait()

    async def main() -> float:
        await Call("1", EchoSession).run(Dead())
        assert others() == set()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) <= 3 * PATIENCE_S


def test_a_session_that_breaks_tells_the_client_and_spares_the_others() -> None:
    def fragile(transport: Transport, observers: Sequence[Observer]) -> ServedSession:
        raise ComponentError("recording: the disk is full: free some space")

    class Breaking(EchoSession):
        async def run(self) -> None:
            raise RuntimeError("secret detail")

    async def main() -> None:
        for make_session, text in ((fragile, "disk is full"), (Breaking, "internal error")):
            async with client_of(make_session) as client:
                await client.send(bytes(640))
                error = await until(client, "error")
                assert (error["code"], error["fatal"]) == ("session_failed", True)
                assert text in str(error["message"])
                assert "secret" not in str(error["message"])
                await client.wait_closed()
                assert client.close_code == 1011

    timed(main())


@pytest.mark.parametrize(
    ("limits", "first", "code", "close_code"),
    [
        (CallLimits(session_s=0.2), b"\0\0", "session_limit", 1000),
        (CallLimits(silent_start_s=0.2), None, "no_start", 1008),
    ],
)
def test_calls_are_limited_in_time(
    limits: CallLimits, first: bytes | None, code: str, close_code: int
) -> None:
    async def main() -> None:
        async with client_of(limits=limits) as client:
            if first is not None:
                await client.send(first)
            assert (await until(client, "error"))["code"] == code
            await client.wait_closed()
            assert client.close_code == close_code

    timed(main())
