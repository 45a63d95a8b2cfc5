from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from stages.llm import OpenAILLM
from stages.llm.remote import EndpointLimits
from stages.llm.sse import BadStream, Chunk, parse_line
from tests.llm_endpoint import Behaviour, Endpoint, serving
from voicepipe.errors import ComponentError
from voicepipe.protocols import Reply

LIMITS = EndpointLimits(connect_s=2.0, first_token_s=0.3, idle_s=0.3)


def against(behaviour: Behaviour, talk: Callable[[Endpoint, OpenAILLM], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), serving(behaviour) as endpoint:
            await talk(endpoint, OpenAILLM(endpoint.url, "m", api_key="k", limits=LIMITS))

    asyncio.run(main())


async def read(reply: Reply) -> list[str]:
    async with reply as deltas:
        return [delta async for delta in deltas]


def test_words_stream_and_usage_is_counted() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("Be brief.") as conversation:
            reply = conversation.reply("hello")
            deltas = await read(reply)
        assert "".join(deltas) == reply.text == "You said hello after 1 messages, fine."
        assert all(deltas)
        assert len(deltas) > 3
        stats = reply.stats
        assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (40, 32, 7)

    against("answer", talk)


def test_the_request_is_what_the_api_wants() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("Be brief.") as conversation:
            await read(conversation.reply("hello"))
        request = endpoint.requests[0]
        assert request["model"] == "m"
        assert request["stream"] is True
        assert request["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
        ]
        assert "authorization: Bearer k" in endpoint.headers[0]

    against("answer", talk)


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("refuse", "HTTP 404: model not found"),
        ("no json", "HTTP 404: <html>oops"),
        ("bad json", "bad JSON"),
        ("report an error", "out of memory"),
        ("cut", "in the middle of a reply"),
        ("say nothing", "no first word within 0.3 s"),
        ("fall silent", "no further word within 0.3 s"),
    ],
)
def test_what_goes_wrong_is_one_clear_line(behaviour: Behaviour, says: str) -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            reply = conversation.reply("hello")
            with pytest.raises(ComponentError) as error:
                await read(reply)
            reply.drop()
        message = str(error.value)
        assert says in message
        assert endpoint.url in message
        assert "\n" not in message

    against(behaviour, talk)


def test_nobody_listening_is_one_clear_line() -> None:
    async def main() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            llm = OpenAILLM(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", "m")
            async with llm.open("") as conversation:
                with pytest.raises(ComponentError, match="cannot connect"):
                    await read(conversation.reply("hello"))

    asyncio.run(main())


@pytest.mark.parametrize("url", ["not a url", "http://", "ftp://127.0.0.1/v1"])
def test_an_impossible_address_is_one_clear_line(url: str) -> None:
    async def main() -> None:
        async with OpenAILLM(url, "m").open("") as conversation:
            with pytest.raises(ComponentError):
                await read(conversation.reply("hello"))

    asyncio.run(main())


def test_leaving_a_reply_closes_its_connection() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            reply = conversation.reply("hello")
            async with reply as deltas:
                async for _ in deltas:
                    break
            await asyncio.wait_for(endpoint.hung_up.wait(), 5)
            reply.drop()

    against("fall silent", talk)


def test_an_endpoint_that_failed_once_is_asked_again() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            failed = conversation.reply("hello")
            with pytest.raises(ComponentError):
                await read(failed)
            failed.drop()
            endpoint.behaviour = "answer"
            assert await read(conversation.reply("hello"))

    against("cut", talk)


@pytest.mark.parametrize("line", ["", ": comment", "event: x", "id: 3", "retry: 10"])
def test_lines_without_data_mean_nothing(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize(
    "line",
    [
        'data: {"choices": []}',
        'data: {"choices": [{"delta": {"role": "assistant"}}]}',
        'data: {"choices": [{"delta": {"content": null}}]}',
        'data: {"choices": [null], "usage": null}',
        'data: {"choices": "what"}',
    ],
)
def test_empty_and_role_only_events_carry_no_text(line: str) -> None:
    assert parse_line(line) == Chunk()


@pytest.mark.parametrize("line", ["data: {", "data: [1]", "data: 3", 'data: {"error": "x"}'])
def test_events_that_make_no_sense_are_refused(line: str) -> None:
    with pytest.raises(BadStream):
        parse_line(line)
