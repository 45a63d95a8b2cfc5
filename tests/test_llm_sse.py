"""The stream of a chat completion: bytes to lines to meaning."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.sse import MAX_LINE_BYTES, BadStream, CallPart, Chunk, Lines, parse_line


def in_pieces(data: st.DataObject, n: int) -> list[slice]:
    """A cut of n items into pieces, some of them empty."""
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    return [slice(a, b) for a, b in zip([0, *cuts], [*cuts, n], strict=True)]


characters = st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])


@given(st.lists(st.text(characters), max_size=6), st.data())
@settings(max_examples=60)
def test_lines_are_the_same_however_the_bytes_arrive(texts: list[str], data: st.DataObject) -> None:
    raw = "".join(t + data.draw(st.sampled_from(["\n", "\r\n"])) for t in texts).encode() + b"end"
    lines = Lines()
    found = [line for piece in in_pieces(data, len(raw)) for line in lines.feed(raw[piece])]
    assert [*found, lines.finish()] == [*texts, "end"]


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    lines = Lines()
    assert lines.feed(b"x" * MAX_LINE_BYTES) == []
    with pytest.raises(BadStream, match="more than 1,000,000 bytes"):
        lines.feed(b"x")


@pytest.mark.parametrize("line", ["", ": comment", "event: x", "id: 3", "retry: 10"])
def test_lines_without_data_mean_nothing(line: str) -> None:
    assert parse_line(line) is None


@pytest.mark.parametrize(
    "line",
    [
        'data: {"choices": []}',
        'data:{"choices": [{"delta": {"role": "assistant"}}]}',
        'data: {"choices": [{"delta": {"content": null, "tool_calls": []}}]}',
        'data: {"choices": [{"delta": {"content": "", "reasoning_content": ""}}]}',
        'data: {"choices": [null], "usage": null}',
        'data: {"choices": "what"}',
    ],
)
def test_empty_and_role_only_events_are_no_token(line: str) -> None:
    chunk = parse_line(line)
    assert chunk == Chunk()
    assert not chunk.has_token


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm", "content": ""},
        {"tool_calls": [{"function": None}]},
        {"refusal": "no"},
    ],
)
def test_other_channels_are_tokens_without_text(delta: dict[str, object]) -> None:
    chunk = parse_line("data: " + json.dumps({"choices": [{"delta": delta}]}))
    assert chunk is not None
    assert (chunk.text, chunk.hidden, chunk.has_token) == ("", True, True)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            {"index": 1, "id": "c", "function": {"name": "f", "arguments": '{"a'}},
            CallPart(1, "c", "f", '{"a'),
        ),
        ({"index": 1, "function": {"arguments": '": 1}'}}, CallPart(1, "", "", '": 1}')),
        ({"function": {"name": "f", "arguments": {"a": 1}}}, CallPart(None, "", "f", '{"a": 1}')),
        ({"index": True, "id": 3, "function": "f"}, CallPart()),
        ("f", CallPart()),
    ],
)
def test_pieces_of_calls_are_what_the_endpoint_really_says(
    sent: object, expected: CallPart
) -> None:
    chunk = parse_line("data: " + json.dumps({"choices": [{"delta": {"tool_calls": [sent]}}]}))
    assert chunk is not None
    assert chunk.calls == (expected,)


@pytest.mark.parametrize("line", ["data: {", "data: [1]", "data: 3", 'data: {"error": "x"}'])
def test_events_that_make_no_sense_are_refused(line: str) -> None:
    with pytest.raises(BadStream):
        parse_line(line)


def test_a_deeply_nested_event_is_refused() -> None:
    with pytest.raises(BadStream):
        parse_line("data: " + "[" * 100_000)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"usage": {"prompt_tokens": 9, "completion_tokens": 3}},
            Chunk("", False, False, 9, None, 3),
        ),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}, Chunk(cached_tokens=0)),
        ({"usage": {"prompt_tokens_details": None, "prompt_tokens": -1}}, Chunk()),
        ({"usage": {"prompt_tokens": True, "completion_tokens": "3"}}, Chunk()),
        (
            {"timings": {"cache_n": 7, "draft_n": 5, "draft_n_accepted": 4}},
            Chunk(cached_tokens=7, drafted_tokens=5, accepted_tokens=4),
        ),
    ],
)
def test_usage_is_what_the_endpoint_really_says(usage: object, expected: Chunk) -> None:
    assert parse_line("data: " + json.dumps(usage)) == expected
