"""English pronunciation from a word list: nothing but permissive licences.

The list is the one of the package `misaki` (Apache-2.0), 180,000 words in Kokoro's alphabet, out of
the model store; the package's code is not used, because it needs spaCy and a model download.
Words that are not listed are inflected from ones that are ("podcasted"), taken apart ("voicepipe"),
spelled out ("XJ") or, last, read by letter-to-sound rules (`letters.py`).
"""

# ruff: noqa: RUF001 - phonemes are written in IPA

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from stages.tts.letters import letters_to_sound
from stages.tts.pronounce import Alphabet, Sentence, Word
from voicepipe.models import path_of

Entry = str | dict[str, str | None]

_VOWELS = frozenset("AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻɐᵊ")
_STRESS = "ˈˌ"

_TOKEN = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*['’]?|\d|[.,;:!?…—]")
_PART = re.compile(r"[^-]+")
_PUNCTUATION = frozenset(".,;:!?…—")
_END_OF_SENTENCE = frozenset(".!?…")

_DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@dataclass(frozen=True, slots=True)
class _Token:
    start: int
    text: str
    joined: bool
    """Part of a hyphenated word: said in full, "A-M" is no "a"."""


class LexiconPronouncer:
    """Looks words up, in context where the context is a matter of sound ("the end", "to go")."""

    alphabet: Alphabet = "kokoro"

    def __init__(self) -> None:
        """Raises ComponentError when the model store cannot bring the word list."""
        self._entries = _word_list()

    def pronounce(self, text: str) -> list[Sentence]:
        tokens = list(self._tokens(text))
        sounds: list[str] = []
        following = ""  # what is said next; empty before punctuation and at the end
        for token in reversed(tokens):
            following = self._sound(token, following)
            sounds.append(following)
        sentences: list[Sentence] = []
        sentence: Sentence = []
        for token, sound in zip(tokens, reversed(sounds), strict=True):
            if sound:
                if sentence:
                    sentence[-1] = Word(sentence[-1].start, sentence[-1].phonemes + " ")
                sentence.append(Word(token.start, sound))
            elif sentence and token.text in _PUNCTUATION:
                last = sentence[-1]
                if last.phonemes[-1] not in _PUNCTUATION:
                    sentence[-1] = Word(last.start, last.phonemes + token.text)
                if token.text in _END_OF_SENTENCE:
                    sentences.append(sentence)
                    sentence = []
        return [*sentences, sentence] if sentence else sentences

    def _tokens(self, text: str) -> Iterator[_Token]:
        """Words, digits and punctuation; "uh-huh" is one word, "well-kept" and "P-M" are two."""
        for found in _TOKEN.finditer(text):
            plain = _plain(found.group())
            if plain.isdecimal():
                for digit in plain:
                    yield _Token(found.start(), _DIGITS[int(digit)], joined=True)
            elif "-" not in plain or self._listed(plain):
                yield _Token(found.start(), plain, joined=False)
            else:
                for part in _PART.finditer(plain):
                    yield _Token(found.start() + part.start(), part.group(), joined=True)

    def _sound(self, token: _Token, following: str) -> str:
        """How a token sounds before `following`; "" when it has no sound."""
        word = token.text
        if not word[0].isalpha() or not word.isascii():
            return ""
        sound = "" if token.joined else self._in_context(word, following)
        sound = sound or self._listed(word, following)
        sound = sound or self._inflected(word) or self._taken_apart(word)
        return (sound or letters_to_sound(word.lower())).replace("ɾ", "T").replace("ʔ", "t")

    def _in_context(self, word: str, following: str) -> str:
        first = following.lstrip(_STRESS)[:1]
        match word.lower():
            case "the":
                return "ði" if first in _VOWELS and first else "ðə"
            case "a" if word == "a" or first:
                return "ɐ"
            case "an":
                return "ɐn"
            case "to" if first:
                return "tʊ" if first in _VOWELS else "tə"
            case "in" if first:
                return "ɪn"
            case "i":
                return "ˌI"
            case "am" if first and word != "AM":
                return "ɐm"
        return ""

    def _listed(self, word: str, following: str = "-") -> str:
        for form in (word, word.lower(), word.capitalize(), word.upper()):
            entry = self._entries.get(form)
            if isinstance(entry, dict):
                entry = (None if following else entry.get("None")) or entry["DEFAULT"]
            if entry:
                return entry
        return ""

    def _inflected(self, word: str) -> str:
        """-s, -'s, -ed, -ing and contractions of a listed word."""
        low = word.lower().rstrip("'")
        for ending, stems in (
            ("'s", ("",)),
            ("'ve", ("",)),
            ("'ll", ("",)),
            ("'d", ("",)),
            ("'re", ("",)),
            ("ies", ("y",)),
            ("es", ("", "e")),
            ("s", ("",)),
            ("ied", ("y",)),
            ("ed", ("e", "")),
            ("ing", ("", "e")),
            ("ly", ("",)),
        ):
            if not low.endswith(ending) or len(low) - len(ending) < 2:
                continue
            bare = low[: -len(ending)]
            doubled = (bare[:-1],) if ending in ("ed", "ing") and bare[-1:] == bare[-2:-1] else ()
            for stem in (*(bare + s for s in stems), *doubled):
                sound = self._listed(stem)
                if not sound and ending[0] == "'":
                    sound = self._taken_apart(stem)
                if sound:
                    return sound + _ending(ending, sound[-1])
        return ""

    def _taken_apart(self, word: str) -> str:
        """Two listed words in one ("voicepipe"), or the letters of an abbreviation ("XJ")."""
        low = word.lower()
        for cut in range(len(low) - 3, 2, -1):
            first, second = self._listed(low[:cut]), self._listed(low[cut:])
            if first and second:
                return first + second.replace("ˈ", "ˌ")
        if word.isupper() or not any(c in "aeiouy" for c in low):
            letters = [self._listed(c.upper()) for c in low if c.isalpha()]
            return "".join(sound.replace("ˈ", "ˌ") for sound in letters[:-1]) + letters[-1]
        return ""


def _ending(ending: str, last: str) -> str:
    """How an ending sounds after the phoneme `last` (https://en.wikipedia.org/wiki/English_-s)."""
    match ending:
        case "'s" | "s" | "es" | "ies":
            if last in "szʃʒʧʤ":
                return "ᵻz"
            return "s" if last in "ptkfθ" else "z"
        case "ed" | "ied":
            if last in "td":
                return "ᵻd"
            return "t" if last in "pkfθʃsʧ" else "d"
        case "ing":
            return "ɪŋ"
        case "ly":
            return "li"
        case "'ve":
            return "v" if last in _VOWELS else "əv"
        case "'ll":
            return "ᵊl"
        case "'re":
            return "əɹ"
        case _:
            return "d" if last not in "td" else "ᵻd"


def _plain(token: str) -> str:
    """Accents and typographic apostrophes taken off."""
    decomposed = unicodedata.normalize("NFKD", token.replace("’", "'"))
    return "".join(c for c in decomposed if not unicodedata.combining(c)) or token


@cache  # 6 MB of JSON, the same for every voice
def _word_list() -> Mapping[str, Entry]:
    folder = path_of("english-lexicon")
    lists = [
        json.loads((folder / f"us_{quality}.json").read_text(encoding="utf-8"))
        for quality in ("silver", "gold")
    ]
    return {**lists[0], **lists[1]}
