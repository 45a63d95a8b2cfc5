"""The recording of a call: two tracks on one sample clock, read even when the file is damaged."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voicepipe.frames import CALLER_RATE_HZ, Pcm
from voicepipe.resample import Resampler

_PCM, _EXTENSIBLE = 1, 0xFFFE


class BadTape(ValueError):
    """The recording cannot be measured; the text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Track:
    """One side of a call: `samples` of shape [n]."""

    samples: Pcm
    rate_hz: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate_hz

    def heard_at_16khz(self) -> Pcm:
        """The samples as whatever listens wants them, aligned in time."""
        resampler = Resampler(self.rate_hz, CALLER_RATE_HZ)
        starts = range(0, len(self.samples), self.rate_hz)
        pieces = [resampler.feed(self.samples[at : at + self.rate_hz]) for at in starts]
        return np.concatenate([*pieces, np.zeros(0, np.int16)])


@dataclass(frozen=True, slots=True)
class Tape:
    """What was said to the agent and what it answered. `damage` is a line about what is lost."""

    caller: Track
    agent: Track
    damage: str = ""

    @property
    def duration_s(self) -> float:
        return self.caller.duration_s


def read_tape(path: Path) -> Tape:
    """Reads a stereo 16-bit WAV: left the caller, right the agent.

    A file whose writer was killed has sizes in its header that do not fit: then all samples that
    are there are used, and `damage` says so. Raises `BadTape` when there is nothing to measure.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadTape(f"{path.name}: cannot be read ({error.strerror or error})") from error
    if raw[:4] != b"RIFF" or raw[8:12] != b"WAVE":
        raise BadTape(f"{path.name}: is no WAV file")
    layout, start, declared = _find_samples(raw, path.name)
    n_channels, rate_hz, kind, bits = layout
    if n_channels != 2:
        raise BadTape(
            f"{path.name}: has {n_channels} channel{'s' if n_channels != 1 else ''}; two are "
            "needed, left the caller and right the agent, on one clock"
        )
    there = len(raw) - start
    size = declared if 0 < declared <= there else there
    damage = ""
    if declared > there or (declared == 0 and there > 0):
        damage = f"{path.name}: was cut off while being written; measured what is there"
    if (kind, bits) != (_PCM, 16):
        raise BadTape(f"{path.name}: has {bits}-bit samples of kind {kind}; 16-bit PCM is needed")
    frames = np.frombuffer(raw, "<i2", count=size // 4 * 2, offset=start).reshape(-1, 2)
    if not len(frames):
        raise BadTape(f"{path.name}: holds no samples")
    return Tape(Track(_channel(frames, 0), rate_hz), Track(_channel(frames, 1), rate_hz), damage)


def _channel(frames: Pcm, index: int) -> Pcm:
    return np.ascontiguousarray(frames[:, index], dtype=np.int16)


def _find_samples(raw: bytes, name: str) -> tuple[tuple[int, int, int, int], int, int]:
    """Walks the chunks: (channels, rate, kind, bits), offset of the samples, their stated size."""
    layout: tuple[int, int, int, int] | None = None
    at = 12
    while at + 8 <= len(raw):
        chunk, size = struct.unpack_from("<4sI", raw, at)
        body = at + 8
        if chunk == b"fmt " and body + 16 <= len(raw):
            kind, n_channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", raw, body)
            if kind == _EXTENSIBLE and body + 26 <= len(raw):
                (kind,) = struct.unpack_from("<H", raw, body + 24)
            layout = (n_channels, rate_hz, kind, bits)
        elif chunk == b"data":
            if layout is None or layout[1] == 0:
                raise BadTape(f"{name}: has no usable format header")
            return layout, body, size
        at = body + size + (size & 1)
    raise BadTape(f"{name}: holds no samples")
