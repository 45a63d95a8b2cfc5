"""Matrix products with stored weights: int8 through FBGEMM, or plain floats."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from stages.llm.rotation import hadamard

ENGINES = ("fbgemm", "x86", "qnnpack")
"""Torch's engines for int8, fastest first on the CPUs measured."""


class Int8Linear(torch.nn.Module):
    """y = x W^T + b with W in int8 (one scale a row) and x in 7 or 8 bits (one scale a row of x).

    A row's result does not depend on the rows around it beyond rounding: each is scaled to its
    own peak first, or one outlier token would drown a whole prefill. `even_rows` promises that
    the rows of x have about the same peak, which saves that; a bias needs it. With `mix` > 1, W
    is for x whose blocks of `mix` elements were multiplied by a Hadamard matrix, and x is so here.
    """

    __constants__ = ("even_rows", "mix", "reduce_range")

    def __init__(
        self,
        weight: torch.Tensor,
        scales: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        mix: int = 1,
        even_rows: bool = False,
    ) -> None:
        """`weight` in floats, or in int8 with the `scales` of its rows."""
        super().__init__()
        if scales is None:
            weight, scales = quantized_rows(weight)
        assert even_rows or bias is None, "a bias is not scaled with its row"
        self.reduce_range = saturates()
        self.even_rows, self.mix = even_rows, mix
        self.hadamard = torch.nn.Parameter(hadamard(mix).float(), requires_grad=False)
        self.packed = _packed(weight, scales, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mix > 1:
            x = torch.mm(x.view(-1, self.mix), self.hadamard).view(x.size(0), -1)
        if self.even_rows or x.size(0) == 1:
            y: torch.Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, self.reduce_range)
            return y
        peak = x.abs().amax(1, keepdim=True).clamp_min(1e-30)
        y = torch.ops.quantized.linear_dynamic(x / peak, self.packed, self.reduce_range)
        return y.mul_(peak)


class FloatLinear(torch.nn.Module):
    """y = x W^T + b in floats."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


@functools.cache
def saturates() -> bool:
    """Whether 8-bit activations overflow in this CPU's int8 product, so that they must have 7.

    Without VNNI instructions FBGEMM adds pairs of products in 16 bits: 255*127 + 255*127 does not
    fit, and the results are useless.
    """
    packed = _packed(*quantized_rows(torch.ones(16, 64)), None)
    x = torch.ones(1, 64)
    with torch.inference_mode():
        y = torch.ops.quantized.linear_dynamic(x, packed, False)
    return bool((y - 64.0).abs().max() > 1.0)


def int8_engine() -> str | None:
    """The engine that int8 products use here, None when torch has none."""
    known = torch.backends.quantized.supported_engines
    return next((name for name in ENGINES if name in known), None)


def quantized_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [m, n] in int8 and the scale of each row [m]: weight = int8 * scale."""
    weight = weight.contiguous()
    least, most = torch.aminmax(weight, dim=1)
    scales = (torch.maximum(-least, most) / 127).clamp_min(1e-30)
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def _packed(
    weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.ScriptObject:
    with _engine(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantised tensors are announced to go; pinned to torch 2
        quantized = torch._make_per_channel_quantized_tensor(  # noqa: SLF001 - the public function quantises
            weight, scales.double(), torch.zeros(len(weight)).long(), 0
        )
        packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(quantized, bias)
        return packed


@contextmanager
def _engine() -> Iterator[None]:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = int8_engine() or before
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
