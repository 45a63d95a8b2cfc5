"""The queue to a client: in order, bounded, and never waited for."""

import asyncio

import pytest

from voicepipe.clock import run_virtual
from voicepipe.transports.outbox import MAX_QUEUED_BYTES, PATIENCE_S, Outbox, SlowClient


class Pipe:
    """A sink that takes `takes` messages and then none."""

    def __init__(self, takes: float = float("inf")) -> None:
        self.takes = takes
        self.sent: list[str | bytes] = []

    async def send(self, message: str | bytes) -> None:
        if len(self.sent) >= self.takes:
            await asyncio.Event().wait()
        self.sent.append(message)


def test_messages_go_out_in_order_until_closed() -> None:
    async def main() -> list[str | bytes]:
        outbox, pipe = Outbox(), Pipe()
        async with asyncio.TaskGroup() as group:
            group.create_task(outbox.drain(pipe))
            outbox.put("a")
            outbox.put(b"bb")
            await asyncio.sleep(1)
            outbox.put("c")
            outbox.close()
            outbox.put("too late")
        return pipe.sent

    assert run_virtual(main()) == ["a", b"bb", "c"]


def test_audio_can_be_taken_back_but_not_words() -> None:
    async def main() -> list[str | bytes]:
        outbox, pipe = Outbox(), Pipe()
        for message in ("a", b"12", b"34", "b"):
            outbox.put(message)
        outbox.drop_audio()
        outbox.close()
        await outbox.drain(pipe)
        return pipe.sent

    assert run_virtual(main()) == ["a", "b"]


def test_a_client_that_takes_nothing_is_given_up() -> None:
    async def main() -> float:
        outbox = Outbox()
        outbox.put("a")
        outbox.put("b")
        with pytest.raises(SlowClient):
            await outbox.drain(Pipe(takes=1))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(PATIENCE_S)


def test_the_queue_is_bounded() -> None:
    async def main() -> None:
        outbox, pipe = Outbox(), Pipe()
        for _ in range(1_000):
            outbox.put(bytes(1_000))
        with pytest.raises(SlowClient):
            await outbox.drain(pipe)
        assert sum(map(len, pipe.sent)) <= MAX_QUEUED_BYTES

    run_virtual(main())
