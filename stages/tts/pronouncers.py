"""The pronouncers that there are, by name."""

from __future__ import annotations

from typing import Literal, get_args

from stages.tts.lexicon import LexiconPronouncer
from stages.tts.pronounce import EspeakPronouncer, Pronouncer
from voicepipe.errors import UsageError

PronouncerName = Literal["espeak", "lexicon"]


def pronouncer_named(name: str, language: str = "en-us") -> Pronouncer:
    """The pronouncer for a language, which has espeak's name. Raises UsageError for an unknown
    name (lists the known) or a language it does not know, ComponentError when the package behind
    it is missing."""
    match name:
        case "espeak":
            return EspeakPronouncer(language)
        case "lexicon" if language.startswith("en"):
            return LexiconPronouncer()
        case "lexicon":
            raise UsageError(f"pronouncer 'lexicon' knows English, not {language!r}: use 'espeak'")
    raise UsageError(
        f"unknown pronouncer {name!r}: use one of {', '.join(get_args(PronouncerName))}"
    )
