"""How a transcript ends: like a sentence, openly, or in the middle of one. English; in other
languages only punctuation and silence are left to judge by."""

from __future__ import annotations

import re
from enum import Enum

from voicepipe.wording import normalised


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HESITATIONS = _words("um umm uh uhm er erm ah hmm hm mm")
_FILLERS = _words("well like so")
"""Hesitations too, but not at the end of a sentence ("sleeping well.", "I think so.")."""
_SAID_WHILE_THINKING = ("you know", "i mean", "let me see", "let me think", "let's see")

_BINDING = _words(
    """and but or nor because cause if when while although though unless until than whether as
    the a an my your our their every another
    to of for from with without into onto about between near at by under during
    is are was were am be been i'm you're we're they're i'll you'll we'll i've i'd you'd we'd
    can could would should will shall may might must does did has had
    i we they he she who whose which very quite too"""
)
"""Words that bind to what comes after them: conjunctions, articles, prepositions, auxiliaries,
subjects."""

_QUESTION_WORDS = _words("what who whom where when which why how what's who's where's how's")
_STRANDED = _words(
    """to of for from with without about at by under is are was were be been
    can could would should will that i we they he she"""
)
"""Binding words in which a question with a question word may end all the same ("where are you
from?", "can you tell me how tall it is?")."""

_WANTING = ("tell me", "give me", "show me", "send me", "help me", "bring me", "let me", "is that")
"""Sentences that are no questions with a question word hardly end here, however they sound."""

_DIGITS = _words("zero oh one two three four five six seven eight nine double triple")
_FULL_NUMBERS = (7, 10, 11)
"""Digits of a telephone number: with that many it may well be complete."""

_SENTENCE_END = re.compile(r"[.!?][\"')\]]*$")
_TRAILING_OFF = re.compile(r"(\.\.+|\u2026|[,;:\u2014-])[\"')\]]*$")


class Ending(Enum):
    """How a transcript ends."""

    COMPLETE = "complete"
    """Punctuated as a sentence, and no word of it asks for more."""
    OPEN = "open"
    """Neither this nor that."""
    UNFINISHED = "unfinished"
    """In a hesitation, a conjunction or the like, or a run of digits: more is to come."""


def ending(text: str) -> Ending:
    """Judge the end of `text`, a transcript as the STT punctuated it."""
    text = text.strip()
    words = normalised(text).split()
    if not words:
        return Ending.OPEN
    if _TRAILING_OFF.search(text) or _breaks_off(words, text) or _counts_on(words):
        return Ending.UNFINISHED
    return Ending.COMPLETE if _SENTENCE_END.search(text) else Ending.OPEN


def _breaks_off(words: list[str], text: str) -> bool:
    """Whether the last word hesitates or needs another after it."""
    plain, asks = " ".join(words), text.endswith("?")
    if words[-1] in _HESITATIONS or plain.endswith(_SAID_WHILE_THINKING):
        return True
    if words[-1] in _FILLERS and (len(words) == 1 or not _SENTENCE_END.search(text)):
        return True
    if len(words) == 1 or not (words[-1] in _BINDING or plain.endswith(_WANTING)):
        return False
    fronted = words[0] in _QUESTION_WORDS or (asks and not _QUESTION_WORDS.isdisjoint(words))
    return not (fronted and words[-1] in _STRANDED)


def _counts_on(words: list[str]) -> bool:
    """Whether the words end in a run of digits, spoken ("five five") or written ("555"), of a
    length at which nobody stops."""
    n_digits = 0
    for word in reversed(words):
        if not word.isdigit() and word not in _DIGITS:
            break
        n_digits += len(word) if word.isdigit() else 1
    return n_digits > 2 and n_digits not in _FULL_NUMBERS
