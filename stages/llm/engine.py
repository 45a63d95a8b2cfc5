"""One model step after the other on a thread of its own, for everybody who waits for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from voicepipe.clock import Worker


class Engine:
    """Runs `step` while somebody waits for what it brings.

    There is no task that could outlive its users: whoever waits runs the next step for all, or
    waits for the one that runs. What a step reads and changes may be touched from the loop only
    through `between`. Shared by all conversations, of one event loop at a time.
    """

    def __init__(self, name: str, step: Callable[[], None]) -> None:
        self._worker = Worker(name)
        self._step = step
        self._running: asyncio.Future[None] | None = None
        self._jobs: deque[Callable[[], None]] = deque()
        self._was_job = False
        self._queued: list[Callable[[], None]] = []

    async def until(self, ready: Callable[[], bool]) -> None:
        """Step until `ready()`, which is asked between steps. Cancelling lands between steps."""
        while not ready():
            if self._running is None:
                await self._advance()
            else:
                await asyncio.wait([self._running])

    async def run(self, job: Callable[[], None]) -> None:
        """One job between two steps, on the engine's thread. What it raises is raised here."""
        errors: list[Exception | None] = []

        def attempt() -> None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 - raised below, to who asked for the job
                errors.append(error)
            else:
                errors.append(None)

        self._jobs.append(attempt)
        try:
            await self.until(lambda: bool(errors))
        finally:
            if attempt in self._jobs:
                self._jobs.remove(attempt)
        if errors[0] is not None:
            raise errors[0]

    def between(self, job: Callable[[], None]) -> None:
        """Call `job` while no step runs: now, or when the present one is over. Jobs keep their
        order."""
        if self._running is None:
            job()
        else:
            self._queued.append(job)

    def close(self) -> None:
        """Finish the running step and end the thread."""
        self._worker.close()

    async def _advance(self) -> None:
        running = self._running = asyncio.get_running_loop().create_future()
        self._was_job = bool(self._jobs) and not self._was_job
        try:
            await self._worker.run(self._jobs.popleft() if self._was_job else self._step)
        finally:
            self._running = None
            queued, self._queued = self._queued, []
            for job in queued:
                job()
            running.set_result(None)
