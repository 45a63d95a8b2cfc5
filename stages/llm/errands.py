"""Small jobs beside a conversation that nobody waits for and that end with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Self

log = logging.getLogger(__name__)


class Errands:
    """`async with Errands() as errands` cancels at its end whatever `errands.start` started. What
    the body raises leaves unwrapped, what an errand raises is logged."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        # Without the body's exception: the group would wrap it, and it is not the group's.
        await self._group.__aexit__(None, None, None)

    def start(self, errand: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self._group.create_task(_logged(errand))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _logged(errand: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        await errand()
    except Exception:
        log.exception("an errand of a conversation failed; the conversation goes on")
