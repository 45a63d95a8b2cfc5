"""Words by which a listener says "I follow, go on": they take no turn and stop nobody."""

from __future__ import annotations

import re

from voicepipe.wording import normalised

MAX_WORDS = 4
"""What is longer is meant to be heard, whatever it is made of."""

_PHRASES = """yeah, yes, yep, yup, ya, okay, ok, right, sure, alright, all right, i see, i know,
got it, oh, ah, aha, wow, huh, great, good, nice, cool, fine, true, exactly, indeed, really,
absolutely, definitely, totally, of course, go on, makes sense, that makes sense, that's right,
you're right, fair enough, interesting, perfect, awesome, amazing, gotcha, mkay, thanks,
thank you"""

_KNOWN = frozenset(" ".join(phrase.split()) for phrase in _PHRASES.split(","))
_LONGEST = max(len(phrase.split()) for phrase in _KNOWN)

_HUM = re.compile(
    r"m+h*m*|m+[aei]?h+[aei]+[mn]+|h+m+|u+h+|u+m+|h+u+h+|e+r+m*|a+h+|o+h+|e+h+|uhhu+h|m+hm+|mf"
)
"""One syllable of humming as STTs write it: mm, hmm, mhm, uh, huh, um, ah, oh; Whisper also hears
"MF" (the beginning of one) and "Mhem" or "Miham" (a whole mm-hmm)."""


def is_backchannel(text: str) -> bool:
    """Whether `text` is nothing but acknowledgement, at most `MAX_WORDS` words of it. Not the
    empty text, which says nothing at all."""
    words = normalised(text).split()
    return 0 < len(words) <= MAX_WORDS and _covered(words)


def may_become_backchannel(text: str) -> bool:
    """Whether more words, or the rest of the last one, could make `text` a backchannel. True for
    the empty text."""
    words = normalised(text).split()
    if len(words) > MAX_WORDS:
        return False
    for n_last in range(min(_LONGEST, len(words)) + 1):
        rest, last = words[: len(words) - n_last], " ".join(words[len(words) - n_last :])
        if _covered(rest) and any(phrase.startswith(last) for phrase in _KNOWN):
            return True
    return False


def _covered(words: list[str]) -> bool:
    """Whether known phrases and hums, one after the other, make up all of `words`."""
    if not words or (_HUM.fullmatch(words[0]) and _covered(words[1:])):
        return True
    return any(
        " ".join(words[:n]) in _KNOWN and _covered(words[n:])
        for n in range(1, min(_LONGEST, len(words)) + 1)
    )
