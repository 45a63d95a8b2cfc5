from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm import LocalLLM, ReplyLength, Sampling
from stages.llm.local import MAX_PREFIXES
from stages.llm.runtime import DRAFT_SOURCES, DraftSource
from stages.llm.step_plan import Rows
from tests import llm_reading, llm_tiny
from voicepipe.clock import run_virtual
from voicepipe.errors import ComponentError, UsageError
from voicepipe.models import path_of
from voicepipe.protocols import Conversation, Reply

SYSTEM = "You are a helpful assistant."
N_REPLY = 6


@functools.cache
def tiny(context_tokens: int = 512, *, drafts: Collection[DraftSource] = DRAFT_SOURCES) -> LocalLLM:
    return LocalLLM(
        llm_tiny.model_file(),
        n_threads=1,
        precision="float64",
        context_tokens=context_tokens,
        length=ReplyLength(N_REPLY, N_REPLY),
        sampling=Sampling(temperature=0.0, repetition_penalty=1.0),
        drafts=drafts,
    )


async def read(reply: Reply, n: int | None = None) -> str:
    return (await llm_reading.read(reply, n)).text


async def say(conversation: Conversation, text: str) -> Reply:
    reply = conversation.reply(text)
    await read(reply)
    reply.adopt()
    return reply


async def settled() -> None:
    """Until everything that is being prepared is done: virtual time stands while a step runs."""
    await asyncio.sleep(1)


def ids_of(conversation: Conversation) -> list[int]:
    return list(conversation.history_ids())  # type: ignore[attr-defined]


def prompt_ids(llm: LocalLLM, conversation: Conversation, text: str) -> list[int]:
    """The prompt of a reply to `text`, from history alone."""
    return conversation.reply(text).source.generation.prompt_ids  # type: ignore[attr-defined, no-any-return]


def cold_logits(llm: LocalLLM, ids: list[int]) -> torch.Tensor:
    model, n = llm.runtime.model, len(ids)
    return model.step(model.new_store(n), [Rows(ids, 0, range(n), [(0, n)], 1)])[0]


def cold_reply(llm: LocalLLM, ids: list[int]) -> str:
    """What the model says after `ids`, computed from nothing."""
    said: list[int] = []
    while len(said) < N_REPLY:
        token_id = int(cold_logits(llm, ids + said).argmax())
        if token_id in llm.runtime.tokenizer.control_ids:
            break
        said.append(token_id)
    return llm.runtime.tokenizer.decode(said)


# -- what is computed, and what is not -------------------------------------------------------------


def test_the_first_turn_computes_only_the_users_words() -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM) as conversation:
            reply = await say(conversation, "hello the other one")
            words = tiny().runtime.tokenizer.encode("hello the other one")
            new = reply.stats.prompt_tokens - reply.stats.cached_tokens
            header = tiny().runtime.template.reply_header_ids
            assert 1 <= new <= len(words) + len(header)

    run_virtual(main())


def test_a_later_turn_computes_only_the_users_words_too() -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM) as conversation:
            for n in range(3):
                await settled()
                reply = await say(conversation, "hello the other one")
                words = tiny().runtime.tokenizer.encode("hello the other one")
                header = tiny().runtime.template.reply_header_ids
                new = reply.stats.prompt_tokens - reply.stats.cached_tokens
                assert 1 <= new <= len(words) + len(header), f"turn {n}"

    run_virtual(main())


def test_words_known_early_are_computed_early() -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM) as conversation:
            conversation.extend("hello the other one in")
            await settled()
            reply = await say(conversation, "hello the other one in red")
            words = tiny().runtime.tokenizer.encode(" red")
            header = tiny().runtime.template.reply_header_ids
            assert reply.stats.prompt_tokens - reply.stats.cached_tokens <= len(words) + len(header)

    run_virtual(main())


def test_words_that_turn_out_differently_are_rolled_back() -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM) as conversation:
            conversation.extend("hello the hell")
            await settled()
            reply = conversation.reply("hello the hello")
            expected = cold_reply(tiny(), prompt_ids(tiny(), conversation, "hello the hello"))
            assert await read(reply) == expected
            kept = tiny().runtime.tokenizer.encode("hello the")
            new = tiny().runtime.tokenizer.encode(" hello")
            assert kept + new == tiny().runtime.tokenizer.encode("hello the hello")
            header = tiny().runtime.template.reply_header_ids
            assert reply.stats.prompt_tokens - reply.stats.cached_tokens <= len(new) + len(header)

    run_virtual(main())


