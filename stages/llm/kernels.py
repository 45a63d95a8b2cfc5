"""Which matrix product a model runs on: found out at start-up, on this machine."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import torch

from stages.llm.linear import FloatLinear, Int8Linear, int8_engine, saturates
from voicepipe.clock import process_time_s

log = logging.getLogger(__name__)

SHAPE = (8192, 1024)
"""Of the weight that kernels are tried with: too large for most caches, as models are."""

LARGEST_ERROR = 0.05
"""Relative to the exact product, for random weights and activations: 8 bits give 0.01, 7 bits 0.02;
a kernel that is broken on this machine far more."""

N_TRIES = 5


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
    def is_int8(self) -> bool:
        return self.kernel.name.startswith("int8")

    def __str__(self) -> str:
        others = ", ".join(str(kernel) for kernel in self.tried if kernel != self.kernel)
        return f"{self.kernel}, instead of {others}" if others else str(self.kernel)


@functools.cache
def choose_kernel(n_threads: int = 1) -> KernelChoice:
    """The fastest kernel for one row among those that are right; measured once a process.

    Logs one warning when that is not int8."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        tried = _tried()
    finally:
        torch.set_num_threads(before)
    choice = chosen(tried)
    if not choice.is_int8:
        log.warning("no fast and right int8 product here, models run slower: %s", choice)
    return choice


def chosen(tried: tuple[Kernel, ...]) -> KernelChoice:
    """The fastest of `tried` for one row whose error is small."""
    right = [kernel for kernel in tried if kernel.error <= LARGEST_ERROR]
    return KernelChoice(min(right, key=lambda kernel: kernel.one_row_s), tried)


def _tried() -> tuple[Kernel, ...]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(SHAPE, generator=generator)
    x = torch.randn(8, SHAPE[1], generator=generator)
    exact = x @ weight.T
    candidates: dict[str, torch.nn.Module] = {"float32": FloatLinear(weight)}
    if int8_engine() is not None:
        bits = 7 if saturates() else 8
        name = f"int8 weights, {bits}-bit activations ({int8_engine()})"
        candidates[name] = Int8Linear(weight, even_rows=True)
    with torch.inference_mode():
        return tuple(_measured(name, module, x, exact) for name, module in candidates.items())


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
