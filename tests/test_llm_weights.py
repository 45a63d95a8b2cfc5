from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.llm.gguf_file import GgufFile
from stages.llm.model_config import Family, tensor_shapes
from stages.llm.safetensors_weights import SafetensorsWeights
from stages.llm.weights import GgufWeights, Weights
from tests.llm_families import FAMILIES, write_folder, write_gguf


def both(tmp_path: Path, family: Family) -> tuple[Weights, Weights]:
    return (
        GgufWeights(GgufFile(write_gguf(tmp_path / "m.gguf", family))),
        SafetensorsWeights(write_folder(tmp_path / "hf", family)),
    )


def in_pairs(tensor: torch.Tensor, head_size: int) -> torch.Tensor:
    """Rows of queries or keys in halves, as neighbouring pairs."""
    halves = tensor.view(-1, 2, head_size // 2, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_formats_have_the_same_model(tmp_path: Path, family: Family) -> None:
    gguf, folder = both(tmp_path, family)
    same_but_eps = replace(folder.config, norm_eps=gguf.config.norm_eps)
    assert replace(gguf.config, rope_pairs=False) == same_but_eps
    assert gguf.config.norm_eps == pytest.approx(folder.config.norm_eps)
    for name, shape in tensor_shapes(gguf.config).items():
        ours, theirs = gguf.tensor(name), folder.tensor(name)
        if (gguf.config.rope_pairs and "attn_q" in name) or "attn_k" in name:
            theirs = in_pairs(theirs, gguf.config.head_size) if family == "llama" else theirs
        assert ours.shape == shape
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs), name
