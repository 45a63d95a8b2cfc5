"""Whisper as a machine for short stretches of speech: CTranslate2 encodes, `decoder` decodes.

Whisper was trained on 30 s of audio, and the encoder costs as much for 1 s padded to 30 s as for
30 s. So only the speech and `PADDING_S` of silence are encoded, and what the encoder says of longer
silence is computed once and appended: without it the decoder, which has always seen 30 s, says
everything twice; with it the text is that of the full context.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ctranslate2  # type: ignore[import-untyped]
import numpy as np
from faster_whisper import WhisperModel
from faster_whisper.tokenizer import Tokenizer
from faster_whisper.transcribe import get_suppressed_tokens
from faster_whisper.vad import get_vad_model

from stages.stt.decoder import Decoding, Vocabulary, WhisperDecoder
from stages.stt.weights import read_variables
from stages.stt.words import Word
from voicepipe.errors import ComponentError, UsageError
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.protocols import Float32

FILES = ("config.json", "model.bin", "tokenizer.json")
"""What a model folder must hold; the vocabulary is named differently by version."""

PADDING_S = 1.0
"""Silence encoded after the speech. With 0.5 s, 1 clip in 10 is said twice; with 1 s none in 80."""

POSITIONS_PER_S = 50
"""Of the encoder's output."""

MORE_SILENCE = 400
"""Positions of ready-made silence after that."""

PEAK = (1.0 + 4.0) / 4.0
"""Every window is brought to this peak of its normalised log-mel features (Whisper's features are
(log10 mel + 4) / 4, clipped 2.0 below their peak), so that the ready-made silence fits."""

LOWEST_PEAK = (-1.0 + 4.0) / 4.0
"""Quieter audio stays quieter: noise must not be made to sound like speech."""

VAD_CHUNK = 512
"""Samples that the Silero VAD looks at in one step."""

MAX_CONTEXT_TOKENS = 48
"""Of earlier text that is given to the decoder."""


