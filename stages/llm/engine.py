"""One model step after the other on a thread of its own, for everybody who waits for one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from voicepipe.clock import Worker


@dataclass(eq=False, slots=True)
class _Job:
    """Something to do once, and how it ended."""

    work: Callable[[], None]
    over: bool = False
    error: Exception | None = None

    def __call__(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - raised again, to who asked for the job
            self.error = error
        self.over = True


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
        self._jobs: deque[_Job] = deque()
        """A job stays until who asked for it leaves: whoever was to run it may be cancelled before
        the thread begins."""
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
        asked = _Job(job)
        self._jobs.append(asked)
        try:
            await self.until(lambda: asked.over)
        finally:
            self._jobs.remove(asked)
        if asked.error is not None:
            raise asked.error

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
        job = next((job for job in self._jobs if not job.over), None)
        self._was_job = job is not None and not self._was_job
        try:
            await self._worker.run(job if job is not None and self._was_job else self._step)
        finally:
            self._running = None
            running.set_result(None)
            self._call_queued()

    def _call_queued(self) -> None:
        """All of them, whatever one raises: that is raised at the end."""
        queued, self._queued = self._queued, []
        jobs = [_Job(work) for work in queued]
        for job in jobs:
            job()
        for job in jobs:
            if job.error is not None:
                raise job.error
