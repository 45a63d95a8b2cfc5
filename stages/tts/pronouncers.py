"""The pronouncers that there are, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from stages.tts.lexicon import LexiconPronouncer
from stages.tts.pronounce import EspeakPronouncer, Pronouncer
from voicepipe.errors import UsageError

PronouncerName = Literal["lexicon", "espeak"]

PRONOUNCERS: dict[str, Callable[[], Pronouncer]] = {
    "lexicon": LexiconPronouncer,
    "espeak": EspeakPronouncer,
}


def pronouncer_named(name: str) -> Pronouncer:
    """Raises UsageError for an unknown name (lists the known), ComponentError when the package
    behind it is missing."""
    if name not in PRONOUNCERS:
        raise UsageError(f"unknown pronouncer {name!r}: use one of {', '.join(PRONOUNCERS)}")
    return PRONOUNCERS[name]()
