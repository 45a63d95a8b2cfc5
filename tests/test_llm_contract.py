"""What every language model promises a session, whichever it is."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from stages.llm import LocalLLM, OpenAILLM, ReplyLength, ScriptedLLM
from tests import llm_reading, llm_tiny
from tests.llm_endpoint import Endpoint, serving
from tests.llm_reading import Check, checker
from voicepipe.errors import UsageError
from voicepipe.models import path_of
from voicepipe.protocols import Conversation, LanguageModel, Reply

SYSTEM = "You are a helpful assistant on a phone call."


@dataclass(frozen=True)
class Subject:
    """A language model, and a way to see what a conversation holds: (role, text) in order."""

    llm: LanguageModel
    history: Callable[[Conversation], Awaitable[list[tuple[str, str]]]]
    exact: bool = True
    """Whether the same context always gets the same reply. With torch's int8 it may turn out
    differently where two tokens are all but equally likely."""


@asynccontextmanager
async def scripted() -> AsyncIterator[Subject]:
    llm = ScriptedLLM(lambda text: f"You said {text}, fine.", first_token_ms=5, per_token_ms=1)

    async def history(conversation: Conversation) -> list[tuple[str, str]]:
        messages = conversation.dialogue.messages("")  # type: ignore[attr-defined]
        return [(m["role"], m["content"]) for m in messages]

    yield Subject(llm, history)


@asynccontextmanager
async def remote() -> AsyncIterator[Subject]:
    async with serving() as endpoint:
        yield Subject(OpenAILLM(endpoint.url, "m"), functools.partial(asked, endpoint))


async def asked(endpoint: Endpoint, conversation: Conversation) -> list[tuple[str, str]]:
    """What the endpoint is sent with the next request, without system prompt and question."""
    question = f"probe {len(endpoint.requests)} {id(conversation)}"
    probe = conversation.reply(question)
    await read(probe)
    probe.drop()
    (messages,) = (
        request["messages"]
        for request in endpoint.requests
        if request["messages"][-1]["content"] == question
    )
    return [(m["role"], m["content"]) for m in messages[1:-1]]


@functools.cache
def tiny_llm() -> LocalLLM:
    length = ReplyLength(soft_tokens=12, max_tokens=12)
    return LocalLLM(llm_tiny.model_file(), n_threads=1, precision="float64", length=length)


@functools.cache
def real_llm() -> LocalLLM:
    file = next(path_of("smollm2-135m-instruct").glob("*.gguf"))
    return LocalLLM(file, length=ReplyLength(soft_tokens=8, max_tokens=12))


@asynccontextmanager
async def local(llm: LocalLLM) -> AsyncIterator[Subject]:
    tokenizer = llm.runtime.tokenizer

    async def history(conversation: Conversation) -> list[tuple[str, str]]:
        ids = conversation.history_ids()  # type: ignore[attr-defined]
        starts = [
            n for n, token_id in enumerate(ids) if tokenizer.token(token_id) == "<|im_start|>"
        ]
        spoken = []
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            role, _, text = tokenizer.decode(ids[start:end]).partition("\n")
            spoken.append((role, text.removesuffix("\n") if end < len(ids) else text))
        return spoken[1:]

    kernel = llm.runtime.model.kernel
    yield Subject(llm, history, exact=kernel is None or kernel.kernel.kind == "compiled")


Talks = Check[Subject]


@pytest.fixture(
    params=[
        pytest.param(scripted, id="scripted"),
        pytest.param(remote, id="remote"),
        pytest.param(lambda: local(tiny_llm()), id="tiny"),
        pytest.param(lambda: local(real_llm()), id="real", marks=pytest.mark.models),
    ]
)
def check(request: pytest.FixtureRequest) -> Talks:
    """Runs a conversation with each language model, bounded in time."""
    return checker(request.param)


async def read(reply: Reply, n: int | None = None) -> str:
    return (await llm_reading.read(reply, n)).text


async def say(conversation: Conversation, text: str) -> str:
    reply = conversation.reply(text)
    await read(reply)
    reply.adopt()
    return reply.text


def test_an_adopted_reply_is_history_and_a_dropped_one_leaves_no_trace(
    check: Talks,
) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            first = await say(conversation, "hello there")
            dropped = conversation.reply("what time is it")
            await read(dropped)
            dropped.drop()
            assert await subject.history(conversation) == [
                ("user", "hello there"),
                ("assistant", first),
            ]
            second = await say(conversation, "what day is it")
            assert await subject.history(conversation) == [
                ("user", "hello there"),
                ("assistant", first),
                ("user", "what day is it"),
                ("assistant", second),
            ]

    check(talk)


def test_after_truncate_history_is_exactly_what_was_heard(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            text = await say(conversation, "tell me something")
            heard = text[: len(text) // 2]
            conversation.truncate(heard)
            assert (await subject.history(conversation))[1] == ("assistant", heard)
            with pytest.raises(ValueError, match="no prefix"):
                conversation.truncate(heard + "#")
            conversation.truncate(heard[:3])
            assert (await subject.history(conversation))[1] == ("assistant", heard[:3])
            conversation.truncate("")
            assert await subject.history(conversation) == [("user", "tell me something")]

    check(talk)


def test_truncate_without_a_reply_takes_only_nothing(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            conversation.truncate("")
            with pytest.raises(ValueError, match="no prefix"):
                conversation.truncate("x")

    check(talk)


def test_reopen_takes_the_last_turn_out_and_gives_its_words_back(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            assert conversation.reopen() == ""
            first = await say(conversation, "hello")
            await say(conversation, "I would like")
            assert conversation.reopen() == "I would like"
            assert await subject.history(conversation) == [("user", "hello"), ("assistant", first)]
            merged = await say(conversation, "I would like some tea")
            assert (await subject.history(conversation))[2:] == [
                ("user", "I would like some tea"),
                ("assistant", merged),
            ]

    check(talk)


def test_words_without_a_reply_are_history_too(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            conversation.add_user_text("hello")
            reply = await say(conversation, "are you there")
            assert await subject.history(conversation) == [
                ("user", "hello"),
                ("user", "are you there"),
                ("assistant", reply),
            ]

    check(talk)


def test_nothing_comes_after_leaving_and_only_what_was_read_is_adopted(
    check: Talks,
) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            reply = conversation.reply("tell me a long story")
            text = await read(reply, n=2)
            generated = reply.stats.generated_tokens
            assert await subject.history(conversation) == []
            assert (reply.text, reply.stats.generated_tokens) == (text, generated)
            reply.adopt()
            assert (await subject.history(conversation))[1] == ("assistant", text)

    check(talk)


def test_the_same_context_gets_the_same_reply_again(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            held = conversation.reply("where is the station", held=True)
            conversation.extend("where is the")
            first = await read(held)
            held.release()
            held.drop()
            again = await say(conversation, "where is the station")
            assert again == first or not subject.exact

    check(talk)


def test_replies_may_overlap(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            old, new = conversation.reply("one", held=True), conversation.reply("two")
            async with old as old_deltas, new as new_deltas:
                await anext(old_deltas)
                async for _ in new_deltas:
                    pass
            old.drop()
            new.adopt()
            assert await subject.history(conversation) == [("user", "two"), ("assistant", new.text)]
        async with subject.llm.open(SYSTEM) as conversation:
            alone = await say(conversation, "two")
        assert alone == new.text or not subject.exact

    check(talk)


def test_a_reply_adopted_late_follows_what_was_adopted_before_it(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            late = conversation.reply("two")
            await read(late)
            first = await say(conversation, "one")
            late.adopt()
            assert await subject.history(conversation) == [
                ("user", "one"),
                ("assistant", first),
                ("user", "two"),
                ("assistant", late.text),
            ]
            assert await say(conversation, "three")

    check(talk)


def test_a_reply_is_concluded_once_and_entered_once(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            reply = conversation.reply("hello")
            await read(reply)
            with pytest.raises(UsageError):
                await read(reply)
            reply.drop()
            with pytest.raises(UsageError):
                reply.adopt()

    check(talk)


def test_a_reply_never_entered_can_be_dropped(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            conversation.reply("hello").drop()
            assert await subject.history(conversation) == []

    check(talk)


def test_conversations_at_once_never_mix(check: Talks) -> None:
    questions = ["the red one", "the blue one", "the green one", "the grey one"]

    async def talk(subject: Subject) -> None:
        async def converse(question: str) -> list[str]:
            async with subject.llm.open(SYSTEM) as conversation:
                replies = [await say(conversation, f"{question}, take {n}") for n in range(2)]
                assert await subject.history(conversation) == [
                    ("user", f"{question}, take 0"),
                    ("assistant", replies[0]),
                    ("user", f"{question}, take 1"),
                    ("assistant", replies[1]),
                ]
                return replies

        alone = [await converse(question) for question in questions if subject.exact]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(converse(question)) for question in questions]
        assert [task.result() for task in tasks] == alone or not subject.exact

    check(talk)


def test_an_error_of_the_reader_leaves_unchanged_and_stops_the_reply(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            reply = conversation.reply("hello")

            async def fail() -> None:
                async with reply as deltas:
                    async for _ in deltas:
                        raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            reply.drop()
            assert await say(conversation, "still there")

    check(talk)


def test_cancelling_the_reader_stops_the_reply(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            reply = conversation.reply("hello")
            async with asyncio.TaskGroup() as group:
                task = group.create_task(read(reply))
                await asyncio.sleep(0)
                task.cancel()
            assert task.cancelled()
            reply.drop()
            assert await say(conversation, "still there")

    check(talk)


def test_tokens_are_counted(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM) as conversation:
            await say(conversation, "hello there")
            reply = conversation.reply("and now")
            await read(reply)
            reply.drop()
            stats = reply.stats
            assert stats.prompt_tokens > stats.cached_tokens > 0
            assert stats.generated_tokens > 0

    check(talk)