def test_a_dropped_reply_leaves_its_users_words_computed() -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM) as conversation:
            held = conversation.reply("hello the other", held=True)
            await read(held, n=1)
            held.drop()
            reply = await say(conversation, "hello the other one")
            new = reply.stats.prompt_tokens - reply.stats.cached_tokens
            words = tiny().runtime.tokenizer.encode(" one")
            assert new <= len(words) + len(tiny().runtime.template.reply_header_ids)

    run_virtual(main())


def test_a_reply_that_never_began_leaves_the_draft_of_an_earlier_one() -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM) as conversation:
            first = conversation.reply("hello the other", held=True)
            await read(first)
            first.drop()
            conversation.reply("hello the other one", held=True).drop()
            assert conversation._earlier  # type: ignore[attr-defined]  # noqa: SLF001

    run_virtual(main())


def test_the_prefix_is_the_same_for_every_conversation_and_ever() -> None:
    async def main() -> list[int]:
        async with tiny().open(SYSTEM) as conversation:
            return ids_of(conversation)

    assert run_virtual(main()) == run_virtual(main())


# -- history and cache agree -----------------------------------------------------------------------

words = st.sampled_from(["hello", "the other one", "in a hell", "us", "then I'd rather", "é!"])


@dataclass
class Talk:
    """Random things done to a conversation."""

    conversation: Conversation
    adopted: list[Reply] = field(default_factory=list)

    async def do(self, action: str, text: str, n: int) -> None:
        if action == "extend":
            self.conversation.extend(text)
        elif action == "settle":
            await settled()
        elif action == "adopt":
            reply = self.conversation.reply(text)
            await read(reply, n or None)
            reply.adopt()
            self.adopted.append(reply)
        elif action == "drop":
            reply = self.conversation.reply(text, held=True)
            await read(reply, n or None)
            reply.drop()
        elif action == "overlap":
            held, reply = self.conversation.reply(text, held=True), self.conversation.reply("us")
            async with held as deltas:
                async for _ in deltas:
                    await read(reply)
                    break
            held.drop()
            if n % 2:
                reply.adopt()
                self.adopted.append(reply)
            else:
                reply.drop()
        elif action == "truncate" and self.adopted:
            self.conversation.truncate(self.adopted.pop().text[:n])
            self.adopted.clear()
        elif action == "reopen":
            self.conversation.reopen()
            self.adopted.clear()
        elif action == "add":
            self.conversation.add_user_text(text)


ACTIONS = ["extend", "settle", "adopt", "drop", "overlap", "truncate", "reopen", "add"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), words, st.integers(0, 5)), max_size=8))
def test_whatever_happened_a_reply_is_what_history_alone_would_give(
    actions: list[tuple[str, str, int]],
) -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM) as conversation:
            talk = Talk(conversation)
            for action in actions:
                await talk.do(*action)
            reply = conversation.reply("hello the last one")
            expected = cold_reply(tiny(), prompt_ids(tiny(), conversation, "hello the last one"))
            assert await read(reply) == expected
            reply.drop()

    run_virtual(main())


def test_truncated_history_has_the_ids_of_what_was_heard() -> None:
    async def main() -> None:
        tokenizer = tiny().runtime.tokenizer
        async with tiny().open(SYSTEM) as conversation:
            before = prompt_ids(tiny(), conversation, "hello")
            reply = await say(conversation, "hello")
            assert tokenizer.decode(ids_of(conversation)[len(before) :]) == reply.text
            conversation.truncate(reply.text[:2])
            assert tokenizer.decode(ids_of(conversation)[len(before) :]) == reply.text[:2]

    run_virtual(main())


def test_what_was_generated_but_not_read_is_no_history() -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM) as conversation:
            before = prompt_ids(tiny(), conversation, "hello")
            reply = conversation.reply("hello")
            async with reply as deltas:
                await anext(deltas)
                await settled()  # generating runs on meanwhile
            assert reply.stats.generated_tokens == N_REPLY
            reply.adopt()
            said = ids_of(conversation)[len(before) :]
            assert tiny().runtime.tokenizer.decode(said) == reply.text
            assert len(said) < N_REPLY

    run_virtual(main())


# -- limits ----------------------------------------------------------------------------------------


