"""Voice activity: two detectors of one Protocol, each fed 10 ms frames of one caller stream."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime as ort
import webrtcvad

from turn_detection.onnx import open_model
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame
from voicepipe.protocols import VoiceActivityDetector


class VoiceActivityModel(Protocol):
    """A loaded model that makes the detector of each caller stream."""

    def open(self) -> VoiceActivityDetector: ...


class SileroVAD:
    """Silero VAD (ONNX, MIT): whether somebody *speaks*, not merely makes noise.

    The weights are shared; `open` makes the state of one stream. ~0.2 ms each 32 ms on one thread.
    """

    def __init__(self, model_path: str | Path) -> None:
        """Raises `ComponentError` when the file is missing, broken or another model."""
        self._session = open_model(
            Path(model_path), what="silero vad", inputs=["input", "state", "sr"], n_threads=1
        )

    def open(self) -> SileroStream:
        return SileroStream(self._session)


class SileroStream:
    """One caller stream through Silero VAD.

    The model takes 512 new samples *preceded by the last 64 of the chunk before*: without that
    context it reports no speech, silently. So its answer changes every 32 ms.
    """

    N_CHUNK = 512
    N_CONTEXT = 64

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._input = np.zeros((1, self.N_CONTEXT + self.N_CHUNK), np.float32)
        self._state = np.zeros((2, 1, 128), np.float32)
        self._rate = np.array(CALLER_RATE_HZ, np.int64)
        self._n_filled = 0
        self._probability = 0.0

    def hear(self, frame: AudioFrame) -> float:
        """Speech probability of the last whole chunk; 0 before the first. Frames of any length."""
        samples = frame.samples
        while len(samples):
            start = self.N_CONTEXT + self._n_filled
            n = min(len(samples), self.N_CHUNK - self._n_filled)
            self._input[0, start : start + n] = samples[:n] / np.float32(32768)
            samples = samples[n:]
            self._n_filled += n
            if self._n_filled == self.N_CHUNK:
                self._run()
        return self._probability

    def _run(self) -> None:
        feeds = {"input": self._input, "state": self._state, "sr": self._rate}
        output, self._state = self._session.run(None, feeds)
        self._probability = float(output[0, 0])
        self._input[0, : self.N_CONTEXT] = self._input[0, self.N_CHUNK :]
        self._n_filled = 0


class WebRtcVAD:
    """webrtcvad, the 10 ms referee: fast and independent, but it takes much noise for speech."""

    def __init__(self, *, aggressiveness: int = 2) -> None:
        """`aggressiveness` 0 (hears speech everywhere) .. 3."""
        self._aggressiveness = aggressiveness

    def open(self) -> WebRtcStream:
        return WebRtcStream(self._aggressiveness)


class WebRtcStream:
    """One caller stream through webrtcvad."""

    def __init__(self, aggressiveness: int) -> None:
        self._vad = webrtcvad.Vad(aggressiveness)

    def hear(self, frame: AudioFrame) -> float:
        """1.0 or 0.0 for this frame of 10, 20 or 30 ms at 16 kHz."""
        return float(self._vad.is_speech(frame.samples.tobytes(), frame.sample_rate_hz))
