"""Rotary position embedding as a complex product (Su et al. 2021, arXiv:2104.09864).

Neighbouring elements of a head are the real and imaginary part of a number that is turned by an
angle proportional to the position. Files whose heads pair element i with i + head_size / 2 are
reordered on loading: attention only sees products of queries and keys, which stay the same.
"""

from __future__ import annotations

import torch

from stages.llm.model_config import ModelConfig


def rope_table(
    config: ModelConfig, n_positions: int, dtype: torch.dtype, *, sliding: bool
) -> torch.Tensor:
    """Complex factors [n_positions, 3, head_size / 2] of queries (turned, and scaled by
    attention_scale), keys (turned) and values (1), in layers that are `sliding` or not."""
    half = torch.arange(0, config.head_size, 2, dtype=torch.float64)
    base, scale = config.rope_base, config.rope_scale
    if sliding:
        base, scale = config.rope_local_base, 1.0
    frequency = base ** (-half / config.head_size) / scale
    if config.rope_factors and not sliding:
        frequency = frequency / torch.tensor(config.rope_factors, dtype=torch.float64)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)
    table = torch.stack([turn * config.attention_scale, turn, torch.ones_like(turn)], 1)
    return table.to(torch.complex128 if dtype == torch.float64 else torch.complex64)


def head_kinds(config: ModelConfig) -> torch.Tensor:
    """Which of `rope_table`'s three applies to each head of the fused projection."""
    n, n_kv = config.n_heads, config.n_kv_heads
    return torch.tensor([0] * n + [1] * n_kv + [2] * n_kv)


def as_neighbours(tensor: torch.Tensor, head_size: int) -> torch.Tensor:
    """`tensor`, whose first dimension is heads of `head_size` with halves that turn together,
    reordered so that neighbours do."""
    heads = tensor.reshape(-1, 2, head_size // 2, *tensor.shape[1:])
    return heads.transpose(1, 2).reshape(tensor.shape)