def test_old_turns_are_dropped_rarely_and_by_half() -> None:
    async def main() -> None:
        llm = tiny(512)
        lengths, cold = [], 0
        async with llm.open(SYSTEM) as conversation:
            for n in range(40):
                await settled()
                reply = await say(conversation, f"hello number {n}")
                lengths.append(len(ids_of(conversation)))
                assert reply.stats.prompt_tokens + N_REPLY <= 512
                assert llm.runtime.tokenizer.decode(ids_of(conversation)).startswith(
                    "system\n" + SYSTEM
                )
                words = reply.stats.prompt_tokens - reply.stats.cached_tokens
                cold += words > 60
        drops = [n for n in range(1, 40) if lengths[n] < lengths[n - 1]]
        assert 1 <= len(drops) <= 13
        longest = max(lengths[n] - lengths[n - 1] for n in range(1, 40))
        assert all(256 - longest <= lengths[n] <= 256 for n in drops), "by half, and no more"
        assert cold == 0, "what is left is computed between turns, not in front of a reply"

    run_virtual(main())


def test_a_turn_that_never_fits_is_one_clear_line() -> None:
    async def main() -> None:
        async with tiny(256).open(SYSTEM) as conversation:
            reply = conversation.reply("hello " * 300)
            with pytest.raises(ComponentError, match="raise context_tokens"):
                await read(reply)
            reply.drop()
            assert (await say(conversation, "hello")).text

    run_virtual(main())


def test_a_system_prompt_that_never_fits_is_one_clear_line() -> None:
    async def main() -> None:
        async with tiny(256).open("hello " * 300):
            raise AssertionError("opened")

    with pytest.raises(ComponentError, match="shorten it"):
        run_virtual(main())


@pytest.mark.parametrize("n", [0, -1])
def test_no_threads_are_refused(n: int) -> None:
    with pytest.raises(UsageError):
        LocalLLM(llm_tiny.model_file(), n_threads=n)
    with pytest.raises(UsageError):
        ReplyLength(max_tokens=n)


# -- opening and closing ---------------------------------------------------------------------------


