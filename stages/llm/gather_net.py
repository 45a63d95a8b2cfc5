"""The decoder for devices where launching an operation costs more than moving keys and values: what
rows attend to is gathered, and a step's shape depends on its inputs' shapes alone.

Runs on any device; cuda.py captures it. The weights are `prepare.Prepared` in floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from stages.llm.cuda_plan import visible
from stages.llm.model_config import ModelConfig
from stages.llm.prepare import Prepared
from stages.llm.rope import head_kinds, rope_table

State = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]]
"""A KvStore's `layers`, `keys` and `values`."""

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]
"""(queries [n, n_heads, head_size], keys and values [n_kv, n_slots, head_size], window) to what
each row reads, [n, n_heads * head_size]; queries are scaled."""


class GatherNet:
    """A model's arithmetic on `device`; `tensors` are moved there."""

    def __init__(
        self, config: ModelConfig, tensors: Prepared, n_positions: int, device: torch.device
    ) -> None:
        self.config, self.device = config, device
        self._tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        self.dtype = self._tensors["embedding"].dtype
        precise = torch.float64 if self.dtype == torch.float64 else torch.float32
        self._kinds = head_kinds(config).to(device)
        self._rope = _real(rope_table(config, n_positions, precise, sliding=False)).to(device)
        self._local_rope = self._rope
        if any(config.sliding_layers):
            local = rope_table(config, n_positions, precise, sliding=True)
            self._local_rope = _real(local).to(device)

    def hidden(
        self,
        state: State,
        ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        attention: Attention,
    ) -> torch.Tensor:
        """Hidden states [n, n_embed] of the rows `ids` [n]; their keys and values are in `state`
        afterwards."""
        layers, keys, values = state
        h = functional.embedding(ids, self._tensors["embedding"])
        rope = self._turns(self._rope, positions)
        local_rope = self._turns(self._local_rope, positions)
        for n in range(self.config.n_layers):
            slides = self.config.is_sliding(n)
            window = self.config.window if slides else 0
            rows = self._turned(n, self._qkv(n, h), local_rope if slides else rope)
            queries, fresh = rows.tensor_split([self.config.n_heads], 1)
            layers[n].index_copy_(1, slots, fresh.transpose(0, 1))
            x = attention(queries, keys[n], values[n], window)
            h = h + self._post(n, 0, self._linear(n, "out", x))
            gate, up = self._linear(n, "gate_up", self._unit_rms(h)).chunk(2, 1)
            h = h + self._post(n, 1, self._linear(n, "down", self._activated(gate) * up))
        return h

    def logits(self, h: torch.Tensor) -> torch.Tensor:
        """Scores [n, n_vocabulary] in float32 (or more) of the tokens that follow the rows `h`."""
        scores = functional.linear(self._unit_rms(h), self._tensors["head.weight"])
        scores = scores.float() if self.dtype == torch.bfloat16 else scores
        cap = self.config.final_softcap
        return torch.tanh(scores / cap) * cap if cap else scores

    def _qkv(self, n: int, h: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values [n, heads of all three, head_size], normalised."""
        c = self.config
        rows = self._linear(n, "qkv", self._unit_rms(h)).view(len(h), -1, c.head_size)
        if not c.qk_norm:
            return rows
        normed, values = rows.tensor_split([c.n_heads + c.n_kv_heads], 1)
        normed = self._unit_rms(normed) * self._tensors[f"layer.{n}.qk_gain"]
        return torch.cat([normed, values], 1)

    def _turned(self, n: int, rows: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Neighbouring elements as complex numbers, times `turns`."""
        real, imaginary = rows.to(turns.dtype).view(*rows.shape[:2], -1, 2).unbind(-1)
        cos, sin = turns.unbind(-1)
        turned = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1)
        return turned.flatten(-2).to(self.dtype)

    def _turns(self, table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return table.index_select(0, positions).index_select(1, self._kinds)

    def _post(self, n: int, which: int, x: torch.Tensor) -> torch.Tensor:
        if not self.config.sandwich_norms:
            return x
        return self._unit_rms(x) * self._tensors[f"layer.{n}.post_gains"][which]

    def _linear(self, n: int, name: str, x: torch.Tensor) -> torch.Tensor:
        at = f"layer.{n}.{name}"
        return functional.linear(x, self._tensors[f"{at}.weight"], self._tensors.get(f"{at}.bias"))

    def _activated(self, gate: torch.Tensor) -> torch.Tensor:
        if self.config.activation == "gelu_tanh":
            return functional.gelu(gate, approximate="tanh")
        return functional.silu(gate)

    def _unit_rms(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], eps=self.config.norm_eps)


@dataclass(frozen=True, slots=True)
class RowAttention:
    """Every row has a context of its own, padded to the same length: `table` [n, n_tokens] of
    slots, of which it sees the first `n_seen` [n]."""

    table: torch.Tensor
    n_seen: torch.Tensor
    softcap: float

    def __call__(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int
    ) -> torch.Tensor:
        (n, n_tokens), (n_kv, _, size) = self.table.shape, keys.shape
        grouped = queries.reshape(n, n_kv, -1, size)
        flat = self.table.view(-1)
        keys = keys.index_select(1, flat).view(n_kv, n, n_tokens, size).transpose(0, 1)
        values = values.index_select(1, flat).view(n_kv, n, n_tokens, size).transpose(0, 1)
        mask = visible(self.n_seen, n_tokens, window)[:, None, None]
        return _attend(grouped, keys, values, mask, self.softcap).reshape(n, -1)


@dataclass(frozen=True, slots=True)
class SequenceAttention:
    """The rows of each sequence share a context: `slots` of each, the last of which are those of
    the rows themselves; `n_rows` of each."""

    slots: list[torch.Tensor]
    n_rows: list[int]
    softcap: float

    def __call__(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int
    ) -> torch.Tensor:
        mixed = []
        n_kv, _, size = keys.shape
        for rows, slots in zip(torch.split(queries, self.n_rows), self.slots, strict=True):
            n, n_tokens = len(rows), len(slots)
            n_seen = torch.arange(n_tokens - n + 1, n_tokens + 1, device=slots.device)
            mask = visible(n_seen, n_tokens, window).repeat_interleave(rows.shape[1] // n_kv, 0)
            grouped = rows.reshape(n, n_kv, -1, size).transpose(0, 1).reshape(1, n_kv, -1, size)
            own_keys, own_values = keys.index_select(1, slots), values.index_select(1, slots)
            heads = _attend(grouped, own_keys[None], own_values[None], mask, self.softcap)
            mixed.append(heads.view(n_kv, n, -1, size).transpose(0, 1).reshape(n, -1))
        return torch.cat(mixed)


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    softcap: float,
) -> torch.Tensor:
    """[batch, n_kv, n, head_size] as `queries`, whose n are all that share a KV head; keys and
    values [batch, n_kv, n_tokens, head_size]; `mask`, broadcast to the scores, is true for what is
    seen."""
    if not softcap:
        return functional.scaled_dot_product_attention(queries, keys, values, mask, scale=1.0)
    scores = torch.tanh(queries @ keys.transpose(2, 3) / softcap) * softcap
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ values


def _real(table: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones."""
    return torch.view_as_real(table).contiguous()
