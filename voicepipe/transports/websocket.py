"""A caller at the other end of a WebSocket.

The transport joins three things that decide without I/O: `CallerStream` puts what arrives on one
clock, `RemoteSpeaker` knows what the client is playing, `Wire` knows the messages. It does no I/O
of its own either: whoever reads the socket calls `heard`, `played` and `hang_up`, and what is to
be sent goes to the `Outbox`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import numpy as np

from voicepipe import wire
from voicepipe.errors import UsageError
from voicepipe.frames import AudioFrame, Pcm
from voicepipe.transports.caller_stream import MAX_BUFFERED_S, CallerStream
from voicepipe.transports.outbox import Outbox
from voicepipe.transports.remote_speaker import RemoteSpeaker
from voicepipe.wire import Refused, Wire

LEAD_S = 0.2
"""Sound at the client that is not yet heard: rides out the network's jitter, and is dropped by
`clear`, so it costs a barge-in nothing."""

LEAD_SLACK_S = 0.05
"""How much further ahead a frame may come before `play` waits: the caller's clock may be moved."""

SHORTEST_WAIT_S = 0.001

HELD_UP_S = 0.01
"""When the loop was held up for this long, audio that came meanwhile is still in the socket: it is
given as long to be read, lest it be taken for missing."""


class WebSocketTransport:
    """The `Transport` of one client. Make it when the client's rate is known; loop-bound."""

    def __init__(self, protocol: Wire, outbox: Outbox) -> None:
        self._wire = protocol
        self._outbox = outbox
        self._caller = CallerStream(protocol.sample_rate_hz)
        self._speaker = RemoteSpeaker(protocol.sample_rate_hz)
        self._n_clears = 0
        self._gone = False
        self._news = asyncio.Event()  # something for the caller's stream
        self._loop = asyncio.get_running_loop()
        self.opened = asyncio.Event()
        """Set once the session hears the caller."""

    # -- the session's side: voicepipe.protocols.Transport ---------------------------------------

    @property
    def output_rate_hz(self) -> int:
        return self._wire.sample_rate_hz

    @property
    def lead_s(self) -> float:
        return LEAD_S

    def now_s(self) -> float:
        return self._caller.now_s(self._loop.time())

    def open(self) -> AbstractAsyncContextManager[AsyncIterator[AudioFrame]]:
        """Caller frames until the client is gone or says that it ends."""
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[AsyncIterator[AudioFrame]]:
        self._caller.open(self._loop.time())
        self.opened.set()
        yield self._frames()

    async def _frames(self) -> AsyncIterator[AudioFrame]:
        due_s = self._loop.time()
        held_up_s = -HELD_UP_S  # when the loop last came back from being held up
        while not self._gone:
            self._news.clear()
            now_s = self._loop.time()
            if now_s > due_s + HELD_UP_S:
                held_up_s = now_s
            if now_s < held_up_s + HELD_UP_S and self._caller.gives_up(now_s):
                await asyncio.sleep(HELD_UP_S)
                due_s = now_s = self._loop.time()
            frame = self._caller.take(now_s)
            if frame is not None:
                due_s = now_s
                await asyncio.sleep(0)  # a backlog is caught up with, but not to the loop's harm
                yield frame
                continue
            wait_s = max(SHORTEST_WAIT_S, self._caller.wake_s() - now_s)
            due_s = now_s + wait_s
            alarm = self._loop.call_later(wait_s, self._news.set)
            await self._news.wait()
            alarm.cancel()

    async def play(self, frame: AudioFrame) -> None:
        """Send a frame so that it is heard at its `start_sample`. Waits while that is much further
        off than `lead_s`; a frame that is cleared while it waits is dropped."""
        if frame.sample_rate_hz != self.output_rate_hz:
            raise UsageError(
                f"websocket: a frame at {frame.sample_rate_hz} Hz for a client at "
                f"{self.output_rate_hz} Hz: make frames at Transport.output_rate_hz"
            )
        n_clears = self._n_clears
        early_s = max(self._speaker.backlog_s(self._loop.time()), self._until_s(frame)) - LEAD_S
        if early_s > LEAD_SLACK_S:
            await asyncio.sleep(early_s)
        if n_clears == self._n_clears and frame.n_samples:
            self._send(self._with_pause(frame))

    def _until_s(self, frame: AudioFrame) -> float:
        """How long until the frame is to be heard."""
        return frame.start_sample / self.output_rate_hz - self.now_s()

    def _with_pause(self, frame: AudioFrame) -> AudioFrame:
        """A client plays what it gets at once and without gaps: until the frame is to be heard, it
        must be sent silence."""
        if self._speaker.backlog_s(self._loop.time()) > 0.0:
            gap = frame.start_sample - self._speaker.next_sample
        else:
            gap = int(self._until_s(frame) * self.output_rate_hz)
        if not 0 < gap <= (LEAD_S + LEAD_SLACK_S) * self.output_rate_hz:
            return frame
        samples = np.concatenate([np.zeros(gap, np.int16), frame.samples])
        return replace(frame, samples=samples, start_sample=frame.start_sample - gap)

    def _send(self, frame: AudioFrame) -> None:
        self._outbox.put(self._wire.audio(frame.samples))
        self._speaker.sent(frame.start_sample, frame.n_samples, self._loop.time())

    def clear(self, from_sample: int) -> int:
        """The client drops all it has not played, so the sound stops at what is heard now."""
        self._n_clears += 1
        self._outbox.drop_audio()
        self._outbox.put(wire.clear())
        return self._speaker.clear(from_sample, self._loop.time())

    def heard_until(self) -> int | None:
        return self._speaker.heard_until(self._loop.time())

    # -- the socket's side -----------------------------------------------------------------------

    def heard(self, samples: Pcm) -> Refused | None:
        """Caller audio arrived, shape [n], at the client's rate."""
        if not self._caller.push(samples, self._loop.time()):
            return Refused(
                "too_fast",
                f"more than {MAX_BUFFERED_S:g} s of audio wait to be heard: the message was "
                "dropped, send no faster than real time",
            )
        self._news.set()
        return None

    def played(self, n_samples: int) -> None:
        """The client reports how much it has played."""
        self._speaker.reported(n_samples, self._loop.time())

    def hang_up(self) -> None:
        """The client is gone: the caller's stream ends."""
        self._gone = True
        self._news.set()

    @property
    def session_id(self) -> str:
        """What the client calls its session, "" if nothing; safe as the name of a directory."""
        return self._wire.session

    @property
    def summary(self) -> str:
        """One line on how the caller's audio came, for the log."""
        return (
            f"{self.now_s():.1f} s, {self._caller.filled_s:.2f} s of silence filled in, "
            f"{self._caller.shed_s:.2f} s of silence left out"
        )
