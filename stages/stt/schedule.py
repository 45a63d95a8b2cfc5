"""When, on the media clock, it is worth decoding what the caller has said so far."""

from __future__ import annotations

import math

from stages.stt.audio import Recording
from voicepipe.frames import CALLER_RATE_HZ

BLOCK = CALLER_RATE_HZ // 100
"""10 ms: the grain of all decisions, whatever the size of the frames."""

INTERVAL = CALLER_RATE_HZ * 300 // 1000
"""New speech between two interims: 300 ms."""

INTERVAL_OF_WINDOW = 0.08
"""And at least this part of the window, whose cost grows with its length."""

DIP = 5 * BLOCK
"""Silence by level, 50 ms, after which speech has probably paused. `SpeechPaused` comes when there
are ~100 ms of it, and then finds a decoding of everything voiced begun or done."""

DIP_DB = 25.0
"""Below the loudest block of the stretch of speech, sound is no voice any more, or its fading."""


class InterimSchedule:
    """Looks at one stream's level. The plan follows from the audio alone: it does not depend on how
    fast anything is decoded, nor on how the audio was cut into frames."""

    def __init__(self) -> None:
        self.due = 0
        """Up to where the window should be decoded by now; 0 when nothing is due yet."""
        self.dip = 0
        """The latest such place at which speech seemed to pause; 0 before the first."""
        self._at = 0
        """The first block not looked at."""
        self._since = 0
        """Since when speech is new."""
        self._peak_db = -math.inf
        self._loud_end: int | None = None
        """One past the last loud block of this stretch of speech; None while nobody speaks."""

    def start(self, at: int) -> None:
        """Speech began at that sample, which may have passed."""
        self.due = self.dip = 0
        self._at = self._since = self._loud_end = at // BLOCK * BLOCK
        self._peak_db = -math.inf

    def stop(self) -> None:
        """Speech has paused."""
        self._loud_end = None

    def hear(self, recording: Recording, window_samples: int) -> None:
        """Look at what has come; `window_samples` is the length of the window now."""
        while self._loud_end is not None and self._at + BLOCK <= recording.end:
            block = recording.cut(self._at, self._at + BLOCK)
            self._at += BLOCK
            power = float(block @ block) / BLOCK
            self._look(10.0 * math.log10(power + 1e-12), window_samples)

    def _look(self, level_db: float, window_samples: int) -> None:
        assert self._loud_end is not None
        self._peak_db = max(self._peak_db, level_db)
        if level_db >= self._peak_db - DIP_DB:
            self._loud_end = self._at
            interval = max(INTERVAL, INTERVAL_OF_WINDOW * window_samples)
            if self._at - self._since >= interval:
                self.due = self._since = self._at
        elif self._at - self._loud_end == DIP and self._loud_end > self._since:
            self.due = self.dip = self._since = self._at
