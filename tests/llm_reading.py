"""What tests of language models share: reading replies, and talks bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from voicepipe.protocols import Reply

S = TypeVar("S")
Check = Callable[[Callable[[S], Awaitable[None]]], None]

LIMIT_S = 60


async def read(reply: Reply, n: int | None = None) -> Reply:
    """Enter `reply` and read `n` deltas, or all."""
    read_deltas: list[str] = []
    async with reply as deltas:
        async for delta in deltas:
            read_deltas.append(delta)
            if len(read_deltas) == n:
                break
    assert all(read_deltas), "deltas are never empty"
    assert "".join(read_deltas) == reply.text
    return reply


def checker(open_subject: Callable[[], AbstractAsyncContextManager[S]]) -> Check[S]:
    """Runs a talk with what `open_subject` yields."""

    def check(talk: Callable[[S], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(LIMIT_S), open_subject() as subject:
                await talk(subject)

        asyncio.run(main())

    return check
