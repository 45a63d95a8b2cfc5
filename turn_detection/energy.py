"""Where sound begins and ends, from its level alone: the earliest pause signal there is, and the
one that places edges to 2 ms."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from voicepipe.frames import AudioFrame

ABOVE_FLOOR_DB = 10.0
"""Sound this much above the noise floor is loud; as in the latency measurement (budgets)."""

LOWEST_DBFS = -60.0
"""Nothing below is ever loud: the decay of a word in a silent room is not speech any more."""

_SUB_BLOCK = 32
"""2 ms at 16 kHz: the grain of an edge."""

_BRIDGED = 960
"""60 ms: the closure of a stop consonant, and no end of a sound."""

_FLOOR_BLOCKS = 8
_FLOOR_BLOCK_FRAMES = 25
"""The floor is the quietest 30 ms of the last 8 x 250 ms (minimum statistics): speech has gaps that
deep every 2 s, and noise that begins is known for what it is after 2 s."""


class EnergyPause:
    """The loud stretches of one caller stream."""

    def __init__(self) -> None:
        self._floor_dbfs = LOWEST_DBFS - ABOVE_FLOOR_DB
        self._minima = deque([self._floor_dbfs] * _FLOOR_BLOCKS, maxlen=_FLOOR_BLOCKS)
        self._block_min = math.inf
        self._n_in_block = 0
        self._recent = deque([0.0] * 3, maxlen=3)
        self._stretches: deque[tuple[int, int]] = deque(maxlen=16)
        self.level_dbfs = -120.0
        """Of the last frame."""

    @property
    def threshold_dbfs(self) -> float:
        """Level from which sound is loud now."""
        return max(LOWEST_DBFS, self._floor_dbfs + ABOVE_FLOOR_DB)

    @property
    def last_loud(self) -> int:
        """One past the last loud sample so far; 0 before the first."""
        return self._stretches[-1][1] if self._stretches else 0

    def hear(self, frame: AudioFrame) -> bool:
        """Whether this 10 ms frame is loud."""
        samples = frame.samples.astype(np.float32)
        power = np.square(samples).reshape(-1, _SUB_BLOCK).mean(axis=1) / np.float32(32768.0**2)
        mean_power = float(power.mean())
        self.level_dbfs = 10.0 * math.log10(mean_power + 1e-12)
        threshold = 10.0 ** (self.threshold_dbfs / 10.0)
        loud = mean_power >= threshold
        if loud:
            above = np.flatnonzero(power >= threshold)
            start = frame.start_sample + int(above[0]) * _SUB_BLOCK
            self._mark(start, frame.start_sample + (int(above[-1]) + 1) * _SUB_BLOCK)
        self._follow_floor(mean_power)
        return bool(loud)

    def first_loud(self, *, earliest: int) -> int | None:
        """Where the present stretch of sound began, not before `earliest`; None when there is no
        sound after it. Gaps under 60 ms belong to a stretch."""
        if self.last_loud <= earliest:
            return None
        return max(earliest, self._stretches[-1][0])

    def _mark(self, start: int, end: int) -> None:
        if self._stretches and start - self._stretches[-1][1] < _BRIDGED:
            start, _ = self._stretches.pop()
        self._stretches.append((start, end))

    def _follow_floor(self, power: float) -> None:
        self._recent.append(power)
        level_dbfs = 10.0 * math.log10(sum(self._recent) / len(self._recent) + 1e-12)
        self._block_min = min(self._block_min, level_dbfs)
        self._n_in_block += 1
        if self._n_in_block == _FLOOR_BLOCK_FRAMES:
            self._minima.append(self._block_min)
            self._block_min = math.inf
            self._n_in_block = 0
        self._floor_dbfs = min(*self._minima, self._block_min)
