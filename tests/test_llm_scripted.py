from __future__ import annotations

import asyncio

import pytest

from stages.llm import ScriptedCalls, ScriptedLLM
from stages.llm.scripted import Breakage
from voicepipe.clock import run_virtual
from voicepipe.errors import ComponentError
from voicepipe.protocols import ToolCall


async def timed(llm: ScriptedLLM, text: str = "hi") -> list[tuple[float, str]]:
    now = asyncio.get_running_loop().time
    start_s = now()
    async with llm.open("") as conversation, conversation.reply(text) as deltas:
        return [(round(now() - start_s, 6), delta) async for delta in deltas]


def test_tokens_come_at_their_times() -> None:
    llm = ScriptedLLM(["One two  three."], first_token_ms=80, per_token_ms=20)
    assert run_virtual(timed(llm)) == [(0.08, "One"), (0.1, " two"), (0.12, "  three.")]


def test_jitter_is_seeded_and_bounded() -> None:
    def times(seed: int) -> list[float]:
        llm = ScriptedLLM(["a b c d e f"], first_token_ms=100, jitter=0.5, seed=seed)
        return [t for t, _ in run_virtual(timed(llm))]

    assert times(1) == times(1)
    assert times(1) != times(2)
    assert 0.05 <= times(1)[0] <= 0.15


def test_replies_follow_the_turns_of_the_conversation() -> None:
    async def main() -> list[str]:
        texts = []
        async with ScriptedLLM(["one", "two"]).open("") as conversation:
            for adopted in (False, True, True, True):
                reply = conversation.reply("next")
                async with reply as deltas:
                    texts.append("".join([delta async for delta in deltas]))
                if adopted:
                    reply.adopt()
                else:
                    reply.drop()
        return texts

    assert run_virtual(main()) == ["one", "one", "two", "one"]


def test_a_function_answers_the_users_text() -> None:
    deltas = run_virtual(timed(ScriptedLLM(str.upper), "say it"))
    assert "".join(delta for _, delta in deltas) == "SAY IT"


@pytest.mark.parametrize(
    ("breakage", "heard"), [("raise", ""), ("raise_midway", "one"), ("nothing", "")]
)
def test_a_broken_turn_breaks_as_told(breakage: Breakage, heard: str) -> None:
    async def main() -> str:
        llm = ScriptedLLM(["one two"], broken={0: breakage})
        async with llm.open("") as conversation:
            reply = conversation.reply("hi")
            async with reply as deltas:
                if breakage == "nothing":
                    assert [delta async for delta in deltas] == []
                else:
                    with pytest.raises(ComponentError):
                        _ = [delta async for delta in deltas]
            conversation.add_user_text("hi")  # the next turn is number 1 and works
            async with conversation.reply("again") as deltas:
                assert "".join([delta async for delta in deltas]) == "one two"
        return reply.text

    assert run_virtual(main()) == heard


@pytest.mark.parametrize("breakage", ["hang", "hang_midway"])
def test_a_hanging_turn_hangs_until_it_is_left(breakage: Breakage) -> None:
    async def main() -> None:
        llm = ScriptedLLM(["one two"], broken={0: breakage})
        async with llm.open("") as conversation, conversation.reply("hi") as deltas:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1000):
                    _ = [delta async for delta in deltas]

    run_virtual(main())


def test_scripted_calls_come_at_the_time_of_a_word_and_their_results_are_replied_to() -> None:
    weather = ToolCall("weather", {"city": "Rome"})
    script = ScriptedCalls(
        [weather, weather],
        "One moment.",
        lambda results: ScriptedCalls([ToolCall("hang_up", {})], f"It is {results[0]}."),
    )

    async def main() -> tuple[list[str], float]:
        llm, now = ScriptedLLM([script], first_token_ms=80, per_token_ms=20), [0.0]
        said = []
        async with llm.open("") as conversation:
            reply = conversation.reply("the weather?")
            start_s = asyncio.get_running_loop().time()
            async with reply as deltas:
                said += [delta async for delta in deltas]
            now[0] = asyncio.get_running_loop().time() - start_s
            assert reply.calls == (weather, weather)
            assert reply.stats.generated_tokens == 4
            reply.adopt()
            for results in (["sunny", "dry"], ["done"]):
                reply = conversation.reply_to_results(results)
                async with reply as deltas:
                    said += [delta async for delta in deltas]
                reply.adopt()
        return said, round(now[0], 6)

    said, took_s = run_virtual(main())
    assert said == ["One", " moment.", "It", " is", " sunny.", "done"]
    assert took_s == 0.14
