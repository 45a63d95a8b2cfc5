from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.gguf_file import GgufFile
from stages.llm.gguf_tokenizer import gguf_tokenizer
from stages.llm.json_tokenizer import json_tokenizer
from stages.llm.tokenizer import Tokenizer
from tests import llm_families, llm_pieces, llm_tiny
from voicepipe.errors import ComponentError
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
KNOWN_QWEN = {
    "What is the capital of France?": [3838, 374, 279, 6722, 315, 9625, 30],
    "It's 2,450 dollars on July 4th, 2026!": [
        *(2132, 594, 220, 17, 11, 19, 20, 15, 11192, 389, 5768, 220, 19, 339, 11, 220),
        *(17, 15, 17, 21, 0),
    ],
    "  two  spaces\n\nand\tlines\n": [220, 1378, 220, 12621, 271, 437, 78390, 198],
    "naïve café, 東京 and 😀": [3376, 37572, 586, 51950, 11, 60596, 109, 46553, 323, 90316],
    "I'LL they've don't": [40, 6, 4086, 807, 3003, 1513, 944],
    "Don\u2019t you'd we're 3.14 1234567": [
        *(8002, 1405, 498, 4172, 582, 2299, 220, 18, 13, 16, 19, 220, 16, 17, 18, 19, 20, 21, 22),
    ],
}


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
def test_qwens_vocabulary_encodes_as_llama_cpp_does() -> None:
    folder = path_of("qwen2.5-coder-0.5b-instruct")
    qwen = gguf_tokenizer(GgufFile(next(folder.glob("*.gguf"))))
    for text, ids in KNOWN_QWEN.items():
        assert qwen.encode(text) == ids
        assert qwen.decode(ids) == text
    assert qwen.eos_ids == {151643, 151645}  # <|endoftext|>, <|im_end|>
    assert not qwen.control_ids & set(qwen.encode("<|im_end|><tool_call>"))
    assert qwen.encode_glue("<tool_call>") == [151657]


@pytest.mark.models
@given(st.text(st.characters(max_codepoint=0x1FFFF, exclude_categories=["Cs", "Cc"])))
def test_real_text_comes_back_from_its_ids(text: str) -> None:
    assert real().decode(real().encode(text)) == text


# -- SentencePiece, and tokenizer.json -----------------------------------------------------------


@functools.cache
def pieces(*, adds_space: bool = False) -> Tokenizer:
    path = Path(tempfile.mkdtemp(prefix="voicepipe-tiny-")) / "m.gguf"
    return gguf_tokenizer(GgufFile(llm_pieces.write_gguf(path, adds_space=adds_space)))


@functools.cache
def json_pieces(*, adds_space: bool = False) -> Tokenizer:
    folder = Path(tempfile.mkdtemp(prefix="voicepipe-tiny-"))
    llm_pieces.write_folder(folder, adds_space=adds_space)
    return json_tokenizer(folder, len(llm_pieces.vocabulary()))


@functools.cache
def json_tiny() -> Tokenizer:
    folder = Path(tempfile.mkdtemp(prefix="voicepipe-tiny-"))
    llm_families.write_tokenizer(folder)
    return json_tokenizer(folder, len(llm_tiny.vocabulary()))


fragments = st.sampled_from([*llm_pieces.UNIQUE, *"helo thausrindm.é<😀>_|1\n"])
spoken = st.lists(fragments, max_size=12).map(
    lambda parts: re.sub(" {4,}", "   ", "".join(parts).replace("▁", " "))
)
"""Longer runs of spaces are merged by tokenizer.json and whole tokens in SentencePiece."""


def texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token(n) for n in ids]


def test_pieces_merge_by_score() -> None:
    assert texts(pieces(), pieces().encode("hello the user's model")) == [
        *("hello", "▁the", "▁user", "'", "s", "▁", "model"),
    ]
    assert texts(pieces(), pieces().encode("her")) == ["he", "r"]  # though "er" is one, too


def test_what_no_piece_spells_is_spelled_in_bytes() -> None:
    assert texts(pieces(), pieces().encode("hé")) == ["h", "<0xC3>", "<0xA9>"]
    assert pieces().decode(pieces().encode("hé 😀")) == "hé 😀"


def test_white_space_that_the_vocabulary_knows_is_taken_whole() -> None:
    ids = pieces().encode("a\n\nb   is")
    assert texts(pieces(), ids) == ["a", "\n\n", "b", "▁▁▁", "is"]
    assert pieces().decode(ids) == "a\n\nb   is"


@given(spoken)
def test_both_formats_encode_alike(text: str) -> None:
    assert json_tiny().encode(text) == tiny().encode(text)
    assert json_pieces().encode(text) == pieces().encode(text)
    for starts in (False, True):
        ours = pieces(adds_space=True).encode(text, starts=starts)
        assert json_pieces(adds_space=True).encode(text, starts=starts) == ours


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tiny, json_tiny),
        (pieces, json_pieces),
        (lambda: pieces(adds_space=True), lambda: json_pieces(adds_space=True)),
    ],
)
def test_both_formats_know_the_same_of_each_token(
    one: Callable[[], Tokenizer], other: Callable[[], Tokenizer]
) -> None:
    a, b = one(), other()
    assert list(a.bytes_of) == list(b.bytes_of)
    assert a.control_ids == b.control_ids
    assert (a.bos_id, a.eos_id, a.eos_ids, a.adds_bos) == (
        b.bos_id,
        b.eos_id,
        b.eos_ids,
        b.adds_bos,
    )
    assert texts(a, list(range(len(a)))) == texts(b, list(range(len(b))))


