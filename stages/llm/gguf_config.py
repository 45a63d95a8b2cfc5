"""A model's config from the metadata of its GGUF file.

Keys are documented in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; what Gemma 3
leaves out of them is a constant in llama.cpp (llama-model.cpp).
"""

from __future__ import annotations

import math

from stages.llm.gguf_file import GgufFile
from stages.llm.model_config import (
    FAMILIES,
    GEMMA3_WINDOW_PATTERN,
    Family,
    ModelConfig,
    gemma3_sliding_layers,
)
from voicepipe.errors import ComponentError

GEMMA3_27B_LAYERS = 62
"""The one Gemma 3 that scales attention by n_embed / n_heads instead of the head size."""


def gguf_config(file: GgufFile) -> ModelConfig:
    """Raises ComponentError when the architecture is not supported or a number impossible."""
    family = file.metadata.get("general.architecture")
    if family not in FAMILIES:
        raise ComponentError(
            f"model file {file.path}: architecture {family!r} is not supported: use a model of the "
            f"families {', '.join(FAMILIES)} (e.g. smollm2-135m-instruct)"
        )
    fields = _Fields(file, family)
    try:
        return fields.config()
    except (ValueError, ArithmeticError) as error:
        raise file.broken(str(error)) from error


class _Fields:
    """The metadata under one architecture's name. Raises ValueError for what is unsound."""

    def __init__(self, file: GgufFile, family: Family) -> None:
        self._file, self._family = file, family

    def config(self) -> ModelConfig:
        n_layers, n_embed = self._count("block_count"), self._count("embedding_length")
        n_heads = self._count("attention.head_count")
        head_size = self._count("attention.key_length", n_embed // max(n_heads, 1))
        value_size = self._count("attention.value_length", head_size)
        rotated = self._count("rope.dimension_count", head_size)
        if value_size != head_size or rotated != head_size:
            raise self._unsupported(
                f"heads of {head_size} with values of {value_size} and {rotated} rotated elements",
                "all three equal",
            )
        window = self._window()
        return ModelConfig(
            family=self._family,
            n_layers=n_layers,
            n_embed=n_embed,
            n_ffn=self._count("feed_forward_length"),
            n_heads=n_heads,
            n_kv_heads=self._count("attention.head_count_kv", n_heads),
            head_size=head_size,
            n_context=self._count("context_length"),
            n_vocabulary=self._n_vocabulary(n_embed),
            norm_eps=self._number("attention.layer_norm_rms_epsilon"),
            rope_base=self._number("rope.freq_base", 10_000.0),
            attention_scale=self._attention_scale(n_layers, n_embed, n_heads, head_size),
            rope_scale=self._rope_scale(),
            rope_factors=self._rope_factors(head_size),
            rope_pairs=self._family == "llama",
            rope_local_base=self._number("rope.freq_base_swa", 10_000.0),
            window=window,
            sliding_layers=self._sliding_layers(n_layers) if window else (),
            attention_bias="blk.0.attn_q.bias" in self._file.tensors,
            is_tied="output.weight" not in self._file.tensors,
            attention_softcap=self._number("attn_logit_softcapping", 0.0),
            final_softcap=self._number("final_logit_softcapping", 0.0),
        )

    def _n_vocabulary(self, n_embed: int) -> int:
        embedding = self._file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2 or embedding.shape[1] != n_embed:
            raise ValueError("token_embd.weight is missing or has the wrong shape")
        return embedding.shape[0]

    def _attention_scale(self, n_layers: int, n_embed: int, n_heads: int, head_size: int) -> float:
        is_27b = self._family == "gemma3" and n_layers == GEMMA3_27B_LAYERS
        usual = 1.0 / math.sqrt(n_embed / n_heads if is_27b else head_size)
        return self._number("attention.scale", usual)

    def _rope_scale(self) -> float:
        kind = self._value("rope.scaling.type", "none")
        if kind not in ("none", "linear"):
            raise self._unsupported(f"rope scaling {kind!r}", "none, linear and Llama 3's")
        return self._number("rope.scaling.factor", 1.0) if kind == "linear" else 1.0

    def _rope_factors(self, head_size: int) -> tuple[float, ...]:
        info = self._file.tensors.get("rope_freqs.weight")
        if info is None:
            return ()
        if info.shape != (head_size // 2,):
            raise ValueError(f"tensor rope_freqs.weight has shape {info.shape}")
        return tuple(self._file.tensor("rope_freqs.weight").tolist())

    def _window(self) -> int:
        """Llama and Qwen files may name a window that no layer uses."""
        if self._family != "gemma3":
            return 0
        return self._count("attention.sliding_window", 0)

    def _sliding_layers(self, n_layers: int) -> tuple[bool, ...]:
        key = "attention.sliding_window_pattern"
        by_layer = self._file.metadata.get(f"{self._family}.{key}")
        if isinstance(by_layer, list):
            return tuple(map(bool, by_layer))
        return gemma3_sliding_layers(n_layers, self._count(key, GEMMA3_WINDOW_PATTERN))

    def _unsupported(self, what: str, supported: str) -> ComponentError:
        return ComponentError(
            f"model file {self._file.path}: {what}: not supported, only {supported}: use another "
            "model"
        )

    def _value(self, key: str, default: object = None) -> object:
        """Per-layer values that are all equal count as one."""
        value = self._file.metadata.get(f"{self._family}.{key}", default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            return value[0]
        return value

    def _number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self._family}.{key} is {value!r}")
        return float(value)

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{self._family}.{key} is {value!r}")
        return value
