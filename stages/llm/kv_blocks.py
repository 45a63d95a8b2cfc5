"""The physical side of the KV cache: blocks of slots, and the tree of the prefixes they hold.

A block is free, or in use by sequences, or known, or both of the last two. A known block has its
place in a tree, under the block that holds the tokens before its own: it can be found by content
and is never written again. Known blocks that nobody uses stay until their space is needed, least
recently used first. A sequence uses all blocks from the root to its last and gives them back from
its last to the root, so a child is always evicted before its parent, and no known block is ever
out of reach.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import blake2b
from weakref import WeakValueDictionary

from voicepipe.errors import ComponentError

BLOCK_TOKENS = 16

KEY_BYTES = 16

EVICTED_SHARE = 16
"""One in so many blocks is evicted at a time: the end of an old conversation then leaves a stretch
of free blocks, where single ones would scatter the next conversation over the whole pool."""


class OutOfBlocks(ComponentError):
    """More blocks are wanted than are free or in nobody's use. Nothing was changed."""


def root_key(salt: bytes) -> bytes:
    """What the keys of one salt (model, quantisation, template, tenant) are chained from."""
    return blake2b(salt, digest_size=KEY_BYTES).digest()


def chained_key(parent: bytes, ids: Iterable[int]) -> bytes:
    """The key of a block: of its tokens and of everything before them. The same on any machine."""
    ids = tuple(ids)
    return blake2b(parent + struct.pack(f"<{len(ids)}i", *ids), digest_size=KEY_BYTES).digest()


