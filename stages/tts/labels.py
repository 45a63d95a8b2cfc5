"""Which piece of the raw text begins when: from words to the labels on frames."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

_WORD = re.compile(r"\s*\S+")
_SPOKEN_WORD = re.compile(r"\S*\w\S*")

MAX_COMPARISONS = 4_000
"""Matching 60 words with 60 takes a few milliseconds at most; phrases are shorter."""


@dataclass(frozen=True, slots=True)
class Label:
    """`text`, an exact piece of the phrase, begins with `spoken[start]`, a piece of what is said
    for it."""

    text: str
    start: int


def labels_of(text: str, spoken: str) -> list[Label]:
    """Cut a phrase into labels, one for each of its words that is spoken.

    `spoken` is the phrase as it is said: mostly the same words, but "$5 **off**" becomes "five
    dollars off". Words that both have in common are matched one to one, what lies between is
    spread evenly. What is not spoken (an emoji, a dash) belongs to the word before it. The labels
    concatenate to `text`; `start` never decreases.
    """
    words = _with_the_rest(text)
    raw = [_bare(word) for word in words]
    said = list(_SPOKEN_WORD.finditer(spoken))
    starts = [0] * len(words)
    for first, last, said_first, said_last in _matched(raw, [_bare(m.group()) for m in said]):
        for i in range(first, last):
            j = said_first + (i - first) * (said_last - said_first) // (last - first)
            starts[i] = said[j].start() if j < len(said) else len(spoken)
    return [Label(word, start) for word, start in zip(words, starts, strict=True)]


def _matched(raw: list[str], said: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """Ranges of both lists that belong together, in order; all of `raw` is in them."""
    if len(raw) * len(said) > MAX_COMPARISONS and raw != said:
        yield 0, len(raw), 0, len(said)
    elif raw == said:
        yield from ((i, i + 1, i, i + 1) for i in range(len(raw)))
    else:
        for _, *ranges in SequenceMatcher(None, raw, said, autojunk=False).get_opcodes():
            first, last, said_first, said_last = ranges
            yield first, last, said_first, said_last


def _with_the_rest(text: str) -> list[str]:
    """Words with the white space before them; what has no letter or digit joins the word before
    it (or, at the start, the one after)."""
    words: list[str] = []
    waiting = ""
    for piece in _WORD.findall(text):
        if _bare(piece):
            words.append(waiting + piece)
            waiting = ""
        elif words:
            words[-1] += piece
        else:
            waiting += piece
    end = waiting + text[sum(map(len, words)) + len(waiting) :]
    if not words:
        return [end] if end else []
    words[-1] += end
    return words


def _bare(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum())
