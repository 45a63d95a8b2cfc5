"""What a decoder-only language model computes: its sizes and constants, for four families.

One description for every file format; `gguf_config.py` and `json_config.py` read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "qwen2", "qwen3", "gemma3"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3", "gemma3")

LARGEST = {
    "n_layers": 1_000,
    "n_embed": 100_000,
    "n_ffn": 1_000_000,
    "n_heads": 1_000,
    "n_kv_heads": 1_000,
    "head_size": 4_096,
    "n_context": 100_000_000,
    "n_vocabulary": 10_000_000,
}
"""Far beyond every published model; a larger number is a broken file."""

GEMMA3_WINDOW_PATTERN = 6
"""Every sixth layer of Gemma 3 attends to everything, the others to a window."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a decoder. Raises ValueError, in one line, for impossible ones.

    Layers whose entry in `sliding_layers` is true (empty: none is) let a token attend to the
    `window` last ones, itself included, and turn by `rope_local_base` alone; all others turn by
    `rope_base`, positions divided by `rope_scale` and frequencies by `rope_factors`
    [head_size / 2] (empty: by 1). With `rope_pairs` neighbouring elements of a query or key turn
    together, otherwise element i and i + head_size / 2.
    """

    family: Family
    n_layers: int
    n_embed: int
    n_ffn: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    n_context: int
    n_vocabulary: int
    """Rows of the embedding; may exceed the tokenizer's vocabulary (padding)."""
    norm_eps: float
    rope_base: float
    attention_scale: float
    """Query-key products are multiplied by this."""
    rope_scale: float = 1.0
    rope_factors: tuple[float, ...] = ()
    rope_pairs: bool = False
    rope_local_base: float = 10_000.0
    window: int = 0
    sliding_layers: tuple[bool, ...] = ()
    attention_bias: bool = False
    """Queries, keys and values have biases."""
    is_tied: bool = False
    """The output projection is the embedding."""
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    """Scores become cap * tanh(score / cap); 0: they stay."""

    def __post_init__(self) -> None:
        for name in LARGEST:
            _check_size(name, getattr(self, name))
        for name in ("norm_eps", "rope_base", "rope_local_base", "rope_scale", "attention_scale"):
            if not (0.0 < getattr(self, name) < math.inf):
                raise ValueError(f"{name} is {getattr(self, name)}, not a positive number")
        if min(self.attention_softcap, self.final_softcap, self.window) < 0:
            raise ValueError("a softcap or a window is negative")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"{self.n_heads} heads cannot share {self.n_kv_heads} KV heads")
        if self.head_size % 2:
            raise ValueError(f"a head of {self.head_size} has no pairs to rotate")
        if len(self.rope_factors) not in (0, self.head_size // 2):
            raise ValueError(f"{len(self.rope_factors)} rope factors for heads of {self.head_size}")
        if not all(0.0 < factor < math.inf for factor in self.rope_factors):
            raise ValueError("a rope factor is not a positive number")
        if len(self.sliding_layers) not in (0, self.n_layers):
            raise ValueError(f"{len(self.sliding_layers)} layer types for {self.n_layers} layers")
        if any(self.sliding_layers) and not self.window:
            raise ValueError("layers slide over a window of 0 tokens")

    def is_sliding(self, layer: int) -> bool:
        """Whether `layer` attends only to the last `window` tokens."""
        return bool(self.sliding_layers) and self.sliding_layers[layer]

    @property
    def activation(self) -> Literal["silu", "gelu_tanh"]:
        """What the feed-forward gate goes through."""
        return "gelu_tanh" if self.family == "gemma3" else "silu"

    @property
    def qk_norm(self) -> bool:
        """Each head's query and key are RMS-normalised before they turn."""
        return self.family in ("qwen3", "gemma3")

    @property
    def sandwich_norms(self) -> bool:
        """What attention and feed-forward return is RMS-normalised before it is added."""
        return self.family == "gemma3"

    @property
    def embed_scale(self) -> float:
        """Embeddings are multiplied by this."""
        return math.sqrt(self.n_embed) if self.family == "gemma3" else 1.0


def _check_size(name: str, value: int) -> None:
    if not 1 <= value <= LARGEST[name]:
        raise ValueError(f"{name} is {value}, not between 1 and {LARGEST[name]}")


def llama3_rope_factors(
    rope_base: float, head_size: int, scaling: Mapping[str, float]
) -> tuple[float, ...]:
    """What each frequency is divided by in Llama 3.1 and later: 1 for wavelengths that fit the
    original context, `factor` for those far beyond it, smooth between.

    `scaling` has `factor`, `low_freq_factor`, `high_freq_factor` and
    `original_max_position_embeddings`. After Meta's `apply_scaling` in llama_models/llama3.
    """
    _check_size("head_size", head_size)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if min(rope_base, *scaling.values()) <= 0 or high <= low:
        raise ValueError(f"rope scaling {dict(scaling)} of base {rope_base} is impossible")
    factors = []
    for pair in range(head_size // 2):
        wavelength = 2 * math.pi * rope_base ** (2 * pair / head_size)
        share = scaling["original_max_position_embeddings"] / wavelength
        smooth = min(max((share - low) / (high - low), 0.0), 1.0)
        factors.append(1.0 / ((1.0 - smooth) / scaling["factor"] + smooth))
    return tuple(factors)


def gemma3_sliding_layers(n_layers: int, pattern: int) -> tuple[bool, ...]:
    """All layers slide but every `pattern`-th."""
    _check_size("n_layers", n_layers)
    if pattern < 1:
        raise ValueError(f"a sliding pattern of {pattern}")
    return tuple((n + 1) % pattern != 0 for n in range(n_layers))


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of `config` needs, by its GGUF name, with its row-major shape."""
    c = config
    q_width, kv_width = c.n_heads * c.head_size, c.n_kv_heads * c.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (c.n_vocabulary, c.n_embed),
        "output_norm.weight": (c.n_embed,),
    }
    if not c.is_tied:
        shapes["output.weight"] = (c.n_vocabulary, c.n_embed)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (c.n_embed,),
        "attn_q.weight": (q_width, c.n_embed),
        "attn_k.weight": (kv_width, c.n_embed),
        "attn_v.weight": (kv_width, c.n_embed),
        "attn_output.weight": (c.n_embed, q_width),
        "ffn_norm.weight": (c.n_embed,),
        "ffn_gate.weight": (c.n_ffn, c.n_embed),
        "ffn_up.weight": (c.n_ffn, c.n_embed),
        "ffn_down.weight": (c.n_embed, c.n_ffn),
    }
    if c.attention_bias:
        layer |= {"attn_q.bias": (q_width,), "attn_k.bias": (kv_width,), "attn_v.bias": (kv_width,)}
    if c.qk_norm:
        layer |= {"attn_q_norm.weight": (c.head_size,), "attn_k_norm.weight": (c.head_size,)}
    if c.sandwich_norms:
        layer |= {"post_attention_norm.weight": (c.n_embed,), "post_ffw_norm.weight": (c.n_embed,)}
    for n in range(c.n_layers):
        shapes |= {f"blk.{n}.{name}": shape for name, shape in layer.items()}
    return shapes
