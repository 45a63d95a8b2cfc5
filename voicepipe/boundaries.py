"""Where in an English (or Chinese, or Japanese) text a speaker could pause.

Judged by one word and, where that does not tell, by the first character of the next one.
"""

# ruff: noqa: RUF001 - look-alike punctuation is the subject

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum


class Boundary(IntEnum):
    """Where a speaker could pause; the stronger, the better."""

    NONE = 0
    """The next word belongs to this one: "Dr. Smith", "5 km", "the house"."""
    WORD = 1
    WEAK = 2
    """In front of a preposition: better than any other word, never a reason to cut."""
    JOINT = 3
    CLAUSE = 4
    SENTENCE = 5


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


JOINTS = _words(
    "and but or so because which who when where while if although though unless until since then "
    "whereas"
)
PREPOSITIONS = _words(
    "in on at for from with by about into over after before through during between as that under "
    "without within against along around across near"
)
_MONTHS = _words(
    "january february march april may june july august september october november december jan feb "
    "mar apr jun jul aug sep sept oct nov dec"
)
_LEAN_ON_THE_NEXT = (
    PREPOSITIONS
    | JOINTS
    | _MONTHS
    | _words(
        "a an the of to my your his her its our their this these those no not very too is are was "
        "were be been am will would can could should may might must do does did have has had i we "
        "you he she they it's i'm you're we're they're i'll you'll we'll i'd you'd "
        "mr mrs ms dr"
    )
)
"""Words (small letters) that no speaker pauses after."""
_NEVER_LAST = _words(
    "dr mr mrs ms mx prof st mt ft gen col sgt capt lt cmdr adm rev hon pres gov sen rep messrs "
    "e.g i.e eg ie vs cf viz al approx ca fig figs eq sec ch vol pp pg ed eds tel ext est dept "
    "ph.d"
)
"""Abbreviations (without their last dot) that want a word after them."""
_PERHAPS_LAST = _words(
    "etc inc ltd co corp bros jr sr ave blvd rd no nos a.m p.m am pm jan feb mar apr jun jul aug "
    "sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun min max avg misc"
)
"""Abbreviations that end a sentence unless a small letter or a digit follows."""

CLOSERS = "\"'”’»)]}*_~`>」』）】》"
_OPENERS = "\"'“‘«([{*_~`<「『（【《#"
SENTENCE_ENDS = "?!。！？｡．।॥؟۔"
_CLAUSE_ENDS = ",;:，、；：،؛—"
NEED_NO_SPACE = frozenset("。！？｡．，、；：—")
"""The text goes on right behind these."""
_INITIALS = re.compile(r"(?:[a-z]\.)*[a-z]")
_LIST_NUMBER = re.compile(r"\(?(?:\d{1,3}|[a-zA-Z])\.")
_PICTURE_PARTS = "\ufe0f\u200d\u20e3"


def is_ideograph(char: str) -> bool:
    return "\u3040" <= char <= "\u30ff" or "\u3400" <= char <= "\u9fff"


def n_letters(char: str) -> int:
    """How long `char` is in speech, in letters; 0 for all that is not read aloud."""
    if not char.isalnum():
        return 0
    return 3 if char.isdigit() or is_ideograph(char) else 1


def _is_picture(char: str) -> bool:
    return char >= "\u2600" and unicodedata.category(char) in ("So", "Sk")


def after_word(word: str, *, before: str, first_of_line: bool) -> Boundary | None:
    """The boundary behind `word`, which follows `before`; None when the next word decides."""
    bare = word.rstrip(CLOSERS + _PICTURE_PARTS)
    name = bare.lstrip(_OPENERS)
    if not name:
        return Boundary.WORD
    if name.endswith(("...", "…")):
        return Boundary.CLAUSE
    if name[-1] in SENTENCE_ENDS:
        return Boundary.SENTENCE if bare == word else None
    if name[-1] == ".":
        return Boundary.NONE if first_of_line and _LIST_NUMBER.fullmatch(name) else None
    if name[-1] in _CLAUSE_ENDS:
        abbreviated = name[:-1].removesuffix(".").lower() in _NEVER_LAST
        in_date = name[0].isdigit() and before.lower().removesuffix(".") in _MONTHS
        return Boundary.NONE if abbreviated or in_date else Boundary.CLAUSE
    if name in ("-", "–", "--"):
        return Boundary.NONE if first_of_line else Boundary.CLAUSE
    if _is_picture(name[-1]):
        return None
    leans = bare == word and (name[-1].isdigit() or name.lower() in _LEAN_ON_THE_NEXT)
    return Boundary.NONE if leans else Boundary.WORD


def between_words(word: str, next_char: str) -> Boundary:
    """The boundary between `word`, which `after_word` left open, and the word that begins so."""
    name = word.rstrip(CLOSERS).lstrip(_OPENERS)
    lower = name.removesuffix(".").lower()
    if name.endswith("."):
        if lower in _PERHAPS_LAST:
            wants_more = next_char.isdigit()
        else:
            is_initial = bool(_INITIALS.fullmatch(lower)) and name != "I."
            wants_more = is_initial or lower in _NEVER_LAST
        if wants_more:
            return Boundary.NONE
    return Boundary.WORD if next_char.islower() else Boundary.SENTENCE
