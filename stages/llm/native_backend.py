"""Steps on the CPU: the whole decoder as one call of compiled code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_int32, c_void_p

import numpy as np
import torch

from stages.llm.kv_store import KvStore
from stages.llm.native_net import CMatrix, CNet, Interleaved, NativeNet
from stages.llm.step_plan import Rows, wanted_rows
from stages.llm.weights import Weights
from voicepipe.errors import ComponentError


class CStep(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("n_rows", "n_sequences", "n_wanted", "n_slots")),
        ("n_threads", c_int32),
        *((name, c_void_p) for name in ("positions", "slots", "wanted", "sequences", "runs")),
        *((name, c_void_p) for name in ("state", "hidden", "scores")),
    ]


class NativeBackend:
    """`transformer.Backend` of a model that `native_net.fits`. It computes with as many threads as
    torch is set to."""

    def __init__(self, library: ctypes.CDLL, weights: Weights, n_positions: int) -> None:
        self._config = weights.config
        self._net = NativeNet(weights, n_positions)
        self._step = library.voicepipe_step
        self._step.argtypes = [c_void_p, POINTER(CStep)]
        library.voicepipe_open.argtypes = [POINTER(CNet)]
        library.voicepipe_open.restype = c_void_p
        library.voicepipe_close.argtypes = [c_void_p]
        self._close = library.voicepipe_close
        self._context = library.voicepipe_open(byref(self._net.struct))
        if not self._context:
            raise _no_memory()

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._close(self._context)

    def new_store(self, n_slots: int) -> KvStore:
        return KvStore(self._config, n_slots, torch.float16)

    def compute(self, store: KvStore, batch: Sequence[Rows]) -> torch.Tensor:
        ids = torch.tensor([token for rows in batch for token in rows.ids])
        hidden = torch.nn.functional.embedding(ids, self._net.embedding).float()
        wanted = wanted_rows(batch)
        scores = torch.empty(len(wanted), self._net.n_scores)
        arrays = [
            np.asarray(numbers, np.int32)
            for numbers in (
                [rows.position + n for rows in batch for n in range(len(rows.ids))],
                [slot for rows in batch for slot in rows.slots],
                wanted,
                _sequences(batch),
                [run for rows in batch for run in rows.runs],
            )
        ]
        step = CStep(
            *(len(ids), len(batch), len(wanted), store.n_slots, torch.get_num_threads()),
            *(array.ctypes.data for array in arrays),
            store.addresses.ctypes.data,
            hidden.data_ptr(),
            scores.data_ptr(),
        )
        if not self._step(self._context, byref(step)):
            raise _no_memory()
        return scores[:, : self._config.n_vocabulary]


class NativeLinear(torch.nn.Module):
    """y = x W^T for one matrix on one thread, to try the compiled product."""

    def __init__(self, library: ctypes.CDLL, matrix: Interleaved) -> None:
        super().__init__()
        self._matrix, self._struct = matrix, matrix.struct
        self._multiply = library.voicepipe_multiply
        self._multiply.argtypes = [POINTER(CMatrix), c_void_p, c_int32, c_void_p]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(len(x), self._matrix.n_outputs)
        if not self._multiply(byref(self._struct), x.data_ptr(), len(x), y.data_ptr()):
            raise _no_memory()
        return y


def _sequences(batch: Sequence[Rows]) -> list[tuple[int, int, int, int]]:
    """First row, rows, first run, runs of each."""
    sequences = []
    row = run = 0
    for rows in batch:
        sequences.append((row, len(rows.ids), run, len(rows.runs)))
        row += len(rows.ids)
        run += len(rows.runs)
    return sequences


def _no_memory() -> ComponentError:
    return ComponentError(
        "language model: no memory is left for a step: use a smaller model, context_tokens or "
        "kv_tokens"
    )
