from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from stages.llm.gguf_file import GgufFile
from stages.llm.model_config import Family, tensor_shapes
from stages.llm.safetensors_weights import SafetensorsWeights
from stages.llm.weights import GgufWeights, Weights
from tests.llm_families import FAMILIES, config, write_folder, write_gguf
from voicepipe.errors import ComponentError


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


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbours_that_turn_together_are_halves_apart_in_the_other_format(
    tmp_path: Path, family: Family
) -> None:
    gguf, folder = both(tmp_path, family)
    assert gguf.config.rope_pairs == (family == "llama")
    assert not folder.config.rope_pairs


def test_gemma_gains_multiply_as_they_are(tmp_path: Path) -> None:
    gguf, folder = both(tmp_path, "gemma3")
    for name in ("output_norm.weight", "blk.1.attn_q_norm.weight", "blk.0.post_ffw_norm.weight"):
        assert torch.equal(gguf.tensor(name), folder.tensor(name))
        assert 0.4 < folder.tensor(name).min() < folder.tensor(name).max() < 1.6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = SafetensorsWeights(write_folder(tmp_path / "a", "qwen2"))
    half = SafetensorsWeights(write_folder(tmp_path / "b", "qwen2", dtype=dtype))
    for name in tensor_shapes(whole.config):
        assert half.tensor(name).dtype == torch.float32
        assert torch.equal(half.tensor(name), whole.tensor(name).to(dtype).float())


def test_a_tensor_is_the_callers_own(tmp_path: Path) -> None:
    for weights in both(tmp_path, "qwen3"):
        before = weights.tensor("output_norm.weight").clone()
        weights.tensor("output_norm.weight").zero_()
        assert torch.equal(weights.tensor("output_norm.weight"), before)


def test_shards_are_one_model(tmp_path: Path) -> None:
    whole = SafetensorsWeights(write_folder(tmp_path / "a", "qwen3"))
    shards = SafetensorsWeights(write_folder(tmp_path / "b", "qwen3", n_shards=3))
    for name in tensor_shapes(whole.config):
        assert torch.equal(whole.tensor(name), shards.tensor(name))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_decoder_of_a_multimodal_gemma_is_found(tmp_path: Path, prefix: str) -> None:
    alone = SafetensorsWeights(write_folder(tmp_path / "a", "gemma3"))
    folder = write_folder(tmp_path / "b", "gemma3")
    stored = load_file(folder / "model.safetensors")
    moved = {prefix + name.removeprefix("model."): t for name, t in stored.items()}
    moved |= {"vision_tower.x": torch.zeros(1), "multi_modal_projector.y": torch.zeros(1)}
    save_file(moved, folder / "model.safetensors")
    values = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config("gemma3")}
    (folder / "config.json").write_text(json.dumps(values))
    weights = SafetensorsWeights(folder)
    for name in tensor_shapes(alone.config):
        assert torch.equal(weights.tensor(name), alone.tensor(name))


def test_a_tied_head_is_not_read_twice(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", "llama")
    stored = load_file(folder / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(stored, folder / "model.safetensors")
    assert not SafetensorsWeights(folder).has("output.weight")
    folder = write_folder(tmp_path / "untied", "llama", tie_word_embeddings=False)
    assert SafetensorsWeights(folder).has("output.weight")


def read_all(weights: Weights) -> None:
    for name in tensor_shapes(weights.config):
        weights.tensor(name)


def refusal(folder: Path) -> str:
    with pytest.raises(ComponentError) as error:
        read_all(SafetensorsWeights(folder))
    message = str(error.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    stored = load_file(folder / "model.safetensors")
    change(stored)
    save_file(stored, folder / "model.safetensors")


def test_a_missing_misshapen_or_unknown_tensor_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", "qwen2")
    bias = "model.layers.2.self_attn.k_proj.bias"
    rewrite(folder, lambda stored: stored.update({bias: torch.zeros(3)}))
    assert "blk.2.attn_k.bias has shape (3,), not (16,)" in refusal(folder)
    rewrite(folder, lambda stored: stored.__delitem__(bias))
    assert "blk.2.attn_k.bias is missing" in refusal(folder)
    folder = write_folder(tmp_path / "b", "qwen2")
    rewrite(folder, lambda s: s.update({"model.layers.0.mlp.experts.weight": torch.zeros(3)}))
    assert "model.layers.0.mlp.experts.weight" in refusal(folder)


def test_a_tensor_of_integers_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", "llama")
    rewrite(folder, lambda stored: stored.update({"model.norm.weight": torch.zeros(32).int()}))
    assert "I32" in refusal(folder)


def test_a_missing_or_truncated_file_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", "llama", n_shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    for n_bytes in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:n_bytes])
        assert shard.name in refusal(folder)
    shard.unlink()
    assert shard.name in refusal(folder)
    (folder / "model.safetensors.index.json").unlink()
    assert "model.safetensors" in refusal(folder)


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": {}},
        {"weight_map": 3},
        {"weight_map": {"a": 3}},
        {"weight_map": {"a": "../../etc/x.safetensors"}},
        {"weight_map": {"a": ["b"]}},
    ],
)
def test_an_index_that_names_no_files_of_the_folder_is_refused(
    tmp_path: Path, index: object
) -> None:
    folder = write_folder(tmp_path / "hf", "llama", n_shards=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "index.json" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "shape"), [("attn_q_norm", (8,)), ("ffn_up", (64, 8)), ("attn_q", (32, 32))]
)
def test_a_misshapen_gguf_tensor_is_named(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen3")
    file = GgufFile(path)
    whole = file.tensors[f"blk.1.{name}.weight"]
    file.tensors[f"blk.1.{name}.weight"] = replace(whole, shape=shape)
    with pytest.raises(ComponentError) as error:
        GgufWeights(file)
    assert f"blk.1.{name}.weight has shape {shape}" in str(error.value)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_corrupted_header_never_does_worse_than_an_error(data: st.DataObject) -> None:
    folder = tiny_folder()
    whole = tiny_bytes()
    n_header = 8 + int.from_bytes(whole[:8], "little")
    stored = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, n_header - 1), min_size=1, max_size=3)):
        stored[at] = data.draw(st.integers(0, 255))
    n_bytes = data.draw(st.just(len(stored)) | st.integers(0, len(stored)))
    (folder / "model.safetensors").write_bytes(stored[:n_bytes])
    with suppress(ComponentError):
        read_all(SafetensorsWeights(folder))


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 3000), value=st.integers(0, 255))
def test_a_corrupted_gguf_header_never_does_worse_than_an_error(at: int, value: int) -> None:
    path = tiny_gguf()
    stored = bytearray(path.read_bytes())
    stored[at] = value
    flipped = path.with_name("flipped.gguf")
    flipped.write_bytes(stored)
    with suppress(ComponentError):
        read_all(GgufWeights(GgufFile(flipped)))


@functools.cache
def tiny_folder() -> Path:
    return write_folder(Path(tempfile.mkdtemp(prefix="voicepipe-tiny-")), "qwen2")


@functools.cache
def tiny_bytes() -> bytes:
    return (tiny_folder() / "model.safetensors").read_bytes()


@functools.cache
def tiny_gguf() -> Path:
    return write_gguf(Path(tempfile.mkdtemp(prefix="voicepipe-tiny-")) / "m.gguf", "gemma3")
