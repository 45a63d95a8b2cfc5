"""The virtual loop jumps, waits for model threads, and says so when nothing can ever happen."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from voicepipe.clock import Deadlock, Worker, process_time_s, run_virtual


def test_an_hour_passes_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        async def at(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, loop.time()))

        async with asyncio.TaskGroup() as group:
            group.create_task(at("late", 3600.0))
            group.create_task(at("early", 0.5))
        return seen

    began_s = process_time_s()
    assert run_virtual(main()) == [("early", 0.5), ("late", 3600.0)]
    assert process_time_s() - began_s < 60.0


def test_the_clock_stands_while_a_job_runs() -> None:
    go = threading.Event()

    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        with Worker("test") as worker:

            async def open_the_door() -> None:
                await asyncio.sleep(0)
                go.set()

            async with asyncio.TaskGroup() as group:
                group.create_task(open_the_door())
                job = group.create_task(worker.run(lambda: (go.wait(30), 7)[1]))
                group.create_task(asyncio.sleep(5.0))
                answer = await job
                return answer, loop.time()

    assert run_virtual(main()) == (7, 0.0)


def test_a_deadlock_is_an_error_and_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="no timer and no job"):
        run_virtual(main())


def test_cancelling_a_job_waits_for_it_and_drops_those_behind_it() -> None:
    started, go = threading.Event(), threading.Event()
    ran: list[str] = []

    def first() -> None:
        started.set()
        go.wait(30)
        ran.append("first")

    async def main() -> None:
        with Worker("test") as worker:
            async with asyncio.TaskGroup() as group:
                one = group.create_task(worker.run(first))
                two = group.create_task(worker.run(lambda: ran.append("second")))
                await asyncio.get_running_loop().run_in_executor(None, started.wait)
                one.cancel()
                two.cancel()
                await asyncio.sleep(0)
                assert not one.done()  # the model still works: nobody may think it idle
                go.set()
                await asyncio.wait([one, two])
                assert one.cancelled()
                assert two.cancelled()
            await worker.run(lambda: ran.append("third"))

    run_virtual(main())
    assert ran == ["first", "third"]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_a_thread_that_is_asked_to_stands_back_and_no_other_does() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def main() -> tuple[int, int]:
        with Worker("test") as usual, Worker("test", nice=3) as behind:
            return await usual.run(priority), await behind.run(priority)

    assert run_virtual(main()) == (priority(), priority() + 3)


def test_a_job_that_raises_raises_to_its_waiter() -> None:
    async def main() -> None:
        with Worker("test") as worker:
            await worker.run(lambda: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())
