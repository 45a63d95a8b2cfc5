"""The memory of keys and values: one slot a token, in every layer."""

from __future__ import annotations

import numpy as np
import torch

from stages.llm.model_config import ModelConfig
from voicepipe.errors import UsageError


class KvStore:
    """[n_layers, 2 * n_kv_heads, n_slots, head_size]: keys, then values, of each KV head.

    Which slot is whose is not known here. On a CPU the system commits memory as it is written.
    """

    def __init__(
        self, config: ModelConfig, n_slots: int, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        if n_slots < 1:
            raise UsageError(f"a KV store of {n_slots} slots: give it at least 1")
        self.n_slots = n_slots
        self._store = torch.empty(
            config.n_layers,
            2 * config.n_kv_heads,
            n_slots,
            config.head_size,
            dtype=dtype,
            device=device,
        )
        self.layers = list(self._store)
        """One view a layer; its halves are `keys` and `values`."""
        self.keys = [layer[: config.n_kv_heads] for layer in self.layers]
        self.values = [layer[config.n_kv_heads :] for layer in self.layers]
        self.addresses = np.array([layer.data_ptr() for layer in self.layers], np.uintp)
        """Where each layer lies in memory, for compiled code."""

    @property
    def bytes_per_token(self) -> int:
        return self._store[:, :, 0].numel() * self._store.element_size()

    def copy(self, source: int, target: int, n: int) -> None:
        """Slots target … target + n - 1 become what source … source + n - 1 are; the two do not
        overlap."""
        self._store[:, :, target : target + n] = self._store[:, :, source : source + n]

    def read(self, first_slot: int, n: int) -> bytes:
        """The state of `n` slots, n * bytes_per_token bytes, in this machine's order."""
        part = self._store[:, :, first_slot : first_slot + n].cpu().contiguous()
        return part.view(torch.uint8).numpy().tobytes()

    def write(self, first_slot: int, state: bytes) -> None:
        """Fill slots from what `read` returned. Raises UsageError for bytes of another length."""
        n, rest = divmod(len(state), self.bytes_per_token)
        part = self._store[:, :, first_slot : first_slot + n]
        if rest or part.shape[2] != n:
            raise UsageError(
                f"{len(state)} bytes of KV state do not fit slots of {self.bytes_per_token} bytes"
            )
        flat = torch.frombuffer(bytearray(state), dtype=self._store.dtype)
        part.copy_(flat.view(part.shape))
