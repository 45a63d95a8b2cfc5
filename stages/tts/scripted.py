"""A voice without a model: tones whose length follows the text, and latencies from a seed."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Literal

import numpy as np

from stages.tts.speaking import NO_PAUSES, Pauses, Speaker, speaking
from stages.tts.voice import Mark, Piece
from voicepipe.errors import ComponentError, UsageError
from voicepipe.frames import AudioFrame
from voicepipe.protocols import Phrase

Misbehaviour = Literal["raise", "hang", "nothing"]

PIECE_MS = 200.0
TONE_HZ = 300.0
AMPLITUDE = 0.3


class ScriptedTTS:
    """A `TextToSpeech` for tests and demonstrations.

    A phrase sounds for `ms_per_char` times the characters that are spoken of it. Its first sound
    comes `first_audio_ms` after the phrase, its further pieces take `real_time_factor` times their
    length; both vary by up to ± `jitter` (0..1), in the same way for the same `seed` and text.
    The loop's clock does the waiting, so under the virtual clock no time passes.

    `misbehave` says what happens at the n-th phrase with something to say, counted from 0 over the
    life of the object: "raise" a ComponentError, "hang" for ever, or say "nothing".
    """

    def __init__(
        self,
        *,
        ms_per_char: float = 60.0,
        first_audio_ms: float = 0.0,
        real_time_factor: float = 0.0,
        jitter: float = 0.0,
        seed: int = 0,
        misbehave: Mapping[int, Misbehaviour] | None = None,
        pauses: Pauses = NO_PAUSES,
    ) -> None:
        if ms_per_char <= 0 or first_audio_ms < 0 or real_time_factor < 0 or not 0 <= jitter <= 1:
            raise UsageError(
                "ScriptedTTS: ms_per_char must be positive, latencies not negative and jitter 0..1"
            )
        self._ms_per_char = ms_per_char
        self._first_audio_s = first_audio_ms / 1000
        self._real_time_factor = real_time_factor
        self._jitter = jitter
        self._seed = seed
        self._misbehave = dict(misbehave or {})
        self._pauses = pauses
        self._n_phrases = 0

    def open(
        self, phrases: AsyncIterator[Phrase], *, sample_rate_hz: int
    ) -> AbstractAsyncContextManager[AsyncIterator[AudioFrame]]:
        say = partial(self._say, sample_rate_hz)
        return speaking(phrases, Speaker(say, sample_rate_hz, sample_rate_hz, self._pauses))

    async def _say(self, rate_hz: int, text: str) -> AsyncGenerator[Piece, None]:
        if not any(c.isalnum() for c in text):
            return
        misbehaviour = self._misbehave.get(self._n_phrases)
        self._n_phrases += 1
        match misbehaviour:
            case "raise":
                raise ComponentError(f"scripted voice: told to fail at {text!r}")
            case "hang":
                await asyncio.get_running_loop().create_future()
            case "nothing":
                return
        chance = random.Random(f"{self._seed} {text}")
        per_char = self._ms_per_char * rate_hz / 1000
        n_samples = round(len(text.strip()) * per_char)
        marks = tuple(
            Mark(word.start(), round(word.start() * per_char))
            for word in re.finditer(r"\S*\w\S*", text)
        )
        tone = AMPLITUDE * np.sin(2 * np.pi * TONE_HZ / rate_hz * np.arange(n_samples) + 0.5)
        size = round(PIECE_MS * rate_hz / 1000)
        wait_s = self._first_audio_s
        for start in range(0, n_samples, size):
            piece = tone[start : start + size].astype(np.float32)
            await asyncio.sleep(wait_s * (1 + self._jitter * chance.uniform(-1, 1)))
            yield Piece(piece, marks)
            marks = ()
            wait_s = self._real_time_factor * size / rate_hz
