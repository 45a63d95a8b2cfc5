"""Whether the caller speaks: Silero says what is speech, energy says where it begins and ends,
webrtcvad shortens the wait for the former."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from turn_detection.energy import EnergyPause
from turn_detection.vad import VoiceActivityModel, WebRtcVAD
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame

_MS = CALLER_RATE_HZ // 1000


@dataclass(frozen=True, slots=True)
class VoiceConfig:
    """Thresholds on the VAD's probability and lengths of silence.

    Measured on synthetic and human clips (benchmarks/turns.py): speech is noticed 40-130 ms after
    its first sample; fluent speech has a gap of 100 ms once every 7 s.
    """

    on: float = 0.5
    off: float = 0.35
    likely: float = 0.25
    """Enough when webrtcvad has heard speech in each of the last 40 ms of loud sound."""
    energy_pause_ms: int = 100
    """Silence by energy that is a pause when the VAD does not insist on speech."""
    stuck_ms: int = 300
    """Silence by energy that is a pause whatever the VAD says."""
    vad_pause_ms: int = 100
    """No speech by the VAD that is a pause whatever the energy (noise goes on)."""
    clear_db: float = 20.0
    """Energy has a say only while the speech stands this far above its threshold: in noise the
    weak end of a word drowns long before the VAD stops hearing it."""
    preroll_ms: int = 500
    """How far back the first voiced sample may lie."""


@dataclass(frozen=True, slots=True)
class VoiceEdge:
    """The caller's voice began at sample `at` (the first voiced one), or ended there (one past the
    last voiced one)."""

    began: bool
    at: int


class Voice:
    """The edges of the voice in one caller stream."""

    def __init__(self, vad: VoiceActivityModel | None, config: VoiceConfig | None = None) -> None:
        self._config = config or VoiceConfig()
        self._energy = EnergyPause()
        self._referee = WebRtcVAD().open()
        self._vad = vad.open() if vad else None
        self._agreed = deque([False] * 4, maxlen=4)
        self._speaking = False
        self._armed = True
        """The VAD has been silent since the last edge; else it may be stuck."""
        self._last_edge = 0
        self._last_speech = 0
        """One past the last sample that the VAD took for speech."""
        self._peak_dbfs = -math.inf
        """Level of the loudest frame since the voice began."""

    def hear(self, frame: AudioFrame) -> VoiceEdge | None:
        """The next 10 ms frame; at most one edge becomes known with it."""
        loud = self._energy.hear(frame)
        refereed = self._referee.hear(frame) >= 0.5
        self._agreed.append(loud and refereed)
        probability = self._vad.hear(frame) if self._vad else float(all(self._agreed))
        if probability >= self._config.off:
            self._last_speech = frame.end_sample
        if self._speaking:
            return self._until_silence(frame, probability)
        return self._until_speech(frame, probability)

    def _until_speech(self, frame: AudioFrame, probability: float) -> VoiceEdge | None:
        config = self._config
        if probability < config.off:
            self._armed = True
        heard = frame.end_sample - self._energy.last_loud < config.energy_pause_ms * _MS
        sure = probability >= config.on and (heard or self._armed)
        if not sure and not (probability >= config.likely and all(self._agreed)):
            return None
        earliest = max(self._last_edge, frame.end_sample - config.preroll_ms * _MS)
        first_loud = self._energy.first_loud(earliest=earliest) if heard else None
        at = frame.start_sample if first_loud is None else first_loud
        self._speaking, self._last_edge = True, at
        self._last_speech = frame.end_sample
        self._peak_dbfs = -math.inf
        return VoiceEdge(True, at)

    def _until_silence(self, frame: AudioFrame, probability: float) -> VoiceEdge | None:
        config = self._config
        self._peak_dbfs = max(self._peak_dbfs, self._energy.level_dbfs)
        clear = self._peak_dbfs - self._energy.threshold_dbfs >= config.clear_db
        quiet = frame.end_sample - self._energy.last_loud if clear else 0
        speechless = frame.end_sample - self._last_speech
        if quiet >= (config.energy_pause_ms if probability < config.on else config.stuck_ms) * _MS:
            at = self._energy.last_loud
        elif speechless >= config.vad_pause_ms * _MS:
            at = self._last_speech
        else:
            return None
        self._speaking, self._armed, self._last_edge = False, probability < config.off, at
        return VoiceEdge(False, at)
