"""An OpenAI-compatible endpoint on the loopback interface, as well or badly behaved as asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Refusal = Literal["404", "401", "429", "500", "400", "no json"]
Behaviour = (
    Refusal
    | Literal[
        "answer",
        "never answer",  # the request is read, and that is all
        "hang up",  # without an answer, on a connection that was used before
        "say nothing",  # roles and comments for ever
        "report an error at once",
        "cut at once",
        "bad json",  # from here on after two words
        "report an error",
        "endless line",
        "cut",
        "fall silent",  # empty events and comments for ever
        "never end",  # the reply is over, the stream is not
        "cut after the end",
        "think",
        "think and cut",
        "cut in a call",  # after its first piece
        "draft",
    ]
)
Request = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a reply says, and then the `tool_calls` of its further deltas."""

    text: str
    calls: list[list[dict[str, Any]]] = field(default_factory=list)


REFUSALS = {
    "404": ("404 Not Found", '{"error": {"message": "model not\\nfound"}}'),
    "401": ("401 Unauthorized", '{"error": "who are you"}'),
    "429": ("429 Too Many Requests\r\nretry-after: 7", '{"error": "busy"}'),
    "500": ("500 Internal Server Error", '{"detail": "cuda"}'),
    "400": ("400 Bad Request", '{"error": {"message": "context too long"}}'),
    "no json": ("404 Not Found", "<html>oops"),
}
THINKS = [
    {"reasoning_content": "The user greets me."},
    {"reasoning": "So I greet."},
    {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]},
    {"content": "<thi"},
    {"content": "nk>Really? yes</think>\n\n"},
]


def echo(request: Request) -> str:
    """A reply that tells what was asked, and after how many messages."""
    messages = request["messages"]
    return f"You said {messages[-1]['content']} after {len(messages) - 1} messages, fine."


class Endpoint:
    """Answers POST /v1/chat/completions and GET /v1/models; remembers who asked and who hung up."""

    def __init__(self, behaviour: Behaviour, answer: Callable[[Request], str | Answer]) -> None:
        self.behaviour = behaviour
        self.requests: list[Request] = []
        """For replies; those of one token are `warm_ups`."""
        self.warm_ups: list[Request] = []
        self.n_probes = 0
        self.headers: list[str] = []
        self.hung_up = asyncio.Event()
        self.asked = asyncio.Event()
        self.n_connections = 0
        self.url = ""
        self._answer = answer
        self._open: set[asyncio.StreamWriter] = set()
        self._all_closed = asyncio.Event()

    @property
    def n_open(self) -> int:
        return len(self._open)

    def kill(self) -> None:
        """Connections break as when the process dies."""
        for writer in self._open:
            writer.transport.abort()

    async def wait_closed(self) -> None:
        if self._open:
            await self._all_closed.wait()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        self._open.add(writer)
        self._all_closed.clear()
        try:
            n_before = 0
            while await self._exchange(reader, writer, n_before):
                n_before += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            self._open.discard(writer)
            if not self._open:
                self._all_closed.set()
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, n_before: int
    ) -> bool:
        """One request; whether the connection may be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("GET"):
            self.n_probes += 1
            return await self._probed(reader, writer)
        length = next(
            int(line.split(":")[1])
            for line in head.lower().splitlines()
            if line.startswith("content-length")
        )
        request = json.loads(await reader.readexactly(length))
        if self.behaviour == "hang up" and n_before:
            return False
        self.headers.append(head)
        (self.warm_ups if request["max_tokens"] == 1 else self.requests).append(request)
        self.asked.set()
        if self.behaviour in REFUSALS:
            return await self._plain(writer, *REFUSALS[self.behaviour])
        return await self._respond(reader, writer, request)

    async def _probed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.behaviour == "never answer":
            await reader.read()
            return False
        return await self._plain(writer, *REFUSALS.get(self.behaviour, ("200 OK", '{"data": []}')))

    async def _plain(self, writer: asyncio.StreamWriter, status: str, body: str) -> bool:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        await writer.drain()
        return True

    async def _respond(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request
    ) -> bool:
        if self.behaviour == "never answer":
            await reader.read()
            raise ConnectionError
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        if self.behaviour == "cut at once":
            return False
        if self.behaviour == "report an error at once":
            await self._send(writer, {"error": {"message": "out of memory"}})
            return False
        if self.behaviour == "say nothing":
            await self._trickle(writer)
        if self.behaviour in ("think", "think and cut"):
            for delta in THINKS:
                await self._delta(writer, delta)
        if self.behaviour == "think and cut":
            return False
        answer = self._answer(request)
        return await self._stream(writer, Answer(answer) if isinstance(answer, str) else answer)

    async def _stream(self, writer: asyncio.StreamWriter, answer: Answer) -> bool:
        words = answer.text.split(" ")
        await self._delta(writer, {"role": "assistant", "content": ""})
        await self._delta(writer, {"content": None})
        self._chunk(writer, b": a comment\r\n\r\nevent: ping\r\n\r\n")
        for n, word in enumerate(words):
            await self._delta(writer, {"content": word if n == 0 else " " + word})
            if n == 1 and not await self._misbehave(writer):
                return False
        for calls in answer.calls:
            await self._delta(writer, {"content": None, "tool_calls": calls})
            if self.behaviour == "cut in a call":
                return False
        await self._delta(writer, {}, finish_reason="tool_calls" if answer.calls else "stop")
        if self.behaviour == "never end":
            await self._trickle(writer)
        if self.behaviour == "cut after the end":
            return False
        usage = {
            "prompt_tokens": 40,
            "completion_tokens": len(words),
            "prompt_tokens_details": {"cached_tokens": 32},
        }
        timings = {"draft_n": 9, "draft_n_accepted": 5} if self.behaviour == "draft" else None
        await self._send(writer, {"choices": [], "usage": usage, "timings": timings})
        self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _misbehave(self, writer: asyncio.StreamWriter) -> bool:
        """After two words; whether the reply goes on."""
        match self.behaviour:
            case "bad json":
                self._chunk(writer, b"data: {not json\n\n")
            case "endless line":
                self._chunk(writer, b"data: " + b"x" * 2_000_000)
            case "report an error":
                await self._send(writer, {"error": {"message": "out of memory"}})
            case "fall silent":
                await self._trickle(writer)
            case "cut":
                return False
        return True

    async def _trickle(self, writer: asyncio.StreamWriter) -> None:
        """Signs of life without a token, until the client hangs up."""
        while not writer.transport.is_closing():
            await self._delta(writer, {"role": "assistant"})
            await self._delta(writer, {"content": ""})
            self._chunk(writer, b": ping\n\n")
            await asyncio.sleep(0.02)
        raise ConnectionError

    async def _delta(self, writer: asyncio.StreamWriter, delta: object, **more: object) -> None:
        await self._send(writer, {"choices": [{"delta": delta, **more}]})

    async def _send(self, writer: asyncio.StreamWriter, event: object) -> None:
        text = json.dumps(event, ensure_ascii=False)
        self._chunk(writer, b"data: " + text.encode() + b"\n\n")
        await writer.drain()

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@asynccontextmanager
async def serving(
    behaviour: Behaviour = "answer", answer: Callable[[Request], str | Answer] = echo
) -> AsyncIterator[Endpoint]:
    """An endpoint at `url` while the context is open; leaving kills it."""
    endpoint = Endpoint(behaviour, answer)
    server = await asyncio.start_server(endpoint.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield endpoint
    finally:
        server.close()
        endpoint.kill()
        await endpoint.wait_closed()
