"""Cutting a model in two changes nothing, and damaged files are recognised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tts import onnx_graph
from stages.tts.onnx_graph import Graph, MalformedModel
from stages.tts.piper import CONTEXT, DECODER, HOP
from voicepipe.models import path_of


@given(model=st.binary(max_size=200))
def test_any_bytes_are_a_graph_or_malformed(model: bytes) -> None:
    try:
        graph = Graph(model)
    except MalformedModel:
        return
    assert graph.nodes


@given(prefix=st.binary(max_size=20))
def test_a_graph_of_any_content_is_read_or_malformed(prefix: bytes) -> None:
    node = bytes([1 << 3 | 2, len(prefix)]) + prefix
    try:
        graph = Graph(bytes([7 << 3 | 2, len(node)]) + node)
    except MalformedModel:
        return
    with pytest.raises(MalformedModel):
        graph.split(DECODER, also=[])


def test_a_truncated_model_is_malformed() -> None:
    node = bytes([1 << 3 | 2, 3]) + b"out"
    graph = bytes([1 << 3 | 2, 0, 5 << 3 | 2, 0, 2 << 3 | 2, len(node)]) + node
    model = bytes([7 << 3 | 2, len(graph)]) + graph
    assert Graph(model).nodes
    for size in range(len(model)):
        with pytest.raises(MalformedModel):
            Graph(model[:size])


@pytest.mark.models
def test_a_piper_voice_in_pieces_sounds_like_the_whole() -> None:
    (file,) = path_of("piper-en_US-joe-medium").glob("*.onnx")
    model = file.read_bytes()
    first, second, (latent,) = Graph(model).split(DECODER, also=[])
    tokens = np.array([[1, 0, *(int(i) for i in np.tile([20, 0, 59, 0, 24, 0, 27, 0], 6)), 2]])
    feed = {
        "input": tokens,
        "input_lengths": np.array([tokens.shape[1]]),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),  # no noise: the same sound every time
    }
    whole, encoder, decoder = (
        onnx_graph.session(part, n_threads=1, what="test") for part in (model, first, second)
    )
    expected = whole.run(None, feed)[0].reshape(-1)
    (frames,) = encoder.run(None, feed)
    n_frames = frames.shape[2]
    assert len(expected) == n_frames * HOP
    joined = []
    for start in range(0, n_frames, 7):
        low, high = max(0, start - CONTEXT), min(n_frames, start + 7 + CONTEXT)
        sound = decoder.run(None, {latent: frames[:, :, low:high]})[0].reshape(-1)
        joined.append(sound[(start - low) * HOP : (min(start + 7, n_frames) - low) * HOP])
    assert np.abs(np.concatenate(joined) - expected).max() < 1e-4
