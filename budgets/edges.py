"""Where sound begins and ends in one track.

A speech detector decides *whether* somebody speaks, energy decides *where*: detectors smooth over
tens of milliseconds, energy does not but knows no speech from a slamming door.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from budgets.tape import Track
from voicepipe.frames import CALLER_RATE_HZ, FRAME_MS, AudioFrame
from voicepipe.protocols import VoiceActivityDetector

WINDOW_MS = 8.0
HOP_MS = 2.0
SUSTAIN_MS = 10.0
"""Louder than the floor for at least this long: a click is no sound."""

FLOOR_PERCENTILE = 10.0
FLOOR_MARGIN_DB = 10.0
QUIETEST_DBFS = -75.0
"""Below this nothing is audible, however silent the rest of the track."""

NO_SIGNAL_DBFS = QUIETEST_DBFS - FLOOR_MARGIN_DB
"""Digital silence: a floor cannot be measured in it."""

COMPOSED_SHARE = 0.05
"""A track with more digital silence than this did not come from one microphone."""

BELOW_SPEECH_DB = 35.0
"""Noise of a clip lies at least this far below the median of the speech in it."""

REACH_S = 0.128
"""An edge in energy belongs to the detector's edge when it is within this distance of it."""

SPEECH = 0.5
"""The probability from which it is speech, the model's own default."""

STILL_SPEECH = 0.35
"""Between two stretches of speech, what stays above this is speech too (the model's default)."""

DETECTOR_LAG_S = 0.045
"""Silero's edges come this late: a 32 ms chunk and its smoothing. Median over 160 edges of speech
that begins and ends at a known sample (-15 to +70 ms around it for nine of ten)."""

MIN_SILENCE_S = 0.1
MIN_SPEECH_S = 0.03

Detector = Callable[[], VoiceActivityDetector]
"""Makes a fresh detector for one track."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of speech, in seconds from the start of the recording."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


def speech_segments(track: Track, detector: Detector, lag_s: float = 0.0) -> list[Segment]:
    """Where a fresh detector whose edges come `lag_s` late hears speech; gaps under 100 ms are
    closed. An offset of the whole track is taken away first: it confuses detectors."""
    pcm = track.heard_at_16khz()
    if len(pcm):
        pcm = np.clip(pcm - round(float(pcm.mean())), -32768, 32767).astype(np.int16)
    size = CALLER_RATE_HZ * FRAME_MS // 1000
    hear = detector().hear
    probability = np.array(
        [
            hear(AudioFrame(pcm[start : start + size], CALLER_RATE_HZ, start))
            for start in range(0, len(pcm) - size + 1, size)
        ]
    )
    active = probability >= SPEECH
    for first, last in _runs(probability >= STILL_SPEECH):
        certain = np.flatnonzero(active[first:last])
        if len(certain):
            active[first + certain[0] : first + certain[-1]] = True
    runs = [
        Segment(max(0.0, first * FRAME_MS / 1000 - lag_s), last * FRAME_MS / 1000 - lag_s)
        for first, last in _runs(active)
    ]
    return [s for s in _joined(runs, MIN_SILENCE_S) if s.duration_s >= MIN_SPEECH_S]


class Loudness:
    """The energy of a track in short windows, and which of them are audible.

    A window's energy is its variance, so a DC offset is no sound. Audible is what exceeds the
    floor for at least 10 ms. The floor is 10 dB above the noise and never below -75 dBFS.
    """

    def __init__(self, track: Track, speech: Sequence[Segment]) -> None:
        rate_hz = track.rate_hz
        self._window_s = round(rate_hz * WINDOW_MS / 1000) / rate_hz
        level_db, starts = _levels(track)
        self._starts_s = starts / rate_hz
        noise_db = _noise(level_db, self._within(speech))
        self.floor_dbfs = max(QUIETEST_DBFS, noise_db + FLOOR_MARGIN_DB)
        self.runs = self._audible(level_db > self.floor_dbfs)

    def _within(self, speech: Sequence[Segment]) -> NDArray[np.bool_]:
        """Which windows touch speech."""
        inside = np.zeros(len(self._starts_s), np.bool_)
        for segment in speech:
            borders = (segment.start_s - self._window_s, segment.end_s)
            first, last = np.searchsorted(self._starts_s, borders)
            inside[first:last] = True
        return inside

    def _audible(self, loud: NDArray[np.bool_]) -> list[Segment]:
        """Runs of loud windows as the time of the sound itself.

        A window at the border is loud because of its innermost hop, so the sound begins a window
        less a hop after the first loud window began, and ends a hop after the last one began. A
        sound shorter than that (a click seen by several windows) comes out shorter than the
        10 ms that count as sustained.
        """
        hop_s = HOP_MS / 1000
        found: list[Segment] = []
        for first, last in _runs(loud):
            start_s = float(self._starts_s[first])
            if first > 0:
                start_s += self._window_s - hop_s
            end_s = float(self._starts_s[last - 1])
            end_s += self._window_s if last == len(loud) else hop_s
            if end_s - start_s >= SUSTAIN_MS / 1000:
                found.append(Segment(start_s, end_s))
        return found

    def onset(self, near_s: float) -> float | None:
        """The first audible sample at a detector's edge: the earliest start of a sound within
        reach. None when no sound begins there."""
        starts = [run.start_s for run in self.runs if abs(run.start_s - near_s) <= REACH_S]
        return min(starts, default=None)

    def offset(self, near_s: float) -> float | None:
        """The last audible sample at a detector's edge: the latest end of a sound in reach."""
        ends = [run.end_s for run in self.runs if abs(run.end_s - near_s) <= REACH_S]
        return max(ends, default=None)

    def audible(self, start_s: float, end_s: float) -> list[Segment]:
        """The audible stretches between two moments."""
        cut = (Segment(max(r.start_s, start_s), min(r.end_s, end_s)) for r in self.runs)
        return [segment for segment in cut if segment.duration_s > 0]


