"""The keys and values of the tokens a model has seen: a cache of token ids, never the truth.

What a conversation holds is a list of ids; a cache holds the attention state of some list of ids.
Before it is used it is aligned: whatever does not match is forgotten, the rest is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class KvCache:
    """Attention state of up to `capacity` tokens of one sequence. Not thread-safe: the engine's
    thread alone touches it. Memory is committed by the system as tokens come."""

    def __init__(
        self, n_layers: int, n_rows: int, capacity: int, head_size: int, dtype: torch.dtype
    ) -> None:
        self._store = torch.empty(n_layers, n_rows, capacity, head_size, dtype=dtype)
        self.layers = list(self._store)
        """One view a layer, [keys then values of each KV head, capacity, head_size]."""
        self.capacity = capacity
        self.ids: list[int] = []
        """The tokens whose state is held, from the start of the sequence."""

    def n_common(self, ids: Sequence[int]) -> int:
        """How many tokens from the start this cache and `ids` share."""
        n = min(len(self.ids), len(ids))
        if self.ids[:n] == list(ids[:n]):
            return n
        return next(i for i in range(n) if self.ids[i] != ids[i])

    def truncate(self, n: int) -> None:
        """Forget all but the first `n` tokens."""
        del self.ids[n:]

    def adopt_prefix(self, other: KvCache, n: int) -> None:
        """Hold the first `n` tokens of `other`, copied; what was held before is forgotten."""
        self._store[:, :, :n] = other._store[:, :, :n]
        self.ids = other.ids[:n]
