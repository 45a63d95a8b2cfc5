"""The tokenizer inside a GGUF file: byte-level BPE or SentencePiece.

Keys are documented in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; defaults are
llama.cpp's (llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tokenizers import Tokenizer as TokenizersTokenizer
from tokenizers import models

from stages.llm.byte_level import PRE_TOKENIZERS, token_bytes
from stages.llm.gguf_file import GgufFile
from stages.llm.sentencepiece import SPACE, SentencePiece, byte_of, is_blank, piece_bytes
from stages.llm.tokenizer import TURN_ENDS, Tokenizer, Vocabulary
from voicepipe.errors import ComponentError

Item = TypeVar("Item", str, int, float)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
"""Values of `tokenizer.ggml.token_type`."""
NO_TEXT = (UNKNOWN, CONTROL, UNUSED)
PREPENDS_BOS = ("llama-bpe",)
"""Byte-level vocabularies whose models expect BOS even where the file does not say so."""
TURN_END_KEYS = ("eos", "eot", "eom")


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Raises ComponentError when the vocabulary is broken or its kind is not supported."""
    kind, pre = file.metadata.get("tokenizer.ggml.model"), file.metadata.get("tokenizer.ggml.pre")
    is_pieces = kind == "llama"
    if not is_pieces and (kind != "gpt2" or pre not in PRE_TOKENIZERS):
        raise ComponentError(
            f"model file {file.path}: tokenizer {kind!r}/{pre!r} is not supported: use a model "
            f"with tokenizer 'llama', or 'gpt2' and one of {', '.join(PRE_TOKENIZERS)}"
        )
    tokens, kinds = _list(file, "tokens", str), _list(file, "token_type", int)
    if len(kinds) != len(tokens):
        raise file.broken(f"{len(tokens)} tokens but {len(kinds)} token types")
    encode = (
        _sentence_piece(file, tokens, kinds) if is_pieces else _byte_level(file, tokens, str(pre))
    )
    return Tokenizer(_vocabulary(file, tokens, kinds, is_pieces=is_pieces), encode)


def _vocabulary(
    file: GgufFile, tokens: Sequence[str], kinds: Sequence[int], *, is_pieces: bool
) -> Vocabulary:
    control = frozenset(n for n, kind in enumerate(kinds) if kind in NO_TEXT)
    special = {
        tokens[n]: n
        for n, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED) and not is_blank(tokens[n])
    }
    bytes_of = piece_bytes(tokens) if is_pieces else token_bytes(tokens)
    for token, n in special.items():
        bytes_of[n] = token.encode("utf-8", errors="surrogateescape")
    for n in control:
        bytes_of[n] = b""
    ends = {_token_id(file, key, tokens) for key in TURN_END_KEYS}
    ends |= {special[token] for token in TURN_ENDS if special.get(token) in control}
    pre = file.metadata.get("tokenizer.ggml.pre")
    return Vocabulary(
        tokens=tokens,
        bytes_of=bytes_of,
        special=special,
        control_ids=control,
        bos_id=_token_id(file, "bos", tokens),
        eos_id=_token_id(file, "eos", tokens),
        eos_ids=frozenset(n for n in ends if n is not None),
        adds_bos=_flag(file, "add_bos_token", is_pieces or pre in PREPENDS_BOS),
        adds_space=_flag(file, "add_space_prefix", is_pieces),
    )


def _byte_level(file: GgufFile, tokens: Sequence[str], pre: str) -> Callable[[str], Sequence[int]]:
    merges = _list(file, "merges", str)
    pairs = [(left, right) for left, _, right in (m.partition(" ") for m in merges)]
    try:
        bpe = TokenizersTokenizer(
            models.BPE(vocab={token: n for n, token in enumerate(tokens)}, merges=pairs)
        )
    except Exception as error:  # the Rust side raises nothing narrower
        raise file.broken(f"tokenizer: {error}") from error
    bpe.pre_tokenizer = PRE_TOKENIZERS[pre]
    return lambda text: bpe.encode(text, add_special_tokens=False).ids


def _sentence_piece(
    file: GgufFile, tokens: Sequence[str], kinds: Sequence[int]
) -> Callable[[str], Sequence[int]]:
    scores = _list(file, "scores", float)
    if len(scores) != len(tokens):
        raise file.broken(f"{len(tokens)} tokens but {len(scores)} scores")
    ids = {token: n for n, token in enumerate(tokens)}
    whole = {
        token.replace(" ", SPACE): n
        for n, token in enumerate(tokens)
        if kinds[n] == USER_DEFINED and is_blank(token)
    }
    byte_ids: list[int | None] = [ids.get(f"<0x{byte:02X}>") for byte in range(256)]
    return SentencePiece(
        {token: n for token, n in ids.items() if kinds[n] == NORMAL and byte_of(token) is None},
        scores,
        whole=whole,
        byte_ids=byte_ids,
        unknown_id=_token_id(file, "unknown", tokens),
    ).encode


def _list(file: GgufFile, name: str, of: type[Item]) -> list[Item]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(item, of) for item in value):
        raise file.broken(f"tokenizer.ggml.{name} is missing")
    return value


def _flag(file: GgufFile, name: str, default: bool) -> bool:
    return file.metadata.get(f"tokenizer.ggml.{name}", default) is True


def _token_id(file: GgufFile, name: str, tokens: Sequence[str]) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if not isinstance(value, int):
        return None
    if not 0 <= value < len(tokens):
        raise file.broken(f"tokenizer.ggml.{name}_token_id {value} is no token")
    return value
