"""Smart Turn v3.2: does the caller's prosody sound finished?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from turn_detection.log_mel import N_FRAMES, N_MELS, log_mel
from turn_detection.onnx import open_model
from voicepipe.protocols import Float32


class SmartTurn:
    """An `EndOfTurnModel` over pipecat-ai/smart-turn-v3 (ONNX int8, BSD-2).

    ~100 ms of one CPU thread a call, so it runs beside the STT's finalisation. Safe to share
    between sessions; calls from several threads are independent.
    """

    def __init__(self, model_path: str | Path, *, n_threads: int = 1) -> None:
        """Loads the model and scores silence once, so that the first caller waits no longer than
        the tenth and a broken file is found here. Raises `ComponentError`."""
        self._session = open_model(
            Path(model_path), what="smart turn", inputs=["input_features"], n_threads=n_threads
        )
        self.probability(np.zeros(0, np.float32))

    def probability(self, samples: Float32) -> float:
        """P(the turn is over) given the turn's 16 kHz audio so far, [n] in -1..1, ending in the
        silence after it. Only the last 8 s count."""
        features = log_mel(samples).reshape(1, N_MELS, N_FRAMES)
        # named "logits" in the file, but the graph ends in a sigmoid
        (output,) = self._session.run(None, {"input_features": features})
        return float(np.asarray(output).flat[0])
