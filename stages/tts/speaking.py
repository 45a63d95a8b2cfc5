"""From phrases to labelled frames: what all voices have in common.

A task works ahead of the listener, by one phrase: while phrase k is heard, phrase k + 1 is
synthesized and phrase k + 2 waits. Each piece of sound goes through the same plain objects, in
order: `Trim` (engines surround a phrase with silence), `Resampler`, `FrameCutter`.
"""

# ruff: noqa: RUF001 - typographic punctuation ends phrases, too

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import numpy as np

from stages.tts.labels import Label, labels_of
from stages.tts.speech_text import speakable
from stages.tts.voice import Float32, Mark, Piece
from voicepipe.errors import UsageError
from voicepipe.frames import AudioFrame, Pcm
from voicepipe.protocols import Phrase
from voicepipe.resample import Resampler

Say = Callable[[str], AsyncGenerator[Piece, None]]
"""Speaks plain words, piece by piece."""

RATES_HZ = (8_000, 48_000)

PHRASES_AHEAD = 1

PIECES_AHEAD = 8
"""Pieces that may wait for the listener: a few seconds, so that a long phrase is bounded too."""

QUIET = 10 ** (-50 / 20)
"""Amplitude below which an engine is silent: its noise floor lies near -70 dBFS."""

LEAD_MS = 15.0
"""Kept before the first loud sample: a soft consonant begins there."""

TAIL_MS = 30.0
"""Kept after the last loud sample: the end of a word fades below `QUIET`."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Silence between a phrase and the next, by how the first one ends."""

    sentence_ms: float = 200.0
    """After . ! ? and the like."""
    clause_ms: float = 90.0
    """After a comma, colon, semicolon or dash."""
    word_ms: float = 20.0
    """After anything else: a phrase was cut between two words."""

    def after(self, spoken: str) -> float:
        """The pause after a phrase that ends like `spoken`; what is not said does not count."""
        for c in reversed(spoken):
            if c in ".!?…":
                return self.sentence_ms
            if c in ",;:—–":
                return self.clause_ms
            if c.isalnum():
                break
        return self.word_ms


PAUSES = Pauses()
NO_PAUSES = Pauses(0.0, 0.0, 0.0)


class Trim:
    """Takes the silence off both ends of a phrase that comes in pieces. Silence inside it stays,
    held back until the sound after it comes."""

    def __init__(self, rate_hz: int) -> None:
        self._lead = round(LEAD_MS * rate_hz / 1000)
        self._tail = round(TAIL_MS * rate_hz / 1000)
        self._held = np.zeros(0, np.float32)
        self._n_seen = 0
        self._sounding = False
        self.n_removed = 0
        """Samples taken off the start, once there was sound."""

    def feed(self, samples: Float32) -> Float32:
        """What is now known to be inside the phrase, shape [n]."""
        held = np.concatenate([self._held, samples])
        self._n_seen += len(samples)
        loud = np.flatnonzero(np.abs(held) > QUIET)
        if len(loud) == 0:
            self._held = held if self._sounding else held[-self._lead :]
            return held[:0]
        first = 0
        if not self._sounding:
            self._sounding = True
            first = max(0, int(loud[0]) - self._lead)
            self.n_removed = self._n_seen - len(held) + first
        end = min(len(held), int(loud[-1]) + 1 + self._tail)
        self._held = held[end:]
        return held[first:end]


class FrameCutter:
    """Contiguous frames of at most 20 ms, each with the text that begins in it."""

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._size = rate_hz // 50
        self._waiting: Pcm = np.zeros(0, np.int16)
        self._labels: deque[tuple[int, str]] = deque()
        self._next = 0
        self.end = 0
        """One past the last sample given so far, in media time."""

    def label(self, text: str, sample: int) -> None:
        """`text` begins at `sample` (media time), or with the next sample if that has passed."""
        self._labels.append((sample, text))

    def add(self, samples: Pcm) -> list[AudioFrame]:
        self.end += len(samples)
        self._waiting = np.concatenate([self._waiting, samples])
        frames = []
        while len(self._waiting) >= self._size:
            frames.append(self._cut(self._size))
        return frames

    def flush(self) -> list[AudioFrame]:
        """What is left of a phrase, as one short frame, with all labels that are left."""
        return [self._cut(len(self._waiting), all_labels=True)] if len(self._waiting) else []

    def finish(self) -> list[AudioFrame]:
        """The end of the reply: text that found no sound goes on a frame of no samples."""
        frames = self.flush()
        return [*frames, self._cut(0, all_labels=True)] if self._labels else frames

    def _cut(self, n: int, *, all_labels: bool = False) -> AudioFrame:
        samples, self._waiting = self._waiting[:n], self._waiting[n:]
        text = ""
        while self._labels and (all_labels or self._labels[0][0] < self._next + n):
            text += self._labels.popleft()[1]
        frame = AudioFrame(samples, self.rate_hz, self._next, text)
        self._next += n
        return frame


