"""Which matrix product a model runs on: found out at start-up, on this machine."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

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

HEAD_START = 3.0
"""The compiled decoder saves more than its products show: two thirds of the rest of a step, and
half of the bytes of weights in 4 bits, where the trial has 8."""

COMPILED, FBGEMM, FLOAT = "compiled blocks", "int8", "float32"
"""First words of the kernels' names."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A way to multiply, as measured: the error's norm over the exact product's, and the time of
    SHAPE with one row and with eight."""

    name: str
    error: float
    one_row_s: float
    eight_rows_s: float

    def __str__(self) -> str:
        return (
            f"{self.name} (error {self.error:.3f}, {self.one_row_s * 1e6:.0f} us a row, "
            f"{self.eight_rows_s * 1e6:.0f} us for 8)"
        )


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernel for models that may be quantised, and all that were tried."""

    kernel: Kernel
    tried: tuple[Kernel, ...]

    @property
    def is_compiled(self) -> bool:
        return self.kernel.name.startswith(COMPILED)

    @property
    def is_int8(self) -> bool:
        return self.kernel.name.startswith(FBGEMM)

    def __str__(self) -> str:
        others = ", ".join(str(kernel) for kernel in self.tried if kernel != self.kernel)
        return f"{self.kernel}, instead of {others}" if others else str(self.kernel)


def choose_kernel(*, compiled: bool = True) -> KernelChoice:
    """The best kernel of this machine; `compiled` says whether the compiled one may be chosen: not
    every model fits it. Logs one warning when it is float32."""
    tried = measured_kernels()
    if not compiled:
        tried = tuple(kernel for kernel in tried if not kernel.name.startswith(COMPILED))
    choice = chosen(tried)
    if choice.kernel.name == FLOAT:
        _warn(str(choice))
    return choice


@functools.cache
def _warn(choice: str) -> None:
    log.warning("no fast and right int8 product here, models run slower: %s", choice)


def chosen(tried: tuple[Kernel, ...]) -> KernelChoice:
    """Of those of `tried` whose error is small the fastest for one row; the compiled one also where
    its products alone take somewhat longer, see HEAD_START."""
    right = [kernel for kernel in tried if kernel.error <= LARGEST_ERROR]
    return KernelChoice(min(right, key=_handicapped_s), tried)


def _handicapped_s(kernel: Kernel) -> float:
    return kernel.one_row_s / (HEAD_START if kernel.name.startswith(COMPILED) else 1)


@functools.cache
def measured_kernels() -> tuple[Kernel, ...]:
    """All that this machine has; measured once a process, on one thread."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(SHAPE, generator=generator)
    x = torch.randn(8, SHAPE[1], generator=generator)
    exact = x @ weight.T
    candidates: dict[str, torch.nn.Module] = {FLOAT: FloatLinear(weight)}
    if int8_engine() is not None:
        bits = 7 if saturates() else 8
        name = f"{FBGEMM} weights, {bits}-bit activations ({int8_engine()})"
        candidates[name] = Int8Linear(weight, even_rows=True)
    library = native_library()
    if library is not None:
        name = f"{COMPILED} of 4 or 8 bits, 8-bit activations"
        candidates[name] = NativeLinear(library, Interleaved(in_8_bits(weight)))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return tuple(_measured(name, module, x, exact) for name, module in candidates.items())
    finally:
        torch.set_num_threads(before)


def _measured(name: str, module: torch.nn.Module, x: torch.Tensor, exact: torch.Tensor) -> Kernel:
    error = float((module(x) - exact).norm() / exact.norm())
    one_row = x[:1].contiguous()
    return Kernel(name, error, _seconds(module, one_row), _seconds(module, x))


def _seconds(module: torch.nn.Module, x: torch.Tensor) -> float:
    times = []
    for _ in range(N_TRIES):
        start_s = process_time_s()
        module(x)
        times.append(process_time_s() - start_s)
    return min(times)
