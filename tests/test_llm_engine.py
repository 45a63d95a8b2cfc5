from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stages.llm.engine import Engine
from voicepipe.clock import run_virtual


@contextmanager
def counting() -> Iterator[tuple[Engine, list[int]]]:
    """An engine, and a list that each step adds its number to."""
    steps: list[int] = []
    engine = Engine("test", lambda: steps.append(len(steps)))
    try:
        yield engine, steps
    finally:
        engine.close()


def test_steps_run_only_while_somebody_waits() -> None:
    async def main() -> None:
        with counting() as (engine, steps):
            await engine.until(lambda: len(steps) >= 3)
            await asyncio.sleep(5)
            assert len(steps) == 3
            await engine.until(lambda: True)
            assert len(steps) == 3

    run_virtual(main())


def test_one_step_serves_all_who_wait() -> None:
    async def main() -> None:
        with counting() as (engine, steps):
            async with asyncio.TaskGroup() as group:
                for n in (5, 3, 5, 1):
                    group.create_task(engine.until(lambda n=n: len(steps) >= n))  # type: ignore[misc]
            assert len(steps) == 5

    run_virtual(main())


def test_who_is_cancelled_during_a_step_leaves_it_to_the_others() -> None:
    async def main() -> None:
        with counting() as (engine, steps):
            async with asyncio.timeout(5), asyncio.TaskGroup() as group:
                leader = group.create_task(engine.until(lambda: False))
                await asyncio.sleep(0)
                group.create_task(engine.until(lambda: len(steps) >= 4))
                await asyncio.sleep(0)
                leader.cancel()
            n_steps = len(steps)
            await asyncio.sleep(1)
            assert len(steps) == n_steps
            assert leader.cancelled()

    run_virtual(main())


def test_what_must_not_meet_a_step_waits_for_its_end_and_keeps_its_order() -> None:
    async def main() -> None:
        with counting() as (engine, steps):
            done: list[str] = []
            engine.between(lambda: done.append("at once"))
            assert done == ["at once"]
            async with asyncio.TaskGroup() as group:
                group.create_task(engine.until(lambda: bool(steps)))
                await asyncio.sleep(0)
                for name in ("first", "second"):
                    engine.between(lambda name=name: done.append(name))  # type: ignore[misc]
                assert done == ["at once"]
            assert done == ["at once", "first", "second"]

    run_virtual(main())


def test_a_job_gets_its_turn_beside_somebody_who_always_steps() -> None:
    async def main() -> None:
        with counting() as (engine, steps):
            async with asyncio.TaskGroup() as group:
                busy = group.create_task(engine.until(lambda: len(steps) > 1000))
                await asyncio.sleep(0)
                done: list[int] = []
                await engine.run(lambda: done.append(len(steps)))
                assert done[0] <= 3
                busy.cancel()

    run_virtual(main())


def test_job_after_job_does_not_keep_steps_from_running() -> None:
    async def main() -> None:
        with counting() as (engine, steps):
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(engine.until(lambda: len(steps) >= 5))
                for _ in range(20):
                    await engine.run(lambda: None)
                assert waiting.done()

    run_virtual(main())


def test_what_a_job_or_a_step_raises_is_raised_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        with counting() as (engine, steps):
            with pytest.raises(ValueError, match="no"):
                await engine.run(fail)
            await engine.until(lambda: bool(steps))
        broken = Engine("test", fail)
        with pytest.raises(ValueError, match="no"):
            await broken.until(lambda: False)
        broken.close()

    run_virtual(main())


def test_a_job_that_nobody_waits_for_any_more_is_not_run() -> None:
    async def main() -> None:
        with counting() as (engine, steps):
            done: list[int] = []
            async with asyncio.TaskGroup() as group:
                group.create_task(engine.until(lambda: len(steps) >= 2))
                await asyncio.sleep(0)
                job = group.create_task(engine.run(lambda: done.append(1)))
                await asyncio.sleep(0)
                job.cancel()
            assert done == []

    run_virtual(main())


def test_a_job_taken_up_by_somebody_who_is_then_cancelled_is_not_lost() -> None:
    async def main() -> None:
        steps: list[int] = []
        go_on = threading.Event()

        def step() -> None:
            assert len(steps) < 100, "the job is lost"
            if not steps:  # the thread is slow to begin what comes next
                engine._worker._executor.submit(go_on.wait)  # noqa: SLF001
            steps.append(len(steps))

        engine = Engine("test", step)
        done: list[int] = []
        try:
            async with asyncio.TaskGroup() as group:
                leader = group.create_task(
                    engine.until(lambda: bool(steps) and not leader.cancel())
                )
                await asyncio.sleep(0)
                job = group.create_task(engine.run(lambda: done.append(1)))
                await asyncio.wait([leader])
                go_on.set()
                await job
        finally:
            go_on.set()
            engine.close()
        assert done == [1]

    run_virtual(main())


def test_what_fails_between_two_steps_stops_neither_who_waits_nor_what_comes_after_it() -> None:
    async def main() -> None:
        with counting() as (engine, steps):
            done: list[str] = []

            def fail() -> None:
                raise ValueError("no")

            async def lead() -> None:
                with pytest.raises(ValueError, match="no"):
                    await engine.until(lambda: False)

            async with asyncio.TaskGroup() as group:
                group.create_task(lead())
                await asyncio.sleep(0)
                group.create_task(engine.until(lambda: len(steps) >= 3))
                await asyncio.sleep(0)
                engine.between(fail)
                engine.between(lambda: done.append("after it"))
            assert done == ["after it"]

    run_virtual(main())
