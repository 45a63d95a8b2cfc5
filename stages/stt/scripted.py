"""An STT without a model: it knows beforehand what the caller will say."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

from stages.stt.hearing import check_rate, listening
from voicepipe.errors import ComponentError, UsageError
from voicepipe.events import Backchannel, EndOfTurn, SpeechPaused, SpeechStarted, Transcript
from voicepipe.frames import AudioFrame
from voicepipe.protocols import SpeechInput

Breakage = Literal["raise", "hang", "nothing"]
"""What goes wrong with a final: an error, silence for ever, or no words."""

Line = str | Sequence[str]
"""What the caller says in one turn; several pieces when there are pauses inside it."""


@dataclass(frozen=True, slots=True)
class _Script:
    lines: Sequence[Line] | Callable[[int], Line]
    words_per_s: float
    final_ms: float
    jitter: float
    seed: int
    broken: Mapping[int, Breakage]

    def pieces(self, turn: int) -> tuple[str, ...]:
        if callable(self.lines):
            line = self.lines(turn)
        else:
            line = self.lines[turn % len(self.lines)] if self.lines else ""
        return (line,) if isinstance(line, str) else tuple(line)

    def latency_s(self, pause: int) -> float:
        spread = random.Random(f"{self.seed} {pause}").uniform(-1, 1)
        return self.final_ms / 1000 * (1 + self.jitter * spread)


class ScriptedSTT:
    """A `SpeechToText` for tests and demonstrations.

    The k-th turn in which somebody spoke is understood as the k-th of `lines`, round and round, or
    as what a function makes of k. A line of several pieces is said piece by piece, one from each
    `SpeechStarted` to its `SpeechPaused`. While a piece sounds its words become known at
    `words_per_s`, the last of them not yet stable; the final comes `final_ms` after the pause,
    varied by up to ± `jitter` (0..1), the same way for the same `seed` and pause of a stream. The
    loop's clock does the waiting, so under the virtual clock no time passes.

    `broken` says what goes wrong at the n-th pause, counted from 0 over the life of the object.
    """

    def __init__(
        self,
        lines: Sequence[Line] | Callable[[int], Line],
        *,
        words_per_s: float = 3.0,
        final_ms: float = 80.0,
        jitter: float = 0.0,
        seed: int = 0,
        broken: Mapping[int, Breakage] | None = None,
    ) -> None:
        if isinstance(lines, str):
            raise UsageError("ScriptedSTT: lines must be a list of texts, got one text")
        if words_per_s <= 0 or final_ms < 0 or not 0 <= jitter <= 1:
            raise UsageError(
                "ScriptedSTT: words_per_s must be positive, final_ms not negative and jitter 0..1"
            )
        self._script = _Script(lines, words_per_s, final_ms, jitter, seed, dict(broken or {}))
        self._n_pauses = 0

    def open(
        self, audio: AsyncIterator[SpeechInput]
    ) -> AbstractAsyncContextManager[AsyncIterator[Transcript]]:
        return listening(audio, _ScriptedHearing(self._script, self._breakage))

    def _breakage(self) -> Breakage | None:
        """Of the pause that has just come."""
        self._n_pauses += 1
        return self._script.broken.get(self._n_pauses - 1)


@dataclass(slots=True)
class _Turn:
    """One turn of the caller's; times are media seconds."""

    pieces: tuple[str, ...]
    start_s: float
    n_pieces: int = 0
    """Said to the end or being said."""

    def transcript(self, end_s: float, n_words: int | None = None) -> Transcript:
        """A final, or an interim with `n_words` of the last piece."""
        words = [word for piece in self.pieces[: self.n_pieces - 1] for word in piece.split()]
        last = "".join(self.pieces[self.n_pieces - 1 : self.n_pieces]).split()
        if n_words is None or not last:
            words += last
            stable = words
        else:
            words += last[:n_words]
            stable = words[:-1]
        return Transcript(
            t_media_s=end_s,
            text=" ".join(words),
            final=n_words is None,
            stable_text=" ".join(stable),
            start_s=self.start_s,
            end_s=end_s,
            confidence=1.0,
        )


