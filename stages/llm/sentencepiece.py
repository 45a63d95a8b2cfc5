"""SentencePiece BPE (Llama 2, Gemma): pieces of text merged by score, spaces written as "\u2581".

After llm_tokenizer_spm in llama.cpp's llama-vocab.cpp and Kudo & Richardson 2018
(arXiv:1808.06226).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence

SPACE = "\u2581"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePiece:
    """Encodes text with `pieces` (their ids) and the `scores` of all ids; the highest score merges
    first. `whole` pieces are taken before anything merges; `byte_ids` [256] spell what no piece
    does, or `unknown_id` where they lack."""

    def __init__(
        self,
        pieces: Mapping[str, int],
        scores: Sequence[float],
        *,
        whole: Mapping[str, int],
        byte_ids: Sequence[int | None],
        unknown_id: int | None,
    ) -> None:
        self._pieces, self._scores, self._whole = pieces, scores, whole
        self._byte_ids, self._unknown_id = byte_ids, unknown_id
        longest_first = sorted(map(re.escape, whole), key=len, reverse=True)
        self._whole_pattern = re.compile(f"({'|'.join(longest_first)})" if whole else "(?!)")

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; nothing is put before it."""
        ids: list[int] = []
        for part in self._whole_pattern.split(text.replace(" ", SPACE)):
            if part in self._whole:
                ids.append(self._whole[part])
            else:
                for symbol in self._merged(part):
                    ids += self._ids(symbol)
        return ids

    def _merged(self, text: str) -> list[str]:
        """`text` as the longest pieces that merging leads to; a character may be no piece."""
        symbols = list(text)
        n = len(symbols)
        following, preceding = list(range(1, n + 1)), list(range(-1, n - 1))
        queue: list[tuple[float, int, str]] = []

        def consider(left: int) -> None:
            """Merging the symbol at `left` with its neighbour, if that makes a piece."""
            if left >= 0 and following[left] < n:
                joined = symbols[left] + symbols[following[left]]
                if (piece := self._pieces.get(joined)) is not None:
                    heapq.heappush(queue, (-self._scores[piece], left, joined))

        for left in range(n - 1):
            consider(left)
        while queue:
            _, left, joined = heapq.heappop(queue)
            right = following[left]
            if not symbols[left] or right >= n or symbols[left] + symbols[right] != joined:
                continue  # one of the two has merged otherwise
            symbols[left], symbols[right] = joined, ""
            following[left] = following[right]
            if following[left] < n:
                preceding[following[left]] = left
            consider(preceding[left])
            consider(left)
        return [symbol for symbol in symbols if symbol]

    def _ids(self, symbol: str) -> list[int]:
        if (piece := self._pieces.get(symbol)) is not None:
            return [piece]
        spelled = [self._byte_ids[byte] for byte in symbol.encode("utf-8", errors="replace")]
        if all(byte is not None for byte in spelled):
            return [byte for byte in spelled if byte is not None]
        return [] if self._unknown_id is None else [self._unknown_id]


def is_blank(token: str) -> bool:
    """Whether `token` is white space only: the one kind of added token that plain text makes."""
    return not token.strip(" \n\t\r" + SPACE)


def byte_of(token: str) -> int | None:
    """The byte that a token like `<0x0A>` stands for, None for all others."""
    match = BYTE.fullmatch(token)
    return int(match[1], 16) if match else None


def piece_bytes(tokens: Sequence[str]) -> list[bytes]:
    """What the tokens of a SentencePiece vocabulary spell."""
    return [
        token.replace(SPACE, " ").encode("utf-8", errors="surrogateescape")
        if (byte := byte_of(token)) is None
        else bytes([byte])
        for token in tokens
    ]
