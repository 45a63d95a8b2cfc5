"""Tiny random models of every supported family, as Hugging Face folders and as GGUF files.

The names in GGUF files come from the `gguf` package's own table, what else changes on the way from
one format to the other is written out here, as in llama.cpp's convert_hf_to_gguf.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from gguf.constants import RopeScalingType
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from stages.llm.model_config import Family
from tests import llm_tiny

FAMILIES: tuple[Family, ...] = get_args(Family)
N_LAYERS, N_EMBED, N_FFN, N_HEADS, N_KV, N_CONTEXT = 4, 32, 64, 4, 2, 256
WINDOW = 8
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
Config = dict[str, Any]
Tensors = dict[str, NDArray[np.float32]]


def head_size(family: Family) -> int:
    return 8 if family in ("llama", "qwen2") else 16


def config(family: Family, **changes: Any) -> Config:
    """The config.json of a tiny model, with `changes`."""
    common: Config = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": "gemma3_text" if family == "gemma3" else family,
        "vocab_size": len(llm_tiny.vocabulary()),
        "hidden_size": N_EMBED,
        "intermediate_size": N_FFN,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV,
        "max_position_embeddings": N_CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50_000.0,
        "tie_word_embeddings": family in ("llama", "gemma3"),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    own: dict[Family, Config] = {
        "llama": {"hidden_act": "silu"},
        "qwen2": {"hidden_act": "silu", "use_sliding_window": False, "sliding_window": 64},
        "qwen3": {"hidden_act": "silu", "head_dim": head_size(family), "attention_bias": False},
        "gemma3": {
            "hidden_activation": "gelu_pytorch_tanh",
            "head_dim": head_size(family),
            "query_pre_attn_scalar": head_size(family),
            "rope_local_base_freq": 1_000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
        },
    }
    return common | own[family] | changes


def tensors(family: Family, *, tied: bool, seed: int = 7) -> Tensors:
    """Random weights by Hugging Face name."""
    rng = np.random.default_rng(seed)
    size = head_size(family)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        return np.asarray(rng.normal(size=(rows, columns)) * scale / columns**0.5, np.float32)

    def gain(n: int) -> NDArray[np.float32]:
        around = 0.0 if family == "gemma3" else 1.0
        return np.asarray(around + rng.uniform(-0.5, 0.5, n), np.float32)

    found: Tensors = {
        "model.embed_tokens.weight": matrix(len(llm_tiny.vocabulary()), N_EMBED, 4.0),
        "model.norm.weight": gain(N_EMBED),
    }
    if not tied:
        found["lm_head.weight"] = matrix(len(llm_tiny.vocabulary()), N_EMBED)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family == "gemma3":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for n in range(N_LAYERS):
        p = f"model.layers.{n}."
        for name, heads in (("q", N_HEADS), ("k", N_KV), ("v", N_KV)):
            found[f"{p}self_attn.{name}_proj.weight"] = matrix(heads * size, N_EMBED, 2.0)
            if family == "qwen2":
                found[f"{p}self_attn.{name}_proj.bias"] = matrix(1, heads * size)[0]
            if family in ("qwen3", "gemma3") and name != "v":
                found[f"{p}self_attn.{name}_norm.weight"] = gain(size)
        found[f"{p}self_attn.o_proj.weight"] = matrix(N_EMBED, N_HEADS * size)
        found[f"{p}mlp.gate_proj.weight"] = matrix(N_FFN, N_EMBED)
        found[f"{p}mlp.up_proj.weight"] = matrix(N_FFN, N_EMBED)
        found[f"{p}mlp.down_proj.weight"] = matrix(N_EMBED, N_FFN)
        found |= {f"{p}{norm}.weight": gain(N_EMBED) for norm in norms}
    return found


def write_folder(
    folder: Path,
    family: Family,
    *,
    dtype: torch.dtype = torch.float32,
    n_shards: int = 1,
    prefix: str = "",
    **changes: Any,
) -> Path:
    """A model folder with config, weights, tokenizer and chat template. `prefix` goes before the
    names of all tensors; `changes` change config.json, and so what weights there are."""
    folder.mkdir(exist_ok=True)
    values = config(family, **changes)
    (folder / "config.json").write_text(json.dumps(values))
    named = tensors(family, tied=values["tie_word_embeddings"] is True)
    stored = {prefix + name: torch.from_numpy(t).to(dtype) for name, t in named.items()}
    names = sorted(stored)
    shards = [names[n::n_shards] for n in range(n_shards)]
    files = [f"model-{n + 1:05}-of-{n_shards:05}.safetensors" for n in range(n_shards)]
    if n_shards == 1:
        files = ["model.safetensors"]
    else:
        places = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for file, shard in zip(files, shards, strict=True):
        save_file({name: stored[name] for name in shard}, folder / file)
    write_tokenizer(folder)
    return folder


def write_tokenizer(
    folder: Path, *, template: str = llm_tiny.CHATML, bos: str | None = None
) -> None:
    """tokenizer.json and tokenizer_config.json with llm_tiny's vocabulary; `bos` is put before
    every text."""
    ids = {token: n for n, token in enumerate(llm_tiny.vocabulary())}
    pairs = [(left, right) for left, _, right in (m.partition(" ") for m in llm_tiny.MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in llm_tiny.SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": llm_tiny.SPECIAL[0],
                "eos_token": {"content": llm_tiny.SPECIAL[2], "special": True},
                "add_bos_token": bos is not None,
                "chat_template": template,
            }
        )
    )


def write_gguf(
    path: Path,
    family: Family,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    rope_factors: Sequence[float] = (),
    metadata: Config | None = None,
    **changes: Any,
) -> Path:
    """The same model in one GGUF file; matrices are stored as `kind`. `rope_factors` are what
    `rope_scaling` in config.json comes to; `metadata` says otherwise than the weights are."""
    values = config(family, **changes)
    writer = GGUFWriter(path, family)
    _write_fields(writer, family, values | (metadata or {}))
    llm_tiny.write_tokenizer(writer)
    names = get_tensor_name_map(MODEL_ARCH[family.upper()], N_LAYERS)
    for name, tensor in tensors(family, tied=values["tie_word_embeddings"] is True).items():
        converted = _converted(family, name, tensor)
        of = kind if tensor.ndim == 2 else GGMLQuantizationType.F32
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        writer.add_tensor(gguf_name, quantize(converted, of), raw_dtype=of)
    if rope_factors:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_fields(writer: GGUFWriter, family: Family, values: Config) -> None:
    writer.add_block_count(values["num_hidden_layers"])
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(values["hidden_size"])
    writer.add_feed_forward_length(values["intermediate_size"])
    writer.add_head_count(values["num_attention_heads"])
    writer.add_head_count_kv(values["num_key_value_heads"])
    writer.add_rope_freq_base(values["rope_theta"])
    writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    if family in ("qwen3", "gemma3"):
        writer.add_key_length(values["head_dim"])
        writer.add_value_length(values["head_dim"])
    if family == "gemma3":
        writer.add_rope_freq_base_swa(values["rope_local_base_freq"])
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(2.0)
        writer.add_sliding_window(values["sliding_window"])
        if values["sliding_window_pattern"] is not None:
            writer.add_sliding_window_pattern(values["sliding_window_pattern"])


def _converted(family: Family, name: str, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
    if family == "gemma3" and name.endswith("norm.weight"):
        return tensor + np.float32(1.0)
    if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        halves = tensor.reshape(-1, 2, head_size(family) // 2, tensor.shape[1])
        return halves.swapaxes(1, 2).reshape(tensor.shape)
    return tensor
