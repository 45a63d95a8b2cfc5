from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.llm.gguf_file import GgufFile
from stages.llm.gguf_tokenizer import gguf_tokenizer
from stages.llm.tokenizer import Tokenizer
from tests import llm_tiny
from voicepipe.models import path_of

KNOWN = {
    "What is the capital of France?": [1780, 314, 260, 3575, 282, 4649, 47],
    "It's 2,450 dollars on July 4th, 2026!": [
        *(1589, 506, 216, 34, 28, 36, 37, 32, 8358, 335, 4185),
        *(216, 36, 373, 28, 216, 34, 32, 34, 38, 17),
    ],
    "  two  spaces\n\nand\tlines\n": [216, 827, 216, 5600, 198, 198, 397, 197, 5110, 198],
    "naïve café, 東京 and 😀": [
        *(3546, 46494, 37366, 28, 17097, 247, 126, 16736, 122, 284, 40303, 218),
    ],
    "I'LL they've don't": [57, 23, 16421, 502, 3543, 1326, 982],
    "": [],
}
"""What llama.cpp's /tokenize answers with the same file."""


@functools.cache
def tiny() -> Tokenizer:
    return gguf_tokenizer(GgufFile(llm_tiny.model_file()))


@functools.cache
def real() -> Tokenizer:
    return gguf_tokenizer(GgufFile(next(path_of("smollm2-135m-instruct").glob("*.gguf"))))


@given(st.text())
def test_text_comes_back_from_its_ids(text: str) -> None:
    assert tiny().decode(tiny().encode(text)) == text


@given(st.text(), st.sampled_from(llm_tiny.SPECIAL), st.text())
def test_what_a_caller_says_never_becomes_a_control_token(a: str, token: str, b: str) -> None:
    ids = tiny().encode(a + token + b)
    assert not set(ids) & tiny().control_ids
    assert tiny().decode(ids) == a + token + b


def test_glue_has_its_control_tokens() -> None:
    assert tiny().encode_glue("<|im_start|>hello<|im_end|>") == [1, *tiny().encode("hello"), 2]


@given(st.text(max_size=40), st.integers(0, 40))
def test_cut_ids_spell_exactly_the_text(text: str, n: int) -> None:
    prefix = text[:n]
    assert tiny().decode(tiny().cut(tiny().encode(text), prefix)) == prefix


def test_cut_keeps_ids_that_lie_wholly_inside() -> None:
    ids = [*tiny().encode("the"), *tiny().encode("n"), *tiny().encode(" hello")]
    assert tiny().cut(ids, "then hel")[: len(ids) - 2] == ids[: len(ids) - 2]
    assert tiny().cut(ids, "") == []


@pytest.mark.models
def test_the_real_vocabulary_encodes_as_llama_cpp_does() -> None:
    for text, ids in KNOWN.items():
        assert real().encode(text) == ids


@pytest.mark.models
@given(st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs", "Cc"])))
def test_real_text_comes_back_from_its_ids(text: str) -> None:
    assert real().decode(real().encode(text)) == text
