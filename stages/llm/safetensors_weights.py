"""A model's weights from a Hugging Face folder: config.json and *.safetensors, maybe in shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from stages.llm.gguf_blocks import Blocks, in_8_bits
from stages.llm.json_config import json_config, read_json
from stages.llm.model_config import Family, ModelConfig, tensor_shapes
from stages.llm.weights import check_tensors
from voicepipe.errors import ComponentError

PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""Where the decoder is: alone, or in a multimodal Gemma 3 (before and since transformers 4.52)."""
HEADS = ("lm_head.weight", "language_model.lm_head.weight")
OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.",
               "model.multi_modal_projector.")  # fmt: skip
"""Parts of a multimodal model that no conversation in text needs."""
COMPUTED = ".rotary_emb.inv_freq"
"""Frequencies that old checkpoints store, though they follow from the config."""
FLOATS = ("F32", "F16", "BF16")

OUTER = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
GEMMA3_LAYER = LAYER | {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}


class SafetensorsWeights:
    """`Weights` of a model folder. Raises ComponentError when it is no complete model of a
    supported family."""

    def __init__(self, folder: Path) -> None:
        self.config: ModelConfig = json_config(folder)
        self._folder = folder
        self._files = {path: _opened(path) for path in _paths(folder)}
        self._places: dict[str, tuple[safe_open, str]] = {}
        self._find_tensors()
        check_tensors(
            f"model folder {folder}",
            tensor_shapes(self.config),
            {
                name: tuple(file.get_slice(stored).get_shape())
                for name, (file, stored) in self._places.items()
            },
        )

    def has(self, name: str) -> bool:
        return name in self._places

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._places:
            raise ComponentError(
                f"model folder {self._folder}: tensor {name} is missing: fetch the model again"
            )
        file, stored = self._places[name]
        kind = file.get_slice(stored).get_dtype()
        if kind not in FLOATS:
            raise ComponentError(
                f"model folder {self._folder}: tensor {stored} has type {kind}, which is not "
                f"supported: use a model in {', '.join(FLOATS)}"
            )
        tensor: torch.Tensor = file.get_tensor(stored).to(torch.float32, copy=True)
        if self.config.family == "gemma3" and name.endswith("norm.weight"):
            return tensor + 1.0  # Gemma stores gains around 0
        return tensor

    def blocks(self, name: str) -> Blocks:
        return in_8_bits(self.tensor(name))

    def _find_tensors(self) -> None:
        stored = {name: file for file in self._files.values() for name in file.keys()}  # noqa: SIM118
        prefix = next((p for p in PREFIXES if f"{p}embed_tokens.weight" in stored), PREFIXES[0])
        for name, file in stored.items():
            if name.startswith(OTHER_PARTS) or name.endswith(COMPUTED):
                continue
            if name in HEADS:
                if not self.config.is_tied:
                    self._places["output.weight"] = file, name
                continue
            canonical = canonical_name(self.config.family, name.removeprefix(prefix))
            self._places[canonical or name] = file, name


def canonical_name(family: Family, name: str) -> str | None:
    """The GGUF name of a tensor that the checkpoint calls `name`, without the decoder's prefix;
    None when it has none."""
    parts = name.split(".", 2)
    if parts[0] != "layers" or len(parts) < 3:
        return OUTER.get(name)
    of_layer: Mapping[str, str] = GEMMA3_LAYER if family == "gemma3" else LAYER
    return f"blk.{parts[1]}.{of_layer[parts[2]]}" if parts[2] in of_layer else None


def _paths(folder: Path) -> list[Path]:
    """The files with the weights: one, or the shards that the index names."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists() or not index.exists():
        return [single]
    places = read_json(index).get("weight_map")
    names = list(places.values()) if isinstance(places, Mapping) else []
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ComponentError(
            f"model file {index}: its weight_map names no files of this folder: fetch the model "
            "again"
        )
    return [folder / name for name in sorted(set(names))]


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ComponentError(
            f"model file {path}: cannot be read ({error}): fetch the model again"
        ) from error
