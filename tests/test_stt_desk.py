"""Who may use the model next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from stages.stt.desk import Caller, Desk


def run(main: Callable[[Desk, threading.Event, list[str]], Awaitable[None]]) -> list[str]:
    """`main` with a desk whose first step lasts until the event is set; the order of the steps."""

    async def started() -> list[str]:
        desk, gate, order = Desk("test"), threading.Event(), list[str]()
        async with asyncio.timeout(30):
            await main(desk, gate, order)
            gate.set()
            await desk.run(Caller(), order.append, "idle")
        assert len(asyncio.all_tasks()) == 1
        return order

    return asyncio.run(started())


async def queued(n_steps: int = 3) -> None:
    for _ in range(n_steps):
        await asyncio.sleep(0)


def test_steps_run_one_at_a_time_and_return_what_the_job_does() -> None:
    async def main(desk: Desk, gate: threading.Event, order: list[str]) -> None:
        busy, n_at_once = threading.Lock(), []

        def step(n: int) -> int:
            n_at_once.append(busy.acquire(blocking=False))
            busy.release()
            return n * n

        results = await asyncio.gather(*(desk.run(Caller(), step, n) for n in range(20)))
        assert results == [n * n for n in range(20)]
        assert all(n_at_once)

    assert run(main) == ["idle"]


def test_urgent_callers_go_first_even_if_they_became_so_while_waiting() -> None:
    async def main(desk: Desk, gate: threading.Event, order: list[str]) -> None:
        late = Caller()
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.run(Caller(), gate.wait))
            await queued()
            group.create_task(desk.run(Caller(), order.append, "interim"))
            group.create_task(desk.run(late, order.append, "final"))
            await queued()
            late.urgent = True
            gate.set()

    assert run(main) == ["final", "interim", "idle"]


def test_the_least_recently_served_goes_first() -> None:
    async def main(desk: Desk, gate: threading.Event, order: list[str]) -> None:
        one, other = Caller(), Caller()
        await desk.run(other, order.append, "other")
        await desk.run(one, order.append, "one")
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.run(Caller(), gate.wait))
            await queued()
            group.create_task(desk.run(one, order.append, "one"))
            group.create_task(desk.run(other, order.append, "other"))
            await queued()
            gate.set()

    assert run(main) == ["other", "one", "other", "one", "idle"]


def test_one_who_leaves_the_queue_holds_nobody_up() -> None:
    async def main(desk: Desk, gate: threading.Event, order: list[str]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(desk.run(Caller(), gate.wait))
            await queued()
            gone = group.create_task(desk.run(Caller(), order.append, "gone"))
            group.create_task(desk.run(Caller(), order.append, "stays"))
            await queued()
            gone.cancel()
            gate.set()

    assert run(main) == ["stays", "idle"]


def test_one_who_leaves_at_the_moment_of_its_turn_passes_it_on() -> None:
    async def main(desk: Desk, gate: threading.Event, order: list[str]) -> None:
        async def first() -> None:
            await desk.run(Caller(), gate.wait)
            gone.cancel()  # its turn has come, but it has not run yet

        async with asyncio.TaskGroup() as group:
            group.create_task(first())
            await queued()
            gone = group.create_task(desk.run(Caller(), order.append, "gone"))
            group.create_task(desk.run(Caller(), order.append, "stays"))
            await queued()
            gate.set()

    assert run(main) == ["stays", "idle"]


def test_a_cancelled_step_is_finished_before_the_next_one_begins() -> None:
    async def main(desk: Desk, gate: threading.Event, order: list[str]) -> None:
        def step() -> None:
            gate.wait()
            order.append("finished")

        async with asyncio.TaskGroup() as group:
            running = group.create_task(desk.run(Caller(), step))
            group.create_task(desk.run(Caller(), order.append, "next"))
            await queued()
            running.cancel()
            await queued()
            assert order == []
            gate.set()

    assert run(main) == ["finished", "next", "idle"]


def test_an_error_of_a_step_is_raised_and_the_next_one_runs() -> None:
    async def main(desk: Desk, gate: threading.Event, order: list[str]) -> None:
        def broken() -> None:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await desk.run(Caller(), broken)

    assert run(main) == ["idle"]
