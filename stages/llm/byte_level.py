"""Byte-level BPE vocabularies: how text is cut before merging, and the bytes of a token."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split_by(pattern: str) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2(*, single_digits: bool) -> PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if not single_digits:
        return byte_level
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])


PRE_TOKENIZERS = {
    "gpt-2": _gpt2(single_digits=False),
    "smollm": _gpt2(single_digits=True),
    "llama-bpe": _split_by(LLAMA3),
    "qwen2": _split_by(QWEN2),
}
"""By `tokenizer.ggml.pre`; as in llama.cpp's llama-vocab.cpp."""


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (Radford et al. 2019, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in printable]
    table.update({chr(256 + n): b for n, b in enumerate(others)})
    return table


BYTES = {character: bytes([byte]) for character, byte in _bytes_of_characters().items()}


def token_bytes(tokens: Sequence[str]) -> list[bytes]:
    """What the tokens of a byte-level vocabulary spell."""
    return [
        b"".join(BYTES.get(c) or c.encode("utf-8", errors="surrogateescape") for c in token)
        for token in tokens
    ]
