from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from stages.llm.engine import Engine, Priority, Ticket
from voicepipe.clock import run_virtual

priorities = st.sampled_from(list(Priority))


async def served(
    tickets: Sequence[Ticket], *, cancelled: Sequence[int] = (), released: int | None = None
) -> list[int]:
    """The order in which users get the engine that all wait while it is busy."""
    order: list[int] = []
    engine = Engine("test")

    async def use(n: int) -> None:
        await engine.run(tickets[n], order.append, n)

    async with asyncio.TaskGroup() as group, engine.turn(Ticket(Priority.RELEASED)):
        tasks = [group.create_task(use(n)) for n in range(len(tickets))]
        await asyncio.sleep(1)
        for n in cancelled:
            tasks[n].cancel()
        if released is not None:
            tickets[released].priority = Priority.RELEASED
        await asyncio.sleep(1)
    await engine.run(Ticket(Priority.AHEAD), order.append, -1)  # it is free again
    engine.close()
    assert order.pop() == -1
    return order


@given(st.lists(priorities, max_size=8), st.data())
def test_the_most_urgent_goes_first_equals_in_order_and_the_cancelled_never(
    wanted: list[Priority], data: st.DataObject
) -> None:
    cancelled = data.draw(st.sets(st.integers(0, len(wanted) - 1))) if wanted else set()
    order = run_virtual(served([Ticket(p) for p in wanted], cancelled=sorted(cancelled)))
    alive = [n for n in range(len(wanted)) if n not in cancelled]
    assert order == sorted(alive, key=lambda n: wanted[n])


def test_a_released_ticket_moves_up_while_it_waits() -> None:
    tickets = [Ticket(Priority.HELD), Ticket(Priority.AHEAD), Ticket(Priority.HELD)]
    assert run_virtual(served(tickets, released=2)) == [2, 0, 1]


def test_users_with_many_steps_take_turns() -> None:
    async def main() -> list[str]:
        engine, order = Engine("test"), list[str]()

        async def use(name: str) -> None:
            ticket = Ticket(Priority.RELEASED)
            for _ in range(3):
                await engine.run(ticket, order.append, name)

        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(use(name))
        engine.close()
        return order

    assert run_virtual(main()) == list("abcabcabc")


def test_whoever_is_cancelled_the_moment_it_is_chosen_passes_the_engine_on() -> None:
    async def main() -> None:
        engine = Engine("test")

        async def use() -> None:
            await engine.run(Ticket(Priority.HELD), int)

        async with asyncio.TaskGroup() as group:
            async with engine.turn(Ticket(Priority.HELD)):
                chosen, after = group.create_task(use()), group.create_task(use())
                await asyncio.sleep(1)
            chosen.cancel()  # granted, but not yet awake
            async with asyncio.timeout(5):
                await after
        engine.close()

    run_virtual(main())
