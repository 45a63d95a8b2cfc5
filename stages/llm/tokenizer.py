"""Text to token ids and back, whatever kind of vocabulary a model has.

Control tokens (`<|im_end|>` and the like) are only ever made by `encode_glue`, which is for text of
the chat template: what a caller says can never become one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

TURN_ENDS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
    *("<end_of_turn>", "<eos>", "</s>"),
)
"""Control tokens that end a reply in the supported families, also where a file forgets to say so;
as llama.cpp does."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What is known of each token id, in order."""

    tokens: Sequence[str]
    bytes_of: Sequence[bytes]
    """What each token spells; control tokens nothing."""
    special: Mapping[str, int]
    """Tokens that text of a chat template makes and plain text never does."""
    control_ids: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    """What a chat template knows as `eos_token`."""
    eos_ids: frozenset[int]
    """Everything that ends a reply."""
    adds_bos: bool
    """Whether the model was trained with `bos_id` before everything."""
    adds_space: bool
    """Whether text that starts, or follows a special token, gets a space before it."""


class Tokenizer:
    """One interface over byte-level BPE and SentencePiece, from GGUF or tokenizer.json."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], Sequence[int]]) -> None:
        """`encode` makes ids of plain text and puts nothing before it."""
        v = vocabulary
        self.bytes_of = v.bytes_of
        """The bytes of each token id; empty for control tokens."""
        self.control_ids, self.adds_bos = v.control_ids, v.adds_bos
        self.bos_id, self.eos_id, self.eos_ids = v.bos_id, v.eos_id, v.eos_ids
        self._tokens, self._special, self._adds_space = v.tokens, v.special, v.adds_space
        self._encode = encode
        longest_first = sorted(map(re.escape, v.special), key=len, reverse=True)
        self._special_pattern = re.compile(f"({'|'.join(longest_first)})" if v.special else "(?!)")

    def __len__(self) -> int:
        return len(self.bytes_of)

    def token(self, token_id: int | None) -> str:
        """The text of a token as the vocabulary has it, "" for None."""
        return "" if token_id is None else self._tokens[token_id]

    def token_id(self, token: str) -> int | None:
        """The id of a special token by its text, None when there is none."""
        return self._special.get(token)

    def encode(self, text: str, *, starts: bool = False) -> list[int]:
        """Token ids of plain text: nothing in it becomes a control token. `starts`: it stands at
        the very start or after a special token, where some vocabularies want a space."""
        if starts and self._adds_space and text:
            text = " " + text
        return list(self._encode(text)) if text else []

    def split_glue(self, text: str) -> list[int | str]:
        """`text` of a chat template as ids of special tokens and the plain pieces between."""
        pieces = (p for p in self._special_pattern.split(text) if p)
        return [self._special.get(piece, piece) for piece in pieces]

    def encode_glue(self, text: str) -> list[int]:
        """Token ids of text of a chat template, special tokens included."""
        return self.encode_pieces(self.split_glue(text))

    def encode_pieces(self, pieces: Sequence[int | str]) -> list[int]:
        """Token ids of what `split_glue` returned."""
        ids: list[int] = []
        for piece in pieces:
            ids += [piece] if isinstance(piece, int) else self.encode(piece, starts=True)
        return ids

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """What `ids` spell; a character may be cut at either end."""
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
