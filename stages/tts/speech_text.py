"""What a voice says of a text that was written to be read.

    speakable("**Total:** $3.50 (5 km @ 10:30 a.m.)")
    == "Total: three dollars and fifty cents, five kilometers at ten thirty A-M"

For an English voice, American in its dates. The spoken form has words and ordinary punctuation and
nothing else, so that every voice engine reads it alike: no digits, no signs, and acronyms only
where engines read the letters ("API"); where they tend to read a word, hyphens tell them ("A-M").
Text in other scripts than Latin has nothing that an English voice could say, and is left out.
"""

# ruff: noqa: RUF001 - look-alike signs are the subject

from __future__ import annotations

import re

from stages.tts.spoken.abbreviations import ABBREVIATIONS, WORDS
from stages.tts.spoken.addresses import ADDRESSES
from stages.tts.spoken.characters import in_latin, unified
from stages.tts.spoken.dates import DATES
from stages.tts.spoken.markup import with_line_breaks, without_inline, without_lines
from stages.tts.spoken.quantities import NUMBERS
from stages.tts.spoken.rewriting import Rule, rewritten
from stages.tts.spoken.signs import OPERATORS, SIGNS
from voicepipe.silent_text import without_silent

_LONGEST_PIECE = 1000
"""Characters that the rules see at once: a phrase is shorter, and whatever a pattern costs on a
text that was made to be hard, the cost of the whole stays linear in its length."""

_PAUSES: list[Rule] = [
    (re.compile(r"(?:\.{2,}|…)(?=\s+(?!I\b)[A-Z])"), ". "),
    (re.compile(r"\.{2,}|…|[—―]|(?<=\s)[-–]{1,3}(?=\s)|--+"), ", "),
    (re.compile(r"[)\]](?=[)\]\s]*$)"), " "),
    (re.compile(r"[()\[\]|]"), ", "),
    (re.compile(r"[^A-Za-zÀ-ÖØ-öø-ÿ'.,?!;: -]+"), " "),
]
_LETTER = "A-Za-zÀ-ÿ"
_TIDY: list[Rule] = [
    (re.compile(rf"(?<![{_LETTER}])['-]+|'(?![{_LETTER}])|-{{2,}}"), " "),
    (re.compile(rf"(?<!\bA)-(?![{_LETTER}])|(?<=\bA)-(?![ {_LETTER}])"), " "),
    (re.compile(r"[\s,.?!;:]+"), lambda m: _strongest(m.group())),
]


def _strongest(run: str) -> str:
    """One mark, and the space behind it, for a run of punctuation and white space."""
    return next((f"{mark} " for mark in "?!.:;," if mark in run), " ")


def speakable(text: str) -> str:
    """The spoken form of `text`, a phrase of a reply; "" when there is nothing to say.

    Never raises. Works on any piece of a reply, best on whole phrases: what a number or an
    abbreviation means is judged by the words beside it.
    """
    lines = without_lines(with_line_breaks(unified(without_silent(text))))
    return _tidy(" ".join(_in_words(piece) for piece in _pieces(lines)))


def _pieces(text: str) -> list[str]:
    """`text` cut at spaces, if possible, into pieces of bounded length."""
    pieces = []
    while len(text) > _LONGEST_PIECE:
        cut = text.rfind(" ", 1, _LONGEST_PIECE) + 1 or _LONGEST_PIECE
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text]


def _in_words(piece: str) -> str:
    text = unified(without_inline(piece))
    for rules in (ADDRESSES, OPERATORS, DATES, ABBREVIATIONS, NUMBERS, SIGNS, WORDS):
        text = rewritten(text, rules)
    return rewritten(in_latin(text), _PAUSES)


def _tidy(text: str) -> str:
    """Punctuation as one would write it."""
    return rewritten(text, _TIDY).lstrip(" ,.;:?!-").rstrip()
