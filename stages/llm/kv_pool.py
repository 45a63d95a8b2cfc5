"""The KV cache: which slot holds the attention state of which token. Only bookkeeping.

A sequence knows its tokens and a table of blocks. Blocks that are full and computed are known by
their content, shared by whoever has the same tokens, and stay known until their space is needed.

One step of a sequence: `append` reserves slots, the model computes them, `truncate` takes back
what was not accepted, `commit` says that the rest is computed. Nothing is shared before it is.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakSet

from stages.llm.kv_blocks import BLOCK_TOKENS, Block, Blocks, OutOfBlocks
from stages.llm.kv_sequence import Sequence
from voicepipe.errors import UsageError

__all__ = ["BLOCK_TOKENS", "Block", "BlockPool", "OutOfBlocks", "PoolCounters", "Sequence"]


@dataclass(slots=True)
class PoolCounters:
    """What a pool has done so far."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    n_copies: int = 0
    copied_tokens: int = 0


class BlockPool:
    """`n_blocks` blocks of BLOCK_TOKENS slots; slot s is in block s // BLOCK_TOKENS.

    `salt` names everything but the tokens that attention state depends on (model, quantisation,
    template). `copy(source_slot, target_slot, n_tokens)` copies state. `on_evict(block)` is called
    before a full block (`first_slot`, `key`, `ids`) is forgotten to make room.

    Not thread-safe, nor are its sequences: the engine's thread alone touches them.
    """

    def __init__(
        self,
        n_blocks: int,
        *,
        salt: bytes = b"",
        copy: Callable[[int, int, int], None],
        on_evict: Callable[[Block], None] | None = None,
    ) -> None:
        if n_blocks < 1:
            raise UsageError(f"a KV cache of {n_blocks} blocks: give it at least 1")
        self.n_blocks = n_blocks
        self.counters = PoolCounters()
        self._salt = salt
        self._copy = copy
        self._blocks = Blocks(n_blocks, on_evict)
        self._sequences: WeakSet[Sequence] = WeakSet()

    @property
    def n_free(self) -> int:
        return self._blocks.n_free

    @property
    def n_cached(self) -> int:
        """Blocks that nobody uses and that can be found by content or be evicted."""
        return self._blocks.n_idle

    @property
    def n_referenced(self) -> int:
        return self.n_blocks - self.n_free - self.n_cached

    @property
    def n_evicted(self) -> int:
        """Blocks evicted so far."""
        return self._blocks.n_evicted

    def new_sequence(self, *, tenant: bytes = b"") -> Sequence:
        """An empty sequence. Sequences of different tenants never share blocks."""
        salt = b"%d:%b%b" % (len(self._salt), self._salt, tenant)
        return Sequence(self._blocks, self._blocks.root(salt), self.copy, self._sequences)

    def match(self, ids: abc.Sequence[int], *, tenant: bytes = b"") -> Sequence:
        """A sequence that holds as much of the start of `ids` as is known, at most all but the
        last token. A part of a block counts from MIN_PARTIAL_TOKENS on."""
        sequence = self.new_sequence(tenant=tenant)
        sequence.take_over(ids)
        self.counters.queried_tokens += len(ids)
        self.counters.hit_tokens += len(sequence.ids)
        return sequence

    def copy(self, source_slot: int, target_slot: int, n_tokens: int) -> None:
        self._copy(source_slot, target_slot, n_tokens)
        self.counters.n_copies += 1
        self.counters.copied_tokens += n_tokens

    def check(self) -> None:
        """Raises AssertionError unless all blocks are accounted for and all sequences are whole."""
        sequences = list(self._sequences)
        self._blocks.check(sequence.table for sequence in sequences)
        for sequence in sequences:
            sequence.check()
