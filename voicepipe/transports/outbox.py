"""What is on its way to a client: a bounded queue, and the one task that sends from it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

MAX_QUEUED_BYTES = 256_000
"""Over two seconds at 48 kHz. Sound is paced to a fifth of a second ahead, so a queue this long
means that the client has stopped reading."""

PATIENCE_S = 2.0
"""A client that takes nothing for this long is gone or hopelessly slow."""


class Sink(Protocol):
    """The part of a WebSocket connection that the outbox needs."""

    async def send(self, message: str | bytes) -> None: ...


class SlowClient(Exception):
    """The client does not read as fast as it is spoken to."""


class Outbox:
    """Messages to one client, in order. `put` from anywhere, `drain` in one task."""

    def __init__(self) -> None:
        self._messages: deque[str | bytes] = deque()
        self._n_bytes = 0
        self._overflown = False
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, message: str | bytes) -> None:
        """Queue a text message or a piece of audio. Never waits: when the queue is full, `drain`
        raises; after `close`, nothing is queued any more."""
        if self._closed:
            return
        if self._n_bytes + len(message) > MAX_QUEUED_BYTES:
            self._overflown = True
        else:
            self._messages.append(message)
            self._n_bytes += len(message)
        self._changed.set()

    def drop_audio(self) -> None:
        """Take out all audio that was not sent yet."""
        self._messages = deque(m for m in self._messages if isinstance(m, str))
        self._n_bytes = sum(len(m) for m in self._messages)

    def close(self) -> None:
        """No more messages: `drain` returns when all are sent."""
        self._closed = True
        self._changed.set()

    async def drain(self, sink: Sink) -> None:
        """Send until closed and empty. Raises SlowClient, or what the sink raises."""
        while not (self._closed and not self._messages):
            if self._overflown:
                raise SlowClient(f"more than {MAX_QUEUED_BYTES} bytes wait to be sent")
            if not self._messages:
                self._changed.clear()
                await self._changed.wait()
                continue
            message = self._messages.popleft()
            self._n_bytes -= len(message)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await sink.send(message)
            except TimeoutError:
                raise SlowClient(f"nothing could be sent for {PATIENCE_S:g} s") from None
