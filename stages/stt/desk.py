"""The one thread that runs a model for all callers, and who may use it next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from voicepipe.clock import Worker

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(eq=False, slots=True)
class Caller:
    """Who waits for the model. `urgent` may change while it waits."""

    urgent: bool = False
    """Somebody waits for the final."""
    last_served: int = 0


class Desk:
    """Runs model steps one at a time: urgent callers first, else whoever was served least recently.
    One event loop at a time."""

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)
        self._busy = False
        self._queue: list[tuple[Caller, asyncio.Future[None]]] = []
        self._n_served = 0

    async def run(self, caller: Caller, step: Callable[[*Ts], T], *args: *Ts) -> T:
        """One step. Cancelled, it is finished before CancelledError is raised."""
        await self._enter(caller)
        try:
            return await self._worker.run(step, *args)
        finally:
            self._leave()

    async def _enter(self, caller: Caller) -> None:
        if self._busy:
            turn = asyncio.get_running_loop().create_future()
            self._queue.append((caller, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                else:
                    self._queue.remove((caller, turn))
                raise
        self._busy = True
        self._n_served += 1
        caller.last_served = self._n_served

    def _leave(self) -> None:
        waiting = [(caller, turn) for caller, turn in self._queue if not turn.done()]
        if not waiting:
            self._busy = False
            return
        chosen = min(waiting, key=lambda entry: (not entry[0].urgent, entry[0].last_served))
        self._queue.remove(chosen)
        chosen[1].set_result(None)
