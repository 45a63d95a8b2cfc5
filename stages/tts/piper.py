"""Piper voices (https://github.com/OHF-Voice/piper1-gpl, VITS): the fast voice.

Only the model is Piper's: it is run here, in two parts. The first part turns the phonemes of a
sentence into latent frames and says how long each phoneme lasts; the second, a HiFi-GAN decoder
that costs two thirds of the time, turns the frames into sound and sees only a few frames around
each. So it is run piece by piece, and the first piece can be heard while the rest is made.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from stages.tts import onnx_graph
from stages.tts.pronounce import Pronouncer, Sentence
from stages.tts.pronouncers import PronouncerName, pronouncer_named
from stages.tts.speaking import PAUSES, Pauses, Speaker, speaking
from stages.tts.voice import Float32, Piece, in_worker, marks_of, utterances
from voicepipe.clock import Worker
from voicepipe.errors import ComponentError
from voicepipe.frames import AudioFrame
from voicepipe.protocols import Phrase

DECODER = "/dec/"
"""The scope of the decoder's nodes in every exported Piper voice."""

CONTEXT = 12
"""Latent frames that the decoder sees on each side of a sample: the receptive field of HiFi-GAN V3
(kernels up to 7, dilations up to 12, first upsampling by 8; Kong et al. 2020) is 11 of them."""

FIRST_PIECE = 20
"""Latent frames (about 11 ms each) decoded before the first sound."""

PIECE = 60
"""Later pieces: long enough that the context decoded twice costs little."""

MAX_PHONEMES = 140
"""About ten seconds of speech: what the first part may take at once."""

HOP = 256
"""Samples of one latent frame: 8 * 8 * 4, the decoder's upsampling in every medium voice."""

PAD, BEGIN, END = "_", "^", "$"


@dataclass(frozen=True, slots=True)
class PiperConfig:
    """What the .json beside a voice says."""

    sample_rate_hz: int
    language: str
    ids: dict[str, list[int]]
    scales: tuple[float, float, float]
    """Noise, length and duration noise."""


class PiperVoice:
    """The synthesizer itself."""

    def __init__(
        self, model_path: Path, *, pronouncer: PronouncerName, n_threads: int, speed: float
    ) -> None:
        model_file = _model_file(model_path)
        self._config = _config(model_file.with_name(model_file.name + ".json"))
        noise, length, duration_noise = self._config.scales
        self._scales = np.array([noise, length / speed, duration_noise], np.float32)
        encoder, decoder, self._latent = _parts(model_file)
        self._encoder = onnx_graph.session(encoder, n_threads=n_threads, what=str(model_file))
        self._decoder = onnx_graph.session(decoder, n_threads=n_threads, what=str(model_file))
        self._pronouncer: Pronouncer = pronouncer_named(pronouncer, self._config.language)
        for _ in self.say("I am ready to speak."):  # the first run allocates and optimizes
            pass

    @property
    def sample_rate_hz(self) -> int:
        return self._config.sample_rate_hz

    def say(self, text: str) -> Iterator[Piece]:
        done = 0
        for words in utterances(self._pronouncer, text, "espeak", max_phonemes=MAX_PHONEMES):
            for piece in self._utter(words, done):
                yield piece
                done += len(piece.samples)

    def _utter(self, words: Sentence, done: int) -> Iterator[Piece]:
        """One sentence, piece by piece; `done` samples of the phrase came before it."""
        ids = self._config.ids
        spelled = [
            [i for c in word.phonemes for i in (*ids.get(c, ()), *ids[PAD])] for word in words
        ]
        n_head = len(ids[BEGIN]) + len(ids[PAD])
        tokens = [*ids[BEGIN], *ids[PAD], *(i for word in spelled for i in word), *ids[END]]
        feed = {
            "input": np.array([tokens], np.int64),
            "input_lengths": np.array([len(tokens)], np.int64),
            "scales": self._scales,
        }
        latent, lasting = self._encoder.run(None, feed)
        frames = np.asarray(lasting).reshape(-1).astype(np.int64)
        ends = n_head + np.cumsum([len(word) for word in spelled])
        parts = np.split(frames, [n_head, *ends])
        word_samples = [int(part.sum()) * HOP for part in parts[1:-1]]
        marks = marks_of(words, word_samples, done + int(parts[0].sum()) * HOP)
        for samples in self._decoded(latent):
            yield Piece(samples, marks)
            marks = ()

    def _decoded(self, latent: Float32) -> Iterator[Float32]:
        """Sound of `latent`, shape [1, channels, frames], in pieces that join without a seam."""
        n_frames = latent.shape[2]
        start, size = 0, FIRST_PIECE
        while start < n_frames:
            end = min(start + size, n_frames)
            first, last = max(0, start - CONTEXT), min(n_frames, end + CONTEXT)
            (sound,) = self._decoder.run(None, {self._latent: latent[:, :, first:last]})
            samples: Float32 = sound.reshape(-1)[(start - first) * HOP : (end - first) * HOP]
            yield samples
            start, size = end, PIECE


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


def _parts(file: Path) -> tuple[bytes, bytes, str]:
    """The model up to the latent frames, the decoder, and the name of what crosses."""
    try:
        graph = onnx_graph.Graph(onnx_graph.read_model(file))
        lasting = graph.outputs_of("Ceil")
        encoder, decoder, crossing = graph.split(DECODER, also=lasting)
        if len(lasting) != 1 or len(crossing) != 1:
            raise onnx_graph.MalformedModel(f"cut at {crossing}, durations {lasting}")
    except onnx_graph.MalformedModel as error:
        raise ComponentError(f"{file}: no Piper voice ({error}): fetch it again") from error
    return encoder, decoder, crossing[0]


class PiperTTS:
    """A Piper voice as a stage; a `TextToSpeech`."""

    def __init__(
        self,
        model_path: Path,
        *,
        pronouncer: PronouncerName = "espeak",
        n_threads: int = 1,
        speed: float = 1.0,
        pauses: Pauses = PAUSES,
    ) -> None:
        """`model_path` is the .onnx file, with its .onnx.json beside it, or the folder of both.
        Loads and runs it once. Raises ComponentError for missing or broken files, and for
        `pronouncer="espeak"` without piper-tts."""
        self._voice = PiperVoice(
            Path(model_path), pronouncer=pronouncer, n_threads=n_threads, speed=speed
        )
        self._pauses = pauses
        self._worker = Worker("piper")

    def open(
        self, phrases: AsyncIterator[Phrase], *, sample_rate_hz: int
    ) -> AbstractAsyncContextManager[AsyncIterator[AudioFrame]]:
        say = partial(in_worker, self._voice, self._worker)
        speaker = Speaker(say, self._voice.sample_rate_hz, sample_rate_hz, self._pauses)
        return speaking(phrases, speaker)
