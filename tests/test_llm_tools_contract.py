"""What every language model promises about tools, whichever it is."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stages.llm import LocalLLM, OpenAILLM, ScriptedCalls, ScriptedLLM
from stages.llm.dialogue import NO_RESULT
from tests.llm_endpoint import Answer, Endpoint, Request, serving
from tests.llm_reading import Check, checker, read
from tests.llm_tools import TABLE, TOOLS, caller
from voicepipe.errors import UsageError
from voicepipe.protocols import Conversation, LanguageModel, Reply, ToolCall, ToolSpec

pytestmark = pytest.mark.socket
SYSTEM = "You take reservations."
ARGUMENTS = {"people": 2, "name": "Zoë", "when": "today"}
Entry = tuple[str, str]
"""("assistant", "One moment."), ("call", "book_table"), ("tool", "done"), ..."""


@dataclass(frozen=True)
class Subject:
    """A language model, a way to see what a conversation holds, and what makes the model say
    something and then call tools."""

    llm: LanguageModel
    history: Callable[[Conversation], Awaitable[list[Entry]]]
    asking: str = "A table for two, please."


@asynccontextmanager
async def scripted() -> AsyncIterator[Subject]:
    def reply(text: str) -> str | ScriptedCalls:
        if "table" not in text:
            return f"You said {text}."
        call = ToolCall("book_table", ARGUMENTS)
        again = ScriptedCalls([call], "Once more.", lambda results: "All right.")
        return ScriptedCalls([call], "One moment.", lambda results: again)

    async def history(conversation: Conversation) -> list[Entry]:
        return entries(conversation.dialogue.messages(""))  # type: ignore[attr-defined]

    yield Subject(ScriptedLLM(reply, first_token_ms=5, per_token_ms=1), history)


@asynccontextmanager
async def remote() -> AsyncIterator[Subject]:
    function = {"name": "book_table", "arguments": json.dumps(ARGUMENTS)}
    whole = {"index": 0, "id": "call_2", "type": "function", "function": function}

    def answer(request: Request) -> Answer:
        said = request["messages"][-1]["content"]
        if "done" in said:
            return Answer("Once more.", [[whole]])  # whatever it was told
        if "table" not in said:
            return Answer(f"You said {said}.")
        pieces = ['{"people": 2, "na', 'me": "Zoë", ', '"when": "today"}']
        first = {"index": 0, "id": "call_1", "type": "function"}
        calls = [{**first, "function": {"name": "book_table", "arguments": ""}}]
        calls += [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
        return Answer("One moment.", [[call] for call in calls])

    async with serving(answer=answer) as endpoint:
        yield Subject(OpenAILLM(endpoint.url, "m"), functools.partial(asked, endpoint))


async def asked(endpoint: Endpoint, conversation: Conversation) -> list[Entry]:
    question = f"probe {len(endpoint.requests)} {id(conversation)}"
    probe = conversation.reply(question)
    await read(probe)
    probe.drop()
    found = [request["messages"] for request in endpoint.requests]
    (messages,) = (each for each in found if each[-1]["content"] == question)
    return entries(messages[1:-1])


def entries(messages: Sequence[dict[str, Any]]) -> list[Entry]:
    found = []
    for message in messages:
        if message["content"]:
            found.append((message["role"], message["content"]))
        found += [("call", call["function"]["name"]) for call in message.get("tool_calls", ())]
    return found


@functools.cache
def tiny_llm() -> LocalLLM:
    return caller()


@asynccontextmanager
async def local() -> AsyncIterator[Subject]:
    llm = tiny_llm()
    tokenizer = llm.runtime.tokenizer

    async def history(conversation: Conversation) -> list[Entry]:
        """Calls that wait for results are shown as the next user turn would find them."""
        source = conversation.reply("x").source  # type: ignore[attr-defined]
        ids = source.generation.prompt_ids
        spelled = b"".join(tokenizer.bytes_of[n] or tokenizer.token(n).encode() for n in ids)
        messages = spelled.decode().split("<|im_start|>")[3:-2]
        found = []
        for message in messages:
            role, _, text = message.rstrip("\n").removesuffix("<|im_end|>").partition("\n")
            text, *calls = text.split("<tool_call>")
            found += [(role, text)] if text.strip() else []
            bodies = (call.strip().removesuffix("</tool_call>") for call in calls)
            found += [("call", json.loads(body)["name"]) for body in bodies]
        return found

    yield Subject(llm, history, "two of us")


Talks = Check[Subject]


@pytest.fixture(params=[scripted, remote, local])
def check(request: pytest.FixtureRequest) -> Talks:
    """Runs a conversation with each language model, bounded in time."""
    return checker(request.param)


async def called(subject: Subject, conversation: Conversation) -> Reply:
    """An adopted reply that says something and calls tools."""
    reply = await read(conversation.reply(subject.asking))
    reply.adopt()
    assert reply.text
    assert reply.calls
    return reply


def results_of(reply: Reply) -> list[str]:
    return [f"done {n}" for n in range(len(reply.calls))]


def made(reply: Reply) -> list[Entry]:
    """What an adopted reply is in history, without results."""
    said = [("assistant", reply.text)] if reply.text.strip() else []
    return said + [("call", call.name) for call in reply.calls]


def test_a_reply_may_end_with_calls_and_its_text_has_nothing_of_them(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            reply = conversation.reply(subject.asking)
            assert not reply.calls
            await read(reply)
            reply.drop()
            assert reply.text
            assert reply.calls
            assert not set("{}<>") & set(reply.text)
            for call in reply.calls:
                assert call.name in ("book_table", "hang_up")
                keys = {"people", "name", "when"} if call.name == "book_table" else set()
                assert call.arguments.keys() == keys
            assert await subject.history(conversation) == []

    check(talk)


def test_calls_results_and_the_reply_to_them_are_one_turn(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            first = await called(subject, conversation)
            results = results_of(first)
            reply = await read(conversation.reply_to_results(results))
            reply.adopt()
            answered = [("tool", result) for result in results]
            history = [("user", subject.asking), *made(first), *answered, *made(reply)]
            left = [("tool", NO_RESULT) for _ in reply.calls]
            assert await subject.history(conversation) == history + left
            assert conversation.reopen() == subject.asking
            assert await subject.history(conversation) == []

    check(talk)


def test_a_reply_to_results_may_call_again_unless_it_must_not(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            reply = await called(subject, conversation)
            n_calling = 0
            for n in range(4):
                results = ["done" + " so" * n for _ in reply.calls]
                again = await read(conversation.reply_to_results(results))
                again.drop()
                n_calling += bool(again.calls)
                spoken = await read(conversation.reply_to_results(results, may_call=False))
                spoken.drop()
                assert not spoken.calls
                assert not set("{}<>") & set(spoken.text)
            assert n_calling

    check(talk)


def test_results_stay_when_the_reply_to_them_is_dropped(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            first = await called(subject, conversation)
            before = [("user", subject.asking), *made(first)]
            dropped = await read(conversation.reply_to_results(results_of(first), held=True))
            dropped.drop()
            answered = [("tool", result) for result in results_of(first)]
            assert await subject.history(conversation) == before + answered
            again = await read(conversation.reply_to_results(results_of(first)))
            assert (again.text, again.calls) == (dropped.text, dropped.calls)
            again.adopt()
            if not again.calls:
                with pytest.raises(UsageError, match="no results to reply to"):
                    conversation.reply_to_results(results_of(first))

    check(talk)


def test_a_caller_who_goes_on_leaves_calls_without_results_until_they_come(
    check: Talks,
) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            first = await called(subject, conversation)
            conversation.add_user_text("Hello?")
            before = [("user", subject.asking), *made(first)]
            unknown = [("tool", NO_RESULT) for _ in first.calls]
            assert await subject.history(conversation) == [*before, *unknown, ("user", "Hello?")]
            with pytest.raises(UsageError, match="made no calls"):
                conversation.reply_to_results(results_of(first))
            conversation.add_results(results_of(first))
            answered = [("tool", result) for result in results_of(first)]
            assert await subject.history(conversation) == [*before, *answered, ("user", "Hello?")]
            with pytest.raises(UsageError, match="no calls wait"):
                conversation.add_results(results_of(first))

    check(talk)


def test_a_cut_leaves_calls_and_results_as_they_are(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            first = await called(subject, conversation)
            calls = [entry for entry in made(first) if entry[0] == "call"]
            answered = [("tool", result) for result in results_of(first)]
            asked = ("user", subject.asking)
            heard = first.text[: len(first.text) // 2]
            conversation.truncate(heard)
            said = [("assistant", heard)] if heard.strip() else []
            reply = await read(conversation.reply_to_results(results_of(first)))
            reply.adopt()
            with pytest.raises(ValueError, match="no prefix"):
                conversation.truncate(heard + reply.text + "#")
            conversation.truncate(heard)
            more = [("call", call.name) for call in reply.calls]
            more += [("tool", NO_RESULT) for _ in reply.calls]
            assert await subject.history(conversation) == [asked, *said, *calls, *answered, *more]
            conversation.truncate("")
            assert await subject.history(conversation) == [asked, *calls, *answered, *more]

    check(talk)


def test_a_call_that_was_not_read_was_not_made(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            reply = await read(conversation.reply(subject.asking), n=1)
            assert not reply.calls
            reply.adopt()
            history = [("user", subject.asking), ("assistant", reply.text)]
            assert await subject.history(conversation) == history
            with pytest.raises(UsageError, match="no results to reply to"):
                conversation.reply_to_results([])

    check(talk)


def test_a_late_reply_to_results_goes_into_its_turn(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            first = await called(subject, conversation)
            reply = await read(conversation.reply_to_results(results_of(first)))
            conversation.add_user_text("Hello?")
            reply.adopt()
            answered = [("tool", result) for result in results_of(first)]
            turn = [("user", subject.asking), *made(first), *answered, *made(reply)]
            turn += [("tool", NO_RESULT) for _ in reply.calls]
            assert await subject.history(conversation) == [*turn, ("user", "Hello?")]
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            first = await called(subject, conversation)
            reply = await read(conversation.reply_to_results(results_of(first)))
            conversation.reopen()
            reply.adopt()
            assert await subject.history(conversation) == []

    check(talk)


def test_each_call_gets_one_result(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        async with subject.llm.open(SYSTEM, TOOLS) as conversation:
            with pytest.raises(UsageError, match="no results to reply to"):
                conversation.reply_to_results([])
            with pytest.raises(UsageError, match="no calls wait"):
                conversation.add_results([])
            first = await called(subject, conversation)
            n = len(first.calls)
            for results in ([], [*results_of(first), "more"]):
                with pytest.raises(UsageError, match=f"{len(results)} results for {n} calls"):
                    conversation.reply_to_results(results)
            conversation.reply_to_results(results_of(first)).drop()

    check(talk)


def test_two_tools_of_one_name_are_refused(check: Talks) -> None:
    async def talk(subject: Subject) -> None:
        with pytest.raises(UsageError, match="two tools are called 'book_table'"):
            async with subject.llm.open(SYSTEM, [TABLE, replace(TABLE, description="Other.")]):
                raise AssertionError("opened")

    check(talk)


@pytest.mark.parametrize("parameters", [{}, {"type": "string"}])
def test_parameters_that_are_no_object_are_refused(parameters: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="JSON schema of an object"):
        ToolSpec("f", "Does it.", parameters)
    with pytest.raises(UsageError, match="give it a name"):
        ToolSpec("", "Does it.", {"type": "object"})
