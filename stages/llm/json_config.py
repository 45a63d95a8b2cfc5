"""A model's config from the `config.json` of a Hugging Face model folder.

Defaults are those of the configuration classes in transformers, which leave out of the file what
equals them (the text part of a multimodal Gemma 3 is four lines).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from stages.llm.model_config import (
    GEMMA3_WINDOW_PATTERN,
    Family,
    ModelConfig,
    gemma3_sliding_layers,
    llama3_rope_factors,
)
from voicepipe.errors import ComponentError

Json = Mapping[str, object]

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
}
COMMON = {"max_position_embeddings": 32_768, "rope_theta": 10_000.0, "rms_norm_eps": 1e-6}
DEFAULTS: dict[Family, Json] = {
    "llama": COMMON | {"max_position_embeddings": 2_048},
    "qwen2": COMMON | {"num_key_value_heads": 32},
    "qwen3": COMMON | {"num_key_value_heads": 32, "head_dim": 128},
    "gemma3": COMMON
    | {
        "vocab_size": 262_208,
        "hidden_size": 2_304,
        "intermediate_size": 9_216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4_096,
        "tie_word_embeddings": True,
    },
}
LLAMA3_SCALING = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


def json_config(folder: Path) -> ModelConfig:
    """The config of the model in `folder`. Raises ComponentError when its config.json is missing,
    broken, of an unsupported architecture, or has an impossible number."""
    path = folder / "config.json"
    whole = read_json(path)
    names = whole.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ComponentError(
            f"model file {path}: architecture {name!r} is not supported: use a model of one of "
            f"{', '.join(ARCHITECTURES)}"
        )
    if "quantization_config" in whole:
        raise ComponentError(
            f"model file {path}: quantised safetensors are not supported: use the original model, "
            "or a GGUF file"
        )
    values = whole.get("text_config", {}) if name == "Gemma3ForConditionalGeneration" else whole
    try:
        if not isinstance(values, Mapping):
            raise ValueError(f"text_config is {values!r}")
        return _Fields(ARCHITECTURES[name], values).config()
    except (ValueError, ArithmeticError) as error:
        raise ComponentError(
            f"model file {path}: this model cannot be used ({error}): use another model, or fetch "
            "it again if it should be one of a supported family"
        ) from error


def read_json(path: Path) -> Json:
    """The JSON object in `path`. Raises ComponentError when there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ComponentError(
            f"model file {path}: cannot be read ({error}): fetch the model again"
        ) from error
    if not isinstance(value, dict):
        raise ComponentError(f"model file {path}: it is no JSON object: fetch the model again")
    return value


class _Fields:
    """The values of one config.json. Raises ValueError for what is unsound or unsupported."""

    def __init__(self, family: Family, values: Json) -> None:
        self._family = family
        given = {key: value for key, value in values.items() if value is not None}
        self._values: Json = {**DEFAULTS[family], **given}

    def config(self) -> ModelConfig:
        self._refuse_unsupported()
        n_layers, n_embed = self._count("num_hidden_layers"), self._count("hidden_size")
        n_heads = self._count("num_attention_heads")
        head_size = self._count("head_dim", n_embed // max(n_heads, 1))
        full, local_base = self._rope()
        scaling = full.get("rope_type", full.get("type", "default"))
        if scaling not in ("default", "linear", "llama3"):
            raise ValueError(
                f"rope scaling {scaling!r} is not supported, only default, linear and llama3"
            )
        rope_base = _number(full, "rope_theta")
        sliding = self._sliding_layers(n_layers)
        return ModelConfig(
            family=self._family,
            n_layers=n_layers,
            n_embed=n_embed,
            n_ffn=self._count("intermediate_size"),
            n_heads=n_heads,
            n_kv_heads=self._count("num_key_value_heads", n_heads),
            head_size=head_size,
            n_context=self._count("max_position_embeddings"),
            n_vocabulary=self._count("vocab_size"),
            norm_eps=_number(self._values, "rms_norm_eps"),
            rope_base=rope_base,
            attention_scale=1.0
            / math.sqrt(_number(self._values, "query_pre_attn_scalar", head_size)),
            rope_scale=_number(full, "factor") if scaling == "linear" else 1.0,
            rope_factors=(
                llama3_rope_factors(
                    rope_base, head_size, {key: _number(full, key) for key in LLAMA3_SCALING}
                )
                if scaling == "llama3"
                else ()
            ),
            rope_local_base=local_base,
            window=self._count("sliding_window") if any(sliding) else 0,
            sliding_layers=sliding,
            attention_bias=self._family == "qwen2",
            is_tied=self._values.get("tie_word_embeddings") is True,
            attention_softcap=_number(self._values, "attn_logit_softcapping", 0.0),
            final_softcap=_number(self._values, "final_logit_softcapping", 0.0),
        )

    def _refuse_unsupported(self) -> None:
        for key in ("attention_bias", "mlp_bias", "use_bidirectional_attention"):
            if self._values.get(key) and not (self._family == "qwen2" and key == "attention_bias"):
                raise ValueError(f"{key} is {self._values[key]!r}, which is not supported")
        if self._family != "gemma3" and self._values.get("use_sliding_window"):
            raise ValueError(f"use_sliding_window is not supported for {self._family}")
        if self._values.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError("heads that are rotated in part are not supported")
        key = "hidden_activation" if self._family == "gemma3" else "hidden_act"
        usual = "gelu_pytorch_tanh" if self._family == "gemma3" else "silu"
        if (activation := self._values.get(key, usual)) != usual:
            raise ValueError(f"{key} {activation!r} is not supported, only {usual!r}")

    def _rope(self) -> tuple[Json, float]:
        """Rope of the full layers as one flat mapping, and the base of the sliding ones. Until
        transformers 5 these were keys of their own, since then `rope_parameters` has them."""
        theta = {"rope_theta": self._values["rope_theta"]}
        local = _number(self._values, "rope_local_base_freq", 10_000.0)
        rope = self._values.get("rope_parameters", self._values.get("rope_scaling", {}))
        if not isinstance(rope, Mapping):
            raise ValueError(f"the rope parameters are {rope!r}")
        sliding = rope.get("sliding_attention")
        if isinstance(sliding, Mapping):
            local = _number(sliding, "rope_theta", local)
        full = rope.get("full_attention", rope)
        if not isinstance(full, Mapping):
            raise ValueError(f"the rope parameters of full attention are {full!r}")
        return theta | dict(full), local

    def _sliding_layers(self, n_layers: int) -> tuple[bool, ...]:
        if self._family != "gemma3":
            return ()
        kinds = self._values.get("layer_types")
        if isinstance(kinds, list):
            return tuple(kind == "sliding_attention" for kind in kinds)
        for key in ("sliding_window_pattern", "_sliding_window_pattern"):
            if key in self._values:
                return gemma3_sliding_layers(n_layers, self._count(key))
        return gemma3_sliding_layers(n_layers, GEMMA3_WINDOW_PATTERN)

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{key} is {value!r}, not a whole number")
        return value


def _number(values: Json, key: str, default: float | None = None) -> float:
    value = values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is {value!r}, not a number")
    return float(value)
