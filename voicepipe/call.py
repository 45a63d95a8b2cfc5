"""One client's call: everything that lives for one WebSocket connection, in one TaskGroup.

    socket -> _read -> Wire -> WebSocketTransport -> session
    session -> WebSocketTransport, Captions -> Outbox -> _write -> socket

The call is over for the first reason that comes up (`Farewell`); then the caller's stream ends, the
session gets a moment to end by itself and is cancelled if it does not, what is still to be said is
sent, and the socket is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from websockets.exceptions import ConnectionClosed

from voicepipe import wire
from voicepipe.captions import Captions, TurnLedger
from voicepipe.errors import VoicepipeError
from voicepipe.protocols import Observer
from voicepipe.transports.outbox import PATIENCE_S, Outbox, SlowClient
from voicepipe.transports.websocket import WebSocketTransport

log = logging.getLogger(__name__)

TYPED_TURNS_WAITING = 8
"""Typed turns that may wait for the session to open."""


class ServedSession(Protocol):
    """What the server needs of a session."""

    async def run(self) -> None:
        """Hold the conversation until the transport's caller stream ends."""
        ...

    def type_text(self, text: str) -> None:
        """A typed user turn; called only after the session has opened the transport."""
        ...


MakeSession = Callable[[WebSocketTransport, Sequence[Observer]], ServedSession]
"""A session for one client, that tells the observers every event. Raises VoicepipeError when there
cannot be one; the client is told its text."""


class Socket(Protocol):
    """The part of a WebSocket connection that a call needs."""

    def __aiter__(self) -> AsyncIterator[str | bytes]: ...

    async def send(self, message: str | bytes) -> None: ...

    async def close(self, code: int = 1000, reason: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Farewell:
    """Why a call is over. `code` and `message` go into a last `error`; "" sends none."""

    code: str = ""
    message: str = ""
    close_code: int = 1000


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a call, or parts of it, may take."""

    session_s: float = 3600.0
    silent_start_s: float = 30.0
    """A client that sends nothing at all after connecting."""
    goodbye_s: float = 6.0
    """For the session to end by itself, last words included."""


class Call:
    """One connected client. `run` it once; `end` it from outside."""

    def __init__(
        self,
        name: str,
        make_session: MakeSession,
        ledger: TurnLedger | None = None,
        limits: CallLimits | None = None,
    ) -> None:
        self._name = name
        self._make_session = make_session
        self._limits = limits or CallLimits()
        self._wire = wire.Wire()
        self._outbox = Outbox()
        self._captions = Captions(self._outbox.put, ledger)
        self._transport: WebSocketTransport | None = None
        self._begun = asyncio.Event()
        self._typed: asyncio.Queue[str] = asyncio.Queue(TYPED_TURNS_WAITING)
        self._over: asyncio.Future[Farewell] = asyncio.get_running_loop().create_future()

    def end(self, farewell: Farewell) -> None:
        """The call is over; the first reason counts."""
        if not self._over.done():
            self._over.set_result(farewell)

    async def run(self, socket: Socket) -> None:
        """Serve the client. Returns when the session is over and the socket closed; nothing of it
        is left then. Never raises what the client or the session did wrong: that is logged."""
        log.info("call %s: connected", self._name)
        self._outbox.put(wire.ready())
        alarms = self._alarms()
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write(socket))
            reading = group.create_task(self._read(socket))
            talking = group.create_task(self._talk())
            farewell = await self._over
            if self._transport is not None:
                self._transport.hang_up()
            await asyncio.wait([talking], timeout=self._limits.goodbye_s * self._begun.is_set())
            talking.cancel()
            await asyncio.wait([talking])
            if farewell.code:
                self._outbox.put(wire.error(farewell.code, farewell.message, fatal=True))
            self._outbox.close()
            await asyncio.wait([writing], timeout=PATIENCE_S)
            writing.cancel()
            reading.cancel()
        for alarm in alarms:
            alarm.cancel()
        with suppress(TimeoutError):  # a client that does not read keeps `close` waiting: whoever
            async with asyncio.timeout(PATIENCE_S):  # opened the socket then cuts it
                await socket.close(farewell.close_code, farewell.code)
        heard = f", {self._transport.summary}" if self._transport else ""
        log.info("call %s: over (%s)%s", self._name, farewell.code or "ended", heard)

    def _alarms(self) -> list[asyncio.TimerHandle]:
        limits, loop = self._limits, asyncio.get_running_loop()
        too_long = Farewell("session_limit", f"a session lasts at most {limits.session_s:g} s")
        silent = Farewell(
            "no_start", f"nothing came for {limits.silent_start_s:g} s: send start or audio", 1008
        )
        return [
            loop.call_later(limits.session_s, self.end, too_long),
            loop.call_later(
                limits.silent_start_s, lambda: None if self._begun.is_set() else self.end(silent)
            ),
        ]

    # -- the socket ------------------------------------------------------------------------------

    async def _write(self, socket: Socket) -> None:
        try:
            await self._outbox.drain(socket)
        except ConnectionClosed:
            self.end(Farewell())
        except SlowClient as error:
            log.warning("call %s: client too slow, dropped: %s", self._name, error)
            self.end(Farewell("slow_client", "the client does not read what is sent", 1008))

    async def _read(self, socket: Socket) -> None:
        try:
            async for message in socket:
                refused = self._take(self._wire.receive(message))
                if refused is not None:
                    log.info("call %s: refused: %s", self._name, refused.code)
                    self._outbox.put(wire.error(refused.code, refused.message))
        except ConnectionClosed as error:
            log.info("call %s: connection lost: %s", self._name, error)
        self.end(Farewell())

    def _take(self, wanted: wire.Input | None) -> wire.Refused | None:
        """Do what the client wants; returns what it has to be told."""
        if wanted is None or isinstance(wanted, wire.Refused):
            return wanted
        if isinstance(wanted, wire.End):
            self.end(Farewell())
            return None
        transport = self._begin()
        match wanted:
            case wire.CallerAudio(samples):
                return transport.heard(samples)
            case wire.Playback(n_samples):
                transport.played(n_samples)
            case wire.TypedText(text):
                return self._type(text)
        return None

    def _begin(self) -> WebSocketTransport:
        """The first message that says anything fixes the rate, and the session begins."""
        if self._transport is None:
            self._transport = WebSocketTransport(self._wire, self._outbox)
            self._begun.set()
        return self._transport

    def _type(self, text: str) -> wire.Refused | None:
        try:
            self._typed.put_nowait(text)
        except asyncio.QueueFull:
            return wire.Refused("too_fast", "too many typed turns wait: this one was dropped")
        return None

    # -- the session -----------------------------------------------------------------------------

    async def _talk(self) -> None:
        await self._begun.wait()
        try:
            await self._converse(self._begin())
            self.end(Farewell())
        except Exception as error:
            log.exception("call %s: the session failed", self._name)
            self.end(Farewell("session_failed", _for_the_client(error), 1011))

    async def _converse(self, transport: WebSocketTransport) -> None:
        session = self._make_session(transport, [self._captions])
        async with asyncio.TaskGroup() as group:
            typing = group.create_task(self._type_to(session, transport))
            await session.run()
            typing.cancel()

    async def _type_to(self, session: ServedSession, transport: WebSocketTransport) -> None:
        await transport.opened.wait()
        self._captions.opened()
        while True:
            session.type_text(await self._typed.get())


def _for_the_client(error: BaseException) -> str:
    """Our own errors are meant to be read; anything else stays in the log."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, VoicepipeError) else "internal error, see server log"
