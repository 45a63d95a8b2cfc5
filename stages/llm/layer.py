"""One transformer layer, for every supported family, on ragged rows.

Written for few tokens at a time on a CPU, where each operation's overhead counts as much as its
work: gains are folded into the weights, projections that share an input are fused, the rotary
embedding is one complex product in place over queries, keys and values (which it leaves alone),
and the modules compile as TorchScript, which runs a whole step without taking Python's lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stages.llm.attention import Seen, attend
from stages.llm.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The weights of a layer; the gains in front of `qkv` and `gate_up` are part of those."""

    qkv: torch.nn.Module
    out: torch.nn.Module
    gate_up: torch.nn.Module
    down: torch.nn.Module
    qk_gain: torch.Tensor
    """[n_heads + n_kv_heads, head_size] of the norm of queries and keys; empty without."""
    post_gains: torch.Tensor
    """[2, n_embed] of the norms of what attention and feed-forward return; empty without."""


class Layer(torch.nn.Module):
    """One layer; changes `h` and the KV store in place."""

    __constants__ = (
        *("n_heads", "n_kv", "n_rows", "size", "n_ffn", "norm_eps", "softcap"),
        *("has_gelu", "has_qk_norm", "has_post_norms"),
    )

    def __init__(self, config: ModelConfig, parts: LayerParts, dtype: torch.dtype) -> None:
        super().__init__()
        self.qkv, self.out, self.gate_up, self.down = (
            parts.qkv,
            parts.out,
            parts.gate_up,
            parts.down,
        )
        self.qk_gain, self.post_gains = constant(parts.qk_gain), constant(parts.post_gains)
        self.n_heads, self.n_kv = config.n_heads, config.n_kv_heads
        self.n_rows = config.n_heads + 2 * config.n_kv_heads
        self.size, self.n_ffn, self.norm_eps = config.head_size, config.n_ffn, config.norm_eps
        self.eps = constant(torch.full((1, 1), config.norm_eps, dtype=dtype))
        self.softcap = config.attention_softcap
        self.has_gelu = config.activation == "gelu_tanh"
        self.has_qk_norm, self.has_post_norms = config.qk_norm, config.sandwich_norms

    def forward(
        self,
        h: torch.Tensor,
        rope: torch.Tensor,
        state: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        first_slot: int,
        slots: torch.Tensor,
        seen: Seen,
    ) -> torch.Tensor:
        """The next layer's `h` [n, n_embed]. `state` is the layer's part of a KvStore: all of it,
        its keys and its values; `seen` has the fields of `step_plan.Spans`."""
        n = h.size(0)
        kv, keys, values = state
        rows = self.qkv(unit_rms(h, self.eps)).view(n, self.n_rows, self.size)
        if self.has_qk_norm:
            normed = rows.narrow(1, 0, self.n_heads + self.n_kv)
            scale = torch.rsqrt(normed.square().mean(-1, keepdim=True) + self.norm_eps)
            normed.mul_(scale).mul_(self.qk_gain)
        torch.view_as_complex(rows.view(n, self.n_rows, self.size // 2, 2)).mul_(rope)
        keys_values = rows.narrow(1, self.n_heads, 2 * self.n_kv).transpose(0, 1)
        if first_slot >= 0:
            kv.narrow(1, first_slot, n).copy_(keys_values)
        else:
            kv.index_copy_(1, slots, keys_values)
        queries = rows.narrow(1, 0, self.n_heads)
        x = self.out(attend(queries, keys, values, seen, self.softcap))
        if self.has_post_norms:
            x = unit_rms(x, self.eps).mul_(self.post_gains[0])
        h.add_(x)
        x = self.down(self.gated(self.gate_up(unit_rms(h, self.eps))))
        if self.has_post_norms:
            x = unit_rms(x, self.eps).mul_(self.post_gains[1])
        return h.add_(x)

    def gated(self, gate_up: torch.Tensor) -> torch.Tensor:
        """activation(gate) * up, [n, n_ffn]."""
        gate = gate_up.narrow(1, 0, self.n_ffn)
        up = gate_up.narrow(1, self.n_ffn, self.n_ffn)
        if self.has_gelu:
            return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)
        return torch.nn.functional.silu(gate).mul_(up)


def unit_rms(h: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """Each row of `h` [n, m] over its root mean square, which is a product with itself; `eps` is
    [1, 1]. The gain is in the weights that follow."""
    n, m = h.size(0), h.size(1)
    if n == 1:
        return h.mul(torch.addmm(eps, h, h.t(), alpha=1.0 / m).rsqrt_())
    rows = h.unsqueeze(1)
    squares = torch.baddbmm(eps.expand(n, 1, 1), rows, rows.transpose(1, 2), alpha=1.0 / m)
    return h.mul(squares.view(n, 1).rsqrt_())


def constant(tensor: torch.Tensor) -> torch.nn.Parameter:
    """A tensor as part of a module that never learns."""
    return torch.nn.Parameter(tensor, requires_grad=False)
