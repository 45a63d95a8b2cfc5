"""Where a reply that may call tools ends, and what of it is spoken, called and kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.call_text import CallingText, written
from stages.llm.reply_text import ReplyLength, ReplyText
from stages.llm.text import ends_sentence
from stages.llm.tokenizer import Tokenizer
from tests.llm_bytes import END, TOOL_END, small
from voicepipe.errors import ComponentError, UsageError
from voicepipe.protocols import ToolCall

WEATHER = ToolCall("weather", {"city": "Köln", "note": "</tool_call>"})
HANG_UP = ToolCall("hang_up", {})
LONG = ReplyLength(soft_tokens=500, max_tokens=500, call_tokens=500)


def take(text: CallingText, ids: list[int]) -> bool:
    """Whether more are wanted after `ids`, all but the last of which were."""
    assert all(text.take(token) for token in ids[:-1])
    return text.take(ids[-1])


def spoken(text: CallingText) -> str:
    return "".join(delta for delta in text.deltas if isinstance(delta, str))


def calls_of(text: CallingText) -> list[ToolCall]:
    return [delta for delta in text.deltas if isinstance(delta, ToolCall)]


def read(tokenizer: Tokenizer, ids: list[int], length: ReplyLength = LONG) -> CallingText:
    """A reply of `ids` and then the end."""
    text = CallingText(tokenizer, length)
    for token in [*ids, END]:
        if not text.take(token):
            break
    return text


@pytest.mark.parametrize("glued", [True, False])
@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("calls", [[], [WEATHER], [HANG_UP, WEATHER]])
@pytest.mark.parametrize("words", ["", "One moment.", "One moment.\n", "3 < 4, <tool> é"])
def test_words_are_spoken_and_calls_are_called(
    glued: bool, control: bool, calls: list[ToolCall], words: str
) -> None:
    tokenizer = small(control=control)
    encode = tokenizer.encode_glue if glued else tokenizer.encode
    body = written(calls).replace(json.dumps("</tool_call>"), '"X"')
    ids = encode(words) + encode(body)
    text = read(tokenizer, ids)
    assert spoken(text) == text.text == words
    expected = [
        ToolCall(call.name, {**call.arguments, "note": "X"}) if call is WEATHER else call
        for call in calls
    ]
    assert calls_of(text) == expected
    assert text.ids == ids
    assert text.ids_of(words, expected) == ids
    assert text.ids_of(words, []) == encode(words)
    assert text.ids_of(words[:4], []) == tokenizer.encode(words[:4])


def test_a_closing_tag_inside_of_a_string_closes_nothing() -> None:
    opening, body, closing = "<tool_call>", '{"name": "f", "arguments": {"a": "</tool_call>"}}', 263
    text = CallingText(small(), LONG)
    assert take(text, [*small().encode_glue(opening), *small().encode(body)])
    assert not text.deltas
    assert text.take(closing)
    assert calls_of(text) == [ToolCall("f", {"a": "</tool_call>"})]


@pytest.mark.parametrize("begin", ["", "\n"])
def test_a_reply_that_begins_with_a_brace_is_calls_without_tags(begin: str) -> None:
    body = '{"name": "f", "arguments": {"a": "}{"}}'
    text = read(small(), small().encode(f"{begin}{body}\n{body}\n"))
    assert calls_of(text) == [ToolCall("f", {"a": "}{"})] * 2
    assert spoken(text) == begin
    assert text.ids == small().encode(f"{begin}{body}\n{body}")
    assert text.ids_of(begin, calls_of(text)[:1]) == small().encode(begin + body)
    assert text.ids_of(begin, []) == small().encode(begin)
    text = CallingText(small(), LONG)
    assert take(text, small().encode(body))
    assert not take(text, small().encode("\nx"))


def test_what_comes_behind_the_calls_is_no_part_of_the_reply() -> None:
    ids = small().encode_glue(written([HANG_UP, HANG_UP]))
    text = CallingText(small(), LONG)
    assert take(text, ids)
    assert take(text, small().encode("\n <"))
    assert not text.take(ord("b"))
    assert text.ids == ids
    assert calls_of(text) == [HANG_UP, HANG_UP]
    assert text.ids_of("", [HANG_UP]) == small().encode_glue(written([HANG_UP]))


def test_a_closing_tag_of_nothing_ends_the_reply_and_is_not_spoken() -> None:
    text = CallingText(small(), LONG)
    assert not take(text, [*small().encode("Well"), TOOL_END])
    assert (text.text, text.ids) == ("Well", small().encode("Well"))


@pytest.mark.parametrize(
    ("words", "heard"), [("Well <tool_ca", "Well "), ("Well </", "Well "), ("Well <", "Well <")]
)
def test_half_a_tag_is_not_spoken(words: str, heard: str) -> None:
    text = read(small(), small().encode(words))
    assert spoken(text) == text.text == heard
    assert text.ids_of(heard, []) == small().encode(heard)


def test_a_call_is_not_cut_by_the_length_of_speech() -> None:
    ids = small().encode("Wait.") + small().encode_glue(written([WEATHER]))
    text = read(small(), ids, ReplyLength(soft_tokens=3, max_tokens=8))
    assert calls_of(text) == [WEATHER]
    assert len(text.ids) > 60


def test_a_tag_that_begins_at_the_last_token_of_speech_is_waited_for() -> None:
    tokenizer = small(control=False)
    ids = tokenizer.encode("Wait." + written([HANG_UP]))
    assert calls_of(read(tokenizer, ids, ReplyLength(8, 8))) == [HANG_UP]
    text = read(tokenizer, tokenizer.encode("Wait.<tomorrow>"), ReplyLength(8, 8))
    assert text.text == "Wait.<tom"


@pytest.mark.parametrize("between", ["", " ", "\n", "\n\n"])
@pytest.mark.parametrize("control", [True, False])
def test_a_reply_does_not_end_between_a_sentence_and_a_call(between: str, control: bool) -> None:
    tokenizer = small(control=control)
    ids = tokenizer.encode("Wait." + between) + tokenizer.encode_glue(written([HANG_UP]))
    text = read(tokenizer, ids, ReplyLength(soft_tokens=3, max_tokens=30))
    assert calls_of(text) == [HANG_UP]


@pytest.mark.parametrize("more", [" More", "\nMore", "\n\n More"])
def test_a_reply_ends_at_the_end_of_a_sentence(more: str) -> None:
    text = read(small(), small().encode("Wait." + more), ReplyLength(soft_tokens=3, max_tokens=30))
    assert text.text.strip() == "Wait."


def test_a_call_that_does_not_end_is_one_clear_line() -> None:
    ids = small().encode_glue(written([WEATHER]))
    text = CallingText(small(), ReplyLength(call_tokens=20))
    with pytest.raises(ComponentError, match="not over after 20 tokens: bound the texts"):
        read(small(), ids, ReplyLength(call_tokens=20))
    assert [text.take(token) for token in ids[:19]] == [True] * 19
    with pytest.raises(UsageError, match="call_tokens is 0"):
        ReplyLength(call_tokens=0)


def test_calls_that_are_over_count_when_there_are_too_many() -> None:
    n = len(small().encode_glue(written([HANG_UP])))
    ids = small().encode_glue(written([HANG_UP] * 3))
    text = read(small(), ids, ReplyLength(call_tokens=2 * n))
    assert calls_of(text) == [HANG_UP]
    assert text.ids == ids[:n]


@given(st.text("a. \n", max_size=14), st.integers(0, 6), st.integers(6, 10))
@settings(max_examples=60)
def test_speech_alone_ends_where_it_does_without_tools_or_at_a_sentence_before(
    words: str, soft: int, most: int
) -> None:
    length = ReplyLength(soft, most)
    plain = ReplyText(small(), length)
    for token in [*small().encode(words), END]:
        if not plain.take(token):
            break
    text = read(small(), small().encode(words), length)
    assert spoken(text) == text.text == small().decode(text.ids)
    heard = text.text.rstrip()
    assert heard == plain.text.rstrip() or (plain.text.startswith(heard) and ends_sentence(heard))