@dataclass(frozen=True, slots=True)
class Voice:
    """One side of a call, measured: what the detector and the referee hear, and the energy."""

    segments: Sequence[Segment]
    referee: Sequence[Segment]
    loudness: Loudness
    duration_s: float


def measure_voice(track: Track, detector: Detector, referee: Detector) -> Voice:
    segments = speech_segments(track, detector, DETECTOR_LAG_S)
    heard_by_referee = speech_segments(track, referee)
    return Voice(segments, heard_by_referee, Loudness(track, segments), track.duration_s)


def nearest(segments: Sequence[Segment], edge: Literal["start_s", "end_s"], t_s: float) -> float:
    """The edge of that kind nearest to `t_s`; nan when there is none."""
    edges = [float(getattr(segment, edge)) for segment in segments]
    return min(edges, key=lambda at: abs(at - t_s), default=float("nan"))


def _noise(level_db: NDArray[np.float64], speech: NDArray[np.bool_]) -> float:
    """The 10th percentile of the level between speech, in dBFS.

    Digital silence is left out: a recording put together from clips has the noise of its clips,
    not that of the nothing between them. In such a one only the edges of speech may be left, so
    there noise is what is also far below speech.
    """
    signal = level_db > NO_SIGNAL_DBFS
    between = level_db[signal & ~speech]
    if not len(between):
        return NO_SIGNAL_DBFS
    noise_db = float(np.percentile(between, FLOOR_PERCENTILE))
    if signal.mean() < 1.0 - COMPOSED_SHARE and speech.any():
        noise_db = min(noise_db, float(np.median(level_db[speech])) - BELOW_SPEECH_DB)
    return noise_db


def _levels(track: Track) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Variance of each window in dBFS (a full-scale square wave is 0), and its first sample."""
    samples = track.samples / 32768.0
    window = round(track.rate_hz * WINDOW_MS / 1000)
    if len(samples) < window or window < 2:
        return np.empty(0), np.empty(0, np.int64)
    n_hops = int((len(samples) - window) / track.rate_hz / (HOP_MS / 1000)) + 1
    starts = np.rint(np.arange(n_hops) * track.rate_hz * HOP_MS / 1000).astype(np.int64)
    starts = starts[starts + window <= len(samples)]
    samples = samples - samples.mean()
    sums = np.concatenate(([0.0], np.cumsum(samples)))
    squares = np.concatenate(([0.0], np.cumsum(samples**2)))
    mean = (sums[starts + window] - sums[starts]) / window
    power = (squares[starts + window] - squares[starts]) / window - mean**2
    return 10.0 * np.log10(np.maximum(power, 1e-12)), starts


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """[first, last + 1) of each stretch of true values."""
    if not len(flags):
        return []
    steps = np.diff(np.concatenate(([0], flags.astype(np.int8), [0])))
    return list(
        zip(np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True)
    )


def _joined(segments: Sequence[Segment], min_gap_s: float) -> list[Segment]:
    joined: list[Segment] = []
    for segment in segments:
        if joined and segment.start_s - joined[-1].end_s < min_gap_s:
            joined[-1] = Segment(joined[-1].start_s, segment.end_s)
        else:
            joined.append(segment)
    return joined
