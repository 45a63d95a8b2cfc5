"""Piper voices (https://github.com/OHF-Voice/piper1-gpl): the fast voice.

Only the model is Piper's, and it is run here (`vits.py`). The package piper-tts, which is GPL-3, is
needed for nothing but its espeak: for languages other than English, or when asked for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.tts.ahead import Ahead, VoiceThreads
from stages.tts.pronounce import Pronouncer, Sentence
from stages.tts.pronouncers import PronouncerName, pronouncer_named
from stages.tts.speaking import PAUSES, Pauses, Speaker, speaking
from stages.tts.vits import Vits
from stages.tts.voice import Piece, marks_of, utterances
from voicepipe.errors import ComponentError
from voicepipe.frames import AudioFrame
from voicepipe.protocols import Phrase

MAX_PHONEMES = 140
"""About ten seconds of speech: what the encoder takes at once."""

PAD, BEGIN, END = "_", "^", "$"


@dataclass(frozen=True, slots=True)
class PiperConfig:
    """What the .json beside a voice says."""

    sample_rate_hz: int
    language: str
    ids: dict[str, list[int]]
    scales: tuple[float, float, float]
    """Noise, length and noise of the lengths."""


class PiperVoice:
    """The synthesizer itself. Two threads may speak at once."""

    def __init__(
        self, model_path: Path, *, pronouncer: PronouncerName | None, n_threads: int, speed: float
    ) -> None:
        model_file = _model_file(model_path)
        self._config = _config(model_file.with_name(model_file.name + ".json"))
        noise, length, length_noise = self._config.scales
        self._scales = (noise, length / speed, length_noise)
        self._vits = Vits(model_file, n_threads=n_threads)
        language = self._config.language
        usual: PronouncerName = "lexicon" if language.startswith("en") else "espeak"
        self._pronouncer: Pronouncer = pronouncer_named(pronouncer or usual, language)
        self._pronouncing = threading.Lock()
        """espeak has one state for all threads."""
        for _ in self.say("I am ready to speak."):  # the first run allocates and optimizes
            pass

    @property
    def sample_rate_hz(self) -> int:
        return self._config.sample_rate_hz

    def say(self, text: str) -> Iterator[Piece]:
        done = 0
        for words in self._sentences(text):
            for piece in self._utter(words, done):
                yield piece
                done += len(piece.samples)

    def _sentences(self, text: str) -> Iterator[Sentence]:
        sentences = utterances(self._pronouncer, text, "espeak", max_phonemes=MAX_PHONEMES)
        while True:
            with self._pronouncing:
                words = next(sentences, None)
            if words is None:
                return
            yield words

    def _utter(self, words: Sentence, done: int) -> Iterator[Piece]:
        """One sentence, piece by piece; `done` samples of the phrase came before it."""
        ids = self._config.ids
        spelled = [
            [i for c in word.phonemes for i in (*ids.get(c, ()), *ids[PAD])] for word in words
        ]
        n_head = len(ids[BEGIN]) + len(ids[PAD])
        tokens = [*ids[BEGIN], *ids[PAD], *(i for word in spelled for i in word), *ids[END]]
        lasting, pieces = self._vits.speak(tokens, self._scales)
        ends = n_head + np.cumsum([len(word) for word in spelled])
        parts = [int(part.sum()) for part in np.split(lasting, [n_head, *ends])]
        marks = marks_of(words, parts[1:-1], done + parts[0])
        for samples in pieces:
            yield Piece(samples, marks)
            marks = ()


def _model_file(path: Path) -> Path:
    if path.suffix == ".onnx":
        return path
    files = sorted(path.glob("*.onnx"))
    if len(files) != 1:
        raise ComponentError(
            f"{path}: expected one Piper voice (*.onnx) in it, found {len(files)}: "
            "fetch it with `voicepipe models fetch piper-en_US-joe-medium` or name the file"
        )
    return files[0]


def _config(file: Path) -> PiperConfig:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
        inference = settings["inference"]
        config = PiperConfig(
            sample_rate_hz=int(settings["audio"]["sample_rate"]),
            language=str(settings["espeak"]["voice"]),
            ids=settings["phoneme_id_map"],
            scales=(inference["noise_scale"], inference["length_scale"], inference["noise_w"]),
        )
        kind, n_speakers = settings.get("phoneme_type", "espeak"), settings["num_speakers"]
    except OSError as error:
        raise ComponentError(
            f"{file}: cannot read the voice's settings ({error.strerror}): "
            "a Piper voice is an .onnx file with an .onnx.json beside it"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ComponentError(
            f"{file}: no Piper voice settings ({type(error).__name__}: {error}): fetch it again"
        ) from error
    if kind != "espeak" or n_speakers > 1:
        raise ComponentError(
            f"{file}: has {n_speakers} speakers and {kind} phonemes: "
            "use a voice with one speaker and espeak phonemes"
        )
    return config


class PiperTTS:
    """A Piper voice as a stage; a `TextToSpeech`."""

    def __init__(
        self,
        model_path: Path,
        *,
        pronouncer: PronouncerName | None = None,
        n_threads: int = 1,
        speed: float = 1.0,
        pauses: Pauses = PAUSES,
    ) -> None:
        """`model_path` is the .onnx file, with its .onnx.json beside it, or the folder of both.
        `pronouncer` None means "lexicon" for an English voice, "espeak" for others. Loads the model
        and runs it once. Raises ComponentError for missing or broken files, and for "espeak"
        without piper-tts; UsageError for an unknown pronouncer."""
        self._voice = PiperVoice(
            Path(model_path), pronouncer=pronouncer, n_threads=n_threads, speed=speed
        )
        self._pauses = pauses
        self._threads = VoiceThreads("piper")

    def open(
        self, phrases: AsyncIterator[Phrase], *, sample_rate_hz: int
    ) -> AbstractAsyncContextManager[AsyncIterator[AudioFrame]]:
        ahead = Ahead(self._voice, self._threads)
        speaker = Speaker(ahead.say, self._voice.sample_rate_hz, sample_rate_hz, self._pauses)
        return speaking(phrases, speaker)
