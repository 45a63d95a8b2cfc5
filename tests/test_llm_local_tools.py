"""Conversations with a local model that calls tools: their tokens, their cache, their limits."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm import LocalLLM, ReplyLength
from stages.llm.dialogue import NO_RESULT
from stages.llm.runtime import DRAFT_SOURCES
from tests import llm_tiny
from tests.llm_reading import read
from tests.llm_tools import HANG_UP, TABLE, TAGS, TEMPLATE, TOOLS, caller, model_file
from voicepipe.clock import run_virtual
from voicepipe.errors import ComponentError, UsageError
from voicepipe.protocols import Conversation, Reply, ToolCall, ToolSpec

SYSTEM = "You take reservations."
CALLING, SILENT = "two of us", "for the inn"
"""What makes the model say something and hang up, and call a tool without a word."""


@functools.cache
def tiny(tag_type: int = 3) -> LocalLLM:
    return caller(model_file(tag_type))


async def say(conversation: Conversation, text: str) -> Reply:
    reply = await read(conversation.reply(text))
    reply.adopt()
    return reply


async def settled() -> None:
    """Until everything that is being prepared is done: virtual time stands while a step runs."""
    await asyncio.sleep(1)


def results_of(reply: Reply) -> list[str]:
    return [f"done {n}" for n in range(len(reply.calls))]


def ids_of(conversation: Conversation) -> list[int]:
    return list(conversation.history_ids())  # type: ignore[attr-defined]


def generation_of(reply: Reply) -> list[int]:
    """Prompt and reply as they were computed."""
    generation = reply.source.generation  # type: ignore[attr-defined]
    return [*generation.prompt_ids, *generation.text.ids]


def spelled(llm: LocalLLM, ids: Sequence[int]) -> str:
    tokenizer = llm.runtime.tokenizer
    return b"".join(tokenizer.bytes_of[n] or tokenizer.token(n).encode() for n in ids).decode()


# -- what is said and called -----------------------------------------------------------------------


def check_calls(calls: Sequence[ToolCall]) -> None:
    for call in calls:
        if call.name == "hang_up":
            assert call.arguments == {}
        else:
            assert list(call.arguments) == ["people", "name", "when"]
            assert call.arguments["people"] in (1, 2, 3, 4)
            assert len(call.arguments["name"]) <= 8
            assert call.arguments["when"] in ("today", "tomorrow")


@pytest.mark.parametrize("tag_type", [3, 4])
@settings(max_examples=12, deadline=None)
@given(st.lists(st.text("abehilnotu ", max_size=12), min_size=1, max_size=3))
def test_whatever_the_model_does_its_calls_are_valid_and_nothing_of_them_is_spoken(
    tag_type: int, texts: list[str]
) -> None:
    async def main() -> None:
        llm = tiny(tag_type)
        async with llm.open(SYSTEM, TOOLS) as conversation:
            for text in texts:
                before = len(ids_of(conversation))
                reply = await say(conversation, text)
                check_calls(reply.calls)
                said = spelled(llm, ids_of(conversation)[before:]).partition("assistant\n")[2]
                speech, *calls = said.split(TAGS[0])
                assert speech == reply.text or "\ufffd" in reply.text
                bodies = [json.loads(call.strip().removesuffix(TAGS[1])) for call in calls]
                assert [(body["name"], body["arguments"]) for body in bodies] == [
                    (call.name, call.arguments) for call in reply.calls
                ]
                if reply.calls:
                    (await read(conversation.reply_to_results(results_of(reply)))).adopt()

    run_virtual(main())


def talk_of(llm: LocalLLM) -> list[tuple[str, Sequence[ToolCall], list[int]]]:
    """What is said in a call of some turns, each asked twice as eager replies are."""

    async def main() -> list[tuple[str, Sequence[ToolCall], list[int]]]:
        said = []
        async with llm.open(SYSTEM, TOOLS) as conversation:
            for text in (CALLING, SILENT, CALLING, "then us"):
                (await read(conversation.reply(text, held=True))).drop()
                reply = await say(conversation, text)
                said.append((reply.text, reply.calls, ids_of(conversation)))
                if reply.calls:
                    answer = await read(conversation.reply_to_results(results_of(reply)))
                    answer.adopt()
                    said.append((answer.text, answer.calls, ids_of(conversation)))
        return said

    return run_virtual(main())


def test_drafts_change_nothing_that_is_said_or_called() -> None:
    plain = caller(drafts=())
    expected = talk_of(plain)
    plain.close()
    assert sum(len(calls) for _, calls, _ in expected) > 3
    for drafts in (["forced"], ["earlier-reply"], ["suffix"], DRAFT_SOURCES):
        drafted = caller(drafts=drafts)  # type: ignore[arg-type]
        assert talk_of(drafted) == expected
        drafted.close()


def test_a_call_has_its_own_length_and_needs_fewer_steps_than_tokens() -> None:
    async def main() -> None:
        async with tiny().open(SYSTEM, TOOLS) as conversation:
            reply = await read(conversation.reply(SILENT))
            reply.drop()
            stats = reply.stats
            assert stats.generated_tokens > 40 > tiny().runtime.settings.length.max_tokens
            assert stats.accepted_tokens > stats.generated_tokens // 2

    run_virtual(main())


def test_a_call_that_does_not_end_is_one_clear_line_and_leaves_the_conversation_well() -> None:
    async def main() -> None:
        llm = caller(length=ReplyLength(12, 12, call_tokens=20))
        async with llm.open(SYSTEM, TOOLS) as conversation:
            reply = conversation.reply(SILENT)
            with pytest.raises(ComponentError, match="not over after 20 tokens"):
                await read(reply)
            reply.drop()
            before = ids_of(conversation)
            reply = conversation.reply(SILENT)
            with pytest.raises(ComponentError, match="not over after 20 tokens"):
                await read(reply)
            reply.drop()
            assert ids_of(conversation) == before
        llm.close()

    run_virtual(main())


# -- what is computed, and what is not -------------------------------------------------------------


def test_adopted_calls_keep_their_tokens_and_only_results_are_computed() -> None:
    async def main() -> None:
        llm = tiny()
        async with llm.open(SYSTEM, TOOLS) as conversation:
            reply = await say(conversation, CALLING)
            assert reply.calls
            assert ids_of(conversation) == generation_of(reply)
            await settled()
            results = results_of(reply)
            answer = await read(conversation.reply_to_results(results))
            answer.adopt()
            prompt = generation_of(answer)[: answer.stats.prompt_tokens]
            assert prompt[: len(generation_of(reply))] == generation_of(reply)
            glue = len(prompt) - len(generation_of(reply))
            new = answer.stats.prompt_tokens - answer.stats.cached_tokens
            assert 1 <= new <= glue + 1, "its own last token was chosen, but not computed"
            assert ids_of(conversation) == generation_of(answer)
            await settled()
            later = await read(conversation.reply("hello the other one"))
            new = later.stats.prompt_tokens - later.stats.cached_tokens
            later.drop()
            words = llm.runtime.tokenizer.encode("hello the other one")
            assert 1 <= new <= len(words) + len(llm.runtime.template.reply_header_ids)

    run_virtual(main())


def test_the_prompt_is_what_the_template_writes_of_the_whole_conversation() -> None:
    async def main() -> None:
        llm = tiny()
        described = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
            for tool in TOOLS
        ]
        template = llm.runtime.template.with_tools(described)
        async with llm.open(SYSTEM, TOOLS) as conversation:
            reply = await say(conversation, CALLING)
            calls = spelled(llm, generation_of(reply)[reply.stats.prompt_tokens :])
            messages = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": CALLING},
                {"role": "assistant", "content": calls},
            ]
            going_on = conversation.reply("Hello?")
            unknown = [{"role": "tool", "content": NO_RESULT} for _ in reply.calls]
            asked = [*messages, *unknown, {"role": "user", "content": "Hello?"}]
            prompt = spelled(llm, generation_of(going_on))
            assert prompt == template.render(asked, generate=True)
            going_on.drop()
            results = [{"role": "tool", "content": result} for result in results_of(reply)]
            answer = conversation.reply_to_results(results_of(reply))
            prompt = spelled(llm, generation_of(answer))
            assert prompt == template.render([*messages, *results], generate=True)
            answer.drop()

    run_virtual(main())


def test_a_cut_in_front_of_calls_writes_them_anew() -> None:
    async def main() -> None:
        llm = tiny()
        async with llm.open(SYSTEM, TOOLS) as conversation:
            reply = await say(conversation, CALLING)
            n_prompt = reply.stats.prompt_tokens
            conversation.truncate(reply.text)
            assert ids_of(conversation) == generation_of(reply)
            conversation.truncate(reply.text[:3])
            text = spelled(llm, ids_of(conversation)[n_prompt:])
            assert text == (
                reply.text[:3] + '<tool_call>\n{"name": "hang_up", "arguments": {}}\n</tool_call>'
            )

    run_virtual(main())


def test_the_state_of_a_prompt_with_tools_is_shared_and_no_other_has_it() -> None:
    async def main() -> None:
        llm = caller()
        async with llm.open(SYSTEM, TOOLS) as first:
            await settled()
            n_steps = llm.runtime.scheduler.n_steps
            async with llm.open(SYSTEM, list(TOOLS)) as second:
                assert ids_of(first) == ids_of(second)
                assert llm.runtime.scheduler.n_steps == n_steps
            tools, again = [await llm.runtime.tool_set(found) for found in (TOOLS, list(TOOLS))]
            assert tools is again, "a grammar is compiled once"
            async with llm.open(SYSTEM, [HANG_UP]) as other, llm.open(SYSTEM) as bare:
                assert llm.runtime.scheduler.n_steps > n_steps
                assert "book_table" in spelled(llm, ids_of(first))
                assert "book_table" not in spelled(llm, ids_of(other))
                assert "hang_up" not in spelled(llm, ids_of(bare))
        llm.close()

    run_virtual(main())


def test_what_callers_had_called_is_no_draft_for_others() -> None:
    async def main() -> None:
        llm = tiny()
        async with llm.open(SYSTEM, TOOLS) as conversation:
            reply = await say(conversation, CALLING)
            silent = await say(conversation, SILENT)
            assert reply.calls
            assert silent.calls
            mine = conversation._said  # type: ignore[attr-defined]  # noqa: SLF001
            shared = conversation._replies  # type: ignore[attr-defined]  # noqa: SLF001
            opening = llm.runtime.tokenizer.token_id(TAGS[0])
            for memory, known in ((mine, True), (shared, False)):
                cursor = memory.cursor()
                cursor.follow([opening])
                assert bool(cursor.propose(8)[0]) is known

    run_virtual(main())


def test_without_tools_nothing_of_them_is_there() -> None:
    code = (
        "import asyncio, sys\n"
        "from tests.test_llm_local_tools import SYSTEM, caller, ids_of, say\n"
        "async def main():\n"
        "    async with caller().open(SYSTEM) as conversation:\n"
        "        await say(conversation, 'two of us')\n"
        "        return ids_of(conversation)\n"
        "print(asyncio.run(main()), 'llguidance' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("] False\n")


# -- limits ----------------------------------------------------------------------------------------


def test_old_turns_are_dropped_whole() -> None:
    async def main() -> None:
        llm = caller(context_tokens=1024)
        n_turns, longest = [], 0
        async with llm.open(SYSTEM, TOOLS) as conversation:
            for n in range(10):
                await settled()
                reply = await say(conversation, f"two of us {n}")
                if reply.calls:
                    answer = await read(conversation.reply_to_results(results_of(reply)))
                    longest = max(longest, answer.stats.prompt_tokens)
                    assert f"two of us {n}" in spelled(llm, generation_of(answer))
                    answer.adopt()
                turns = spelled(llm, ids_of(conversation)).split("<|im_start|>")[3:]
                n_turns.append(sum(turn.startswith("user\n") for turn in turns))
                assert turns[0].startswith("user\n"), "results or replies without their question"
        llm.close()
        assert 1 <= sum(b < a for a, b in itertools.pairwise(n_turns)) <= 7
        assert max(n_turns) > 1
        assert longest + llm.runtime.settings.length.call_tokens + 12 <= 1024

    run_virtual(main())


def test_results_that_do_not_fit_are_one_clear_line() -> None:
    async def main() -> None:
        llm = caller(context_tokens=640)
        async with llm.open(SYSTEM, TOOLS) as conversation:
            reply = await say(conversation, CALLING)
            answer = conversation.reply_to_results(["x " * 400 for _ in reply.calls])
            with pytest.raises(ComponentError, match="raise context_tokens"):
                await read(answer)
            answer.drop()
            (await read(conversation.reply_to_results(results_of(reply)))).adopt()
        llm.close()

    run_virtual(main())


def refused(llm: LocalLLM, tools: Sequence[ToolSpec]) -> str:
    """The error of opening a conversation with tools."""

    async def main() -> None:
        async with llm.open(SYSTEM, tools):
            raise AssertionError("opened")

    with pytest.raises((ComponentError, UsageError)) as error:
        run_virtual(main())
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_llguidance_tools_are_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    llm = caller()
    assert "pip install 'voicepipe[grammar]'" in refused(llm, TOOLS)

    async def main() -> None:
        async with llm.open(SYSTEM) as conversation:
            assert not (await say(conversation, "hello")).calls

    run_virtual(main())
    llm.close()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (llm_tiny.CHATML, "its chat template cannot tell the model about tools"),
        (
            TEMPLATE.replace("<tool_call>", "<call>"),
            "no calls of tools that begin with <tool_call>",
        ),
        (
            TEMPLATE.replace("call.function.name", "1 / 0"),
            "no calls of tools that begin with <tool_call>",
        ),
    ],
)
def test_a_model_that_knows_no_tools_says_so(
    template: str, says: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    llm = caller(llm_tiny.write_with(path, TAGS, {}, template=template))
    assert says in refused(llm, TOOLS)
    llm.close()


@pytest.mark.parametrize("schema", [{"properties": 3}, {"enum": [object()]}])
def test_a_wrong_schema_is_refused(schema: dict[str, object]) -> None:
    assert refused(tiny(), [TABLE, ToolSpec("f", "", {"type": "object", **schema})])
