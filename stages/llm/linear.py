"""Matrix products with stored weights: int8 through FBGEMM, or plain floats."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

ENGINES = ("fbgemm", "x86", "qnnpack")
"""Torch's engines for int8, fastest first on the CPUs measured."""


class Int8Linear(torch.nn.Module):
    """y = x W^T with W in int8 (one scale a row) and x in 7 or 8 bits (one scale a row of x).

    A row's result does not depend on the rows around it beyond rounding: each is scaled to its
    own peak first, or one outlier token would drown a whole prefill.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.reduce_range = saturates()
        self.packed = _packed(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.size(0) == 1:
            row: torch.Tensor = torch.ops.quantized.linear_dynamic(
                x, self.packed, self.reduce_range
            )
            return row
        peak = x.abs().amax(1, keepdim=True).clamp_min(1e-30)
        y: torch.Tensor = torch.ops.quantized.linear_dynamic(
            x / peak, self.packed, self.reduce_range
        )
        return y.mul_(peak)


class FloatLinear(torch.nn.Module):
    """y = x W^T in floats."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight)


@functools.cache
def saturates() -> bool:
    """Whether 8-bit activations overflow in this CPU's int8 product, so that they must have 7.

    Without VNNI instructions FBGEMM adds pairs of products in 16 bits: 255*127 + 255*127 does not
    fit, and the results are useless.
    """
    packed = _packed(torch.ones(16, 64))
    x = torch.ones(1, 64)
    with torch.inference_mode():
        y = torch.ops.quantized.linear_dynamic(x, packed, False)
    return bool((y - 64.0).abs().max() > 1.0)


def int8_engine() -> str | None:
    """The engine that int8 products use here, None when torch has none."""
    known = torch.backends.quantized.supported_engines
    return next((name for name in ENGINES if name in known), None)


def _packed(weight: torch.Tensor) -> torch.ScriptObject:
    scales = (weight.abs().amax(1) / 127).clamp_min(1e-30)
    with _engine(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantised tensors are announced to go; pinned to torch 2
        quantized = torch.quantize_per_channel(
            weight.contiguous(), scales.double(), torch.zeros(len(weight)).long(), 0, torch.qint8
        )
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, None)
        return packed


@contextmanager
def _engine() -> Iterator[None]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = int8_engine() or before
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
