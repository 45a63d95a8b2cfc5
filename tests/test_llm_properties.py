"""What users of local language models keep asking for, as far as no module's own tests show it.

Counted in tokens and rows that are computed, never in seconds.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from stages.llm import LocalLLM, ReplyLength, Sampling
from stages.llm.step_plan import Rows
from tests import llm_tiny
from voicepipe.clock import run_virtual
from voicepipe.protocols import Conversation, Reply, ReplyStats

SYSTEM = "You are a helpful assistant who has a great deal to say about all and everything."
HOUR_S = 3600
N_REPLY = 24
WORDS = "hello the other one"


def loaded(file: Path, kv_tokens: int = 8192) -> LocalLLM:
    return LocalLLM(
        file,
        n_threads=1,
        precision="float32",
        context_tokens=512,
        kv_tokens=kv_tokens,
        length=ReplyLength(N_REPLY, N_REPLY),
        sampling=Sampling(temperature=0.8, seed=5),
    )


@functools.cache
def tiny(kv_tokens: int = 8192) -> LocalLLM:
    return loaded(llm_tiny.model_file(), kv_tokens)


async def say(conversation: Conversation, text: str) -> Reply:
    reply = conversation.reply(text)
    async with reply as deltas:
        async for _ in deltas:
            pass
    reply.adopt()
    return reply


async def settled() -> None:
    """Until everything that is being prepared is done: virtual time stands while a step runs."""
    await asyncio.sleep(1)


def n_new(stats: ReplyStats) -> int:
    return stats.prompt_tokens - stats.cached_tokens


def n_glue(llm: LocalLLM, text: str) -> int:
    """Tokens of what the caller says and of the template around it: its end and the next header."""
    runtime = llm.runtime
    return len(runtime.template.user_ids(text, "reply") + runtime.template.reply_header_ids)


@contextmanager
def counted(llm: LocalLLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of each step that is computed meanwhile."""
    computed: list[int] = []
    compute = llm.runtime.scheduler._compute  # noqa: SLF001

    def counting(batch: Sequence[Rows]) -> torch.Tensor:
        computed.append(sum(len(rows.ids) for rows in batch))
        return compute(batch)

    with monkeypatch.context() as patch:
        patch.setattr(llm.runtime.scheduler, "_compute", counting)
        yield computed


def test_an_hour_later_the_prefix_is_the_same_though_its_template_asks_for_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = "{{ strftime_now('%H:%M:%S.%f') }}" + llm_tiny.CHATML
    llm = loaded(llm_tiny.write(tmp_path / "clock.gguf", template=template))

    async def main() -> None:
        async with llm.open(SYSTEM) as conversation:
            before = conversation.history_ids()  # type: ignore[attr-defined]
        await asyncio.sleep(HOUR_S)
        with counted(llm, monkeypatch) as computed:
            async with llm.open(SYSTEM) as conversation:
                assert conversation.history_ids() == before  # type: ignore[attr-defined]
                assert computed == [], "it is still there"
                assert n_new((await say(conversation, WORDS)).stats) <= n_glue(llm, WORDS)

    run_virtual(main())
    again = loaded(tmp_path / "clock.gguf").runtime.template
    assert again.system_ids(SYSTEM) == llm.runtime.template.system_ids(SYSTEM)


def test_when_a_conversation_is_open_nothing_of_its_prefix_is_left_to_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with tiny().open("A system prompt of this test alone.") as conversation:
            with counted(tiny(), monkeypatch) as computed:
                await settled()
                first = await say(conversation, WORDS)
                assert sum(computed) <= n_glue(tiny(), WORDS) + 2 * N_REPLY
            await settled()
            second = await say(conversation, WORDS)
            assert n_new(first.stats) <= n_new(second.stats)

    run_virtual(main())


def test_an_hour_of_other_peoples_talk_costs_an_idle_conversation_nothing() -> None:
    async def main() -> None:
        llm = tiny(kv_tokens=1024)
        async with llm.open(SYSTEM) as idle:
            await say(idle, WORDS)
            await settled()
            before = llm.runtime.pool.n_evicted
            for n in range(12):
                async with llm.open(SYSTEM) as other:
                    for text in (f"{n} is my number", "and then I'd rather have the other"):
                        await say(other, text)
                        await asyncio.sleep(HOUR_S / 24)
            assert llm.runtime.pool.n_evicted > before, "the cache was too large to show anything"
            assert n_new((await say(idle, WORDS)).stats) <= n_glue(llm, WORDS)
            async with llm.open(SYSTEM) as late:
                assert n_new((await say(late, WORDS)).stats) <= n_glue(llm, WORDS)

    run_virtual(main())


def test_what_was_generated_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        llm = tiny()
        async with llm.open(SYSTEM) as conversation:
            reply = await say(conversation, WORDS)
            assert reply.stats.generated_tokens >= 12
            with counted(llm, monkeypatch) as computed:
                await settled()
            header = llm.runtime.template.user_ids("", "reply", whole=False)
            assert sum(computed) <= len(header) + 1, "the last token and the next turn's header"
            next_reply = await say(conversation, WORDS)
            assert n_new(next_reply.stats) <= n_glue(llm, WORDS)

    run_virtual(main())


def test_conversations_that_take_turns_find_what_each_alone_would_find() -> None:
    turns = ("hello in the hell", "us and them", "then I'd rather the other one")

    async def cached(n_conversations: int) -> list[list[int]]:
        llm = loaded(llm_tiny.model_file())
        found: list[list[int]] = [[] for _ in range(n_conversations)]
        async with AsyncExitStack() as stack:
            conversations = [
                await stack.enter_async_context(llm.open(f"{n} is your number. {SYSTEM}"))
                for n in range(n_conversations)
            ]
            for text in turns:
                for n, conversation in enumerate(conversations):
                    found[n].append(n_new((await say(conversation, text)).stats))
                await settled()
        llm.close()
        return found

    alone = run_virtual(cached(1))
    assert run_virtual(cached(8)) == alone * 8