def bounded(llm: LocalLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test in which somebody waits for what never comes fails instead of stepping for ever."""
    n_steps = 0

    def step() -> None:
        nonlocal n_steps
        n_steps += 1
        assert n_steps < 5000, "it never comes"
        llm.runtime.scheduler.step()

    monkeypatch.setattr(llm.runtime.engine, "_step", step)


def test_words_that_come_during_another_conversations_step_are_computed_early_too() -> None:
    async def main() -> None:
        llm = tiny(drafts=())
        async with llm.open(SYSTEM) as first, llm.open(SYSTEM) as second:
            await settled()
            reply = first.reply("in the hell us " * 20)
            async with reply:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                second.extend("hello the other one")
                await asyncio.sleep(0)
            reply.drop()
            await settled()
            assert second.trunk.sequence.ids == second.ids_ahead()  # type: ignore[attr-defined]

    run_virtual(main())


def test_who_gives_up_opening_does_not_keep_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        llm, system = tiny(), "A system prompt that nobody opened before."
        bounded(llm, monkeypatch)

        async def give_up() -> None:
            async with llm.open(system):
                raise AssertionError("opened too soon for this test")

        async with asyncio.TaskGroup() as group:
            opening = group.create_task(give_up())
            await asyncio.sleep(0)
            opening.cancel()
        async with llm.open(system) as conversation:
            await say(conversation, "hello")

    run_virtual(main())


def test_more_system_prompts_than_are_kept_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        llm = tiny()
        bounded(llm, monkeypatch)

        async def talk(n: int) -> None:
            async with llm.open(f"{n} is your number.") as conversation:
                await say(conversation, "hello")

        async with asyncio.TaskGroup() as group:
            for n in range(2 * MAX_PREFIXES):
                group.create_task(talk(n))

    run_virtual(main())


def test_preparing_that_fails_does_not_end_the_conversation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        llm = tiny()

        def fail(_: object) -> None:
            raise RuntimeError("out of luck")

        async with llm.open(SYSTEM) as conversation:
            with monkeypatch.context() as broken:
                broken.setattr(llm.runtime.scheduler, "_compute", fail)
                conversation.extend("hello the other one")
                await settled()
            assert "out of luck" in caplog.text
            reply = await say(conversation, "hello the other one")
            assert reply.text == cold_reply(llm, prompt_ids_afresh(llm, "hello the other one"))

    run_virtual(main())


def test_unknown_devices_and_sources_of_drafts_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'tpu'; known: cpu, cuda"):
        LocalLLM(llm_tiny.model_file(), device="tpu")
    with pytest.raises(UsageError, match="'luck'; known: earlier-reply, suffix, model"):
        LocalLLM(llm_tiny.model_file(), drafts=["luck"])  # type: ignore[list-item]


# -- fairness and cancelling -----------------------------------------------------------------------


def test_a_reply_that_is_left_takes_no_more_steps() -> None:
    async def main() -> None:
        llm = tiny(drafts=())
        async with llm.open(SYSTEM) as conversation:
            reply = conversation.reply("hello")
            async with reply as deltas:
                await anext(deltas)
            generated = reply.stats.generated_tokens
            assert generated < N_REPLY
            await settled()
            assert reply.stats.generated_tokens == generated
            reply.drop()

    run_virtual(main())


def test_a_reply_left_during_a_long_prefill_stops_there() -> None:
    async def main() -> None:
        llm = tiny()
        async with llm.open(SYSTEM) as conversation:
            reply = conversation.reply("in the hell us " * 20)
            async with reply:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert reply.stats.generated_tokens == 0
            reply.drop()
            assert (await say(conversation, "hello")).text == cold_reply(
                llm, prompt_ids_afresh(llm, "hello")
            )

    run_virtual(main())


def prompt_ids_afresh(llm: LocalLLM, text: str) -> list[int]:
    rendered = llm.runtime.template.render(
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}], generate=True
    )
    return llm.runtime.tokenizer.encode_glue(rendered)


def test_replies_at_once_take_turns() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            conversations = [
                await stack.enter_async_context(tiny(drafts=()).open(SYSTEM)) for _ in range(3)
            ]
            await settled()
            replies = [conversation.reply("hello") for conversation in conversations]
            counts = [0]

            def count() -> None:
                counts[:] = [reply.stats.generated_tokens for reply in replies]

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(read(reply)) for reply in replies]
                while not all(task.done() for task in tasks):
                    await tiny(drafts=()).runtime.engine.run(count)
                    assert max(counts) - min(counts) <= 2  # one begins while two still arrive
            for reply in replies:
                reply.drop()

    run_virtual(main())


# -- the real model --------------------------------------------------------------------------------


@functools.cache
def real_file() -> Path:
    return next(path_of("smollm2-135m-instruct").glob("*.gguf"))


GAP = 1e-3
"""Of logits: a product's rounding depends on how many rows it has."""


@pytest.mark.models
def test_drafts_change_nothing_of_the_real_model_but_near_ties() -> None:
    """Up to a first difference, whose two tokens must be all but equally likely."""
    length = ReplyLength(soft_tokens=60, max_tokens=60)
    sampling = Sampling(repetition_penalty=1.0)
    llm = LocalLLM(
        real_file(), length=length, sampling=sampling, context_tokens=512, precision="float32"
    )
    texts = [
        "Count from one to twenty.",
        "Count from one to twenty.",
        "Repeat: one two three four.",
    ]

    async def main() -> int:
        n_accepted = 0
        async with llm.open("You are a voice assistant.") as conversation:
            for text in texts:
                prompt = prompt_ids(llm, conversation, text)
                reply = await say(conversation, text)
                n_accepted += reply.stats.accepted_tokens
                said = ids_of(conversation)[len(prompt) :]
                check_greedy(llm, prompt, said)
        return n_accepted

    assert asyncio.run(main()) > 20
    llm.close()


def check_greedy(llm: LocalLLM, prompt: list[int], said: list[int]) -> None:
    """Each of `said` is what plain decoding would have said, up to near ties."""
    model, ids = llm.runtime.model, [*prompt, *said]
    rows = Rows(ids, 0, range(len(ids)), [(0, len(ids))], len(said) + 1)
    logits = model.step(model.new_store(len(ids)), [rows])
    for n, token in enumerate(said):
        assert logits[n].max() - logits[n, token] < GAP, f"token {n}"


@pytest.mark.models
def test_the_real_model_answers_in_a_sentence() -> None:
    async def main() -> None:
        llm = LocalLLM(real_file(), length=ReplyLength(soft_tokens=16, max_tokens=80))
        async with llm.open("Give short, direct answers in one sentence.") as conversation:
            capital = await say(conversation, "What is the capital of France?")
            assert "Paris" in capital.text
            rambling = await say(conversation, "Tell me a long story about a dragon.")
            assert rambling.stats.generated_tokens < 80
            assert rambling.text.rstrip().endswith((".", "!", "?", '"'))
        llm.close()

    asyncio.run(main())
