from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.llm.gguf_file import GgufFile
from stages.llm.gguf_tokenizer import gguf_tokenizer
from stages.llm.text import TextStream, ends_sentence
from tests import llm_tiny


def streamed(pieces: list[bytes], stops: list[str]) -> tuple[list[str], TextStream]:
    stream = TextStream(stops)
    return [*(stream.feed(piece) for piece in pieces), stream.finish()], stream


def cut_at_first_stop(text: str, stops: list[str]) -> str:
    """The definition: read character by character, end where a stop string is complete."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


@st.composite
def pieces_of(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(st.data(), st.text("ab!é€😀 \n", max_size=30), st.lists(st.text("ab!é", max_size=4)))
def test_deltas_concatenate_to_the_text_in_front_of_the_first_stop(
    data: st.DataObject, text: str, stops: list[str]
) -> None:
    pieces = data.draw(pieces_of(text.encode()))
    deltas, _ = streamed(pieces, stops)
    assert "".join(deltas) == cut_at_first_stop(text, stops)


@given(st.data(), st.binary(max_size=30))
def test_bytes_that_are_no_utf8_decode_as_in_one_piece(data: st.DataObject, raw: bytes) -> None:
    deltas, _ = streamed(data.draw(pieces_of(raw)), [])
    assert "".join(deltas) == raw.decode("utf-8", errors="replace")


@given(st.lists(st.integers(0, len(llm_tiny.vocabulary()) - 1), max_size=40))
def test_deltas_concatenate_to_what_all_ids_decode_to(ids: list[int]) -> None:
    tokenizer = gguf_tokenizer(GgufFile(llm_tiny.model_file()))
    deltas, _ = streamed([tokenizer.bytes_of[n] for n in ids], [])
    assert "".join(deltas) == tokenizer.decode(ids)


@given(st.data(), st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4)))
def test_nothing_is_held_back_that_cannot_become_a_stop(
    data: st.DataObject, text: str, stops: list[str]
) -> None:
    stream, given_text, seen = TextStream(stops), "", ""
    for piece in data.draw(pieces_of(text.encode())):
        given_text += piece.decode()
        seen += stream.feed(piece)
        held = given_text[len(seen) :]
        if not stream.stopped:
            assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_character_waits_for_its_last_byte() -> None:
    smile = "😀".encode()
    stream = TextStream()
    assert [stream.feed(smile[n : n + 1]) for n in range(4)] == ["", "", "", "😀"]


def test_the_longest_possible_start_of_a_stop_is_held_back() -> None:
    stream = TextStream(["aab"])
    assert [stream.feed(b) for b in (b"x", b"a", b"a", b"a", b"b")] == ["x", "", "", "a", ""]


def test_nothing_comes_after_a_stop() -> None:
    stream = TextStream(["\nUser:"])
    assert [stream.feed(b) for b in (b"Hi", b"\nUs", b"er: x", b"y")] == ["Hi", "", "", ""]
    assert stream.finish() == ""
    assert stream.stopped


@pytest.mark.parametrize("text", ["Yes.", "Really?!", 'He said "no."', "Fine… ".strip(), "(Ok.)"])
def test_sentences_end(text: str) -> None:
    assert ends_sentence(text)


@pytest.mark.parametrize("text", ["Yes,", "3.", "Dr.", "at 7 p.m", "J.", "e.g.", "and", ""])
def test_sentences_do_not_end(text: str) -> None:
    assert not ends_sentence(text)
