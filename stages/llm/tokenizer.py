"""Text to token ids and back, from the vocabulary inside a GGUF file.

Control tokens (`<|im_end|>` and the like) are only ever made by `encode_glue`, which is for text of
the chat template: what a caller says can never become one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from stages.llm.gguf_file import GgufFile
from voicepipe.errors import ComponentError

CONTROL, USER_DEFINED = 3, 4
"""Values of `tokenizer.ggml.token_type`."""

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
"""How text is cut before merging, by `tokenizer.ggml.pre`; as in llama.cpp's llama-vocab.cpp."""


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (Radford et al. 2019, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in printable}
    others = [b for b in range(256) if b not in printable]
    table.update({chr(256 + n): b for n, b in enumerate(others)})
    return table


class GgufTokenizer:
    """A byte-level BPE tokenizer. Raises ComponentError when the file's kind is not supported."""

    def __init__(self, file: GgufFile) -> None:
        tokens, merges = _texts(file, "tokens"), _texts(file, "merges")
        kinds = _numbers(file, "token_type")
        if len(kinds) != len(tokens):
            raise file.broken(f"{len(tokens)} tokens but {len(kinds)} token types")
        kind = file.metadata.get("tokenizer.ggml.model")
        pre = file.metadata.get("tokenizer.ggml.pre")
        if kind != "gpt2" or pre not in PRE_TOKENIZERS:
            known = ", ".join(PRE_TOKENIZERS)
            raise ComponentError(
                f"model file {file.path}: tokenizer {kind!r}/{pre!r} is not supported: use a model "
                f"with tokenizer 'gpt2' and one of {known}"
            )
        ids = {token: n for n, token in enumerate(tokens)}
        pairs = [(left, right) for left, _, right in (m.partition(" ") for m in merges)]
        try:
            self._bpe = Tokenizer(models.BPE(vocab=ids, merges=pairs))
        except Exception as error:  # the Rust side raises nothing narrower
            raise file.broken(f"tokenizer: {error}") from error
        self._bpe.pre_tokenizer = PRE_TOKENIZERS[str(pre)]
        self.control_ids = frozenset(n for n, kind in enumerate(kinds) if kind == CONTROL)
        special = {tokens[n]: n for n in range(len(kinds)) if kinds[n] in (CONTROL, USER_DEFINED)}
        self._special = special
        longest_first = sorted(map(re.escape, special), key=len, reverse=True)
        self._special_pattern = re.compile(f"({'|'.join(longest_first)})" if special else "(?!)")
        self.bytes_of = _token_bytes(tokens, special)
        """The bytes of each token id; empty for control tokens."""
        for n in self.control_ids:
            self.bytes_of[n] = b""
        self.bos_id = _token_id(file, "bos")
        self.eos_id = _token_id(file, "eos")
        self.adds_bos = file.metadata.get("tokenizer.ggml.add_bos_token") is True

    def __len__(self) -> int:
        return len(self.bytes_of)

    def token(self, token_id: int | None) -> str:
        """The text of a token as the vocabulary has it, "" for None."""
        return "" if token_id is None else str(self._bpe.id_to_token(token_id) or "")

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text: nothing in it becomes a control token."""
        return list(self._bpe.encode(text, add_special_tokens=False).ids) if text else []

    def split_glue(self, text: str) -> list[int | str]:
        """`text` of a chat template as ids of special tokens and the plain pieces between."""
        pieces = (p for p in self._special_pattern.split(text) if p)
        return [self._special.get(piece, piece) for piece in pieces]

    def encode_glue(self, text: str) -> list[int]:
        """Token ids of text of a chat template, special tokens included."""
        ids: list[int] = []
        for piece in self.split_glue(text):
            ids += [piece] if isinstance(piece, int) else self.encode(piece)
        return ids

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.bytes_of[n] for n in ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without control tokens; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def cut(self, ids: Sequence[int], text: str) -> list[int]:
        """Ids whose text is `text`, a prefix of the text of `ids`: theirs as far as they lie
        wholly inside it, and the rest encoded anew."""
        wanted, n_bytes = text.encode("utf-8", errors="replace"), 0
        for n, token_id in enumerate(ids):
            n_bytes += len(self.bytes_of[token_id])
            if n_bytes > len(wanted):
                return self._complete(list(ids[:n]), text)
        return self._complete(list(ids), text)

    def _complete(self, ids: list[int], text: str) -> list[int]:
        """`ids` shortened until they spell a prefix of `text`, then the rest of it."""
        while not text.startswith(start := self.decode(ids)):
            ids.pop()
        return ids + self.encode(text[len(start) :])


def _texts(file: GgufFile, name: str) -> list[str]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise file.broken(f"tokenizer.ggml.{name} is missing")
    return value


def _numbers(file: GgufFile, name: str) -> list[int]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise file.broken(f"tokenizer.ggml.{name} is missing")
    return value


def _token_id(file: GgufFile, name: str) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return value if isinstance(value, int) else None


def _token_bytes(tokens: Sequence[str], special: dict[str, int]) -> list[bytes]:
    table = _bytes_of_characters()
    return [
        token.encode("utf-8", errors="surrogateescape")
        if token in special
        else b"".join(
            bytes([table[c]]) if c in table else c.encode("utf-8", errors="surrogateescape")
            for c in token
        )
        for token in tokens
    ]
