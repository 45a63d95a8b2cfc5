from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.channels import (
    HARMONY,
    XML,
    Channel,
    ChannelStream,
    ChatMarkers,
    Piece,
    Span,
    SpokenText,
)
from voicepipe.errors import UsageError

SPEECH, THINKING, TOOL_CALL = Channel.SPEECH, Channel.THINKING, Channel.TOOL_CALL
THINK, _, CALL = XML.spans
MARKERS = ("<think>", "</think>", "<thinking>", "</thinking>", "<tool_call>", "</tool_call>")

texts = st.lists(
    st.sampled_from([*MARKERS, "<th", "ink>", "<", "</tool_", "call>", "a", " \n", "<b>", "{}"]),
    max_size=12,
).map("".join)


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours of one channel as one piece."""
    result: list[Piece] = []
    for channel, text in pieces:
        before = result.pop()[1] if result and result[-1][0] is channel else ""
        result.append((channel, before + text))
    return result


def streamed(pieces: list[str], stream: ChannelStream) -> list[Piece]:
    return joined([found for piece in pieces for found in stream.feed(piece)] + stream.finish())


def split(text: str) -> list[Piece]:
    """The same for a whole text, by a stack of what is open."""
    parts, opened, result = re.split(f"({'|'.join(MARKERS)})", text), list[str](), list[Piece]()
    for part in parts:
        name = part.strip("</>")
        if part in MARKERS and (not opened or (name == opened[0] != "tool_call")):
            if not part.startswith("</"):
                opened.append(name)
            elif opened:
                opened.pop()
        elif part in MARKERS and part == f"</{opened[0]}>":
            opened.pop()
        elif part:
            silent = TOOL_CALL if opened and opened[0] == "tool_call" else THINKING
            result.append((silent if opened else SPEECH, part))
    return joined(result)


def without_cut_off_marker(text: str) -> str:
    """`text` without an end that begins a marker, unless it is one character."""
    longest = max(
        (n for marker in MARKERS for n in range(2, len(marker)) if text.endswith(marker[:n])),
        default=0,
    )
    return text[: len(text) - longest]


@given(st.data(), texts)
@settings(max_examples=60)
def test_channels_do_not_depend_on_the_pieces_that_the_text_comes_in(
    data: st.DataObject, text: str
) -> None:
    text += "."
    assert streamed(data.draw(pieces_of(text)), ChannelStream()) == split(text)


@given(st.data(), texts)
@settings(max_examples=60)
def test_no_marker_and_nothing_silent_is_heard_wherever_the_text_ends(
    data: st.DataObject, text: str
) -> None:
    stream = ChannelStream()
    found = streamed(data.draw(pieces_of(text)), stream)
    speech = "".join(text for channel, text in found if channel is SPEECH)
    wanted = "".join(text for channel, text in split(text) if channel is SPEECH)
    assert speech in (wanted, without_cut_off_marker(wanted))


@given(st.data(), texts)
@settings(max_examples=60)
def test_nothing_is_held_back_that_cannot_become_a_marker(data: st.DataObject, text: str) -> None:
    stream, n_fed = ChannelStream(), 0
    found: list[Piece] = []
    for piece in data.draw(pieces_of(text)):
        found += stream.feed(piece)
        n_fed += len(piece)
        passed = "".join(part for _, part in joined(found))
        certain = "".join(part for _, part in split(text[:n_fed]))
        held = certain[len(passed) :]
        assert certain.startswith(passed)
        assert held == "" or any(marker.startswith(held) for marker in MARKERS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", [(SPEECH, "Hello.")]),
        ("<think>a</think>b", [(THINKING, "a"), (SPEECH, "b")]),
        ("<think>never closed", [(THINKING, "never closed")]),
        ("<think>a<think>b</think>c</think>d", [(THINKING, "abc"), (SPEECH, "d")]),
        ("never opened</think>d", [(SPEECH, "never openedd")]),
        ("<think><tool_call>{}</tool_call></think>", [(THINKING, "<tool_call>{}</tool_call>")]),
        (
            '<tool_call>{"a": "<think>"}</tool_call>b',
            [(TOOL_CALL, '{"a": "<think>"}'), (SPEECH, "b")],
        ),
        ("2 < 3 and <b>", [(SPEECH, "2 < 3 and <b>")]),
        ("cut off <thi", [(SPEECH, "cut off ")]),
        ("less <", [(SPEECH, "less <")]),
        ("<think>a</thi", [(THINKING, "a")]),
    ],
)
def test_thinking_and_tool_calls_are_told_from_speech(text: str, expected: list[Piece]) -> None:
    assert streamed(list(text), ChannelStream()) == expected
    assert streamed([text], ChannelStream()) == expected


def test_a_template_may_have_opened_thinking_itself() -> None:
    stream = ChannelStream(XML, begins_in=THINK)
    assert streamed(["hm</th", "ink>Yes."], stream) == [(THINKING, "hm"), (SPEECH, "Yes.")]


def test_gpt_oss_speaks_on_its_final_channel() -> None:
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
        "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
    )
    assert streamed(list(text), ChannelStream(HARMONY)) == [
        (THINKING, "hm"),
        (TOOL_CALL, ' to=functions.f <|constrain|>json<|message|>{"a": 1}'),
        (SPEECH, "Yes."),
    ]


def test_a_marker_inside_of_one_that_does_not_come_counts() -> None:
    markers = ChatMarkers((Span(THINKING, "<a><b>", ("</a>",)),), silent=("<b>",))
    assert streamed(list("x<a><b>y</a>z<b>"), ChannelStream(markers)) == [
        (SPEECH, "x"),
        (THINKING, "y"),
        (SPEECH, "z"),
    ]
    longer = ChatMarkers((Span(THINKING, "<a><b>!", ("</a>",)),), silent=("<b>",))
    assert streamed(list("x<a><b>y"), ChannelStream(longer)) == [(SPEECH, "x<a>y")]


@pytest.mark.parametrize("silent", ["", "<thin"])
def test_markers_that_are_empty_or_begin_others_are_refused(silent: str) -> None:
    with pytest.raises(UsageError, match="chat markers"):
        ChatMarkers(XML.spans, (silent,))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\n\n</think>\n\nHello. ", "Hello. "),
        ("One <think>two</think> three", "One three"),
        ('<tool_call>{"name": "f"}</tool_call>', ""),
        (" two  spaces ", " two  spaces "),
    ],
)
def test_spoken_text_has_no_white_space_behind_what_is_silent(text: str, expected: str) -> None:
    for pieces in ([text], list(text)):
        stream = SpokenText()
        assert "".join(stream.feed(piece) for piece in pieces) + stream.finish() == expected


def test_speech_is_not_held_back_longer_than_it_takes_to_tell() -> None:
    stream = SpokenText()
    assert [stream.feed(piece) for piece in ("He", "llo <", "3 <th", "e")] == [
        *("He", "llo ", "<3 ", "<the"),
    ]
