"""A loaded decoder: steps over ragged rows of any number of sequences.

    model = load_model(weights, n_positions=2048)
    store = model.new_store(n_slots)
    logits = model.step(store, [Rows(ids, position, slots, runs, n_logits), …])

Blocking; one thread at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, Protocol

import torch

from stages.llm.costs import ThreadCosts, measure
from stages.llm.cpu_backend import CpuBackend
from stages.llm.cuda_backend import CudaBackend, cuda_device
from stages.llm.gather_net import GatherNet
from stages.llm.huge_pages import collapse
from stages.llm.kernels import KernelChoice, choose_kernel
from stages.llm.kv_store import KvStore
from stages.llm.model_config import ModelConfig
from stages.llm.native_backend import NativeBackend
from stages.llm.native_build import native_library
from stages.llm.native_net import fits
from stages.llm.packed_cache import PackedCache
from stages.llm.prepare import Precision, Preparation, Prepared
from stages.llm.step_plan import Rows
from stages.llm.weights import Weights
from voicepipe.clock import process_time_s
from voicepipe.errors import UsageError

__all__ = ["KvStore", "Model", "Rows", "load_model"]

Device = Literal["cpu", "cuda"]

WARM_UP_TOKENS = 160
"""What the rows of measured steps attend to, themselves included."""


COLLAPSE_FROM_BYTES = 32 << 20
"""Smaller models fit caches, whose misses huge pages make cheaper."""


class Backend(Protocol):
    """What computes steps."""

    def new_store(self, n_slots: int) -> KvStore: ...

    def compute(self, store: KvStore, batch: Sequence[Rows]) -> torch.Tensor:
        """Logits [sum of n_logits, n_vocabulary] on the CPU, in order."""
        ...


class Model:
    """One model. At most `n_threads` compute steps of several rows, at most `n_decode_threads`
    those of a single one: that is little work, hardly worth waiting for a second core. Fewer do
    when that is faster. `kernel` is what the start-up check of int8 found, if it was asked for."""

    def __init__(
        self,
        config: ModelConfig,
        backend: Backend,
        *,
        n_positions: int,
        n_threads: int = 2,
        n_decode_threads: int = 1,
        kernel: KernelChoice | None = None,
    ) -> None:
        if min(n_threads, n_decode_threads) < 1:
            raise UsageError(f"{n_threads} and {n_decode_threads} threads: give at least 1 each")
        self.config, self.kernel, self.n_positions = config, kernel, n_positions
        self._backend = backend
        self._n_threads, self._n_decode_threads = n_threads, n_decode_threads
        self._costs: ThreadCosts | None = None

    def new_store(self, n_slots: int) -> KvStore:
        """Room for the keys and values of `n_slots` tokens."""
        return self._backend.new_store(n_slots)

    def step(self, store: KvStore, batch: Sequence[Rows]) -> torch.Tensor:
        """Compute all rows; afterwards their keys and values are in `store`. Returns the logits
        asked for, [sum of n_logits, n_vocabulary], in order.

        Raises UsageError for rows that do not fit together or into `n_positions`.
        """
        if not batch:
            raise UsageError("a step without rows")
        for rows in batch:
            rows.check(self.n_positions)
        start_s = process_time_s()
        n_rows = sum(len(rows.ids) for rows in batch)
        most = self._n_threads if n_rows > 1 else self._n_decode_threads
        n_threads = self._costs.choose(n_rows, most) if self._costs else most
        logits = self._compute(store, batch, n_threads)
        if self._costs:
            self._costs.learn(n_rows, n_threads, process_time_s() - start_s)
        return logits

    def costs(self) -> ThreadCosts:
        """What steps cost; measured at the first call, and as they are taken after it."""
        if self._costs is None:
            self._costs = self._measured()
        return self._costs

    def warm_up(self) -> None:
        """Take steps until everything that is made once is made, and measure them."""
        self.costs()

    @torch.inference_mode()
    def _compute(self, store: KvStore, batch: Sequence[Rows], n_threads: int) -> torch.Tensor:
        if torch.get_num_threads() != n_threads:
            torch.set_num_threads(n_threads)
        return self._backend.compute(store, batch)

    def _measured(self) -> ThreadCosts:
        n_tokens = min(WARM_UP_TOKENS, self.n_positions)
        store = self.new_store(n_tokens)

        def step(n_threads: int, n_rows: int) -> None:
            position = n_tokens - n_rows
            ids = [n % self.config.n_vocabulary for n in range(n_rows)]
            slots = range(position, n_tokens)
            rows = Rows(ids, position, slots, [(0, n_tokens)], min(n_rows, 8))
            self._compute(store, [rows], n_threads)

        for layer in store.layers:
            layer.zero_()
        numbers = sorted({1, self._n_decode_threads, self._n_threads})
        for n_threads in numbers:
            step(n_threads, 1)
            step(n_threads, min(2, n_tokens))
        return ThreadCosts({n: measure(partial(step, n), n_tokens) for n in numbers})


def load_model(
    weights: Weights,
    *,
    n_positions: int,
    precision: Precision = "int8",
    device: Device = "cpu",
    n_threads: int = 2,
    n_decode_threads: int = 1,
    cache: PackedCache | None = None,
) -> Model:
    """The decoder of `weights` for sequences of up to `n_positions` tokens.

    `int8` keeps weights in 8 bits, on a GPU in bfloat16; the float precisions compute what the file
    says. What int8 takes long to prepare is kept in `cache`. Raises ComponentError when `device` is
    cuda and there is none.
    """
    n_positions = min(n_positions, weights.config.n_context)
    if device == "cuda":
        gpu = cuda_device()
        precision = "bfloat16" if precision == "int8" else precision
        with torch.inference_mode():
            tensors = Preparation(weights.config, precision).prepared(weights)
            net = GatherNet(weights.config, tensors, n_positions, gpu)
        backend = CudaBackend(net, n_positions)
        return Model(
            weights.config, backend, n_positions=n_positions, n_threads=1, n_decode_threads=1
        )
    kernel = choose_kernel(compiled=fits(weights.config)) if precision == "int8" else None
    library = native_library() if kernel and kernel.kernel.kind == "compiled" else None
    with torch.inference_mode():
        if library is not None:
            cpu: Backend = NativeBackend(library, weights, n_positions)
        else:
            if kernel and kernel.kernel.kind == "float32":
                precision = "float32"
            preparation = Preparation(weights.config, precision)
            tensors = _prepared(preparation, weights, cache)
            cpu = CpuBackend(preparation, tensors, n_positions)
            if sum(tensor.nbytes for tensor in tensors.values()) > COLLAPSE_FROM_BYTES:
                del tensors
                collapse()
    return Model(
        weights.config,
        cpu,
        n_positions=n_positions,
        n_threads=n_threads,
        n_decode_threads=n_decode_threads,
        kernel=kernel,
    )


def _prepared(preparation: Preparation, weights: Weights, cache: PackedCache | None) -> Prepared:
    precision = preparation.precision
    if cache is None or precision != "int8":
        return preparation.prepared(weights)
    tensors = cache.load(precision)
    if tensors is None:
        tensors = preparation.prepared(weights)
        cache.save(precision, tensors)
    return tensors
