"""Turn detection's parts with a will of their own: for tests, demos and replays without models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from voicepipe.frames import AudioFrame
from voicepipe.protocols import Float32


class ScriptedVAD:
    """A VAD that hears speech where it is told to, or, told nothing, wherever it is loud."""

    def __init__(
        self, spans_s: Sequence[tuple[float, float]] | None = None, *, loud_dbfs: float = -40.0
    ) -> None:
        """`spans_s` are (start, end) of speech in media seconds; None takes every frame whose
        level reaches `loud_dbfs` for speech."""
        self._spans_s = None if spans_s is None else tuple(spans_s)
        self._loud_dbfs = loud_dbfs

    def open(self) -> ScriptedVADStream:
        return ScriptedVADStream(self._spans_s, self._loud_dbfs)


class ScriptedVADStream:
    """One caller stream; stateless."""

    def __init__(self, spans_s: tuple[tuple[float, float], ...] | None, loud_dbfs: float) -> None:
        self._spans_s = spans_s
        self._loud_power = 32768.0**2 * 10.0 ** (loud_dbfs / 10.0)

    def hear(self, frame: AudioFrame) -> float:
        """1.0 when the middle of the frame is speech, else 0.0."""
        if self._spans_s is None:
            return float(np.mean(np.square(frame.samples, dtype=np.float64)) >= self._loud_power)
        middle_s = (frame.start_s + frame.end_s) / 2
        return float(any(start <= middle_s < end for start, end in self._spans_s))


class ScriptedEndOfTurn:
    """An end-of-turn model that answers from a script.

    `answers` is either the probabilities of successive calls, the last one repeated for ever, or
    a function of the audio. Thread-safe only as far as the function is.
    """

    def __init__(self, answers: Sequence[float] | Callable[[Float32], float] = (0.9,)) -> None:
        self._answers = answers
        self.n_calls = 0

    def probability(self, samples: Float32) -> float:
        self.n_calls += 1
        if callable(self._answers):
            return self._answers(samples)
        return self._answers[min(self.n_calls, len(self._answers)) - 1]
