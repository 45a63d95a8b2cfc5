"""Which matrix product a model runs on: found out at start-up, on this machine."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Literal

import torch

from stages.llm.gguf_blocks import in_8_bits
from stages.llm.linear import FloatLinear, Int8Linear, int8_engine, saturates
from stages.llm.native_backend import NativeLinear
from stages.llm.native_build import native_library
from stages.llm.native_net import Interleaved
from voicepipe.clock import process_time_s

log = logging.getLogger(__name__)

SHAPE = (8192, 1024)
"""Of the weight that kernels are tried with: too large for most caches, as models are."""

LARGEST_ERROR = 0.05
"""Relative to the exact product, for random weights and activations: 8 bits give 0.01, 7 bits 0.02;
a kernel that is broken on this machine far more."""

N_TRIES = 5

Kind = Literal["compiled", "int8", "float32"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A way to multiply, as measured: the error's norm over the exact product's, and the time of
    SHAPE with one row and with eight. `detail` is for people."""

    kind: Kind
    error: float
    one_row_s: float
    eight_rows_s: float
    detail: str = ""

    def __str__(self) -> str:
        return (
            f"{self.kind}{self.detail} (error {self.error:.3f}, "
            f"{self.one_row_s * 1e6:.0f} us a row, {self.eight_rows_s * 1e6:.0f} us for 8)"
        )


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernel for models that may be quantised, and all that were tried."""

    kernel: Kernel
    tried: tuple[Kernel, ...]

    def __str__(self) -> str:
        others = ", ".join(str(kernel) for kernel in self.tried if kernel != self.kernel)
        return f"{self.kernel}, instead of {others}" if others else str(self.kernel)


def choose_kernel(*, compiled: bool = True) -> KernelChoice:
    """The best kernel of this machine; `compiled` says whether the compiled one may be chosen: not
    every model fits it. Logs one warning when it is float32."""
    tried = measured_kernels()
    if not compiled:
        tried = tuple(kernel for kernel in tried if kernel.kind != "compiled")
    choice = chosen(tried)
    if choice.kernel.kind == "float32":
        _warn(str(choice))
    return choice


@functools.cache
def _warn(choice: str) -> None:
    log.warning("no fast and right int8 product here, models run slower: %s", choice)


def chosen(tried: tuple[Kernel, ...]) -> KernelChoice:
    """Of those of `tried` whose error is small the compiled one, or the fastest for one row.

    Products alone do not show what the compiled one saves: most of the rest of a step, and half of
    the bytes of weights in 4 bits, where the trial has 8.
    """
    right = [kernel for kernel in tried if kernel.error <= LARGEST_ERROR]
    compiled = [kernel for kernel in right if kernel.kind == "compiled"]
    return KernelChoice(min(compiled or right, key=lambda kernel: kernel.one_row_s), tried)


@functools.cache
def measured_kernels() -> tuple[Kernel, ...]:
    """All that this machine has; measured once a process, on one thread."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(SHAPE, generator=generator)
    x = torch.randn(8, SHAPE[1], generator=generator)
    exact = x @ weight.T
    candidates: dict[Kind, tuple[torch.nn.Module, str]] = {"float32": (FloatLinear(weight), "")}
    if int8_engine() is not None:
        bits = 7 if saturates() else 8
        detail = f" weights, {bits}-bit activations ({int8_engine()})"
        candidates["int8"] = Int8Linear(weight, even_rows=True), detail
    library = native_library()
    if library is not None:
        linear = NativeLinear(library, Interleaved(in_8_bits(weight)))
        candidates["compiled"] = linear, " blocks of 4 or 8 bits, 8-bit activations"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return tuple(
                _measured(kind, module, x, exact, detail)
                for kind, (module, detail) in candidates.items()
            )
    finally:
        torch.set_num_threads(before)


def _measured(
    kind: Kind, module: torch.nn.Module, x: torch.Tensor, exact: torch.Tensor, detail: str
) -> Kernel:
    error = float((module(x) - exact).norm() / exact.norm())
    one_row = x[:1].contiguous()
    return Kernel(kind, error, _seconds(module, one_row), _seconds(module, x), detail)


def _seconds(module: torch.nn.Module, x: torch.Tensor) -> float:
    times = []
    for _ in range(N_TRIES):
        start_s = process_time_s()
        module(x)
        times.append(process_time_s() - start_s)
    return min(times)
