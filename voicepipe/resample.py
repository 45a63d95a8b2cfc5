"""Streaming conversion of sample rates with a delay of about 2 ms.

A general-purpose streaming resampler works in blocks: soxr at its default quality holds back 37 ms
of a 48 kHz stream and 114 ms of an 8 kHz one. That would be a fifth of the whole latency budget,
so live audio goes through this direct polyphase filter instead.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from voicepipe.frames import Pcm

ZERO_CROSSINGS = 32
"""Half the filter's length, in periods of the lower rate: 2 ms of look-ahead at 16 kHz."""

KAISER_BETA = 7.86
"""80 dB of stop-band attenuation: Kaiser (1974), beta = 0.1102 (A - 8.7)."""

CUTOFF = 0.94
"""Middle of the transition band, as a share of the lower Nyquist frequency. The band is 16 % wide,
so speech is flat up to 6.9 kHz at 16 kHz and what folds back lands above 7.8 kHz."""

MAX_PHASES = 1024
"""Rates whose ratio needs more phases than this use the nearest one: a timing error below half a
thousandth of a sample, 60 dB under the signal."""


@lru_cache(maxsize=16)
def _phases(from_hz: int, to_hz: int) -> NDArray[np.float32]:
    """Filter taps of shape [n_phases + 1, 2 * half]: row p interpolates p / n_phases past a sample;
    the last row is row 0 of the next sample, for the nearest-phase case."""
    scale = min(1.0, to_hz / from_hz)
    half = _half(from_hz, to_hz)
    n_phases = min(to_hz // gcd(from_hz, to_hz), MAX_PHASES)
    taps = np.arange(-half + 1, half + 1)
    distance = taps[None, :] - np.arange(n_phases + 1)[:, None] / n_phases
    window = np.i0(KAISER_BETA * np.sqrt(np.clip(1 - (distance / half) ** 2, 0, 1)))
    rows = np.sinc(distance * scale * CUTOFF) * window
    unity: NDArray[np.float32] = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
    return unity


def _half(from_hz: int, to_hz: int) -> int:
    return round(ZERO_CROSSINGS * max(1.0, from_hz / to_hz))


class Resampler:
    """One stream of mono int16 from `from_hz` to `to_hz`, in pieces of any size.

    Output sample k is the input at the moment k / to_hz, with no shift: what is missing is only the
    last `delay_s` of the input, which waits for the samples after it. The pieces' outputs
    concatenate to the same samples however the input is cut.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._from_hz = from_hz
        self._to_hz = to_hz
        self._taps = None if from_hz == to_hz else _phases(from_hz, to_hz)
        self._half = _half(from_hz, to_hz)
        self._kept = np.zeros(self._half - 1, np.float32)  # the filter's view before sample 0
        self._kept_from = 1 - self._half  # input index of the first kept sample
        self._n_out = 0

    @property
    def delay_s(self) -> float:
        """How much of the input's end is held back."""
        return 0.0 if self._taps is None else self._half / self._from_hz

    def feed(self, samples: Pcm) -> Pcm:
        """The output that `samples`, shape [n], completes; shape [m], m about n * to / from."""
        if self._taps is None:
            return samples
        self._kept = np.concatenate([self._kept, samples.astype(np.float32)])
        end = self._kept_from + len(self._kept)
        # output k sits at input position k * from / to and needs `half` samples after it
        last = ((end - self._half) * self._to_hz - 1) // self._from_hz
        k = np.arange(self._n_out, last + 1, dtype=np.int64)
        if len(k) == 0:
            return np.zeros(0, np.int16)
        index, rest = np.divmod(k * self._from_hz, self._to_hz)
        n_phases = len(self._taps) - 1
        phase = (rest * n_phases + self._to_hz // 2) // self._to_hz
        views = sliding_window_view(self._kept, 2 * self._half)
        first = index - self._half + 1 - self._kept_from
        values = np.einsum("ij,ij->i", views[first], self._taps[phase])
        self._n_out = last + 1
        self._forget((self._n_out * self._from_hz) // self._to_hz - self._half + 1)
        resampled: Pcm = np.clip(np.rint(values), -32768, 32767).astype(np.int16)
        return resampled

    def _forget(self, before: int) -> None:
        """Drop input that no later output needs."""
        n = before - self._kept_from
        if n > 0:
            self._kept = self._kept[n:]
            self._kept_from = before
