"""An OpenAI-compatible endpoint on the loopback interface, as well or badly behaved as asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

Behaviour = Literal[
    "answer",
    "refuse",
    "no json",
    "bad json",
    "report an error",
    "cut",
    "say nothing",
    "fall silent",
    "no role",
]
Request = dict[str, Any]


def echo(request: Request) -> str:
    """A reply that tells what was asked, and after how many messages."""
    messages = request["messages"]
    return f"You said {messages[-1]['content']} after {len(messages) - 1} messages, fine."


class Endpoint:
    """Answers POST /v1/chat/completions; remembers requests and who hung up."""

    def __init__(self, behaviour: Behaviour, answer: Callable[[Request], str]) -> None:
        self.behaviour = behaviour
        self.requests: list[Request] = []
        self.headers: list[str] = []
        self.hung_up = asyncio.Event()
        self._answer = answer
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    int(line.split(":")[1])
                    for line in head.lower().splitlines()
                    if line.startswith("content-length")
                )
                self.headers.append(head)
                self.requests.append(json.loads(await reader.readexactly(length)))
                if not await self._respond(writer):
                    break
            if self.behaviour in ("say nothing", "fall silent"):
                await reader.read()  # until the client closes
                self.hung_up.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.hung_up.set()
        finally:
            writer.close()

    async def _respond(self, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection may be used again."""
        if self.behaviour in ("refuse", "no json"):
            error = {"error": {"message": "model not\nfound"}}
            body = json.dumps(error).encode() if self.behaviour == "refuse" else b"<html>oops"
            head = f"HTTP/1.1 404 Not Found\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        if self.behaviour == "say nothing":
            await self._send(writer, {"choices": [{"delta": {"role": "assistant"}}]})
            return False
        return await self._stream(writer, self._answer(self.requests[-1]).split(" "))

    async def _stream(self, writer: asyncio.StreamWriter, words: list[str]) -> bool:
        await self._send(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        await self._send(writer, {"choices": [{"delta": {"content": None}}]})
        self._chunk(writer, b": a comment\n\nevent: ping\n\n")
        for n, word in enumerate(words):
            text = word if n == 0 else " " + word
            await self._send(writer, {"choices": [{"delta": {"content": text}}]})
            if n == 1 and self.behaviour == "bad json":
                self._chunk(writer, b"data: {not json\n\n")
            if n == 1 and self.behaviour == "report an error":
                await self._send(writer, {"error": {"message": "out of memory"}})
            if n == 1 and self.behaviour in ("cut", "fall silent"):
                return False
        await self._send(writer, {"choices": [{"delta": {}, "finish_reason": "stop"}]})
        usage = {
            "prompt_tokens": 40,
            "completion_tokens": len(words),
            "prompt_tokens_details": {"cached_tokens": 32},
        }
        await self._send(writer, {"choices": [], "usage": usage})
        self._chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _send(self, writer: asyncio.StreamWriter, event: object) -> None:
        self._chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")
        await writer.drain()

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@asynccontextmanager
async def serving(
    behaviour: Behaviour = "answer", answer: Callable[[Request], str] = echo
) -> AsyncIterator[Endpoint]:
    """An endpoint at `url` while the context is open."""
    endpoint = Endpoint(behaviour, answer)
    server = await asyncio.start_server(endpoint.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    endpoint.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield endpoint
    finally:
        server.close()
