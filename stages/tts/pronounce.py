"""From words to phonemes: what every pronouncer gives, and the espeak one.

Two ways of writing phonemes are in use. `ESPEAK` is the IPA that espeak-ng writes for en-us, on
which Piper's voices were trained; `KOKORO` is the one of the Kokoro model, where a diphthong or an
affricate is a single letter (https://github.com/hexgrad/misaki/blob/main/EN_PHONES.md).
"""

# ruff: noqa: RUF001 - phonemes are written in IPA

from __future__ import annotations

import re
import threading
import unicodedata
from dataclasses import dataclass
from typing import Literal, Protocol

from voicepipe.errors import ComponentError

Alphabet = Literal["espeak", "kokoro"]

Sentence = list["Word"]


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text that is spoken: `start` is the index of its first character, `phonemes`
    how it sounds, with the punctuation and the space that follow it."""

    start: int
    phonemes: str


class Pronouncer(Protocol):
    """Knows how text sounds. Blocking, may be shared by threads."""

    @property
    def alphabet(self) -> Alphabet: ...

    def pronounce(self, text: str) -> list[Sentence]:
        """The sentences of `text`; none when there is nothing to say. The words of a sentence
        concatenate to its phonemes."""
        ...


_ESPEAK_LOCK = threading.Lock()  # espeak-ng keeps its voice in global variables


class EspeakPronouncer:
    """espeak-ng, as piper-tts ships it. GPL-3: an engine that the user installs, never part of
    voicepipe; `LexiconPronouncer` is the permissive alternative."""

    alphabet: Alphabet = "espeak"

    def __init__(self, language: str = "en-us") -> None:
        """`language` is espeak's name of it. Raises ComponentError when piper-tts is missing."""
        try:
            from piper.phonemize_espeak import EspeakPhonemizer  # noqa: PLC0415 - optional engine
        except ImportError as error:
            raise ComponentError(
                "pronunciation by espeak: piper-tts is not installed: `pip install piper-tts` "
                "(GPL-3), or use pronouncer='lexicon'"
            ) from error
        self._language = language
        with _ESPEAK_LOCK:
            self._espeak = EspeakPhonemizer()
        self.pronounce("ready")

    def pronounce(self, text: str) -> list[Sentence]:
        speakable = "".join(c if c.isprintable() else " " for c in text)
        if not any(c.isalnum() for c in speakable):
            return []
        try:
            with _ESPEAK_LOCK:
                sentences = self._espeak.phonemize(self._language, speakable)
        except (RuntimeError, ValueError) as error:
            raise ComponentError(
                f"pronunciation by espeak: {self._language!r} does not work ({error}): "
                "use a voice of another language"
            ) from error
        return _placed(["".join(phonemes) for phonemes in sentences], speakable)


def _placed(sentences: list[str], text: str) -> list[Sentence]:
    """Give each spoken word its place in `text`. espeak sometimes joins words ("of the") or splits
    them; then the words are spread evenly over the text, which is right within a word or two."""
    spoken = [re.findall(r"\S+\s*", sentence) for sentence in sentences]
    starts = [m.start() for m in re.finditer(r"\S*\w\S*", text)]
    n_spoken = sum(map(len, spoken))
    placed: list[Sentence] = []
    n = 0
    for words in spoken:
        sentence = []
        for phonemes in words:
            sentence.append(Word(starts[n * len(starts) // n_spoken], phonemes))
            n += 1
        if sentence:
            placed.append(sentence)
    return placed


_ESPEAK_TO_KOKORO = (
    ("aɪ", "I"),
    ("aʊ", "W"),
    ("eɪ", "A"),
    ("oʊ", "O"),
    ("ɔɪ", "Y"),
    ("dʒ", "ʤ"),
    ("tʃ", "ʧ"),
    ("əl", "ᵊl"),
    ("ɚ", "əɹ"),
    ("ɜː", "ɜɹ"),
    ("ɪɹ", "iɹ"),
    ("ɐ", "ə"),
    ("ɾ", "T"),
    ("ʔ", "t"),
    ("r", "ɹ"),
    ("g", "ɡ"),
    ("x", "k"),
    ("ː", ""),
    ("ʲ", ""),
)

_KOKORO_TO_ESPEAK = (
    ("ɜɹ", "ɜː"),
    ("əɹ", "ɚ"),
    ("ɑ", "ɑː"),
    ("ɔ", "ɔː"),
    ("u", "uː"),
    ("ˈi", "ˈiː"),
    ("ˌi", "ˌiː"),
    ("I", "aɪ"),
    ("W", "aʊ"),
    ("A", "eɪ"),
    ("O", "oʊ"),
    ("Y", "ɔɪ"),
    ("ʤ", "dʒ"),
    ("ʧ", "tʃ"),
    ("ᵊ", "ə"),
    ("T", "ɾ"),
)


def respelled(phonemes: str, alphabet: Alphabet, wanted: Alphabet) -> str:
    """`phonemes`, of one word, written in the `wanted` alphabet."""
    if alphabet == wanted:
        return phonemes
    rules = _ESPEAK_TO_KOKORO if wanted == "kokoro" else _KOKORO_TO_ESPEAK
    phonemes = unicodedata.normalize("NFD", phonemes)
    for old, new in rules:
        phonemes = phonemes.replace(old, new)
    if wanted == "espeak" and phonemes.startswith("ə"):
        return "ɐ" + phonemes[1:]  # espeak begins a word with it: "about"
    return phonemes