@given(st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=40))
def test_text_comes_back_from_pieces(text: str) -> None:
    for tokenizer in (pieces(), pieces(adds_space=True), json_pieces(), json_tiny()):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        prefix = text[: len(text) // 2]
        assert tokenizer.decode(tokenizer.cut(tokenizer.encode(text), prefix)) == prefix


@given(spoken, st.sampled_from(llm_pieces.CONTROL + llm_pieces.TAGS), spoken)
def test_no_vocabulary_makes_a_special_token_of_plain_text(a: str, token: str, b: str) -> None:
    for tokenizer in (pieces(), json_pieces()):
        ids = tokenizer.encode(a + token + b)
        assert tokenizer.token_id(token) not in ids
        assert tokenizer.decode(ids) == a + token + b
        assert tokenizer.encode_glue(token) == [tokenizer.token_id(token)]


def test_a_space_goes_before_text_that_starts_where_the_model_wants_one() -> None:
    for tokenizer in (pieces(adds_space=True), json_pieces(adds_space=True)):
        assert texts(tokenizer, tokenizer.encode("the", starts=True)) == ["▁the"]
        assert texts(tokenizer, tokenizer.encode("the")) == ["the"]
        glue = tokenizer.encode_glue("the<eos>the")
        assert texts(tokenizer, glue) == ["▁the", "<eos>", "▁the"]
        assert tokenizer.encode("", starts=True) == []


def test_a_reply_ends_at_whatever_the_files_or_custom_call_an_end(tmp_path: Path) -> None:
    assert pieces().eos_id == 2
    assert texts(pieces(), sorted(pieces().eos_ids)) == ["<eos>", "<end_of_turn>"]
    llm_families.write_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    tokenizer = json_tokenizer(tmp_path, len(llm_tiny.vocabulary()))
    assert tokenizer.eos_id == 2
    assert tokenizer.eos_ids == {0, 2, 7}


def test_ids_beyond_the_tokens_end_a_reply_and_spell_nothing(tmp_path: Path) -> None:
    llm_families.write_tokenizer(tmp_path)
    n_tokens = len(llm_tiny.vocabulary())
    tokenizer = json_tokenizer(tmp_path, n_tokens + 5)
    assert len(tokenizer) == n_tokens + 5
    assert tokenizer.decode([n_tokens, n_tokens + 4]) == ""
    assert tokenizer.control_ids >= {n_tokens, n_tokens + 4}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": None}, "model is missing"),
        ({"model": {"type": "Unigram", "vocab": []}}, "'Unigram'"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}}, "cannot be used"),
        ({"decoder": None}, "neither"),
        ({"added_tokens": [{"content": 3, "id": 1}]}, "added token 3"),
        ({"added_tokens": [7]}, "added_tokens"),
        ({"pre_tokenizer": {"type": "Nonsense"}}, "cannot be used"),
    ],
)
def test_an_unusable_tokenizer_json_says_so(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    llm_families.write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ComponentError) as error:
        json_tokenizer(tmp_path, len(llm_tiny.vocabulary()))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_tokenizer_file_is_named(tmp_path: Path, name: str) -> None:
    llm_families.write_tokenizer(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ComponentError, match=name):
        json_tokenizer(tmp_path, len(llm_tiny.vocabulary()))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_corrupted_tokenizer_json_never_does_worse_than_an_error(data: st.DataObject) -> None:
    folder = Path(tempfile.mkdtemp(prefix="voicepipe-tiny-"))
    llm_pieces.write_folder(folder)
    stored = bytearray((folder / "tokenizer.json").read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(stored) - 1), min_size=1, max_size=3)):
        stored[at] = data.draw(st.integers(0, 255))
    n_bytes = data.draw(st.just(len(stored)) | st.integers(0, len(stored)))
    (folder / "tokenizer.json").write_bytes(stored[:n_bytes])
    with suppress(ComponentError):
        json_tokenizer(folder, len(llm_pieces.vocabulary()))


@pytest.mark.parametrize("key", ["tokens", "scores", "token_type"])
def test_a_broken_gguf_vocabulary_is_named(tmp_path: Path, key: str) -> None:
    file = GgufFile(llm_pieces.write_gguf(tmp_path / "m.gguf"))
    whole = file.metadata[f"tokenizer.ggml.{key}"]
    assert isinstance(whole, list)
    for broken in (None, whole[:-1], [None]):
        file.metadata[f"tokenizer.ggml.{key}"] = broken
        with pytest.raises(ComponentError):
            gguf_tokenizer(file)


@pytest.mark.parametrize("key", ["eos", "eot", "eom"])
def test_a_reply_ends_at_each_token_that_a_gguf_file_calls_an_end(tmp_path: Path, key: str) -> None:
    file = GgufFile(llm_pieces.write_gguf(tmp_path / "m.gguf"))
    file.metadata[f"tokenizer.ggml.{key}_token_id"] = 3  # <start_of_turn>, no usual end
    assert gguf_tokenizer(file).eos_ids == {2, 3, 4}


def test_a_gguf_token_id_that_is_no_token_is_named(tmp_path: Path) -> None:
    file = GgufFile(llm_pieces.write_gguf(tmp_path / "m.gguf"))
    file.metadata["tokenizer.ggml.eot_token_id"] = 10_000
    with pytest.raises(ComponentError, match="eot_token_id 10000"):
        gguf_tokenizer(file)
