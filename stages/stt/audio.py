"""The caller's audio as an STT stream needs it: what was heard lately, and which of it is the turn.

Positions are samples of the caller's stream (16 kHz) throughout.
"""

from __future__ import annotations

import numpy as np

from stages.stt.hearing import check_rate
from voicepipe.errors import UsageError
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame, Pcm
from voicepipe.protocols import Float32

PREROLL = CALLER_RATE_HZ // 2
"""Kept before the first voiced sample: a voice activity detector misses soft beginnings."""

POSTROLL = CALLER_RATE_HZ * 60 // 1000
"""Used after the last voiced sample: words fade."""

LATE = CALLER_RATE_HZ
"""How far in the past a `SpeechStarted` may lie when it comes, at least."""

MAX_GAP_S = 30.0
"""Missing audio becomes silence up to so much; more is a fault of the transport."""


class Recording:
    """The newest audio of one stream, each sample once."""

    def __init__(self) -> None:
        self._kept: Pcm = np.zeros(4 * CALLER_RATE_HZ, np.int16)
        self.start = 0
        """Position of the oldest sample kept."""
        self.end = 0
        """One past the newest."""
        self._begun = False

    def add(self, frame: AudioFrame) -> None:
        """The next frame; samples that are missing before it count as silence. Raises UsageError
        for another rate, for samples that were there already and for an absurd gap."""
        check_rate(frame)
        if not self._begun:
            self.start = self.end = frame.start_sample
            self._begun = True
        n_missing = frame.start_sample - self.end
        if not 0 <= n_missing <= MAX_GAP_S * CALLER_RATE_HZ:
            raise UsageError(
                f"speech-to-text: frame begins at sample {frame.start_sample}, expected "
                f"{self.end}: give every frame once and in order"
            )
        n_kept = self.end - self.start
        n_more = n_missing + frame.n_samples
        if n_kept + n_more > len(self._kept):
            larger = np.zeros(2 * (n_kept + n_more), np.int16)
            larger[:n_kept] = self._kept[:n_kept]
            self._kept = larger
        self._kept[n_kept : n_kept + n_missing] = 0
        self._kept[n_kept + n_missing : n_kept + n_more] = frame.samples
        self.end += n_more

    def cut(self, start: int, end: int) -> Float32:
        """The samples in [start, end) that are kept, -1..1."""
        first, last = max(start, self.start) - self.start, min(end, self.end) - self.start
        return self._kept[first : max(first, last)].astype(np.float32) / np.float32(32768.0)

    def forget(self, before: int) -> None:
        """Drop what is older."""
        n_old = min(before, self.end) - self.start
        if n_old < CALLER_RATE_HZ:  # not worth moving the rest
            return
        n_kept = self.end - self.start - n_old
        self._kept[:n_kept] = self._kept[n_old : n_old + n_kept].copy()
        self.start += n_old


class TurnAudio:
    """Which parts of a recording are decoded together: the caller's stretches of speech since the
    turn began or was last trimmed, with what surrounds them but without the long pauses."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int | None]] = []
        self._from = 0
        """What lies before is trimmed."""

    @property
    def start(self) -> int | None:
        """Where the window begins; None when there is none."""
        return self._spans[0][0] if self._spans else None

    def begin(self, first_voiced: int) -> None:
        """The caller speaks."""
        earliest = self._spans[-1][1] if self._spans else self._from
        if earliest is not None:
            self._spans.append((max(earliest, first_voiced - PREROLL, 0), None))

    def pause(self, last_voiced: int) -> None:
        """The caller has fallen silent."""
        if self._spans and self._spans[-1][1] is None:
            start = self._spans[-1][0]
            self._spans[-1] = start, max(start, last_voiced + POSTROLL)

    def parts(self, end: int) -> list[tuple[int, int]]:
        """The window up to `end`, as [start, end) pieces of the recording."""
        clipped = ((start, min(end, stop or end)) for start, stop in self._spans)
        return [(start, stop) for start, stop in clipped if stop > start]

    def n_samples(self, end: int) -> int:
        return sum(stop - start for start, stop in self.parts(end))

    def position(self, offset: int, end: int) -> int:
        """Where the sample with that offset into the window lies in the recording; `end` if the
        window up to there is shorter."""
        for start, stop in self.parts(end):
            if offset < stop - start:
                return start + offset
            offset -= stop - start
        return end

    def trim(self, before: int) -> None:
        """Forget what lies before that position."""
        self._from = max(self._from, before)
        self._spans = [
            (max(start, before), stop)
            for start, stop in self._spans
            if stop is None or stop > before
        ]

    def samples(self, recording: Recording, start: int, end: int) -> Float32:
        """The window's samples from `start` on, up to `end`."""
        pieces = [recording.cut(max(a, start), b) for a, b in self.parts(end)]
        return np.concatenate([np.zeros(0, np.float32), *pieces])
