"""Damaged model files are recognised; `test_tts_vits.py` cuts a real one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tts.onnx_graph import Graph, MalformedModel
from stages.tts.vits import DECODER


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
