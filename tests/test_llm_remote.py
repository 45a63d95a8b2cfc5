"""A language model behind endpoints, against real servers on the loopback interface."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from stages.llm import OpenAILLM
from stages.llm.completions import EndpointLimits
from stages.llm.endpoints import Address, BackOff
from tests.llm_endpoint import Behaviour, Endpoint, serving
from voicepipe.errors import ComponentError
from voicepipe.protocols import Conversation, Reply

LIMITS = EndpointLimits(
    connect_s=2.0,
    first_token_s=1.0,
    failover_s=0.5,
    idle_s=0.5,
    warm_up_s=2.0,
    back_off=BackOff(first_s=0.4),
)
pytestmark = [pytest.mark.socket, pytest.mark.filterwarnings("error")]


def against(
    behaviour: Behaviour,
    talk: Callable[[Endpoint, OpenAILLM], Awaitable[None]],
    *,
    warm_up: bool = False,
) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), serving(behaviour) as endpoint:
            llm = OpenAILLM(endpoint.url, "m", api_key="k", warm_up=warm_up, limits=LIMITS)
            await talk(endpoint, llm)

    asyncio.run(main())


def between(
    talk: Callable[[OpenAILLM, list[Endpoint]], Awaitable[None]],
    n: int = 2,
    limits: EndpointLimits = LIMITS,
) -> None:
    """`talk` gets a language model of n good endpoints."""

    async def main() -> None:
        async with asyncio.timeout(20), AsyncExitStack() as stack:
            endpoints = [await stack.enter_async_context(serving()) for _ in range(n)]
            first, *others = [Address(endpoint.url, "m") for endpoint in endpoints]
            await talk(
                OpenAILLM(
                    first.base_url, "m", others=others, api_key="k", warm_up=False, limits=limits
                ),
                endpoints,
            )

    asyncio.run(main())


async def read(reply: Reply) -> list[str]:
    async with reply as deltas:
        return [delta async for delta in deltas]


async def say(conversation: Conversation, text: str) -> str:
    reply = conversation.reply(text)
    deltas = await read(reply)
    reply.adopt()
    assert "".join(deltas) == reply.text
    return reply.text


async def failure(conversation: Conversation) -> str:
    """The error of a reply, which is dropped."""
    reply = conversation.reply("hello")
    with pytest.raises(ComponentError) as error:
        await read(reply)
    reply.drop()
    assert "\n" not in str(error.value)
    return str(error.value)


async def asked_first(conversation: Conversation, endpoints: list[Endpoint]) -> Endpoint:
    """The endpoint that the conversation prefers, found by asking."""
    await say(conversation, "whom do I prefer")
    (preferred,) = (endpoint for endpoint in endpoints if endpoint.requests)
    preferred.requests.clear()
    return preferred


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nothing tells when a socket is closed
            await asyncio.sleep(0.01)


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


def test_the_drafts_of_an_endpoint_that_tells_of_them_are_counted() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            reply = conversation.reply("hello")
            await read(reply)
        assert (reply.stats.drafted_tokens, reply.stats.accepted_tokens) == (9, 5)

    against("draft", talk)


def test_the_request_is_what_the_api_wants() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("Be brief.") as conversation:
            await read(conversation.reply("hello"))
        (request,) = endpoint.requests
        assert request["model"] == "m"
        assert request["stream"] is True
        assert request["stream_options"] == {"include_usage": True}
        assert request["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
        ]
        assert "authorization: Bearer k" in endpoint.headers[0]

    against("answer", talk)


def test_no_character_is_taken_for_the_end_of_a_line() -> None:
    text = "one\u2028two\u0085three\x0bfour \U0001f600\u00fc"

    async def main() -> None:
        async with serving(answer=lambda _: text) as endpoint:
            llm = OpenAILLM(endpoint.url, "m", warm_up=False)
            async with llm.open("") as conversation:
                assert await say(conversation, "hello") == text

    asyncio.run(main())


def test_what_a_model_thinks_and_calls_is_not_spoken() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            assert await say(conversation, "hello") == "You said hello after 0 messages, fine."

    against("think", talk)


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("404", "HTTP 404: model not found: give the address up to and including /v1"),
        ("401", "HTTP 401: who are you: set OPENAI_API_KEY"),
        ("429", "HTTP 429: busy: let it serve fewer callers"),
        ("500", "HTTP 500: {'detail': 'cuda'}: check that"),
        ("400", "HTTP 400: context too long"),
        ("no json", "HTTP 404: <html>oops"),
        ("bad json", "bad JSON"),
        ("endless line", "a line of more than 1,000,000 bytes"),
        ("report an error", "out of memory"),
        ("report an error at once", "out of memory"),
        ("cut", "in the middle of a reply"),
        ("cut at once", "in the middle of a reply"),
        ("never answer", "no first token within 1 s"),
        ("say nothing", "no first token within 1 s"),
        ("fall silent", "no further token within 0.5 s, after 2 of them"),
    ],
)
def test_what_goes_wrong_is_one_clear_line(behaviour: Behaviour, says: str) -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            message = await failure(conversation)
        assert says in message
        assert endpoint.url in message
        await until(lambda: endpoint.n_open == 0)

    against(behaviour, talk)


@pytest.mark.parametrize("behaviour", ["never end", "cut after the end"])
def test_a_reply_that_is_complete_is_no_error_however_its_stream_ends(
    behaviour: Behaviour,
) -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            assert await say(conversation, "hello") == "You said hello after 0 messages, fine."

    against(behaviour, talk)


def test_nobody_listening_is_one_clear_line() -> None:
    async def main() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            llm = OpenAILLM(f"http://127.0.0.1:{unused.getsockname()[1]}/v1", "m", warm_up=False)
            async with llm.open("") as conversation:
                assert "cannot connect" in await failure(conversation)

    asyncio.run(main())


@pytest.mark.parametrize("url", ["not a url", "http://", "ftp://127.0.0.1/v1"])
def test_an_impossible_address_is_one_clear_line(url: str) -> None:
    async def main() -> None:
        async with OpenAILLM(url, "m").open("") as conversation:
            assert url in await failure(conversation)

    asyncio.run(main())


@pytest.mark.parametrize("behaviour", ["fall silent", "say nothing", "never answer"])
def test_leaving_a_reply_closes_its_connection_at_once(behaviour: Behaviour) -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            reply = conversation.reply("hello")
            async with reply:
                await endpoint.asked.wait()
            async with asyncio.timeout(0.4):
                await endpoint.hung_up.wait()
            reply.drop()

    against(behaviour, talk)


def test_replies_share_a_connection_and_a_left_one_costs_only_its_own() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            for _ in range(5):
                await say(conversation, "hello")
            assert endpoint.n_connections == 1
            left = conversation.reply("hello")
            async with left as deltas:
                async for _ in deltas:
                    break
            left.drop()
            await say(conversation, "hello")
            assert endpoint.n_connections <= 2
        await until(lambda: endpoint.n_open == 0)

    against("answer", talk)


def test_a_conversation_left_in_the_middle_leaves_no_connection_and_no_task() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        before = asyncio.all_tasks()
        async with asyncio.TaskGroup() as group:
            async with llm.open("Be brief.") as conversation:
                listener = group.create_task(failure(conversation))
                await until(lambda: bool(endpoint.requests and endpoint.warm_ups))
            assert "left before its reply" in await listener
            assert "left before its reply" in await failure(conversation)
        await until(lambda: endpoint.n_open == 0 and asyncio.all_tasks() == before)

    against("never answer", talk, warm_up=True)


def test_an_endpoint_that_failed_once_is_asked_again() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            await failure(conversation)
            endpoint.behaviour = "answer"
            assert await say(conversation, "hello")

    against("cut", talk)


def test_a_kept_connection_that_the_server_closed_is_no_failure() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("") as conversation:
            for _ in range(3):
                await say(conversation, "hello")
        assert endpoint.n_connections == 3

    against("hang up", talk)


def test_a_conversation_opens_with_the_prompt_prefilled_on_the_connection_it_will_use() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("Be brief.") as conversation:
            await endpoint.asked.wait()
            await asyncio.sleep(0.1)
            await say(conversation, "hello")
            await say(conversation, "hello")
        (warm_up,) = endpoint.warm_ups
        assert warm_up["max_tokens"] == 1
        assert warm_up["messages"][0] == {"role": "system", "content": "Be brief."}
        assert warm_up["messages"][1]["role"] == "user"
        assert len(endpoint.requests) == 2
        assert endpoint.n_connections == 1

    against("answer", talk, warm_up=True)


def test_a_warm_up_that_fails_chooses_the_endpoint_before_the_caller_speaks() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with serving() as other:
            both = OpenAILLM(endpoint.url, "m", others=[Address(other.url, "m")], limits=LIMITS)
            for _ in range(4):  # half of the conversations would rather ask the broken one
                async with both.open("Be brief.") as conversation:
                    await until(lambda: len(other.warm_ups) > 0)
                    assert await say(conversation, "hello")
                    other.warm_ups.clear()
        assert endpoint.requests == []

    against("500", talk)


def test_a_conversation_stays_with_its_endpoint_and_conversations_are_spread() -> None:
    async def talk(llm: OpenAILLM, endpoints: list[Endpoint]) -> None:
        n_asked = []
        for _ in range(20):
            async with llm.open("") as conversation:
                for _ in range(3):
                    await say(conversation, "hello")
            asked = [endpoint for endpoint in endpoints if endpoint.requests]
            assert len(asked) == 1
            n_asked.append(endpoints.index(asked[0]))
            asked[0].requests.clear()
        assert set(n_asked) == {0, 1, 2}

    between(talk, n=3, limits=EndpointLimits())


@pytest.mark.parametrize(
    "behaviour",
    [
        "404",
        "401",
        "429",
        "500",
        "report an error at once",
        "cut at once",
        "never answer",
        "say nothing",
    ],
)
def test_what_fails_before_the_first_word_is_asked_elsewhere(behaviour: Behaviour) -> None:
    async def talk(llm: OpenAILLM, endpoints: list[Endpoint]) -> None:
        async with llm.open("") as conversation:
            preferred = await asked_first(conversation, endpoints)
            preferred.behaviour = behaviour
            assert await say(conversation, "hello") == "You said hello after 2 messages, fine."
            assert await say(conversation, "hello") == "You said hello after 4 messages, fine."
        assert len(preferred.requests) == 1, "an endpoint that is down is left alone"

    between(talk)


@pytest.mark.parametrize("behaviour", ["cut", "fall silent", "report an error", "bad json"])
def test_what_fails_after_the_first_word_is_an_error_and_the_next_reply_asks_elsewhere(
    behaviour: Behaviour,
) -> None:
    async def talk(llm: OpenAILLM, endpoints: list[Endpoint]) -> None:
        async with llm.open("") as conversation:
            preferred = await asked_first(conversation, endpoints)
            preferred.behaviour = behaviour
            assert preferred.url in await failure(conversation)
            assert await say(conversation, "hello")
        assert len(preferred.requests) == 1

    between(talk)


def test_an_endpoint_that_is_killed_in_the_middle_of_a_reply() -> None:
    async def talk(llm: OpenAILLM, endpoints: list[Endpoint]) -> None:
        async with llm.open("") as conversation:
            preferred = await asked_first(conversation, endpoints)
            preferred.behaviour = "fall silent"
            heard: list[str] = []
            reply = conversation.reply("hello")

            async def listen() -> None:
                async with reply as deltas:
                    async for delta in deltas:
                        heard.append(delta)
                        if len(heard) == 2:
                            preferred.kill()

            with pytest.raises(ComponentError, match="closed the stream in the middle"):
                await listen()
            reply.drop()
            assert heard == ["You", " said"]
            assert await say(conversation, "hello") == "You said hello after 2 messages, fine."

    between(talk)


def test_a_request_that_is_wrong_is_wrong_everywhere() -> None:
    async def talk(llm: OpenAILLM, endpoints: list[Endpoint]) -> None:
        async with llm.open("") as conversation:
            preferred = await asked_first(conversation, endpoints)
            preferred.behaviour = "400"
            assert "context too long" in await failure(conversation)
            preferred.behaviour = "answer"
            assert await say(conversation, "hello")
        assert len(preferred.requests) == 2

    between(talk)


def test_when_none_answers_the_error_names_each() -> None:
    async def talk(llm: OpenAILLM, endpoints: list[Endpoint]) -> None:
        async with llm.open("") as conversation:
            for endpoint in endpoints:
                endpoint.behaviour = "500"
            message = await failure(conversation)
            assert message.startswith("language model: no endpoint answers: http")
            assert all(f"{endpoint.url}: HTTP 500" in message for endpoint in endpoints)
            for endpoint in endpoints:
                endpoint.behaviour = "answer"
            assert await say(conversation, "all were down, and are asked all the same")

    between(talk)


def test_a_model_that_only_thought_so_far_may_still_be_replaced() -> None:
    async def talk(llm: OpenAILLM, endpoints: list[Endpoint]) -> None:
        async with llm.open("") as conversation:
            preferred = await asked_first(conversation, endpoints)
            preferred.behaviour = "think and cut"
            assert await say(conversation, "hello") == "You said hello after 2 messages, fine."

    between(talk)


def test_an_endpoint_that_is_back_is_found_by_a_probe_while_another_replies() -> None:
    async def talk(llm: OpenAILLM, endpoints: list[Endpoint]) -> None:
        async with llm.open("") as conversation:
            preferred = await asked_first(conversation, endpoints)
            preferred.behaviour = "500"
            await say(conversation, "hello")
            preferred.requests.clear()
            await say(conversation, "hello")
            assert preferred.n_probes == 0, "it is left alone for a while"
            await asyncio.sleep(0.42)
            await say(conversation, "hello")
            await until(lambda: preferred.n_probes == 1)
            preferred.behaviour = "answer"
            await say(conversation, "hello")
            assert (preferred.n_probes, preferred.requests) == (1, []), "the probe said 500"
            await asyncio.sleep(0.82)
            conversation.extend("the caller speaks")
            await until(lambda: preferred.n_probes == 2)
            await asyncio.sleep(0.05)
            await say(conversation, "hello")
            assert len(preferred.requests) == 1

    between(talk)


def test_a_conversation_that_is_left_at_once_asks_nothing() -> None:
    async def talk(endpoint: Endpoint, llm: OpenAILLM) -> None:
        async with llm.open("Be brief."):
            pass
        gc.collect()  # a coroutine that nobody awaited would warn now
        assert endpoint.warm_ups == []

    against("answer", talk, warm_up=True)
