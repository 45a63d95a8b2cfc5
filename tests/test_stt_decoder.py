"""The decoder says what CTranslate2's says, and a guess changes only how long it takes."""

from __future__ import annotations

from functools import cache

import ctranslate2  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch

from stages.stt.decoder import Decoding
from stages.stt.engine import WhisperEngine
from stages.stt.quantized import FloatLinear, Linear
from stages.stt.words import Word
from tests.stt_streams import recorded
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.models import path_of
from voicepipe.protocols import Float32

NAMES = ("02-question.flac", "08-request.flac", "13-bargein.flac")


@cache
def engine() -> WhisperEngine:
    return WhisperEngine(path_of("whisper-tiny.en"), language="en", n_threads=1)


def floats(name: str) -> Float32:
    return recorded(name).samples.astype(np.float32) / np.float32(32768)


FIRST_TIME = 50_363
"""<|0.00|> in English-only models."""


@cache
def heard(name: str) -> tuple[Float32, int]:
    """The encoded clip and its length."""
    samples = floats(name)
    return engine().encode(samples), len(samples)


def finished(decoding: Decoding, n_at_once: int = 3) -> list[int]:
    while not decoding.ended and len(decoding.tokens) < 60:
        decoding.advance(n_at_once)
    return decoding.tokens


def text_of(tokens: list[int]) -> list[Word]:
    return engine().words(tokens, [0.0] * len(tokens))


@pytest.mark.models
@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_the_reference_says(name: str) -> None:
    encoded, _ = heard(name)
    tokens = finished(engine().begin(encoded, (), (), ()))
    assert "".join(w.text for w in text_of(tokens)).strip() == recorded(name).text
    reference = ctranslate2.models.Whisper(
        str(path_of("whisper-tiny.en")), compute_type="int8", intra_threads=1
    )
    silence = engine().encode(np.zeros(20 * CALLER_RATE_HZ, np.float32))
    whole = np.concatenate([encoded, silence[len(encoded) :]])[None]
    storage = ctranslate2.StorageView.from_array(np.ascontiguousarray(whole))
    [found] = reference.generate(
        storage, [["<|startoftranscript|>", "<|notimestamps|>"]], beam_size=1, max_length=120
    )
    assert "".join(w.text for w in text_of(found.sequences_ids[0])).strip() == recorded(name).text


@pytest.mark.models
@pytest.mark.parametrize("name", NAMES)
def test_a_guess_changes_nothing_whether_right_or_wrong(name: str) -> None:
    encoded, _ = heard(name)
    plain = engine().begin(encoded, (), (), ())
    tokens = finished(plain)
    for guess in (tokens, tokens[:5], [*tokens[:3], 50, 60, 70], [9] * 9, [*tokens, 11, 12]):
        guessed = engine().begin(encoded, (), (), guess)
        assert finished(guessed) == tokens
        assert np.allclose(guessed.log_probs, plain.log_probs, atol=0.3)
    assert engine().begin(encoded, (), (), tokens).ended


@pytest.mark.models
def test_known_tokens_stay_even_if_the_decoder_would_say_something_else() -> None:
    encoded, _ = heard(NAMES[0])
    known = finished(engine().begin(heard(NAMES[1])[0], (), (), ()))[:3]
    decoding = engine().begin(encoded, (), known, ())
    tokens = finished(decoding)
    assert tokens[:3] == known
    assert len(decoding.log_probs) == len(tokens) - len(known)


@pytest.mark.models
def test_the_text_before_is_context_and_not_said_again() -> None:
    encoded, _ = heard(NAMES[0])
    tokens = finished(engine().begin(encoded, (), (), ()))
    before = finished(engine().begin(heard(NAMES[1])[0], (), (), ()))
    assert finished(engine().begin(encoded, before, (), ())) == tokens


@pytest.mark.models
def test_nobody_speaks_in_silence() -> None:
    silence = engine().encode(np.zeros(CALLER_RATE_HZ, np.float32))
    assert engine().begin(silence, (), (), ()).no_speech > 0.8
    assert engine().begin(heard(NAMES[0])[0], (), (), ()).no_speech < 0.4


@pytest.mark.models
def test_words_are_where_they_are_spoken() -> None:
    encoded, n_samples = heard(NAMES[2])
    words = text_of(finished(engine().begin(encoded, (), (), ())))
    ends_s = engine().word_ends_s(encoded, n_samples, words)
    assert len(ends_s) == len(words)
    assert ends_s == sorted(ends_s)
    by_word = {word.spoken: end_s for word, end_s in zip(words, ends_s, strict=True)}
    assert 0.3 < ends_s[0] < 0.95  # it is silent from 0.68 to 0.93
    assert by_word["called"] == pytest.approx(n_samples / 16_000 - 0.1, abs=0.2)


@pytest.mark.models
def test_voice_is_told_from_noise() -> None:
    voice = floats(NAMES[0])
    noise = np.random.default_rng(2).normal(0, 0.1, CALLER_RATE_HZ).astype(np.float32)
    unchanged = voice.copy()
    assert 1.0 < engine().voiced_s(voice) < 1.5
    assert engine().voiced_s(noise) == 0.0
    assert engine().voiced_s(voice[:0]) == 0.0
    assert (voice == unchanged).all()


def test_a_row_of_an_int8_product_does_not_depend_on_the_others() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(48, 32, generator=generator), torch.randn(48, generator=generator)
    x = torch.randn(5, 32, generator=generator)
    x[3] *= 300.0
    exact, quantized = FloatLinear(weight, bias)(x), Linear(weight, bias)
    for row in (0, 3):
        scale = exact[row].abs().max()
        assert (quantized(x)[row] - exact[row]).abs().max() < 0.05 * scale
        assert (quantized(x[row : row + 1])[0] - exact[row]).abs().max() < 0.05 * scale


@pytest.mark.models
def test_times_between_two_sentences_are_no_words_and_nothing_is_said_twice() -> None:
    pause = np.zeros(2 * CALLER_RATE_HZ, np.float32)
    samples = np.concatenate([floats(NAMES[0]), pause, floats(NAMES[1])])
    encoded = engine().encode(samples)
    tokens = finished(engine().begin(encoded, (), (), ()))
    times = [token for token in tokens if token >= FIRST_TIME]
    assert len(times) == 2
    assert times == sorted(times)
    words = text_of(tokens)
    said = "".join(word.text for word in words).strip()
    assert said == f"{recorded(NAMES[0]).text} {recorded(NAMES[1]).text}"
    assert [token for word in words for token in word.tokens] == tokens
    assert tokens[-1] < FIRST_TIME, "the time at the end of what was heard ends the text"
    ends_s = engine().word_ends_s(encoded, len(samples), words)
    assert ends_s == sorted(ends_s)
