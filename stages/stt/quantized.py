"""Products with int8 weights in torch, on any of its engines; plain floats where it has none."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

ENGINES = ("fbgemm", "x86", "qnnpack")
"""Torch's int8 engines, fastest first."""


class Linear(torch.nn.Module):
    """y = x W^T + b for x [n, n_in]: W in int8 with one scale a row, x in 7 or 8 bits.

    The engine scales all of x alike, so each row is brought to its own peak before: a token's
    result then does not hang on which other tokens are computed with it.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.packed = _packed(weight)
        self.reduce_range = _saturates()
        self.bias = torch.zeros(1) if bias is None else bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) == 1:
            row = torch.ops.quantized.linear_dynamic(x, self.packed, self.reduce_range)
            return torch.add(row, self.bias)
        peak = x.abs().amax(1, keepdim=True).clamp_min(1e-30)
        y = torch.ops.quantized.linear_dynamic(x / peak, self.packed, self.reduce_range)
        return torch.addcmul(self.bias, y, peak)


class FloatLinear(torch.nn.Module):
    """y = x W^T + b in floats."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = torch.zeros(len(weight)) if bias is None else bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.nn.Module:
    """The fastest product that this machine has."""
    return Linear(weight, bias) if _engine_name() else FloatLinear(weight, bias)


def _engine_name() -> str | None:
    known = torch.backends.quantized.supported_engines
    return next((name for name in ENGINES if name in known), None)


@functools.cache
def _saturates() -> bool:
    """Whether 8-bit activations overflow here. Without VNNI instructions FBGEMM adds pairs of
    products in 16 bits, which 255 * 127 + 255 * 127 does not fit: then x may have only 7 bits."""
    x = torch.ones(1, 64)
    with torch.inference_mode():
        y = torch.ops.quantized.linear_dynamic(x, _packed(torch.ones(16, 64)), False)
    return bool((y - 64.0).abs().max() > 1.0)


def _packed(weight: torch.Tensor) -> torch.ScriptObject:
    scales = (weight.abs().amax(1) / 127).clamp_min(1e-30)
    with _engine(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantised tensors are announced to go; torch is pinned
        quantized = torch.quantize_per_channel(
            weight, scales.double(), torch.zeros(len(weight)).long(), 0, torch.qint8
        )
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, None)
    return packed


@contextmanager
def _engine() -> Iterator[None]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _engine_name() or before
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
