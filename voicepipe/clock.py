"""Time. The only module that may read a clock or start an executor.

Speaking runs on the event loop's clock (`asyncio.get_running_loop().time()`), listening on the
sample index. `VirtualLoop` makes the former jump: whole conversations then take milliseconds and
give the same events every time.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def wall_time_s() -> float:
    """Seconds since the epoch, for naming recordings. Never for measuring."""
    return time.time()


def process_time_s() -> float:
    """Monotonic seconds for code that measures itself outside an event loop (benchmarks)."""
    return time.perf_counter()


def cpu_time_s() -> float:
    """CPU seconds that all threads of this process have used."""
    return time.process_time()


class Deadlock(RuntimeError):
    """Under the virtual clock nothing is left that could ever happen, and work still waits."""


class Worker:
    """A thread of its own for one blocking model. Jobs run in order, one at a time.

    `run` is a coroutine; cancelling it does not stop the job that already runs (cancel lands
    between jobs), and `run` then waits for that job before it raises `CancelledError`, so that
    whoever returns from a cancelled `run` knows that the model is idle again.

    `nice` is how much the thread stands back when others want its core (as of setpriority(2); on
    Linux, where threads have priorities of their own).
    """

    def __init__(self, name: str, *, nice: int = 0) -> None:
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix=f"voicepipe-{name}",
            initializer=_stand_back,
            initargs=(nice,),
        )

    async def run(self, job: Callable[[*Ts], T], *args: *Ts) -> T:
        job_future = self._executor.submit(job, *args)
        future = asyncio.wrap_future(job_future)
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop):
            loop.count_job(future)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not job_future.cancel():
                await _settled(future)
            raise

    def close(self) -> None:
        """Finish the running job, refuse new ones and end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _stand_back(nice: int) -> None:
    """Lower the priority of the calling thread."""
    if nice and sys.platform == "linux":
        thread = threading.get_native_id()
        priority = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, priority + nice)


async def _settled(future: asyncio.Future[T]) -> None:
    """Wait for `future` whatever happens meanwhile; its result has no reader any more."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue  # the first cancel is raised by our caller
    if not future.cancelled():
        future.exception()


class _VirtualSelector(selectors.SelectSelector):
    """Polls real file descriptors, but instead of waiting lets the clock jump."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.loop.n_jobs:  # a model thread is at work: real time passes, virtual time does not
            return super().select(self.loop.job_patience_s) or self._expired()
        if timeout is None:
            raise Deadlock("virtual clock: no timer and no job is left, yet the loop still waits")
        self.loop.jump(timeout)
        return ready

    def _expired(self) -> list[tuple[selectors.SelectorKey, int]]:
        raise Deadlock(
            f"virtual clock: a worker job has run for over {self.loop.job_patience_s:.0f} s"
        )


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer whenever nothing else can run.

    It does not jump while an executor job runs, so model threads take no virtual time; when
    nothing can ever wake it again it raises `Deadlock` at once.
    """

    job_patience_s = 120.0

    def __init__(self) -> None:
        selector = _VirtualSelector()
        super().__init__(selector)
        selector.loop = self
        self._now_s = 0.0
        self.n_jobs = 0
        """Executor jobs submitted and not yet delivered to the loop."""

    def time(self) -> float:
        return self._now_s

    def jump(self, seconds: float) -> None:
        self._now_s += max(0.0, seconds)

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self.count_job(future)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        """The thread that waits for the executor's threads is a job as well."""
        self.n_jobs += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.n_jobs -= 1

    def count_job(self, future: asyncio.Future[T]) -> None:
        """Let the clock stand until `future`, the result of a thread's job, is delivered."""
        self.n_jobs += 1
        future.add_done_callback(self._job_done)

    def _job_done(self, _: object) -> None:
        self.n_jobs -= 1


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` under the virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
