"""Quantised matrices of GGUF files as they are, in one form: blocks of 32 with a scale each.

The layouts are ggml's (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import Q4_K
from numpy.typing import NDArray

BLOCK = 32
SUPER_BLOCK = 256
"""Values that share the scale of scales of a K-quant."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [m, n] in blocks of 32 neighbours of a row: value = quant * scale + least.

    `quants` [m, n] are 0 to 15 (uint8), or with no `least` -127 to 127 (int8); `scales` and
    `least` [m, n / 32] are float16.
    """

    quants: torch.Tensor
    scales: torch.Tensor
    least: torch.Tensor | None = None

    def rows(self, order: torch.Tensor) -> Blocks:
        """The rows in another order."""
        least = None if self.least is None else self.least[order]
        return Blocks(self.quants[order], self.scales[order], least)


def _q4_0(raw: Bytes, shape: tuple[int, ...]) -> Blocks:
    """Scale, 16 bytes; value = (quant - 8) * scale."""
    parts = raw.reshape(-1, 18)
    scales = _halves(parts[:, :2], shape)
    return Blocks(_nibbles(parts[:, 2:], shape), scales, scales * -8)


def _q4_1(raw: Bytes, shape: tuple[int, ...]) -> Blocks:
    """Scale, least value, 16 bytes."""
    parts = raw.reshape(-1, 20)
    least = _halves(parts[:, 2:4], shape)
    return Blocks(_nibbles(parts[:, 4:], shape), _halves(parts[:, :2], shape), least)


def _q4_k(raw: Bytes, shape: tuple[int, ...]) -> Blocks:
    """Scale of scales, scale of least values, 12 bytes with both of 8 blocks, 4 x 32 bytes."""
    parts = raw.reshape(-1, 144)
    outer = parts[:, :4].copy().view(np.float16).astype(np.float32)
    scales, least = Q4_K.get_scale_min(np.ascontiguousarray(parts[:, 4:16]))
    scales = outer[:, :1] * scales.reshape(-1, SUPER_BLOCK // BLOCK)
    least = -outer[:, 1:] * least.reshape(-1, SUPER_BLOCK // BLOCK)
    lines = (shape[0], -1)
    return Blocks(
        _nibbles(parts[:, 16:].reshape(-1, BLOCK), shape),
        torch.from_numpy(scales.astype(np.float16)).view(lines),
        torch.from_numpy(least.astype(np.float16)).view(lines),
    )


def _q8_0(raw: Bytes, shape: tuple[int, ...]) -> Blocks | None:
    """Scale, 32 bytes. None when a value is -128, whose size does not fit 7 bits."""
    parts = raw.reshape(-1, 34)
    quants = torch.from_numpy(parts[:, 2:].copy()).view(torch.int8).view(shape)
    return Blocks(quants, _halves(parts[:, :2], shape)) if int(quants.min()) > -128 else None


READERS: Mapping[GGMLQuantizationType, Callable[[Bytes, tuple[int, ...]], Blocks | None]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q8_0: _q8_0,
}
"""From the bytes and the shape [m, n] of a tensor."""


def in_8_bits(weight: torch.Tensor) -> Blocks:
    """`weight` [m, n] in floats, rounded; n is a multiple of 32."""
    blocks = weight.float().view(len(weight), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 127).half()
    divisors = scales.float().masked_fill_(scales == 0, torch.inf)
    quants = (blocks / divisors[:, :, None]).round_().clamp_(-127, 127).to(torch.int8)
    return Blocks(quants.view(weight.shape), scales)


def _halves(columns: Bytes, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(columns.copy().view(np.float16)).view(shape[0], -1)


def _nibbles(columns: Bytes, shape: tuple[int, ...]) -> torch.Tensor:
    """The low halves of a line's bytes, then the high ones."""
    halves = np.concatenate([columns & 15, columns >> 4], axis=1)
    return torch.from_numpy(halves).view(shape)
