"""Audio as it moves through voicepipe: short frames of mono PCM with a media time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from voicepipe.errors import UsageError

CALLER_RATE_HZ = 16_000
"""The one rate at which everything that listens works; transports resample at their edge."""

FRAME_MS = 10
"""Length of a caller frame: webrtcvad's smallest window, and the hop of every decision."""

Pcm = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """10-20 ms of mono int16 PCM.

    `samples` has shape [n]. `start_sample` is the media time of the first sample, counted at
    `sample_rate_hz` from the start of its stream. Frames made by text-to-speech carry the exact
    piece of the reply's text whose speech *begins* in them (mostly empty): the concatenated
    labels of a reply's frames equal the text that was given to be spoken.
    """

    samples: Pcm
    sample_rate_hz: int
    start_sample: int
    text: str = ""

    def __post_init__(self) -> None:
        if self.samples.dtype != np.int16 or self.samples.ndim != 1:
            raise UsageError(
                f"audio frame: expected mono int16 samples of shape [n], got {self.samples.dtype} "
                f"of shape {list(self.samples.shape)}: convert before building a frame"
            )

    @property
    def n_samples(self) -> int:
        return len(self.samples)

    @property
    def end_sample(self) -> int:
        """One past the last sample, in media time."""
        return self.start_sample + len(self.samples)

    @property
    def start_s(self) -> float:
        return self.start_sample / self.sample_rate_hz

    @property
    def end_s(self) -> float:
        return self.end_sample / self.sample_rate_hz

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate_hz
