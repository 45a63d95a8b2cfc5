"""When two transcripts say the same."""

from __future__ import annotations

import re
import unicodedata

_NOT_WORD = re.compile(r"[^\w']+")


def normalised(text: str) -> str:
    """`text` without case, punctuation and spacing: what is left is what was said."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    return " ".join(_NOT_WORD.sub(" ", plain).split())


def same_words(one: str, other: str) -> bool:
    """Whether two transcripts differ in formatting only."""
    return normalised(one) == normalised(other)
