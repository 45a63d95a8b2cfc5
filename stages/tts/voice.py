"""What a synthesizer gives: sound in pieces, with the time at which each word begins."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stages.tts.pronounce import Alphabet, Pronouncer, Sentence, Word, respelled
from voicepipe.clock import Worker

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Mark:
    """The word whose first character is `text[start]` begins to sound at `sample`."""

    start: int
    sample: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The next `samples` (shape [n], -1..1) of a phrase. `marks`, counted from the start of the
    phrase, come with or before the sound they mark, in order of time."""

    samples: Float32
    marks: tuple[Mark, ...] = ()


class Voice(Protocol):
    """A synthesizer. Blocking: runs in a worker thread, one step of its iterator at a time."""

    @property
    def sample_rate_hz(self) -> int: ...

    def say(self, text: str) -> Iterator[Piece]:
        """Speak plain words; no piece when there is nothing to say. Each step takes a bounded
        time, however long `text` is."""
        ...


async def in_worker(voice: Voice, worker: Worker, text: str) -> AsyncGenerator[Piece, None]:
    """`voice.say(text)`, each step in the worker; cancel lands between steps."""
    steps = await worker.run(voice.say, text)
    while (piece := await worker.run(next, steps, None)) is not None:
        yield piece


def utterances(
    pronouncer: Pronouncer, text: str, alphabet: Alphabet, *, max_phonemes: int
) -> Iterator[Sentence]:
    """What to synthesize at once: sentences written in `alphabet`, cut where they are longer than
    `max_phonemes`, at punctuation if there is any in the second half, else between words."""
    for sentence in pronouncer.pronounce(text):
        words = [
            Word(word.start, respelled(word.phonemes, pronouncer.alphabet, alphabet))
            for word in sentence
        ]
        yield from _cut(_no_longer(words, max_phonemes), max_phonemes)


def _no_longer(words: Sequence[Word], limit: int) -> list[Word]:
    """Words of more than `limit` phonemes in parts."""
    return [
        Word(word.start, word.phonemes[at : at + limit])
        for word in words
        for at in range(0, len(word.phonemes), limit)
    ]


def _cut(words: list[Word], limit: int) -> Iterator[Sentence]:
    while words:
        n_phonemes = n_words = n_until_pause = 0
        for word in words:
            n_phonemes += len(word.phonemes)
            if n_phonemes > limit:
                break
            n_words += 1
            if n_phonemes > limit // 2 and word.phonemes.rstrip()[-1:] in set(",;:—"):
                n_until_pause = n_words
        take = n_words if n_words == len(words) else n_until_pause or n_words
        yield words[:take]
        words = words[take:]


def marks_of(words: Sentence, word_samples: Sequence[int], offset: int) -> tuple[Mark, ...]:
    """Marks from how many samples each word takes; the first word begins at `offset`."""
    starts = np.concatenate([[0], np.cumsum(word_samples)[:-1]]) + offset
    return tuple(Mark(word.start, int(sample)) for word, sample in zip(words, starts, strict=True))