class Node:
    """A known prefix: the empty one of a salt, or one that ends with a known block."""

    __slots__ = ("__weakref__", "children", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.children: dict[tuple[int, ...], Block] = {}

    def nearest(self, ids: tuple[int, ...], n_least: int) -> tuple[Block | None, int]:
        """The child that has most of `ids` in common from its start, and how many tokens that is;
        (None, 0) when it is less than `n_least`."""
        head = ids[:n_least]
        best, n_best = None, 0
        if len(head) == n_least:
            for known, child in self.children.items():
                if known[:n_least] == head and (n := n_common(known, ids)) > n_best:
                    best, n_best = child, n
        return best, n_best


def n_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n


class Block(Node):
    """BLOCK_TOKENS slots. Known blocks have `parent`, `ids` (fewer than BLOCK_TOKENS where a
    conversation ended) and `key`.

    Of a block that is not known several sequences may see the beginning; only one may go on
    writing, and only behind what the others see: `writer` (None: whoever is first) from `n_shared`.
    """

    __slots__ = ("ids", "index", "n_shared", "n_uses", "parent", "writer")

    def __init__(self, index: int) -> None:
        super().__init__(b"")
        self.index = index
        self.parent: Node | None = None
        self.ids: tuple[int, ...] = ()
        self.n_uses = 0
        self.writer: object | None = None
        self.n_shared = 0

    @property
    def first_slot(self) -> int:
        return self.index * BLOCK_TOKENS


class Blocks:
    """All blocks of a pool. `on_evict` is called with a full block while it still holds what it
    is known for."""

    def __init__(self, n_blocks: int, on_evict: Callable[[Block], None] | None) -> None:
        self._all = [Block(index) for index in range(n_blocks)]
        self._is_free = bytearray(b"\1" * n_blocks)
        self._idle: OrderedDict[int, Block] = OrderedDict()
        self._roots: WeakValueDictionary[bytes, Node] = WeakValueDictionary()
        self._on_evict = on_evict
        self.n_free = n_blocks
        self.n_evicted = 0

    @property
    def n_idle(self) -> int:
        """Blocks that are known and in nobody's use."""
        return len(self._idle)

    @property
    def n_available(self) -> int:
        return self.n_free + len(self._idle)

    def root(self, salt: bytes) -> Node:
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(root_key(salt))
        return root

    def use(self, block: Block) -> None:
        """One more sequence sees the block."""
        if not block.n_uses and block.parent is not None:
            del self._idle[block.index]
        block.n_uses += 1

    def drop(self, block: Block) -> None:
        """One sequence less; to be called from the last block of a sequence to its first."""
        block.n_uses -= 1
        if block.n_uses == 0:
            if block.parent is None:
                self._free(block)
            else:
                self._idle[block.index] = block

    def reserve(self, n: int) -> None:
        """See to it that `n` blocks are free. Raises OutOfBlocks."""
        n_missing = n - self.n_free
        if n_missing <= 0:
            return
        if n_missing > len(self._idle):
            raise OutOfBlocks(
                f"KV cache: {n} blocks of {BLOCK_TOKENS} tokens are wanted, {self.n_available} of "
                f"{len(self._all)} are to be had: end a conversation or make the cache larger"
            )
        for _ in range(max(n_missing, min(len(self._idle), len(self._all) // EVICTED_SHARE))):
            self._evict()

    def take(self, after: Block | None, n_wanted: int) -> Block:
        """A free block, used once: the one physically behind `after` or, where that is taken, the
        begin of a stretch, if possible, of `n_wanted`. To be reserved before."""
        index = after.index + 1 if after is not None else len(self._all)
        if index >= len(self._all) or not self._is_free[index]:
            index = self._new_start(n_wanted)
        self._is_free[index] = 0
        self.n_free -= 1
        block = self._all[index]
        block.n_uses = 1
        return block

    def register(self, block: Block, parent: Node, ids: tuple[int, ...]) -> Block:
        """Make a block known. Returns the block to use from now on: where the same content is
        known already, that one, and `block` is dropped."""
        block.writer = None
        twin = parent.children.get(ids)
        if twin is not None:
            self.use(twin)
            self.drop(block)
            return twin
        block.parent, block.ids, block.key = parent, ids, chained_key(parent.key, ids)
        parent.children[ids] = block
        return block

    def forget(self, block: Block) -> None:
        """Make a block that one sequence ends with writable again; what followed it is lost."""
        branch = [block]
        for known in branch:
            branch += known.children.values()
        for child in reversed(branch[1:]):
            del self._idle[child.index]
            _unlink(child)
            self._free(child)
        _unlink(block)

    def _evict(self) -> None:
        _, block = self._idle.popitem(last=False)
        if self._on_evict is not None and len(block.ids) == BLOCK_TOKENS:
            self._on_evict(block)
        self.n_evicted += 1
        _unlink(block)
        self._free(block)

    def _free(self, block: Block) -> None:
        self._is_free[block.index] = 1
        self.n_free += 1
        block.n_shared = 0

    def _new_start(self, n_wanted: int) -> int:
        """In the longest free stretch: its begin, or its middle where a sequence in use ends in
        front of it and may grow."""
        stretch = max(self._is_free.split(b"\0"), key=len)
        start = self._is_free.find(stretch)
        if start and self._all[start - 1].n_uses:
            start += min(len(stretch) // 2, max(0, len(stretch) - n_wanted))
        return start

    def check(self, tables: Iterable[list[Block]]) -> None:
        """Raises AssertionError unless every block is accounted for, given the tables of all live
        sequences."""
        uses = [0] * len(self._all)
        for table in tables:
            for block in table:
                uses[block.index] += 1
        seen: set[int] = set()
        for block in self._all:
            n = block.index
            assert block.n_uses == uses[n], f"block {n}: {block.n_uses} uses, in {uses[n]} tables"
            known, free, idle = block.parent is not None, bool(self._is_free[n]), n in self._idle
            assert free == (not known and not block.n_uses), f"block {n}: wrongly (not) free"
            assert idle == (known and not block.n_uses), f"block {n}: wrongly (not) idle"
            if block.parent is not None:
                assert block.parent.children[block.ids] is block, f"block {n}: out of reach"
                assert block.key == chained_key(block.parent.key, block.ids), f"block {n}: key"
                assert 0 < len(block.ids) <= BLOCK_TOKENS
                if isinstance(block.parent, Block):
                    assert block.parent.parent is not None, f"block {n}: child of no known block"
                    assert len(block.parent.ids) == BLOCK_TOKENS
                    assert block.parent.n_uses >= block.n_uses, f"block {n}: parent evicted first"
            else:
                assert not block.children, f"block {n}: children of no known block"
            assert all(child.parent is block for child in block.children.values())
        for n, block in self._idle.items():
            assert all(child.index in seen for child in block.children.values()), "LRU order"
            seen.add(n)
        assert self.n_free == sum(self._is_free)
        n_referenced = sum(block.n_uses > 0 for block in self._all)
        assert self.n_free + self.n_idle + n_referenced == len(self._all)


def _unlink(block: Block) -> None:
    assert block.parent is not None
    assert not block.children
    del block.parent.children[block.ids]
    block.parent, block.ids, block.key = None, (), b""