@dataclass(frozen=True, slots=True)
class _Final:
    turn: _Turn
    transcript: Transcript
    due_s: float
    """Loop time at which it becomes known."""
    breakage: Breakage | None


class _ScriptedHearing:
    """The state of one stream."""

    def __init__(self, script: _Script, breakage: Callable[[], Breakage | None]) -> None:
        self._script = script
        self._breakage = breakage
        self._turn: _Turn | None = None
        self._n_turns = 0
        self._n_pauses = 0
        self._speech_s: float | None = None
        """Since when the caller speaks."""
        self._n_words = 0
        self._interim: Transcript | None = None
        self._finals: deque[_Final] = deque()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._ended = False

    def hear(self, item: SpeechInput) -> None:
        match item:
            case AudioFrame():
                check_rate(item)
                self._reveal(item.end_s)
            case SpeechStarted():
                self._start(item.t_media_s)
            case SpeechPaused():
                self._pause(item.t_media_s)
            case EndOfTurn() | Backchannel():
                self._end_turn(item.speech_end_s)

    def end(self, error: Exception | None) -> None:
        self._error = error
        self._ended = True
        self._changed.set()

    async def transcripts(self) -> AsyncGenerator[Transcript, None]:
        while True:
            self._changed.clear()
            if self._error is not None:
                raise self._error
            if self._interim is not None:
                interim, self._interim = self._interim, None
                yield interim
            elif self._finals:
                final = self._finals[0]
                if not await self._due(final):
                    continue
                self._finals.popleft()
                if final.breakage == "raise":
                    raise ComponentError(
                        f"scripted STT: told to fail at {final.transcript.end_s:.2f} s"
                    )
                yield final.transcript
            elif self._ended:
                return
            else:
                await self._changed.wait()

    async def _due(self, final: _Final) -> bool:
        """Wait for it; False when something changed before."""
        if final.breakage == "hang":
            await self._changed.wait()
            return False
        try:
            async with asyncio.timeout_at(final.due_s):
                await self._changed.wait()
        except TimeoutError:
            return True
        return asyncio.get_running_loop().time() >= final.due_s

    def _start(self, at_s: float) -> None:
        """The caller speaks; a final of the same turn that has not come yet is void."""
        if self._speech_s is not None:
            return
        turn = self._turn
        if turn is None:
            turn = self._turn = _Turn(self._script.pieces(self._n_turns), at_s)
            self._n_turns += 1
        self._finals = deque(final for final in self._finals if final.turn is not turn)
        turn.n_pieces += 1
        self._speech_s = at_s
        self._n_words = 0
        self._changed.set()

    def _reveal(self, now_s: float) -> None:
        if self._turn is None or self._speech_s is None:
            return
        n_words = int((now_s - self._speech_s) * self._script.words_per_s)
        if n_words > self._n_words:
            self._n_words = n_words
            self._interim = self._turn.transcript(now_s, n_words)
            self._changed.set()

    def _pause(self, at_s: float) -> None:
        turn = self._turn or _Turn((), at_s)
        self._speech_s = self._interim = None
        breakage = self._breakage()
        said = _Turn((), turn.start_s) if breakage == "nothing" else turn
        due_s = asyncio.get_running_loop().time() + self._script.latency_s(self._n_pauses)
        self._n_pauses += 1
        self._finals.append(_Final(turn, said.transcript(at_s), due_s, breakage))
        self._changed.set()

    def _end_turn(self, speech_end_s: float) -> None:
        """Finals that were asked for still come. Who speaks already began the next turn."""
        speech_s, self._turn = self._speech_s, None
        self._interim = None
        if speech_s is not None:
            self._speech_s = None
            if speech_s > speech_end_s:
                self._start(speech_s)