class WhisperEngine:
    """A loaded Whisper model. Blocking, for one thread."""

    def __init__(self, model_path: Path, *, language: str, n_threads: int) -> None:
        """Raises ComponentError for a folder that is no such model, UsageError for a language that
        the model does not know."""
        model = _load(model_path, n_threads)
        multilingual = model.model.is_multilingual
        if language not in model.supported_languages:
            known = ", ".join(model.supported_languages)
            raise UsageError(f"{model_path}: does not know language {language!r}; known: {known}")
        self._name = model_path.name
        self._model = model.model
        self._features = model.feature_extractor
        self._tokenizer = Tokenizer(
            model.hf_tokenizer, multilingual, task="transcribe", language=language
        )
        vocabulary = Vocabulary(
            start=self._tokenizer.sot,
            end=self._tokenizer.eot,
            no_speech=self._tokenizer.no_speech,
            never=_no_text(self._tokenizer),
            not_first=(*self._tokenizer.encode(" "), self._tokenizer.eot),
            zero=self._tokenizer.timestamp_begin,
        )
        weights = read_variables(model_path / "model.bin", "decoder")
        self._decoder = WhisperDecoder(weights, vocabulary, n_threads=n_threads)
        silence = np.full((model.feature_extractor.mel_filters.shape[0], 3000), PEAK - 2.0)
        self._silence = self._decoder.hear(self._encode(silence.astype(np.float32)))

    def encode(self, samples: Float32) -> Float32:
        """The encoder's output [n_positions, size] for 16 kHz audio [n], at most 28 s."""
        padded = np.pad(samples, (0, round(PADDING_S * CALLER_RATE_HZ)))
        features = self._features(padded, padding=0).astype(np.float32)
        features += PEAK - max(LOWEST_PEAK, float(features.max()))
        np.maximum(features, PEAK - 2.0, out=features)
        return self._encode(features[:, : features.shape[1] // 2 * 2])

    def begin(
        self, encoded: Float32, before: Sequence[int], known: Sequence[int], guess: Sequence[int]
    ) -> Decoding:
        """The text of `encoded`, begun; it follows the tokens `before`. See `Decoding`."""
        tokenizer = self._tokenizer
        prompt = [*tokenizer.sot_sequence, tokenizer.timestamp_begin]
        context = [token for token in before if token < tokenizer.eot]
        if context:
            prompt = [tokenizer.sot_prev, *context[-MAX_CONTEXT_TOKENS:], *prompt]
        heard = self._decoder.hear(encoded).followed_by(self._silence, MORE_SILENCE)
        n_heard = len(encoded) - round(PADDING_S * POSITIONS_PER_S)
        decoding = Decoding(self._decoder, heard, n_heard, prompt, known, guess)
        decoding.begin()
        return decoding

    def words(self, tokens: Sequence[int], log_probs: Sequence[float]) -> list[Word]:
        """`tokens` of a text as words; punctuation and times belong to the word before them."""
        words: list[Word] = []
        given = iter(zip(tokens, log_probs, strict=True))
        for text, parts in zip(*self._tokenizer.split_to_word_tokens(list(tokens)), strict=True):
            own = [next(given) for _ in parts]
            word = Word(text, tuple(token for token, _ in own), tuple(prob for _, prob in own))
            if parts[0] > self._tokenizer.eot:
                word = Word("", word.tokens, ())
            if words and not (word.spoken and words[-1].text):
                word = words.pop().followed_by(word)
            words.append(word)
        return [word for word in words if word.text]

    def voiced_s(self, samples: Float32) -> float:
        """Seconds of speech in 16 kHz audio, by the Silero VAD."""
        whole = np.pad(samples, (0, -len(samples) % VAD_CHUNK))
        if len(whole) == 0:
            return 0.0
        n_voiced = int((get_vad_model()(whole) >= 0.5).sum())
        return n_voiced * VAD_CHUNK / CALLER_RATE_HZ

    def word_ends_s(self, encoded: Float32, n_samples: int, words: Sequence[Word]) -> list[float]:
        """When each word ends in the audio of `n_samples` that was `encoded`."""
        eot = self._tokenizer.eot
        texts = [[token for token in word.tokens if token < eot] for word in words]
        tokens = [token for text in texts for token in text]
        storage = ctranslate2.StorageView.from_array(np.ascontiguousarray(encoded[None]))
        n_frames = n_samples * 100 // CALLER_RATE_HZ
        [found] = self._model.align(storage, self._tokenizer.sot_sequence, [tokens], n_frames)
        last_position = dict(found.alignments)
        ends, n_tokens = [], 0
        for text in texts:
            n_tokens += len(text)
            ends.append(last_position[n_tokens - 1] / POSITIONS_PER_S)
        return ends

    def _encode(self, features: Float32) -> Float32:
        storage = ctranslate2.StorageView.from_array(np.ascontiguousarray(features[None]))
        try:
            encoded = self._model.encode(storage, to_cpu=True)
        except RuntimeError as error:
            raise ComponentError(f"whisper {self._name}: encoding failed: {error}") from error
        found: Float32 = np.array(encoded)[0]
        return found


def _load(model_path: Path, n_threads: int) -> WhisperModel:
    missing = [name for name in FILES if not (model_path / name).is_file()]
    if missing:
        raise ComponentError(
            f"whisper model {model_path}: {', '.join(missing)} missing: "
            "give a folder in CTranslate2's format or run `voicepipe models fetch`"
        )
    try:
        return WhisperModel(
            str(model_path), device="cpu", compute_type="int8", cpu_threads=n_threads
        )
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ComponentError(
            f"whisper model {model_path}: cannot be loaded ({reason}): fetch the model again"
        ) from error


def _no_text(tokenizer: Tokenizer) -> list[int]:
    """Tokens that write nothing a caller says: brackets and notes, marks."""
    marks = range(tokenizer.eot + 1, tokenizer.timestamp_begin)
    return sorted({*get_suppressed_tokens(tokenizer, [-1]), *marks})
