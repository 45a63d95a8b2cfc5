"""Kokoro-82M (https://huggingface.co/hexgrad/Kokoro-82M): the better, slower voice. Apache-2.0."""

# ruff: noqa: RUF001 - phonemes are written in IPA

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import numpy as np

from stages.tts import onnx_graph
from stages.tts.pronounce import Pronouncer, Sentence
from stages.tts.pronouncers import PronouncerName, pronouncer_named
from stages.tts.speaking import PAUSES, Pauses, Speaker, speaking
from stages.tts.voice import Float32, Piece, in_worker, marks_of, utterances
from voicepipe.clock import Worker
from voicepipe.errors import ComponentError, UsageError
from voicepipe.frames import AudioFrame
from voicepipe.protocols import Phrase

SAMPLE_RATE_HZ = 24_000

HOP = 600
"""Samples of one unit of duration: 300 of its two-fold upsampled frames (istftnet: 10 * 6 * 5)."""

DURATIONS = "/encoder/Clip_output_0"
"""The tensor of the exported graph that holds how many units each token lasts."""

MAX_PHONEMES = 90
"""About six seconds of speech: what one step may take, at a real-time factor below 1."""

MAX_TOKENS = 510
"""Styles are given for 1 to 510 tokens."""

STYLE_SIZE = 256

SYMBOLS = {
    symbol: first + i
    for first, run in (
        (1, ";:,.!?"),
        (9, '—…"()“” \u0303ʣʥʦʨᵝꭧAI'),
        (31, "O"),
        (33, "Q"),
        (35, "ST"),
        (39, "W"),
        (41, "Yᵊabcdef"),
        (50, "hijklmnopqrstuvwxyzɑɐɒæ"),
        (75, "βɔɕç"),
        (80, "ɖðʤə"),
        (85, "ɚɛɜ"),
        (90, "ɟ"),
        (92, "ɡ"),
        (99, "ɥ"),
        (101, "ɨɪʝ"),
        (110, "ɯɰŋɳɲɴø"),
        (118, "ɸθœ"),
        (123, "ɹ"),
        (125, "ɾɻ"),
        (128, "ʁɽʂʃʈʧ"),
        (135, "ʊʋ"),
        (138, "ʌɣɤ"),
        (142, "χʎ"),
        (147, "ʒʔ"),
        (156, "ˈˌː"),
        (162, "ʰ"),
        (164, "ʲ"),
        (169, "↓"),
        (171, "→↗↘"),
        (177, "ᵻ"),
    )
    for i, symbol in enumerate(run)
}
"""The model's alphabet: runs of symbols and the number of the first (config.json, `vocab`)."""


class KokoroVoice:
    """The synthesizer itself."""

    sample_rate_hz = SAMPLE_RATE_HZ

    def __init__(
        self,
        model_path: Path,
        voice: str,
        *,
        pronouncer: PronouncerName,
        n_threads: int,
        speed: float,
    ) -> None:
        model_file = _model_file(model_path)
        model = onnx_graph.with_output(onnx_graph.read_model(model_file), DURATIONS)
        self._styles = _styles(model_file.parent / "voices", voice)
        self._session = onnx_graph.session(model, n_threads=n_threads, what=str(model_file))
        self._pronouncer: Pronouncer = pronouncer_named(pronouncer)
        self._speed = np.array([speed], np.float32)
        for _ in self.say("I am ready to speak."):  # the first run allocates and optimizes
            pass

    def say(self, text: str) -> Iterator[Piece]:
        done = 0
        for words in utterances(self._pronouncer, text, "kokoro", max_phonemes=MAX_PHONEMES):
            piece = self._utter(words, done)
            yield piece
            done += len(piece.samples)

    def _utter(self, words: Sentence, done: int) -> Piece:
        ids = [[SYMBOLS[c] for c in word.phonemes if c in SYMBOLS] for word in words]
        tokens = [0, *(i for word in ids for i in word), 0]
        n_tokens = len(tokens) - 2
        feed = {
            "tokens": np.array([tokens], np.int64),
            "style": self._styles[min(n_tokens, MAX_TOKENS) - 1 if n_tokens else 0],
            "speed": self._speed,
        }
        samples, units = self._session.run(None, feed)
        durations = np.asarray(units).reshape(-1).astype(np.int64) * HOP
        ends = np.cumsum([len(word) for word in ids])
        word_samples = [int(part.sum()) for part in np.split(durations[1:-1], ends[:-1])]
        heard: Float32 = np.asarray(samples, np.float32).reshape(-1)
        return Piece(heard, marks_of(words, word_samples, done + int(durations[0])))


def _model_file(path: Path) -> Path:
    if path.suffix == ".onnx":
        return path
    files = sorted(path.glob("*.onnx"))
    if len(files) != 1:
        raise ComponentError(
            f"{path}: expected one Kokoro model (*.onnx) in it, found {len(files)}: "
            "fetch it with `voicepipe models fetch kokoro-82m`"
        )
    return files[0]


def _styles(folder: Path, voice: str) -> Float32:
    """Style vectors of shape [510, 1, 256], one for each number of tokens."""
    known = sorted(file.stem for file in folder.glob("*.bin"))
    if voice not in known:
        raise UsageError(
            f"Kokoro has no voice {voice!r} in {folder}: use one of {', '.join(known) or '(none)'}"
        )
    styles = np.fromfile(folder / f"{voice}.bin", "<f4")
    if len(styles) != MAX_TOKENS * STYLE_SIZE:
        raise ComponentError(
            f"{folder / voice}.bin: expected {MAX_TOKENS * STYLE_SIZE} numbers, "
            f"found {len(styles)}: fetch it again"
        )
    return styles.reshape(MAX_TOKENS, 1, STYLE_SIZE).astype(np.float32)


class KokoroTTS:
    """Kokoro as a stage; a `TextToSpeech`."""

    def __init__(
        self,
        model_path: Path,
        voice: str = "af_heart",
        *,
        pronouncer: PronouncerName = "lexicon",
        n_threads: int = 2,
        speed: float = 1.0,
        pauses: Pauses = PAUSES,
    ) -> None:
        """`model_path` is the .onnx file, with `voices/*.bin` beside it, or the folder of both.
        Loads and runs it once. Raises ComponentError for missing or broken files, UsageError for
        an unknown voice (lists the known)."""
        self._voice = KokoroVoice(
            Path(model_path),
            voice,
            pronouncer=pronouncer,
            n_threads=n_threads,
            speed=speed,
        )
        self._pauses = pauses
        self._worker = Worker("kokoro")

    def open(
        self, phrases: AsyncIterator[Phrase], *, sample_rate_hz: int
    ) -> AbstractAsyncContextManager[AsyncIterator[AudioFrame]]:
        say = partial(in_worker, self._voice, self._worker)
        return speaking(phrases, Speaker(say, SAMPLE_RATE_HZ, sample_rate_hz, self._pauses))
