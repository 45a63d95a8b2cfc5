"""The one thread that runs the model, and who may use it next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar, TypeVarTuple

from voicepipe.clock import Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Priority(IntEnum):
    """Who goes first when several wait for a step."""

    RELEASED = 0
    """A reply that somebody waits for."""
    HELD = 1
    """A reply that may never be heard."""
    AHEAD = 2
    """Tokens that will probably be needed."""


@dataclass(eq=False, slots=True)
class Ticket:
    """One user of the engine; its priority may change while it waits."""

    priority: Priority


class Engine:
    """Runs model steps one at a time, most urgent first, first come first served among equals.

    Shared by all conversations of all event loops, one loop at a time.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)
        self._busy = False
        self._waiting: list[tuple[Ticket, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, ticket: Ticket) -> AsyncIterator[None]:
        """Wait until it is this ticket's turn; the engine is its own until the context is left."""
        if self._busy:
            granted = asyncio.get_running_loop().create_future()
            self._waiting.append((ticket, granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self._pass_on()
                else:
                    self._waiting.remove((ticket, granted))
                raise
        self._busy = True
        try:
            yield
        finally:
            self._pass_on()

    async def step(self, job: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run one job on the engine's thread; only inside `turn`. A cancelled step is finished
        before CancelledError is raised."""
        return await self._worker.run(job, *args)

    async def run(self, ticket: Ticket, job: Callable[[*Ts], T], *args: *Ts) -> T:
        """One job in a turn of its own."""
        async with self.turn(ticket):
            return await self.step(job, *args)

    def close(self) -> None:
        self._worker.close()

    def _pass_on(self) -> None:
        waiting = [entry for entry in self._waiting if not entry[1].done()]
        if not waiting:
            self._busy = False
            return
        chosen = min(waiting, key=lambda entry: entry[0].priority)
        self._waiting.remove(chosen)
        chosen[1].set_result(None)
