"""Logits against Hugging Face transformers, on a tiny random model of each family."""

from __future__ import annotations

import functools
import logging
import tempfile
from pathlib import Path

import pytest
import torch
import transformers

from stages.llm.gguf_file import GgufFile
from stages.llm.model_config import Family
from stages.llm.safetensors_weights import SafetensorsWeights
from stages.llm.transformer import Rows, load_model
from stages.llm.weights import GgufWeights, Weights
from tests import llm_families

N_TOKENS = 60
IDS = [n * n % llm_families.config("llama")["vocab_size"] for n in range(N_TOKENS)]
LARGEST_DIFFERENCE = 1e-4


@functools.cache
def files(family: Family) -> tuple[Path, Path]:
    """A folder and a GGUF file with the same model."""
    parent = Path(tempfile.mkdtemp(prefix="voicepipe-family-"))
    folder = llm_families.write_folder(parent / "folder", family)
    return folder, llm_families.write_gguf(parent / "model.gguf", family)


@functools.cache
def theirs(family: Family) -> torch.Tensor:
    """What transformers computes, [N_TOKENS, vocabulary]."""
    folder, _ = files(family)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([IDS])).logits[0]
    return logits


def ours(weights: Weights) -> torch.Tensor:
    model = load_model(weights, n_positions=64, precision="float32")
    rows = Rows(IDS, 0, range(N_TOKENS), [(0, N_TOKENS)], N_TOKENS)
    return model.step(model.new_store(64), [rows])


@pytest.mark.parametrize("family", llm_families.FAMILIES)
def test_logits_are_those_of_transformers(family: Family) -> None:
    folder, gguf = files(family)
    expected = theirs(family)
    assert float(expected.std()) > 0.5, "all tokens alike would hide mistakes"
    for weights in (SafetensorsWeights(folder), GgufWeights(GgufFile(gguf))):
        largest = float((ours(weights) - expected).abs().max())
        logging.info("%s: %.1e of %.1f", family, largest, float(expected.abs().max()))
        assert largest < LARGEST_DIFFERENCE
