"""Steps on the CPU: the whole decoder as one TorchScript call over runs of slots."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import cast

import torch

from stages.llm.decoder_net import DecoderNet
from stages.llm.kv_store import KvStore
from stages.llm.model_config import ModelConfig
from stages.llm.prepare import DTYPES, Preparation, Prepared
from stages.llm.step_plan import Rows, plan_step

log = logging.getLogger(__name__)

_optimized = torch.jit.optimized_execution  # type: ignore[attr-defined]


class CpuBackend:
    """`transformer.Backend` on the CPU."""

    def __init__(self, preparation: Preparation, tensors: Prepared, n_positions: int) -> None:
        self._config: ModelConfig = preparation.config
        self._dtype = DTYPES[preparation.precision]
        self._window = self._config.window if any(self._config.sliding_layers) else 0
        net = DecoderNet(
            self._config,
            tensors["embedding"],
            [preparation.layer(tensors, n) for n in range(self._config.n_layers)],
            preparation.head(tensors),
            n_positions,
            self._dtype,
        )
        self._net = _compiled(net.eval())

    def new_store(self, n_slots: int) -> KvStore:
        return KvStore(self._config, n_slots, self._dtype)

    def compute(self, store: KvStore, batch: Sequence[Rows]) -> torch.Tensor:
        plan = plan_step(batch, window=self._window, dtype=self._dtype)
        with _optimized(False):
            hidden: torch.Tensor = self._net(
                store.layers,
                store.keys,
                store.values,
                plan.ids,
                plan.position,
                plan.positions,
                plan.first_slot,
                plan.slots,
                plan.everything.seen,
                plan.window.seen,
            )
            if not plan.wanted:
                return torch.empty(0, self._config.n_vocabulary, dtype=self._dtype)
            if len(plan.wanted) < len(hidden):
                hidden = hidden[plan.wanted]
            logits: torch.Tensor = self._net.logits(hidden)  # type: ignore[operator]
            return logits


def _compiled(net: DecoderNet) -> torch.nn.Module:
    """`net` as TorchScript: 1.6 times as fast at one token, and without Python's lock, so that a
    busy event loop slows it little. Where this Python has no TorchScript, `net` itself.

    Its optimiser is off in steps: it takes 4 s of the first ones and nothing off later ones."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated in favour of compilers that need gcc
            return cast(torch.nn.Module, torch.jit.script(net))
    except Exception as error:  # noqa: BLE001 - whatever it is, the model runs without
        log.warning("decoder runs uncompiled, slower: %s", str(error).splitlines()[0])
        return net
