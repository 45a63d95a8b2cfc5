"""The last seconds of a caller's audio."""

from __future__ import annotations

import numpy as np

from voicepipe.errors import UsageError
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame, Pcm
from voicepipe.protocols import Float32


class RecentAudio:
    """A window over one caller stream, read back by sample position."""

    def __init__(self, seconds: float = 8.0) -> None:
        self._size = round(seconds * CALLER_RATE_HZ)
        self._twice: Pcm = np.zeros(2 * self._size, np.int16)
        """Written from front to back; when it is full, its newer half moves to the front."""
        self._filled = 0
        self._end = 0

    @property
    def end(self) -> int:
        """One past the newest sample."""
        return self._end

    def append(self, frame: AudioFrame) -> None:
        """The next frame. Raises `UsageError` unless it is 16 kHz and follows the one before."""
        if frame.sample_rate_hz != CALLER_RATE_HZ or frame.start_sample != self._end:
            raise UsageError(
                f"turn detection: expected {CALLER_RATE_HZ} Hz audio from sample {self._end}, got "
                f"{frame.sample_rate_hz} Hz from {frame.start_sample}: a transport must resample "
                "and fill gaps"
            )
        if self._filled + frame.n_samples > len(self._twice):
            self._twice[: self._size] = self._twice[self._filled - self._size : self._filled]
            self._filled = self._size
        self._twice[self._filled : self._filled + frame.n_samples] = frame.samples
        self._filled += frame.n_samples
        self._end = frame.end_sample

    def since(self, sample: int) -> Float32:
        """A copy of the audio from `sample` (or as far back as it is kept) on, in -1..1."""
        n = min(self._size, self._filled, max(0, self._end - sample))
        return self._twice[self._filled - n : self._filled].astype(np.float32) / np.float32(32768)
