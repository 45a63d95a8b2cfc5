"""Log-mel features of 8 s of speech, as Smart Turn was trained on: Whisper's, normalised first.

The definition (numpy only; checked against vectors from independent implementations):

1. the last 128,000 samples at 16 kHz, zeros *in front* of what is shorter;
2. (x - mean) / sqrt(variance + 1e-7) over that padded buffer;
3. reflect-pad 200 on both sides; frames of 400 every 160 under a periodic Hann window, first 800;
4. power spectrum, 80 mel filters (Slaney's scale and area normalisation) over 0-8 kHz;
5. log10(max(1e-10, .)), clipped to at most 8 below the maximum, then (. + 4) / 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voicepipe.protocols import Float32

N_SAMPLES = 128_000
N_FRAMES = 800
N_MELS = 80

_RATE_HZ = 16_000
_WINDOW = 400
_HOP = 160
_ROWS = 40
"""Frames transformed at a time: 40 x 400 floats stay in the cache, which is 2x faster here."""


def _hz_of_mel(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slaney's Auditory Toolbox scale: linear to 1 kHz (15 mel), then 27 mel to a factor of 6.4."""
    linear = mel * (200.0 / 3.0)
    return np.where(mel < 15.0, linear, 1000.0 * np.exp((mel - 15.0) * np.log(6.4) / 27.0))


def _mel_filters() -> Float32:
    """Triangles of unit area in Hz, shape [201, 80]."""
    top_mel = 15.0 + 27.0 * np.log(8.0) / np.log(6.4)  # 8 kHz
    edges_hz = _hz_of_mel(np.linspace(0.0, top_mel, N_MELS + 2))
    bins_hz = np.linspace(0.0, _RATE_HZ / 2, _WINDOW // 2 + 1)
    low, centre, high = edges_hz[:-2], edges_hz[1:-1], edges_hz[2:]
    rising = (bins_hz[:, None] - low) / (centre - low)
    falling = (high - bins_hz[:, None]) / (high - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))
    return triangles.astype(np.float32)


_FILTERS = _mel_filters()
_HANN = (0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(_WINDOW) / _WINDOW)).astype(np.float32)


def log_mel(samples: Float32) -> Float32:
    """Features of 16 kHz audio in -1..1, shape [n] for any n >= 0, as [80, 800]."""
    padded = np.zeros(N_SAMPLES, np.float32)
    tail = samples[-N_SAMPLES:]
    padded[N_SAMPLES - len(tail) :] = tail
    scale = 1.0 / np.sqrt(padded.var(dtype=np.float64) + 1e-7)
    padded -= np.float32(padded.mean(dtype=np.float64))
    padded *= np.float32(scale)
    reflected = np.pad(padded, _WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(reflected, _WINDOW)[::_HOP][:N_FRAMES]
    power = np.empty((N_FRAMES, _WINDOW // 2 + 1), np.float32)
    n_padding = max(0, (N_SAMPLES - len(tail) - _WINDOW // 2) // _HOP)
    """Frames that lie wholly in the padding: all alike, so one transform does for them."""
    if n_padding:
        spectrum = np.fft.rfft(frames[0] * _HANN)
        power[:n_padding] = spectrum.real**2 + spectrum.imag**2
    for row in range(n_padding, N_FRAMES, _ROWS):
        spectrum = np.fft.rfft(frames[row : row + _ROWS] * _HANN, axis=1)
        power[row : row + _ROWS] = spectrum.real**2 + spectrum.imag**2
    mel = np.log10(np.maximum(1e-10, power @ _FILTERS)).T
    mel = (np.maximum(mel, mel.max() - 8.0) + 4.0) / 4.0
    return np.ascontiguousarray(mel, np.float32)