class Speaker:
    """Makes the frames of one reply, phrase after phrase."""

    def __init__(self, say: Say, voice_hz: int, rate_hz: int, pauses: Pauses) -> None:
        """`voice_hz` is the voice's own rate, `rate_hz` the wanted one. Raises UsageError for a
        rate outside `RATES_HZ`."""
        if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
            raise UsageError(
                f"text-to-speech at {rate_hz} Hz: give a rate from {RATES_HZ[0]} to {RATES_HZ[1]}"
            )
        self._say = say
        self._voice_hz = voice_hz
        self._rate_hz = rate_hz
        self._pauses = pauses
        self._cutter = FrameCutter(rate_hz)
        self._pause_ms = 0.0

    async def speak(self, phrase: Phrase) -> AsyncGenerator[list[AudioFrame], None]:
        """The frames of the next phrase, as they come. The silence that follows the phrase before
        is put in front, so that none is made at the end of a reply."""
        spoken = speakable(phrase.text)
        placing = _Placing(self._cutter, labels_of(phrase.text, spoken), self._voice_hz)
        trim = Trim(self._voice_hz)
        resampler = Resampler(self._voice_hz, self._rate_hz)
        frames: list[AudioFrame] = []
        async with aclosing(self._say(spoken)) as pieces:
            async for piece in pieces:
                samples = trim.feed(piece.samples)
                placing.marks.extend(piece.marks)
                if len(samples) == 0:
                    continue
                if placing.start is None:
                    frames = self._pause()
                    placing.start = self._cutter.end
                placing.place(trim.n_removed)
                yield frames + self._cutter.add(resampler.feed(_pcm(samples)))
                frames = []
        if placing.start is not None:
            self._pause_ms = self._pauses.after(spoken)
            n_delay = round(resampler.delay_s * self._voice_hz)
            frames = self._cutter.add(resampler.feed(np.zeros(n_delay, np.int16)))
        placing.finish(trim.n_removed)
        yield frames + self._cutter.flush()

    def finish(self) -> list[AudioFrame]:
        """What is left when the reply is over."""
        return self._cutter.finish()

    def _pause(self) -> list[AudioFrame]:
        n_samples = round(self._pause_ms * self._rate_hz / 1000)
        return self._cutter.add(np.zeros(n_samples, np.int16))


class _Placing:
    """Gives the labels of one phrase to the frame cutter as the voice says where words begin."""

    def __init__(self, cutter: FrameCutter, labels: list[Label], voice_hz: int) -> None:
        self._cutter = cutter
        self._labels = deque(labels)
        self._voice_hz = voice_hz
        self.marks: deque[Mark] = deque()
        self.start: int | None = None
        """Media time at which the phrase begins; None until it does."""

    def place(self, n_removed: int) -> None:
        """Each label goes where the word it starts with, or the next word after that, begins."""
        assert self.start is not None
        while self.marks:
            mark = self.marks.popleft()
            at = max(0, mark.sample - n_removed) * self._cutter.rate_hz // self._voice_hz
            while self._labels and self._labels[0].start <= mark.start:
                self._cutter.label(self._labels.popleft().text, self.start + at)

    def finish(self, n_removed: int) -> None:
        """The phrase is over: what has no place yet ends it, or waits for the next sound."""
        if self.start is not None:
            self.place(n_removed)
        end = self._cutter.end - (self.start is not None)
        for label in self._labels:
            self._cutter.label(label.text, end)
        self._labels.clear()


def _pcm(samples: Float32) -> Pcm:
    scaled: Pcm = np.clip(np.rint(samples * 32767), -32768, 32767).astype(np.int16)
    return scaled


@dataclass(frozen=True, slots=True)
class _Broken:
    """What stopped the task that works ahead."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _PhraseOver:
    """A mark between the pieces of a phrase and those of the next."""


_Ahead = asyncio.Queue[list[AudioFrame] | _PhraseOver | _Broken | None]


async def _work_ahead(
    speaker: Speaker, phrases: AsyncIterator[Phrase], ahead: _Ahead, room: asyncio.Semaphore
) -> None:
    """Make frames until the phrases end. An error goes to the listener, behind the sound that was
    made before it."""
    try:
        await room.acquire()
        async for phrase in phrases:
            async with aclosing(speaker.speak(phrase)) as pieces:
                async for frames in pieces:
                    await ahead.put(frames)
            await ahead.put(_PhraseOver())
            await room.acquire()
        await ahead.put(speaker.finish())
        await ahead.put(None)
    except Exception as error:  # noqa: BLE001 - raised again by `_heard`, to who reads the frames
        await ahead.put(_Broken(error))


async def _heard(ahead: _Ahead, room: asyncio.Semaphore) -> AsyncGenerator[AudioFrame, None]:
    while (item := await ahead.get()) is not None:
        match item:
            case _PhraseOver():
                room.release()
            case _Broken(error):
                raise error
            case frames:
                for frame in frames:
                    yield frame


@asynccontextmanager
async def speaking(
    phrases: AsyncIterator[Phrase], speaker: Speaker
) -> AsyncIterator[AsyncIterator[AudioFrame]]:
    """The frames of all `phrases`. Leaving ends the task that works ahead and waits for it."""
    ahead: _Ahead = asyncio.Queue(PIECES_AHEAD)
    room = asyncio.Semaphore(1 + PHRASES_AHEAD)
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group, aclosing(_heard(ahead, room)) as frames:
        work = group.create_task(_work_ahead(speaker, phrases, ahead, room))
        try:
            yield frames
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        finally:
            work.cancel()
    if failure is not None:
        raise failure
