"""A voice run piece by piece sounds like the whole model, and its first piece is cheap."""

from __future__ import annotations

import numpy as np
import pytest

from stages.tts import onnx_graph
from stages.tts.vits import HOP, PIECES, Vits
from voicepipe.models import path_of

SILENT_NOISE = (0.0, 1.0, 0.0)
"""Without noise a model gives the same sound every time."""


@pytest.mark.models
@pytest.mark.parametrize("n_syllables", [1, 5, 14])
def test_the_pieces_join_to_the_sound_of_the_whole_model(n_syllables: int) -> None:
    (file,) = path_of("piper-en_US-joe-medium").glob("*.onnx")
    tokens = [1, 0, *n_syllables * [20, 0, 59, 0, 24, 0, 27, 0], 2]
    whole = onnx_graph.session(file.read_bytes(), n_threads=1, what="test")
    feed = {
        "input": np.array([tokens]),
        "input_lengths": np.array([len(tokens)]),
        "scales": np.array(SILENT_NOISE, np.float32),
    }
    expected = whole.run(None, feed)[0].reshape(-1)
    lasting, made = Vits(file, n_threads=1).speak(tokens, SILENT_NOISE)
    pieces = list(made)
    assert lasting.sum() == len(expected)
    assert len(lasting) == len(tokens)
    sizes = [len(piece) for piece in pieces]
    assert sizes[0] == min(PIECES[0] * HOP, len(expected))
    assert max(sizes) <= max(PIECES) * HOP
    assert np.abs(np.concatenate(pieces) - expected).max() < 1e-4
