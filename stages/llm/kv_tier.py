"""What is behind the pool: attention state in host memory and on disk, by the keys of its blocks.

Blocks that a pool on another device evicts can go to host memory; the prefix of a system prompt is
saved on disk and survives a restart. Either is used only when loading is predicted to be faster
than computing. A key names the tokens of a block, all before them, and the salt, so a block found
under it is the right one whoever saved it. Not thread-safe: for the engine's thread.
"""

from __future__ import annotations

from collections import OrderedDict, abc
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from stages.llm.kv_disk import DiskBlocks
from stages.llm.kv_pool import BLOCK_TOKENS, Block, BlockPool, OutOfBlocks, Sequence
from voicepipe.clock import process_time_s

Place = Literal["host", "disk"]

ASSUMED_S_PER_BYTE: dict[Place, float] = {"host": 2.5e-10, "disk": 2e-9}
"""Before anything was loaded: 4 GB/s and 500 MB/s."""

LEARNED_SHARE = 0.25
"""Weight of the latest load in what loads are known to take."""

FORGOTTEN_SHARE = 0.02
"""Of what is known, per decision against loading: a disk that was slow once is tried again."""

SAVED_SHARE = 4
"""One prefix takes at most a quarter of the disk's limit."""


class StateStore(Protocol):
    """Where the state of slots is; see `kv_store.KvStore`."""

    @property
    def bytes_per_token(self) -> int: ...

    def read(self, first_slot: int, n: int) -> bytes: ...

    def write(self, first_slot: int, state: bytes) -> None: ...


class Tier:
    """Up to `host_bytes` of blocks in host memory and `disk_bytes` in `folder`; 0 is none."""

    def __init__(self, host_bytes: int, folder: Path | None = None, disk_bytes: int = 0) -> None:
        self._host: OrderedDict[bytes, bytes] = OrderedDict()
        self._host_bytes = host_bytes
        self._n_bytes = 0
        self._disk = DiskBlocks(folder, disk_bytes) if folder is not None else None

    @property
    def savable_bytes(self) -> int:
        """What one prefix may take on disk; 0 when there is no disk to use."""
        if self._disk is None or not self._disk.is_usable:
            return 0
        return self._disk.max_bytes // SAVED_SHARE

    def where(self, key: bytes) -> Place | None:
        if key in self._host:
            return "host"
        return "disk" if self.is_saved(key) else None

    def is_saved(self, key: bytes) -> bool:
        return self._disk is not None and self._disk.has(key)

    def get(self, key: bytes) -> bytes | None:
        """The state of a block, None when it is in neither place (any more)."""
        state = self._host.get(key)
        if state is None and self._disk is not None:
            state = self._disk.load(key)
            if state is not None:
                self.put(key, state)
        return state

    def put(self, key: bytes, state: bytes) -> None:
        """Keep a block in host memory, as the most recently used; children before parents."""
        self._n_bytes += len(state) - len(self._host.pop(key, b""))
        self._host[key] = state
        while self._n_bytes > self._host_bytes:
            self._n_bytes -= len(self._host.popitem(last=False)[1])

    def save(self, key: bytes, state: bytes) -> None:
        """Keep a block on disk."""
        if self._disk is not None:
            self._disk.save(key, state)

    def touch(self, keys: abc.Sequence[bytes]) -> None:
        """A chain of blocks, from its first, was just used."""
        for key in reversed(keys):
            if key in self._host:
                self._host.move_to_end(key)
        if self._disk is not None:
            self._disk.touch(keys)


class LoadPolicy:
    """Whether to load or to compute, from the seconds that a byte took to load and `s_per_token`
    to compute (which the owner keeps up to date)."""

    def __init__(self, s_per_token: float) -> None:
        self.s_per_token = s_per_token
        self._s_per_byte = dict(ASSUMED_S_PER_BYTE)

    def worth(self, n_tokens: int, n_bytes: int, place: Place) -> bool:
        if n_bytes * self._s_per_byte[place] < n_tokens * self.s_per_token:
            return True
        self._approach(ASSUMED_S_PER_BYTE[place], FORGOTTEN_SHARE, place)
        return False

    def learn(self, n_bytes: int, seconds: float, place: Place) -> None:
        """A load took so long, until the state was where it is used."""
        self._approach(seconds / n_bytes, LEARNED_SHARE, place)

    def _approach(self, s_per_byte: float, share: float, place: Place) -> None:
        self._s_per_byte[place] += share * (s_per_byte - self._s_per_byte[place])


def keep_evicted(tier: Tier, store: StateStore) -> Callable[[Block], None]:
    """The `on_evict` of a pool whose evicted blocks go to host memory."""

    def keep(block: Block) -> None:
        if tier.where(block.key) != "host":
            tier.put(block.key, store.read(block.first_slot, BLOCK_TOKENS))

    return keep


def save_prefix(
    tier: Tier, store: StateStore, sequence: Sequence, *, max_blocks: int | None = None
) -> int:
    """Save the full blocks of a sequence on disk, from the first on, as far as the disk's limit
    allows; at most `max_blocks` of them in this call. Returns how many are left to save."""
    n_allowed = tier.savable_bytes // (BLOCK_TOKENS * store.bytes_per_token)
    known = sequence.known_blocks()[:n_allowed]
    unsaved = [block for block in known if not tier.is_saved(block.key)]
    for block in unsaved[:max_blocks]:
        tier.save(block.key, store.read(block.first_slot, BLOCK_TOKENS))
    tier.touch([block.key for block in known])
    return len(unsaved[max_blocks:]) if max_blocks is not None else 0


def restore_prefix(
    tier: Tier,
    pool: BlockPool,
    store: StateStore,
    ids: abc.Sequence[int],
    policy: LoadPolicy,
    *,
    tenant: bytes = b"",
) -> Sequence:
    """`pool.match`, and behind it the blocks that are worth loading, as long as there is room."""
    sequence = pool.match(ids, tenant=tenant)
    n_bytes = BLOCK_TOKENS * store.bytes_per_token
    n = first = len(sequence.known_blocks())
    while (n + 1) * BLOCK_TOKENS < len(ids):
        block_ids = ids[n * BLOCK_TOKENS : (n + 1) * BLOCK_TOKENS]
        key = sequence.next_key(block_ids)
        place = tier.where(key)
        if place is None or not policy.worth(BLOCK_TOKENS, n_bytes, place):
            break
        started_s = process_time_s()
        state = tier.get(key)
        if (
            state is None
            or len(state) != n_bytes
            or not _take_in(sequence, block_ids, store, state)
        ):
            break
        policy.learn(n_bytes, process_time_s() - started_s, place)
        n += 1
    if n > first:
        tier.touch([block.key for block in sequence.known_blocks()])
    return sequence


def _take_in(sequence: Sequence, ids: abc.Sequence[int], store: StateStore, state: bytes) -> bool:
    """Put a loaded block behind the full ones of a sequence; False when the pool has no room."""
    sequence.truncate(BLOCK_TOKENS * len(sequence.known_blocks()))
    try:
        slots = sequence.append(ids)
    except OutOfBlocks:
        return False
    store.write(slots[0], state)
    sequence.commit()
    return True
