"""The WebSocket server: who may come in, and how many at once. A `Call` does the rest.

WebSocket at `/ws` and `/`; over plain HTTP `GET /healthz` (the process lives), `GET /readyz` (there
is room for a client) and a line of text at `/`.

This version has no tokens, so it binds to loopback only. Browsers are let in from loopback origins
only: a page of some other site, open in a browser on this machine, must not reach the agent.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.http11 import Request, Response
from websockets.typing import Origin

from voicepipe import wire
from voicepipe.call import Call, CallLimits, Farewell, MakeSession
from voicepipe.captions import TurnLedger
from voicepipe.errors import ComponentError, UsageError

log = logging.getLogger(__name__)

DEFAULT_PORT = 8765

MAX_SESSIONS = 4
"""Until the capacity of this machine was measured: more than a laptop holds within the budget."""

MAX_READ_BYTES = 1 << 20
"""A message beyond this cannot be skipped, so the connection closes with 1009. One that is merely
too large for the protocol (wire.MAX_MESSAGE_BYTES) gets an `error` and the connection lives."""

PING_S = 5.0
PONG_S = 10.0
"""A client that vanished without a word, or stopped reading, is noticed within the sum of these."""

CLOSE_S = 2.0
"""How long a client may take to answer a close."""

SEND_BUFFER_BYTES = 65_536
"""The kernel's, for one connection: by default it would hide minutes of unread audio."""

_LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")
_NO_ORIGIN: Origin | None = None
"""Programs send no Origin header; browsers always do."""

_ROOT_TEXT = "voicepipe is running: connect with a WebSocket at /ws (no browser page yet).\n"


@asynccontextmanager
async def serve(
    make_session: MakeSession,
    *,
    ledger_of: Callable[[], TurnLedger] | None = None,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    max_sessions: int = MAX_SESSIONS,
    limits: CallLimits | None = None,
) -> AsyncIterator[int]:
    """Serve clients while the context is open; yields the port (`port=0` picks a free one).

    Each client gets a session of its own from `make_session`, and, for its `turn` messages, a
    ledger from `ledger_of`. Leaving ends all sessions within `limits.goodbye_s` and some seconds.
    Raises UsageError for a host that is not loopback, ComponentError when the port cannot be had.
    """
    _check_loopback(host)
    if max_sessions < 1:
        raise UsageError(f"serve: max_sessions is {max_sessions}: give at least 1")
    limits = limits or CallLimits()
    desk = _Desk(make_session, ledger_of, max_sessions, limits)
    try:
        server = await listen(
            desk.receive,
            host,
            port,
            process_request=desk.answer_http,
            origins=[_NO_ORIGIN, _LOOPBACK_ORIGIN],
            compression=None,  # audio does not get smaller, only later
            max_size=MAX_READ_BYTES,
            ping_interval=PING_S,
            ping_timeout=PONG_S,
            close_timeout=CLOSE_S,
            logger=logging.getLogger(f"{__name__}.websockets"),
        )
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        desk.stop()
        server.close(close_connections=False)
        try:
            async with asyncio.timeout(limits.goodbye_s + 3 * CLOSE_S):
                await server.wait_closed()
        except TimeoutError:
            log.error("%d sessions did not end in time", desk.n_calls)


async def serve_until_stopped(
    make_session: MakeSession,
    *,
    announce: Callable[[int], None],
    ledger_of: Callable[[], TurnLedger] | None = None,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    max_sessions: int = MAX_SESSIONS,
) -> None:
    """`serve` until SIGINT or SIGTERM; `announce` is told the port. A second signal kills."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    async with serve(
        make_session, ledger_of=ledger_of, host=host, port=port, max_sessions=max_sessions
    ) as bound_port:
        with suppress(NotImplementedError):  # a loop without signals: SIGINT cancels us instead
            for number in signals:
                loop.add_signal_handler(number, stopped.set)
        announce(bound_port)
        await stopped.wait()
        for number in signals:
            loop.remove_signal_handler(number)


class _Desk:
    """Lets clients in while there is room."""

    def __init__(
        self,
        make_session: MakeSession,
        ledger_of: Callable[[], TurnLedger] | None,
        max_sessions: int,
        limits: CallLimits,
    ) -> None:
        self._make_session = make_session
        self._ledger_of = ledger_of
        self._max_sessions = max_sessions
        self._limits = limits
        self._calls: set[Call] = set()
        self._stopping = False
        self._n_received = 0

    @property
    def n_calls(self) -> int:
        return len(self._calls)

    async def receive(self, connection: ServerConnection) -> None:
        """Serve one connection to its end."""
        if refusal := self._no_room():
            await connection.send(wire.error(refusal.code, refusal.message, fatal=True))
            await connection.close(refusal.close_code, refusal.code)
            return
        connection.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES
        )
        self._n_received += 1
        ledger = self._ledger_of() if self._ledger_of else None
        call = Call(str(self._n_received), self._make_session, ledger, self._limits)
        self._calls.add(call)
        try:
            await call.run(connection)
        finally:
            self._calls.discard(call)

    def stop(self) -> None:
        """No new clients; the calls that run are ended."""
        self._stopping = True
        for call in self._calls:
            call.end(_SHUTDOWN)

    def _no_room(self) -> Farewell | None:
        if self._stopping:
            return _SHUTDOWN
        if self.n_calls < self._max_sessions:
            return None
        return Farewell("busy", f"all {self._max_sessions} sessions are taken: try later", 1013)

    def answer_http(self, connection: ServerConnection, request: Request) -> Response | None:
        """None lets the WebSocket handshake go on."""
        path = request.path.partition("?")[0]
        if request.headers.get("Upgrade", "").lower() == "websocket":
            if path in ("/", "/ws"):
                return None
            return connection.respond(HTTPStatus.NOT_FOUND, "the WebSocket is at /ws\n")
        match path:
            case "/":
                return connection.respond(HTTPStatus.OK, _ROOT_TEXT)
            case "/ws":
                return connection.respond(HTTPStatus.UPGRADE_REQUIRED, "a WebSocket lives here\n")
            case "/healthz":
                return connection.respond(HTTPStatus.OK, "ok\n")
            case "/readyz":
                refusal = self._no_room()
                if refusal is None:
                    return connection.respond(HTTPStatus.OK, "ready\n")
                return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, refusal.message + "\n")
            case _:
                return connection.respond(HTTPStatus.NOT_FOUND, "no such page\n")


_SHUTDOWN = Farewell("shutdown", "the server is stopping", 1001)


def _check_loopback(host: str) -> None:
    if host == "localhost":
        return
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    raise UsageError(
        f"serve: {host} is not loopback, and this version has no tokens to keep strangers out: use "
        "127.0.0.1, with a proxy that authenticates in front of it if others are to reach it"
    )


def _cannot_listen(host: str, port: int, error: OSError) -> ComponentError:
    if error.errno == errno.EADDRINUSE:
        return ComponentError(
            f"serve: port {port} on {host} is in use: stop the other server, or choose another "
            "port (0 picks a free one)"
        )
    return ComponentError(
        f"serve: cannot listen on {host} port {port} ({error.strerror or error}): choose another "
        "host or port"
    )
