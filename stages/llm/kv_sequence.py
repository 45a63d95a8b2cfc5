"""One sequence of tokens in the KV cache, over a pool of shared blocks.

Forking counts references and copies nothing. Who appends to a block that others see as well goes on
behind what they see if nobody else has, and else copies its beginning (copy on write).
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from weakref import WeakSet

from stages.llm.kv_blocks import BLOCK_TOKENS, Block, Blocks, Node, chained_key

MIN_PARTIAL_TOKENS = 4
"""Fewer tokens of a block are computed anew rather than copied."""


class Sequence:
    """Tokens whose attention state is held. Empty again after `release`."""

    def __init__(
        self,
        blocks: Blocks,
        root: Node,
        copy: Callable[[int, int, int], None],
        live: WeakSet[Sequence],
    ) -> None:
        self.ids: list[int] = []
        """Read only."""
        self.table: list[Block] = []
        """The blocks that hold them; read only."""
        self._blocks, self._root, self._copy, self._live = blocks, root, copy, live
        self._n_computed = 0
        self._n_known = 0
        """How many blocks of the table, from the first, are known by all of their content."""
        self._n_borrowed = 0
        """Slots, from the first, that others filled: they are not overwritten even when nobody
        else uses them any more."""
        self._stretches: list[tuple[int, int]] | None = []
        """(first block, number of blocks) of neighbours; None: to be found again."""
        live.add(self)

    def append(self, ids: abc.Sequence[int]) -> list[int]:
        """Reserve a slot for each of `ids`, behind what is held; returns the slots. Known blocks
        that nobody uses make room. Raises OutOfBlocks with nothing changed."""
        n, n_end = len(self.ids), len(self.ids) + len(ids)
        n_new = -(-n_end // BLOCK_TOKENS) - len(self.table)
        offset = n % BLOCK_TOKENS
        if offset and ids:
            in_place = self._may_write(offset, n_new)
            self._blocks.reserve(n_new + (not in_place))
            self._own_tail(offset, in_place)
        elif n_new:
            self._blocks.reserve(n_new)
        for n_left in range(n_new, 0, -1):
            self._add_block(self._blocks.take(self.table[-1] if self.table else None, n_left))
        self.ids += ids
        if len(ids) == 1:
            return [self.table[-1].first_slot + offset]
        table = self.table
        return [table[at // BLOCK_TOKENS].first_slot + at % BLOCK_TOKENS for at in range(n, n_end)]

    def commit(self) -> None:
        """The state of all tokens is computed: full blocks are known from now on."""
        self._n_computed = len(self.ids)
        for n in range(self._n_known, len(self.ids) // BLOCK_TOKENS):
            ids = tuple(self.ids[n * BLOCK_TOKENS : (n + 1) * BLOCK_TOKENS])
            block = self._blocks.register(self.table[n], self._parent(n), ids)
            if block is not self.table[n]:
                self.table[n] = block
                self._n_borrowed = (n + 1) * BLOCK_TOKENS
                self._stretches = None
            self._n_known = n + 1

    def fork(self) -> Sequence:
        """A second sequence with all computed tokens of this one."""
        n = self._n_computed
        fork = Sequence(self._blocks, self._root, self._copy, self._live)
        fork.table = self.table[: -(-n // BLOCK_TOKENS)]
        if offset := n % BLOCK_TOKENS:
            tail = fork.table[-1]
            if tail.n_uses == 1 or tail.writer is self:
                tail.n_shared = offset if tail.n_uses == 1 else max(tail.n_shared, offset)
                tail.writer = self if len(self.ids) > n else None
        for block in fork.table:
            self._blocks.use(block)
        fork.ids = self.ids[:n]
        fork._n_computed, fork._n_known = n, self._n_known
        fork._n_borrowed = self._n_borrowed
        fork._stretches = None
        return fork

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens only."""
        if not 0 <= n <= len(self.ids):
            raise ValueError(f"truncate to {n} tokens: {len(self.ids)} are held")
        del self.ids[n:]
        n_blocks = -(-n // BLOCK_TOKENS)
        if n_blocks < len(self.table):
            for block in reversed(self.table[n_blocks:]):
                self._leave(block)
            del self.table[n_blocks:]
            self._stretches = None
        self._n_computed = min(self._n_computed, n)
        self._n_known = min(self._n_known, n // BLOCK_TOKENS)
        self._n_borrowed = min(self._n_borrowed, n_blocks * BLOCK_TOKENS)

    def release(self) -> None:
        """Give everything back. What is computed stays known until its space is needed."""
        self.truncate(self._n_computed)
        tail, n_seen = self.tail()
        if tail is not None and tail.parent is None and tail.n_uses == 1:
            ids, parent = tuple(self.ids[-n_seen:]), self._parent(len(self.table) - 1)
            if n_seen >= MIN_PARTIAL_TOKENS and parent.nearest(ids, n_seen)[0] is None:
                self._blocks.register(tail, parent, ids)
        self.truncate(0)

    def runs(self) -> list[tuple[int, int]]:
        """(first slot, number of tokens) of stretches of slots, in order of position."""
        if self._stretches is None:
            self._stretches = []
            for block in self.table:
                self._note_stretch(block)
        runs, n_left = [], len(self.ids)
        for first, n_blocks in self._stretches:
            n = min(n_left, n_blocks * BLOCK_TOKENS)
            runs.append((first * BLOCK_TOKENS, n))
            n_left -= n
        return runs

    def tail(self) -> tuple[Block | None, int]:
        """The last block and how many of its tokens are seen; None when that is all of them."""
        n = len(self.ids) % BLOCK_TOKENS
        return (self.table[-1], n) if n else (None, 0)

    def known_blocks(self) -> list[Block]:
        """The full, computed blocks, from the first."""
        return self.table[: self._n_known]

    def next_key(self, ids: abc.Sequence[int]) -> bytes:
        """The key of a block of `ids` behind the known ones."""
        return chained_key(self._parent(self._n_known).key, ids)

    def take_over(self, ids: abc.Sequence[int]) -> None:
        """For an empty sequence: see `BlockPool.match`."""
        assert not self.table
        n_most = len(ids) - 1
        node, n = self._root, 0
        while n + BLOCK_TOKENS <= n_most:
            child = node.children.get(tuple(ids[n : n + BLOCK_TOKENS]))
            if child is None:
                break
            self._join(child)
            node, n = child, n + BLOCK_TOKENS
        self._n_known = n // BLOCK_TOKENS
        more = tuple(ids[n : min(n_most, n + BLOCK_TOKENS)])
        nearest, n_more = node.nearest(more, MIN_PARTIAL_TOKENS)
        if nearest is not None:
            self._join(nearest)
        self.ids = list(ids[: n + n_more])
        self._n_computed = len(self.ids)
        self._n_borrowed = len(self.table) * BLOCK_TOKENS

    def check(self) -> None:
        """Raises AssertionError unless the table holds the tokens."""
        assert len(self.table) == -(-len(self.ids) // BLOCK_TOKENS)
        assert self._n_computed <= len(self.ids)
        assert self._n_known == self._n_computed // BLOCK_TOKENS
        for n, block in enumerate(self.table):
            ids = tuple(self.ids[n * BLOCK_TOKENS : (n + 1) * BLOCK_TOKENS])
            if n < self._n_known or block.parent is not None:
                assert block.parent is self._parent(n), "a block out of its chain"
                assert block.ids[: len(ids)] == ids, "a block of other tokens"
            elif block.n_uses > 1 and len(ids) > block.n_shared:
                assert block.writer is self, "two sequences write into one block"
        assert sum(n for _, n in self.runs()) == len(self.ids)

    def _parent(self, n: int) -> Node:
        return self.table[n - 1] if n else self._root

    def _join(self, block: Block) -> None:
        self._blocks.use(block)
        self._add_block(block)

    def _leave(self, block: Block) -> None:
        if block.writer is self:
            block.writer = None
        self._blocks.drop(block)

    def _add_block(self, block: Block) -> None:
        self.table.append(block)
        if self._stretches is not None:
            self._note_stretch(block)

    def _note_stretch(self, block: Block) -> None:
        stretches = self._stretches
        assert stretches is not None
        if stretches and sum(stretches[-1]) == block.index:
            first, n_blocks = stretches[-1]
            stretches[-1] = (first, n_blocks + 1)
        else:
            stretches.append((block.index, 1))

    def _may_write(self, offset: int, n_new: int) -> bool:
        """Whether the tail may be written from `offset` on, rather than be copied first."""
        tail = self.table[-1]
        if tail.n_uses > 1:
            return (
                tail.parent is None
                and offset >= tail.n_shared
                and (tail.writer is None or tail.writer is self)
            )
        return (
            tail.parent is None
            or self._n_borrowed < len(self.table) * BLOCK_TOKENS
            or offset == len(tail.ids)
            or self._blocks.n_available <= n_new
        )

    def _own_tail(self, offset: int, in_place: bool) -> None:
        tail = self.table[-1]
        if in_place:
            if tail.parent is not None:
                self._blocks.forget(tail)
            if tail.n_uses > 1:
                tail.writer = self
        else:
            self.table.pop()
            own = self._blocks.take(self.table[-1] if self.table else None, 1)
            self._copy(tail.first_slot, own.first_slot, offset)
            self._leave(tail)
            self.table.append(own)
            self._stretches = None
        self._n_borrowed = min(self._n_borrowed, (len(self.table) - 1) * BLOCK_TOKENS)
