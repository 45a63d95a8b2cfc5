"""The server over real sockets: who may come in, how many, and how it stops."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.served import EchoSession, becomes_idle, others, timed, until, url
from voicepipe.errors import ComponentError, UsageError
from voicepipe.server import serve

# -- who may come in -----------------------------------------------------------------------------


def test_there_is_room_for_so_many() -> None:
    async def main() -> None:
        async with serve(EchoSession, port=0, max_sessions=1) as port:
            before = others()
            async with connect(url(port)) as first:
                assert await until(first, "ready")
                async with connect(url(port)) as second:
                    error = json.loads(await second.recv())
                    assert (error["code"], error["fatal"]) == ("busy", True)
                    await second.wait_closed()
                    assert second.close_code == 1013
                assert (await get(port, "/readyz"))[0] == 503
            await becomes_idle(before)
            assert (await get(port, "/readyz"))[0] == 200
            async with connect(url(port)) as third:
                assert await until(third, "ready")

    timed(main())


async def get(port: int, path: str) -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


def test_plain_http() -> None:
    async def main() -> None:
        async with serve(EchoSession, port=0) as port:
            assert await get(port, "/healthz") == (200, "ok\n")
            assert await get(port, "/readyz") == (200, "ready\n")
            status, text = await get(port, "/")
            assert status == 200
            assert "no browser page" in text
            assert (await get(port, "/ws"))[0] == 426
            assert (await get(port, "/metrics"))[0] == 404

    timed(main())


def test_the_websocket_is_at_ws_and_root_only() -> None:
    async def main() -> None:
        async with serve(EchoSession, port=0) as port:
            for path in ("/", "/ws", "/ws?x=1"):
                async with connect(url(port, path)) as client:
                    assert await until(client, "ready")
            with pytest.raises(InvalidStatus):
                await connect(url(port, "/twilio"))

    timed(main())


@pytest.mark.parametrize(
    ("origin", "welcome"),
    [
        (None, True),
        ("http://localhost:8765", True),
        ("http://127.0.0.1", True),
        ("https://[::1]:3000", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("null", False),
    ],
)
def test_browsers_come_in_from_loopback_pages_only(origin: str | None, welcome: bool) -> None:
    async def main() -> None:
        async with serve(EchoSession, port=0) as port:
            refusal = contextlib.nullcontext() if welcome else pytest.raises(InvalidStatus)
            headers = {} if origin is None else {"Origin": origin}
            with refusal:
                async with connect(url(port), additional_headers=headers) as client:
                    assert await until(client, "ready")

    timed(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.com", ""])
def test_only_loopback_is_served(host: str) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="not loopback"):
            async with serve(EchoSession, host=host, port=0):
                pass

    timed(main())


def test_a_port_in_use_is_one_clear_line() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ComponentError, match=f"port {port} .* is in use: stop") as caught:
                async with serve(EchoSession, port=port):
                    pass
            assert "\n" not in str(caught.value)

    timed(main())


# -- the end ---


def test_leaving_the_server_tells_the_clients() -> None:
    async def main() -> None:
        async with AsyncExitStack() as server:
            port = await server.enter_async_context(serve(EchoSession, port=0))
            async with connect(url(port)) as client, connect(url(port)) as idle:
                await client.send(bytes(640))
                await until(client, "state")
                async with asyncio.TaskGroup() as group:
                    group.create_task(server.aclose())
                    for each in (client, idle):
                        assert (await until(each, "error"))["code"] == "shutdown"
                        await each.wait_closed()
                        assert each.close_code == 1001

    timed(main())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_server(number: signal.Signals) -> None:
    script = (
        "import asyncio\n"
        "from tests.served import EchoSession\n"
        "from voicepipe.server import serve_until_stopped\n"
        "announce = lambda port: print(port, flush=True)\n"
        "asyncio.run(serve_until_stopped(EchoSession, port=0, announce=announce))\n"
    )

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=os.getcwd()
        )
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        async with connect(url(port)) as client:
            await client.send(bytes(640))
            await until(client, "state")
            process.send_signal(number)
            assert (await until(client, "error"))["code"] == "shutdown"
        assert await process.wait() == 0

    timed(main())
