"""Calls of tools through endpoints: what is sent, and what comes back in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from stages.llm import OpenAILLM
from stages.llm.dialogue import NO_RESULT
from stages.llm.endpoints import Address
from stages.llm.remote_calls import BadCall, CallParts
from stages.llm.sse import CallPart
from tests.llm_endpoint import Answer, Endpoint, serving
from tests.llm_tools import HANG_UP, TABLE, TOOLS
from voicepipe.errors import ComponentError
from voicepipe.protocols import Conversation, Reply, ToolCall

ARGUMENTS = {"people": 2, "name": "Zoë", "when": "today"}
WHOLE = '{"people": 2, "name": "Zoë", "when": "today"}'
Delta = dict[str, Any]


def piece(index: int | None, arguments: object, **more: str) -> Delta:
    function = {"arguments": arguments} | ({"name": more["name"]} if "name" in more else {})
    part: Delta = {"function": function}
    if index is not None:
        part["index"] = index
    return part | ({"id": more["id"]} if "id" in more else {})


def against(
    answer: Answer | Sequence[Answer], talk: Callable[[Endpoint, Conversation], Awaitable[None]]
) -> None:
    """`talk` to a model that answers so, in turn."""
    answers = [answer] if isinstance(answer, Answer) else list(answer)

    async def main() -> None:
        async with (
            asyncio.timeout(20),
            serving(
                answer=lambda _: answers.pop(0) if len(answers) > 1 else answers[0]
            ) as endpoint,
        ):
            llm = OpenAILLM(endpoint.url, "m", warm_up=False)
            async with llm.open("Be brief.", TOOLS) as conversation:
                await talk(endpoint, conversation)

    asyncio.run(main())


async def read(reply: Reply) -> Reply:
    async with reply as deltas:
        async for _ in deltas:
            pass
    return reply


@pytest.mark.socket
def test_the_request_tells_of_tools_and_history_has_calls_and_results() -> None:
    async def talk(endpoint: Endpoint, conversation: Conversation) -> None:
        reply = await read(conversation.reply("A table."))
        reply.adopt()
        assert reply.calls == (
            ToolCall("book_table", ARGUMENTS, "c1"),
            ToolCall("hang_up", {}, "c2"),
        )
        (await read(conversation.reply_to_results(["ok", "bye"]))).adopt()
        first, second = endpoint.requests
        assert first["tools"][0] == {
            "type": "function",
            "function": {
                "name": "book_table",
                "description": "Reserves a table.",
                "parameters": TABLE.parameters,
            },
        }
        assert [tool["function"]["name"] for tool in first["tools"]] == ["book_table", "hang_up"]
        assert second["tools"] == first["tools"]
        assert "tool_choice" not in first | second
        assert second["messages"][2:] == [
            {
                "role": "assistant",
                "content": "One moment.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "book_table", "arguments": WHOLE},
                    },
                    {
                        "id": "c2",
                        "type": "function",
                        "function": {"name": "hang_up", "arguments": "{}"},
                    },
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            {"role": "tool", "tool_call_id": "c2", "content": "bye"},
        ]

    calls = [piece(0, WHOLE, id="c1", name="book_table"), piece(1, "", id="c2", name="hang_up")]
    against([Answer("One moment.", [calls]), Answer("Done.")], talk)


@pytest.mark.socket
def test_a_reply_that_must_not_call_says_so_and_knows_the_tools() -> None:
    async def talk(endpoint: Endpoint, conversation: Conversation) -> None:
        (await read(conversation.reply("Goodbye."))).adopt()
        reply = await read(conversation.reply_to_results(["ok"], may_call=False))
        assert (reply.text, reply.calls) == ("Bye.", ())
        assert endpoint.requests[1]["tool_choice"] == "none"
        assert endpoint.requests[1]["tools"] == endpoint.requests[0]["tools"]

    again = [[piece(0, "{}", name="hang_up")]]
    against([Answer("", again), Answer("Bye.", again)], talk)


@pytest.mark.socket
def test_calls_without_results_have_one_that_says_so() -> None:
    async def talk(endpoint: Endpoint, conversation: Conversation) -> None:
        (await read(conversation.reply("Goodbye."))).adopt()
        (await read(conversation.reply("Hello?"))).drop()
        _, called, result, asked = endpoint.requests[-1]["messages"][1:]
        assert called["content"] == ""
        assert result == {
            "role": "tool",
            "tool_call_id": called["tool_calls"][0]["id"],
            "content": NO_RESULT,
        }
        assert asked == {"role": "user", "content": "Hello?"}

    against([Answer("", [[piece(0, "{}", name="hang_up")]]), Answer("Yes?")], talk)


@pytest.mark.socket
def test_without_tools_requests_have_none_and_calls_are_nobodys() -> None:
    async def main() -> None:
        calls = [[piece(0, "{", name="f")]]
        async with asyncio.timeout(20), serving(answer=lambda _: Answer("Hi.", calls)) as endpoint:
            llm = OpenAILLM(endpoint.url, "m", warm_up=False)
            async with llm.open("") as conversation:
                reply = await read(conversation.reply("Hello."))
            assert (reply.text, reply.calls) == ("Hi.", ())
            assert "tools" not in endpoint.requests[0]

    asyncio.run(main())


@pytest.mark.socket
def test_the_warm_up_tells_of_tools_too() -> None:
    async def main() -> None:
        async with asyncio.timeout(20), serving() as endpoint:
            async with OpenAILLM(endpoint.url, "m").open("Be brief.", TOOLS):
                await endpoint.asked.wait()
            assert len(endpoint.warm_ups[0]["tools"]) == 2

    asyncio.run(main())


@pytest.mark.socket
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (piece(0, '{"people": 2', name="book_table"), "it called 'book_table' with bad JSON"),
        (piece(0, "[1]", name="book_table"), "'book_table' with arguments that are no object"),
        (piece(0, "{}", name="cancel"), "it called a tool 'cancel', which it was not told of"),
        (piece(0, "{}"), "it called a tool '', which it was not told of"),
    ],
)
def test_a_call_that_cannot_be_run_is_one_clear_line(call: Delta, says: str) -> None:
    async def talk(endpoint: Endpoint, conversation: Conversation) -> None:
        reply = conversation.reply("A table.")
        with pytest.raises(ComponentError) as error:
            await read(reply)
        assert says in str(error.value)
        assert f"{endpoint.url}" in str(error.value)
        assert "raise max_tokens, or use a model that is better at calling" in str(error.value)
        assert "\n" not in str(error.value)
        reply.drop()
        assert len(endpoint.requests) == 1

    against(Answer("One moment.", [[call]]), talk)


@pytest.mark.socket
def test_a_call_cut_in_the_middle_is_made_by_another_endpoint_and_only_there() -> None:
    first = piece(0, WHOLE[:20], id="c1", name="book_table")
    endpoints: list[Endpoint] = []

    def answer(request: object) -> Answer:
        """Whoever is asked first is cut off."""
        for endpoint in endpoints:
            endpoint.behaviour = "answer" if endpoint.requests == [] else endpoint.behaviour
        return Answer("", [[first], [piece(0, WHOLE[20:])]])

    async def main() -> None:
        async with (
            asyncio.timeout(20),
            serving("cut in a call", answer) as one,
            serving("cut in a call", answer) as two,
        ):
            endpoints[:] = [one, two]
            llm = OpenAILLM(one.url, "m", others=[Address(two.url, "m")], warm_up=False)
            async with llm.open("", TOOLS) as conversation:
                reply = await read(conversation.reply("A table."))
            assert (reply.text, reply.calls) == ("", (ToolCall("book_table", ARGUMENTS, "c1"),))
            assert len(one.requests) == len(two.requests) == 1

    asyncio.run(main())


HANG, BOOK = CallPart(0, "a", "hang_up", "{}"), CallPart(1, "b", "book_table")


@pytest.mark.parametrize(
    "parts",
    [
        [replace(HANG, arguments=""), replace(BOOK, arguments=WHOLE)],
        [
            *(replace(HANG, arguments="{"), replace(HANG, arguments="}"), BOOK),
            *(CallPart(1, arguments=c) for c in WHOLE),
        ],
        [HANG, replace(BOOK, arguments=WHOLE[:9]), CallPart(1, arguments=WHOLE[9:])],
        [HANG, replace(BOOK, index=0, arguments=WHOLE)],
        [
            *(replace(HANG, index=None), replace(BOOK, index=None, arguments=WHOLE[:9])),
            CallPart(None, arguments=WHOLE[9:]),
        ],
    ],
)
def test_however_calls_are_cut_they_are_put_together(parts: list[CallPart]) -> None:
    found = CallParts()
    for part in parts:
        found.add(part)
    expected = [ToolCall("hang_up", {}, "a"), ToolCall("book_table", ARGUMENTS, "b")]
    assert found.whole(["hang_up", "book_table"]) == expected


@pytest.mark.parametrize("indices", [(0, 1), (None, None)])
def test_calls_without_ids_get_some(indices: tuple[int | None, int | None]) -> None:
    found = CallParts()
    for index in indices:
        found.add(CallPart(index, "", "hang_up"))
    one, two = found.whole([HANG_UP.name])
    assert one.id != two.id
    assert one.id


def test_a_deeply_nested_call_is_refused() -> None:
    found = CallParts()
    found.add(CallPart(0, "", "hang_up", '{"a": ' + "[" * 100_000))
    with pytest.raises(BadCall, match="bad JSON"):
        found.whole(["hang_up"])
