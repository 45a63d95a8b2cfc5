"""Whisper while the caller still speaks: interims on a growing window, and a final that is mostly
there already when the pause is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import numpy as np

from stages.stt.attention import Attention, Window
from stages.stt.desk import Caller, Desk
from stages.stt.engine import WhisperEngine
from stages.stt.guard import voice_needed_s, without_loop
from stages.stt.hearing import listening
from stages.stt.words import Word
from voicepipe.events import Transcript
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.protocols import Float32, SpeechInput

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TRIM_AT_SENTENCE = 7 * CALLER_RATE_HZ
"""A window longer than that is cut after its last stable sentence,"""

TRIM_AT_WORD = 12 * CALLER_RATE_HZ
"""and one longer than that after its last stable word."""

N_OPEN_WORDS = 2
"""Left over when a window has to be cut without any stable word: its end may be in mid-word."""

GAP_BEFORE_S, GAP_AFTER_S = 0.4, 0.1
GAP_MS = 40
"""A window is cut where it is quietest for so long."""

TOKENS_A_STEP = 2
"""Decoded between two looks at whether something else has become more urgent."""


def max_tokens(duration_s: float) -> int:
    """More than anybody says in that time; a decoder that goes on is in a loop."""
    return 12 + round(7 * duration_s)


def gap_near(samples: Float32, time_s: float) -> int:
    """The quietest place near `time_s`. Whisper's word times are off by 0.1-0.2 s, and a silence
    may belong to the word before it or after it."""
    start = max(0, round((time_s - GAP_BEFORE_S) * CALLER_RATE_HZ))
    end = round((time_s + GAP_AFTER_S) * CALLER_RATE_HZ)
    power = np.square(samples[start:end])
    n = CALLER_RATE_HZ * GAP_MS // 1000
    if len(power) <= n:
        return start
    sums = np.convolve(power, np.ones(n, np.float32), "valid")
    return start + int(sums.argmin()) + n // 2


class WhisperSTT:
    """A `SpeechToText` on a Whisper model in CTranslate2's format (faster-whisper's).

    One model and one thread serve all streams: finals first, interims in turn. A stream decodes
    what the caller has said every 300 ms, and at once when the voice dips as at the end of a
    phrase; a `SpeechPaused` whose last voiced sample such a decoding covers is answered by it.
    """

    def __init__(self, model_path: Path, *, language: str = "en", n_threads: int = 1) -> None:
        """`language` is a code such as "de"; English-only models know only "en". Raises
        ComponentError for a folder without a usable model, UsageError for an unknown language."""
        self._engine = WhisperEngine(model_path, language=language, n_threads=n_threads)
        self._desk = Desk("stt")

    def open(
        self, audio: AsyncIterator[SpeechInput]
    ) -> AbstractAsyncContextManager[AsyncIterator[Transcript]]:
        """See `SpeechToText.open`. Memory is bounded by the turn; a turn may be of any length."""
        return listening(audio, _WhisperHearing(self._engine, self._desk))


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """What the decoder makes of a window."""

    encoded: Float32
    words: list[Word]
    """After the stable ones."""
    no_speech: float
    looped: bool


class _WhisperHearing:
    """One stream: decodes what its attention turns to."""

    def __init__(self, engine: WhisperEngine, desk: Desk) -> None:
        self._engine = engine
        self._desk = desk
        self._caller = Caller()
        self._attention = Attention()
        self._gave_up = False
        """The last decoding was not brought to its end."""
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._ended = False

    def hear(self, item: SpeechInput) -> None:
        if self._attention.hear(item):
            self._caller.urgent = self._attention.urgent
            self._changed.set()

    def end(self, error: Exception | None) -> None:
        self._error = error
        self._ended = True
        self._changed.set()

    async def transcripts(self) -> AsyncGenerator[Transcript, None]:
        attention = self._attention
        while True:
            self._changed.clear()
            if self._error is not None:
                raise self._error
            for final in attention.finals():
                yield final
            self._caller.urgent = attention.urgent
            window = attention.window()
            if window is not None:
                hypothesis = await self._decode(window)
                self._gave_up = hypothesis is None
                if hypothesis is not None:
                    await self._take(window, hypothesis)
                    if interim := attention.interim(window.turn):
                        yield interim
                    await self._trim(window, hypothesis)
            elif self._ended:
                return
            else:
                await self._changed.wait()

    async def _decode(self, window: Window) -> _Hypothesis | None:
        """None when it was given up because something else became more urgent."""
        engine, turn = self._engine, window.turn
        encoded = await self._run(engine.encode, window.samples)
        if self._is_obsolete(window):
            return None
        known = turn.text.known
        decoding = await self._run(engine.begin, encoded, turn.text.before, known, turn.guess)
        while not decoding.ended and len(decoding.tokens) < max_tokens(window.duration_s):
            turn.guess = decoding.tokens[len(known) :]
            if self._is_obsolete(window):
                return None
            await self._run(decoding.advance, TOKENS_A_STEP)
        said = engine.words(decoding.tokens[len(known) :], decoding.log_probs)
        words = without_loop(said, window.duration_s, whole=decoding.ended, after=turn.text.stable)
        return _Hypothesis(encoded, words, decoding.no_speech, len(words) < len(said))

    async def _take(self, window: Window, hypothesis: _Hypothesis) -> None:
        """Let the turn's text grow by what was found, unless nobody said it."""
        turn = window.turn
        news = turn.text.news(hypothesis.words)
        needed_s = voice_needed_s(news, no_speech=hypothesis.no_speech, looped=hypothesis.looped)
        believed = True
        if news and needed_s:
            samples = self._attention.unanswered(window)
            believed = await self._run(self._engine.voiced_s, samples) >= needed_s
        if believed:
            turn.text.take(hypothesis.words, window.end)
        turn.guess = turn.text.open_tokens
        turn.heard_to = window.end

    async def _trim(self, window: Window, hypothesis: _Hypothesis) -> None:
        """Shorten a window that has become long by words that will not change."""
        turn = window.turn
        if window.complete and (turn.pauses or len(window.samples) < TRIM_AT_SENTENCE):
            return
        words = [*turn.text.stable, *turn.text.open]
        n_words = turn.text.n_sentences_stable()
        if n_words == 0 and len(window.samples) >= TRIM_AT_WORD:
            n_words = len(turn.text.stable)
        if not window.complete:
            n_words = max(n_words, len(words) - N_OPEN_WORDS)
        offset = 0
        if n_words > 0:
            ends_s = await self._run(
                self._engine.word_ends_s, hypothesis.encoded, len(window.samples), words
            )
            offset = gap_near(window.samples, ends_s[n_words - 1])
        if not window.complete:
            offset = max(offset, len(window.samples) // 2)
        if offset == 0:
            return
        turn.audio.trim(turn.audio.position(offset, window.end))
        turn.text.settle(n_words)
        turn.guess = turn.text.open_tokens

    async def _run(self, step: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._desk.run(self._caller, step, *args)

    def _is_obsolete(self, window: Window) -> bool:
        return self._attention.is_obsolete(window, keep=self._gave_up)
