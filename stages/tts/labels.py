"""Which piece of the raw text begins when: from words to the labels on frames."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

_WORD = re.compile(r"\s*\S+")


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
    said = list(re.finditer(r"\S*\w\S*", spoken))
    starts = [0] * len(words)
    matcher = SequenceMatcher(None, raw, [_bare(m.group()) for m in said], autojunk=False)
    for _, first, last, said_first, said_last in matcher.get_opcodes():
        for i in range(first, last):
            j = said_first + (i - first) * (said_last - said_first) // (last - first)
            starts[i] = said[j].start() if j < len(said) else len(spoken)
    return [Label(word, start) for word, start in zip(words, starts, strict=True)]


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
