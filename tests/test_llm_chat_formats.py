"""Appending turns in the chat formats of the supported families.

The templates are ours, as short as they can be; they write the marks, the roles and the places of
system prompt, tools and results as those that the models ship do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import pytest

from stages.llm.template import After, ChatTemplate, Message, Tool
from stages.llm.tokenizer import Tokenizer, Vocabulary
from voicepipe.errors import ComponentError, UsageError

FOLDER = Path(__file__).parent / "data" / "chat_formats"
NAMES = ("smollm2", "qwen2.5", "qwen3", "gemma3", "llama3.2")
WITH_TOOLS = ("qwen2.5", "qwen3", "llama3.2")
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
BOS = {"gemma3": "<bos>", "llama3.2": "<|begin_of_text|>"}
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
SYSTEM = 'Be "brief" & kind.'
TURNS = [("Hello there.", "Hi!"), ("What's the weather?", "Sunny <b>and</b> warm."), ("Thanks", "")]
TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city, in °C & <plain> text",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "hang_up", "parameters": {}}},
]
RESULTS = ['{"sky": "clear",\n "celsius": 21}', "It's over."]


def source(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    """Special tokens, and a token for each byte."""
    n = len(SPECIAL)
    bos = BOS.get(name)
    return Tokenizer(
        Vocabulary(
            tokens=[*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
            bytes_of=[b""] * n + [bytes([byte]) for byte in range(256)],
            special={token: k for k, token in enumerate(SPECIAL)},
            control_ids=frozenset(range(n)),
            bos_id=SPECIAL.index(bos) if bos else None,
            eos_id=2,
            eos_ids=frozenset([2]),
            adds_bos=bos is not None,
            adds_space=False,
        ),
        lambda text: [n + byte for byte in text.encode()],
    )


def load(name: str, text: str | None = None) -> ChatTemplate:
    return ChatTemplate(text or source(name), tokenizer(name), f"model {name}")


def conversation(system: str, turns: Sequence[tuple[str, str]]) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for user, reply in turns:
        messages.append({"role": "user", "content": user})
        if reply:
            messages.append({"role": "assistant", "content": reply})
    return messages


def appended(template: ChatTemplate, name: str, system: str) -> list[int]:
    ids = template.system_ids(system)
    for n, (user, reply) in enumerate(TURNS):
        after: After = "reply" if n else "system" if system else "start"
        ids += template.user_ids(user, after) + template.reply_header_ids
        ids += tokenizer(name).encode(reply)
    return ids


def spelled(name: str, ids: Sequence[int]) -> str:
    n = len(SPECIAL)
    pieces = [SPECIAL[k].encode() if k < n else bytes([k - n]) for k in ids]
    return b"".join(pieces).decode()


@pytest.mark.parametrize("system", [SYSTEM, ""])
@pytest.mark.parametrize("name", NAMES)
def test_appended_turns_read_as_the_template_writes_them(name: str, system: str) -> None:
    template = load(name)
    text = spelled(name, appended(template, name, system))
    afresh = template.render(conversation(system, TURNS), generate=True)
    if name == "qwen3":  # it drops old thoughts; appended turns keep them, empty
        assert text.count(EMPTY_THOUGHT) == len(TURNS)
        old, last = text.rsplit(EMPTY_THOUGHT, 1)
        text = old.replace(EMPTY_THOUGHT, "") + EMPTY_THOUGHT + last
    assert text == afresh


@pytest.mark.parametrize("name", BOS)
@pytest.mark.parametrize("system", [SYSTEM, ""])
def test_a_template_gives_bos_exactly_once(name: str, system: str) -> None:
    ids = appended(load(name), name, system)
    assert ids[0] == tokenizer(name).bos_id
    assert ids.count(ids[0]) == 1


def test_a_model_that_can_think_first_answers_at_once() -> None:
    header = spelled("qwen3", load("qwen3").reply_header_ids)
    assert header == "<|im_end|>\n<|im_start|>assistant\n" + EMPTY_THOUGHT


def test_gemma_reads_the_system_prompt_in_the_first_user_turn() -> None:
    template = load("gemma3")
    ids = template.system_ids("Be brief.") + template.user_ids("Hi", "system")
    assert spelled("gemma3", ids) == "<bos><start_of_turn>user\nBe brief.\n\nHi"
    twice = ids + template.user_ids("Again", "user")
    assert spelled("gemma3", twice).endswith(
        "Hi<end_of_turn>\n<start_of_turn>model\n<end_of_turn>\n<start_of_turn>user\nAgain"
    )


def test_a_template_that_refuses_a_system_role_gets_it_in_the_first_user_turn() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template = load("gemma3", refusing + source("gemma3"))
    text = spelled("gemma3", appended(template, "gemma3", SYSTEM))
    assert text == load("gemma3").render(conversation(SYSTEM, TURNS), generate=True)


def test_the_prompt_says_the_same_date_an_hour_and_a_year_later() -> None:
    ids = load("llama3.2").system_ids(SYSTEM)
    assert "Today Date: 26 Jul 2024\n" in spelled("llama3.2", ids)
    clock = "{{ strftime_now('%Y-%m-%dT%H:%M:%S.%f%z') }}"
    text = load("smollm2", clock + source("smollm2")).render(conversation("", TURNS), generate=True)
    assert text.startswith("2024-07-26T00:00:00.000000")


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools_and_their_results_read_as_the_template_writes_them(name: str) -> None:
    template = load(name).with_tools(TOOLS)
    ids = template.system_ids(SYSTEM) + template.user_ids("The weather?", "system")
    ids += template.reply_header_ids + tokenizer(name).encode("CALL")
    ids += template.result_ids(RESULTS)
    messages = conversation(SYSTEM, [("The weather?", "CALL")])
    messages += [{"role": "tool", "content": result} for result in RESULTS]
    afresh = template.render(messages, generate=True)
    text = spelled(name, ids)
    if name == "qwen3":
        text = text.replace(EMPTY_THOUGHT + "CALL", "CALL")
    assert text == afresh
    assert "in °C & <plain> text" in text
    assert text.index("get_weather") < text.index("hang_up") < text.index("The weather?")


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_user_who_goes_on_behind_results_reads_as_the_template_writes_it(name: str) -> None:
    template = load(name).with_tools(TOOLS)
    ids = template.system_ids(SYSTEM) + template.user_ids("The weather?", "system")
    ids += template.reply_header_ids + tokenizer(name).encode("CALL")
    ids += template.result_ids(RESULTS, reply=False) + template.user_ids("Hello?", "results")
    ids += template.reply_header_ids
    messages = conversation(SYSTEM, [("The weather?", "CALL")])
    messages += [{"role": "tool", "content": result} for result in RESULTS]
    messages += conversation("", [("Hello?", "")])
    text = spelled(name, ids)
    if name == "qwen3":
        text = text.replace(EMPTY_THOUGHT + "CALL", "CALL")
    assert text == template.render(messages, generate=True)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_template_that_writes_calls_otherwise_says_so(name: str) -> None:
    template = load(name).with_tools(TOOLS)
    if name != "llama3.2":
        template.check_calls("<tool_call>")
    with pytest.raises(ComponentError) as error:
        template.check_calls("<call>" if name != "llama3.2" else "<tool_call>")
    assert f"model {name}: its chat template has no calls of tools" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools_come_without_a_system_prompt_too(name: str) -> None:
    template = load(name).with_tools(TOOLS)
    text = spelled(name, template.user_ids("Hi", "start"))
    assert "get_weather" in text
    rendered = template.render(conversation("", [("Hi", "")]), generate=False)
    assert rendered.startswith(text)


def test_a_call_is_written_as_the_model_learned_it() -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
    messages = [
        *conversation(SYSTEM, [("Hi", "")]),
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    text = load("qwen2.5").with_tools(TOOLS).render(messages, generate=False)
    assert text.endswith(
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Köln"}}\n</tool_call><|im_end|>\n'
    )


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_a_template_without_tools_says_so(name: str) -> None:
    with pytest.raises(ComponentError) as error:
        load(name).with_tools(TOOLS)
    assert f"model {name}: its chat template cannot tell the model about tools" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("tool", [{}, {"function": 3}, {"type": "function", "function": {}}])
def test_what_is_no_tool_is_a_usage_error(tool: Tool) -> None:
    with pytest.raises(UsageError, match="without a function name"):
        load("qwen2.5").with_tools([tool])


def test_results_need_tools() -> None:
    with pytest.raises(ValueError, match="told of"):
        load("qwen2.5").result_ids(RESULTS)


@pytest.mark.parametrize(
    "text", ["{{ 1 / 0 }}", "{{ messages[9].role }}", "{% for x in y", "{{ [] + 3 }}", "\n\n"]
)
def test_a_template_that_fails_in_whatever_way_says_so_in_one_line(text: str) -> None:
    with pytest.raises(ComponentError) as error:
        load("smollm2", text)
    assert "chat template" in str(error.value)
    assert "\n" not in str(error.value)
