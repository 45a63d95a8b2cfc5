"""One task that lives exactly as long as a context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self


class Background:
    """`async with Background(work)` runs `work()` beside the body and cancels it at the end; after
    that it is over. What the body raises leaves unwrapped."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._group = asyncio.TaskGroup()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._task = self._group.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
        # Without the body's exception: the group would wrap it, and it is not the group's.
        await self._group.__aexit__(None, None, None)
