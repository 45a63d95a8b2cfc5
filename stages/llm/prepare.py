"""From the weights of a file to what the modules compute with: fused, gains folded in, and for
int8 spread and quantised.

Activations of 7 or 8 bits suffer from outliers (see rotation.py). The residual stream is rotated
once and for all, inside the weights; where a norm's gain stands between a layer's output and the
stream (sandwich norms), that cannot be, and the inputs of products are mixed by blocks instead. The
values of each head are mixed inside the weights, what `down` reads on the fly.
"""

from __future__ import annotations

from typing import Literal

import torch

from stages.llm.layer import Layer, LayerParts
from stages.llm.linear import FloatLinear, Int8Linear, quantized_rows
from stages.llm.model_config import ModelConfig
from stages.llm.rope import as_neighbours
from stages.llm.rotation import Rotation, hadamard, power_of_two_in
from stages.llm.weights import Weights

Precision = Literal["int8", "bfloat16", "float32", "float64"]
DTYPES: dict[Precision, torch.dtype] = {
    "int8": torch.float32,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
"""Of activations, keys and values."""

DOWN_MIX = 64
"""The blocks mixed in front of `down`, which costs a product at each step: twice as large takes 2 %
longer at one token, half as large loses accuracy (SmolLM2-135M: KL to float 0.0216 with 128, 0.0229
with 64, 0.0235 with 32)."""

Prepared = dict[str, torch.Tensor]
"""Tensors by name: `embedding`, `layer.3.qkv.weight`, `.scales` (of int8), `.bias`, …"""


class Preparation:
    """How a model's tensors are arranged at one precision."""

    def __init__(self, config: ModelConfig, precision: Precision) -> None:
        self.config, self.precision = config, precision
        self._is_int8 = precision == "int8"
        self._work_dtype = torch.float64 if precision == "float64" else torch.float32
        self._rotates = self._is_int8 and not config.sandwich_norms
        self._rotation = Rotation(config.n_embed) if self._rotates else None
        self._reading_mix = 1
        if self._is_int8 and config.sandwich_norms:
            self._reading_mix = power_of_two_in(config.n_embed)
        self._value_mix = power_of_two_in(config.head_size) if self._is_int8 else 1
        self._down_mix = min(power_of_two_in(config.n_ffn), DOWN_MIX) if self._is_int8 else 1

    # -- from a file ---------------------------------------------------------------------------

    def prepared(self, weights: Weights) -> Prepared:
        """All tensors, ready for `layer` and `head`."""

        def get(name: str) -> torch.Tensor:
            return weights.tensor(name).to(self._work_dtype)

        embedding, gain = get("token_embd.weight"), get("output_norm.weight")
        output = embedding if self.config.is_tied else get("output.weight")
        tensors = self._linear("head", self._reading(output, gain))
        if self._rotation:
            embedding = self._rotation.of_rows(embedding)
        embedding = embedding * self.config.embed_scale
        tensors["embedding"] = embedding.half() if self._is_int8 else self._float(embedding)
        for n in range(self.config.n_layers):
            tensors |= self._layer(weights, n)
        return tensors

    def _layer(self, weights: Weights, n: int) -> Prepared:
        c = self.config

        def get(name: str) -> torch.Tensor:
            return weights.tensor(f"blk.{n}.{name}").to(self._work_dtype)

        def turning(name: str) -> torch.Tensor:
            tensor = get(name)
            return tensor if c.rope_pairs else as_neighbours(tensor, c.head_size)

        def values(name: str) -> torch.Tensor:
            return _mixed_rows(get(name), self._value_mix)

        qkv = torch.cat(
            [turning("attn_q.weight"), turning("attn_k.weight"), values("attn_v.weight")]
        )
        bias = None
        if c.attention_bias:
            bias = torch.cat(
                [turning("attn_q.bias"), turning("attn_k.bias"), values("attn_v.bias")]
            )
        out = _mixed_columns(get("attn_output.weight"), self._value_mix)
        gate_up = torch.cat([get("ffn_gate.weight"), get("ffn_up.weight")])
        down = _mixed_columns(get("ffn_down.weight"), self._down_mix)
        at = f"layer.{n}."
        tensors = self._linear(at + "qkv", self._reading(qkv, get("attn_norm.weight")), bias)
        tensors |= self._linear(at + "out", self._writing(out))
        tensors |= self._linear(at + "gate_up", self._reading(gate_up, get("ffn_norm.weight")))
        tensors |= self._linear(at + "down", self._writing(down))
        if c.qk_norm:
            gains = [turning("attn_q_norm.weight")] * c.n_heads
            gains += [turning("attn_k_norm.weight")] * c.n_kv_heads
            tensors[at + "qk_gain"] = self._float(torch.stack(gains))
        if c.sandwich_norms:
            gains = [get("post_attention_norm.weight"), get("post_ffw_norm.weight")]
            tensors[at + "post_gains"] = self._float(torch.stack(gains))
        return tensors

    def _reading(self, weight: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        """`weight` for an input that is the normalised residual stream."""
        weight = _mixed_columns(weight * gain, self._reading_mix)
        return self._rotation.of_rows(weight) if self._rotation else weight

    def _writing(self, weight: torch.Tensor) -> torch.Tensor:
        """`weight` whose output is added to the residual stream."""
        return self._rotation.of_columns(weight) if self._rotation else weight

    def _linear(
        self, name: str, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> Prepared:
        tensors: Prepared = {}
        if self._is_int8:
            tensors[f"{name}.weight"], tensors[f"{name}.scales"] = quantized_rows(weight)
        else:
            tensors[f"{name}.weight"] = self._float(weight)
        if bias is not None:
            tensors[f"{name}.bias"] = self._float(bias)
        return tensors

    def _float(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(DTYPES[self.precision]).contiguous()

    # -- to modules ----------------------------------------------------------------------------

    def layer(self, tensors: Prepared, n: int) -> Layer:
        at = f"layer.{n}."
        none = torch.empty(0)
        parts = LayerParts(
            qkv=self._module(tensors, at + "qkv", self._reading_mix, even_rows=self._rotates),
            out=self._module(tensors, at + "out"),
            gate_up=self._module(
                tensors, at + "gate_up", self._reading_mix, even_rows=self._rotates
            ),
            down=self._module(tensors, at + "down", self._down_mix),
            qk_gain=tensors.get(at + "qk_gain", none),
            post_gains=tensors.get(at + "post_gains", none),
        )
        return Layer(self.config, parts, DTYPES[self.precision])

    def head(self, tensors: Prepared) -> torch.nn.Module:
        return self._module(tensors, "head", self._reading_mix, even_rows=self._rotates)

    def _module(
        self, tensors: Prepared, name: str, mix: int = 1, *, even_rows: bool = False
    ) -> torch.nn.Module:
        weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
        if not self._is_int8:
            return FloatLinear(weight, bias)
        return Int8Linear(weight, tensors[f"{name}.scales"], bias, mix=mix, even_rows=even_rows)


def _mixed_rows(tensor: torch.Tensor, block: int) -> torch.Tensor:
    """`tensor` [n, ...] whose blocks of outputs are multiplied by a Hadamard matrix."""
    if block == 1:
        return tensor
    mixed = hadamard(block).to(tensor.dtype) @ tensor.reshape(len(tensor) // block, block, -1)
    return mixed.view(tensor.shape)


def _mixed_columns(weight: torch.Tensor, block: int) -> torch.Tensor:
    """`weight` [..., n] for an input whose blocks were multiplied by a Hadamard matrix, which is
    symmetric and its own inverse."""
    if block == 1:
        return weight
    mixed = weight.reshape(-1, block) @ hadamard(block).to(weight.dtype)
    return mixed.view(weight.shape)
