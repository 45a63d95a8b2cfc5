"""Steps on a GPU: small ones are captured as CUDA graphs, one for each padded shape, and replayed;
prompts run operation by operation.

A launch takes the CPU about 5 us, a step of 30 layers several hundred of them: more than the GPU
needs for the work of a few tokens. A replayed graph is one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from stages.llm.cuda_plan import (
    ROW_BUCKETS,
    PaddedRows,
    Shape,
    contexts,
    padded,
    shape_of,
    slots_of,
)
from stages.llm.gather_net import GatherNet, RowAttention, SequenceAttention, State
from stages.llm.kv_store import KvStore
from stages.llm.step_plan import Rows, wanted_rows
from voicepipe.errors import ComponentError

N_WARM_UPS = 3
"""Steps before one is captured: libraries allocate and choose kernels in the first ones."""


def cuda_device() -> torch.device:
    """The GPU. Raises ComponentError when torch sees none."""
    if not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
        raise ComponentError(
            f"language model: device cuda was asked for, but torch {torch.__version__} (built with "
            f"{build}) sees no GPU: check `nvidia-smi`, or use device cpu"
        )
    return torch.device("cuda", torch.cuda.current_device())


class CudaBackend:
    """`transformer.Backend` on the device of `net`. On any other than a GPU the same steps run
    uncaptured."""

    def __init__(self, net: GatherNet, n_positions: int) -> None:
        self._net, self._n_positions = net, n_positions
        self._is_captured = net.device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if self._is_captured else None
        self._steps: WeakKeyDictionary[KvStore, dict[Shape, PaddedStep]] = WeakKeyDictionary()

    def new_store(self, n_slots: int) -> KvStore:
        """A store, and all steps over it, captured: they know its address. One slot more than
        asked for is the scratch slot, which padding reads and writes."""
        net = self._net
        store = KvStore(net.config, n_slots + 1, net.dtype, str(net.device))
        for layer in store.layers:
            layer[:, -1] = 0.0  # what is masked must still be a number
        steps: dict[Shape, PaddedStep] = {}
        self._steps[store] = steps
        longest = min(self._n_positions, n_slots)
        for n_tokens in reversed(contexts(longest)):  # the largest first: the others fit its memory
            for n_rows in reversed(ROW_BUCKETS):
                shape = Shape(n_rows, n_tokens)
                steps[shape] = PaddedStep(net, store, shape)
                if self._is_captured:
                    steps[shape].capture(self._pool)
        return store

    def compute(self, store: KvStore, batch: Sequence[Rows]) -> torch.Tensor:
        longest = min(self._n_positions, store.n_slots - 1)
        wanted = wanted_rows(batch)
        shape = shape_of(batch, longest)
        if shape is not None:
            scores = self._steps[store][shape].run(padded(batch, shape, store.n_slots - 1))
            logits = scores[: sum(len(rows.ids) for rows in batch)][wanted]
        else:
            logits = self._net.logits(self._hidden(store, batch)[wanted])
        if self._is_captured:
            torch.cuda.current_stream().synchronize()
        return logits.cpu()

    def _hidden(self, store: KvStore, batch: Sequence[Rows]) -> torch.Tensor:
        device = self._net.device
        ids = [token for rows in batch for token in rows.ids]
        slots = [slot for rows in batch for slot in rows.slots]
        positions = [rows.position + n for rows in batch for n in range(len(rows.ids))]
        state = store.layers, store.keys, store.values
        inputs = torch.tensor([ids, positions, slots]).to(device)
        attention = SequenceAttention(
            [slots_of(rows).to(device) for rows in batch],
            [len(rows.ids) for rows in batch],
            self._net.config.attention_softcap,
        )
        return self._net.hidden(state, inputs[0], inputs[1], inputs[2], attention)


class PaddedStep:
    """A step of one shape over one store, with inputs and outputs at fixed addresses."""

    def __init__(self, net: GatherNet, store: KvStore, shape: Shape) -> None:
        self._net = net
        self._state: State = (store.layers, store.keys, store.values)
        nothing = padded((), shape, store.n_slots - 1)
        self._staged = nothing
        if net.device.type == "cuda":
            self._staged = PaddedRows(nothing.row_inputs.pin_memory(), nothing.table.pin_memory())
        self._inputs = nothing.row_inputs.to(net.device, copy=True)
        self._table = nothing.table.to(net.device, copy=True)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits = torch.empty(0)

    @torch.inference_mode()
    def capture(self, pool: Any) -> None:
        """Record the step; `run` replays it from then on."""
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(N_WARM_UPS):
                self._computed()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._logits = self._computed()
        self._graph = graph

    def run(self, inputs: PaddedRows) -> torch.Tensor:
        """Logits [n_rows of the shape, n_vocabulary] on the device, valid until the next step. The
        previous step must be over: its inputs are overwritten."""
        self._staged.row_inputs.copy_(inputs.row_inputs)
        self._staged.table.copy_(inputs.table)
        self._inputs.copy_(self._staged.row_inputs, non_blocking=True)
        self._table.copy_(self._staged.table, non_blocking=True)
        if self._graph is None:
            return self._computed()
        self._graph.replay()
        return self._logits

    def _computed(self) -> torch.Tensor:
        ids, positions, slots, n_seen = self._inputs.unbind(0)
        attention = RowAttention(self._table, n_seen, self._net.config.attention_softcap)
        hidden = self._net.hidden(self._state, ids, positions, slots, attention)
        return self._net.logits(hidden)
