from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stages.llm import kv_disk
from stages.llm.kv_blocks import chained_key, root_key
from stages.llm.kv_pool import BLOCK_TOKENS, BlockPool, Sequence
from stages.llm.kv_tier import LoadPolicy, Tier, keep_evicted, restore_prefix, save_prefix

BLOCK_BYTES = 8 * BLOCK_TOKENS
FILE_BYTES = kv_disk.HEADER.size + BLOCK_BYTES


class Store:
    """One number a slot: what its token was computed from."""

    bytes_per_token = 8

    def __init__(self, n_blocks: int) -> None:
        self.state = np.zeros(n_blocks * BLOCK_TOKENS, np.int64)
        self.n_reads = 0

    def copy(self, source: int, target: int, n: int) -> None:
        self.state[target : target + n] = self.state[source : source + n]

    def read(self, first_slot: int, n: int) -> bytes:
        self.n_reads += 1
        return self.state[first_slot : first_slot + n].tobytes()

    def write(self, first_slot: int, state: bytes) -> None:
        self.state[first_slot : first_slot + BLOCK_TOKENS] = np.frombuffer(state, np.int64)


class Machine:
    """A pool and its store behind which there is a tier; as a process that begins."""

    def __init__(self, tier: Tier, *, n_blocks: int = 16, s_per_token: float = 1.0) -> None:
        self.tier = tier
        self.store = Store(n_blocks)
        self.pool = BlockPool(
            n_blocks,
            salt=b"model",
            copy=self.store.copy,
            on_evict=keep_evicted(tier, self.store),
        )
        self.policy = LoadPolicy(s_per_token)
        self.open: list[Sequence] = []

    def compute(self, ids: Iterable[int], tenant: bytes = b"") -> Sequence:
        sequence = self.pool.new_sequence(tenant=tenant)
        slots = sequence.append(list(ids))
        self.store.state[slots] = states_of(sequence.ids)
        sequence.commit()
        return sequence

    def restore(self, ids: Iterable[int], tenant: bytes = b"") -> Sequence:
        sequence = restore_prefix(
            self.tier, self.pool, self.store, list(ids), self.policy, tenant=tenant
        )
        self.open.append(sequence)
        self.pool.check()
        slots = [slot + n for slot, n_run in sequence.runs() for n in range(n_run)]
        assert self.store.state[slots].tolist() == states_of(sequence.ids)
        return sequence

    def save(self, sequence: Sequence, max_blocks: int | None = None) -> int:
        return save_prefix(self.tier, self.store, sequence, max_blocks=max_blocks)


def states_of(ids: Iterable[int]) -> list[int]:
    states, link = [], 0
    for token in ids:
        link = (link * 31 + token + 1) % (1 << 61)
        states.append(link)
    return states


def keys_of(n_blocks: int) -> list[bytes]:
    keys = [root_key(b"a salt")]
    for n in range(n_blocks):
        keys.append(chained_key(keys[-1], range(16 * n, 16 * n + 16)))
    return keys[1:]


def block(n: int) -> bytes:
    return bytes([n]) * BLOCK_BYTES


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# -- host memory -----------------------------------------------------------------------------------


def test_host_memory_keeps_the_blocks_used_last_and_no_more_bytes_than_it_may() -> None:
    keys = keys_of(4)
    tier = Tier(3 * BLOCK_BYTES)
    for n in (0, 1, 2):
        tier.put(keys[n], block(n))
    tier.put(keys[1], block(1))
    tier.touch([keys[0]])
    tier.put(keys[3], block(3))
    assert [tier.where(key) for key in keys] == ["host", "host", None, "host"]
    assert tier.get(keys[0]) == block(0)
    assert tier.get(keys[2]) is None


def test_a_chain_loses_its_end_first() -> None:
    keys = keys_of(4)
    tier = Tier(3 * BLOCK_BYTES)
    for n in (0, 1, 2):
        tier.put(keys[n], block(n))
    tier.touch(keys[:3])
    tier.put(keys[3], block(3))
    assert [tier.where(key) for key in keys] == ["host", "host", None, "host"]


def test_what_a_pool_evicted_comes_back_from_host_memory() -> None:
    machine = Machine(Tier(100 * BLOCK_BYTES), n_blocks=4)
    machine.compute(range(60)).release()
    machine.compute(range(1000, 1064)).release()
    assert machine.pool.match(range(60)).ids == []
    restored = machine.restore(range(60))
    assert restored.ids == list(range(48))


def test_what_came_from_host_memory_is_not_read_again_when_it_is_evicted_again() -> None:
    machine = Machine(Tier(100 * BLOCK_BYTES), n_blocks=4)
    machine.compute(range(64)).release()
    machine.compute(range(1000, 1064)).release()
    machine.restore(range(64)).release()
    machine.compute(range(2000, 2064)).release()
    assert machine.store.n_reads == 4 + 4


def test_without_room_in_the_pool_as_much_is_restored_as_fits() -> None:
    machine = Machine(Tier(100 * BLOCK_BYTES), n_blocks=4)
    machine.compute(range(64)).release()
    machine.compute(range(1000, 1064)).release()
    blocker = machine.compute(range(2000, 2020))
    assert machine.restore(range(64)).ids == list(range(32))
    assert len(blocker.ids) == 20


# -- disk ------------------------------------------------------------------------------------------


def test_a_saved_prefix_survives_a_restart(tmp_path: Path) -> None:
    machine = Machine(Tier(0, tmp_path, 1 << 20))
    assert machine.save(machine.compute(range(70))) == 0
    later = Machine(Tier(0, tmp_path, 1 << 20))
    assert later.restore([*range(70), 500]).ids == list(range(64))
    assert later.restore(range(64)).ids == list(range(63))


def test_a_prefix_is_restored_as_far_as_it_is_the_same(tmp_path: Path) -> None:
    machine = Machine(Tier(0, tmp_path, 1 << 20))
    machine.save(machine.compute(range(70)))
    later = Machine(Tier(0, tmp_path, 1 << 20))
    assert later.restore([*range(40), *range(500, 540)]).ids == list(range(32))


def test_what_is_known_in_part_is_completed_from_disk(tmp_path: Path) -> None:
    machine = Machine(Tier(0, tmp_path, 1 << 20))
    machine.save(machine.compute(range(70)))
    later = Machine(Tier(0, tmp_path, 1 << 20))
    later.compute(range(24)).release()
    assert later.restore(range(70)).ids == list(range(64))


def test_a_prefix_is_nobody_elses(tmp_path: Path) -> None:
    machine = Machine(Tier(0, tmp_path, 1 << 20))
    machine.save(machine.compute(range(70), tenant=b"one"))
    later = Machine(Tier(0, tmp_path, 1 << 20))
    assert later.restore(range(70), tenant=b"other").ids == []
    assert later.restore(range(70)).ids == []
    assert len(later.restore(range(70), tenant=b"one").ids) == 64


def test_a_prefix_is_saved_in_slices(tmp_path: Path) -> None:
    machine = Machine(Tier(0, tmp_path, 1 << 20))
    sequence = machine.compute(range(90))
    assert [machine.save(sequence, 2) for _ in range(4)] == [3, 1, 0, 0]
    assert len(list(tmp_path.iterdir())) == 5
    assert len(Machine(Tier(0, tmp_path, 1 << 20)).restore(range(90)).ids) == 80


def test_a_prefix_takes_no_more_than_its_part_of_the_disk(tmp_path: Path) -> None:
    machine = Machine(Tier(0, tmp_path, 8 * FILE_BYTES))
    sequence = machine.compute(range(90))
    assert machine.save(sequence, 1) == 1
    assert machine.save(sequence, 1) == 0
    assert len(Machine(Tier(0, tmp_path, 8 * FILE_BYTES)).restore(range(90)).ids) == 32


def test_the_disk_is_bounded_and_keeps_the_chains_used_last_from_their_beginnings(
    tmp_path: Path,
) -> None:
    tier = Tier(0, tmp_path, 8 * FILE_BYTES)
    keys = keys_of(9)
    for n in range(8):
        tier.save(keys[n], block(n))
    tier.touch(keys[4:8])
    tier.touch(keys[:4])
    tier.save(keys[8], block(8))
    assert [n for n in range(9) if tier.is_saved(keys[n])] == [0, 1, 2, 3, 4, 5, 8]


def test_what_is_larger_than_the_disks_limit_is_not_saved(tmp_path: Path) -> None:
    tier = Tier(0, tmp_path, FILE_BYTES - 1)
    tier.save(keys_of(1)[0], block(0))
    assert list(tmp_path.iterdir()) == []


def test_files_are_for_their_owner_and_unfinished_ones_go_when_they_are_old(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "kv" / "blocks"
    tier = Tier(0, folder, 1 << 20)
    old, new = folder / "old.tmp", folder / "new.tmp"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    key = keys_of(1)[0]
    tier.save(key, block(0))
    assert sorted(path.name for path in folder.iterdir()) == [f"{key.hex()}.kv", "new.tmp"]
    assert (folder / f"{key.hex()}.kv").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "broken",
    [
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: content[:10],
        lambda content: b"",
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"vpkv9999" + content[8:],
        lambda content: content[:8] + bytes(16) + content[24:],
    ],
    ids=["short", "long", "no header", "empty", "flipped", "other format", "other key"],
)
def test_a_broken_file_counts_as_absent_is_removed_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: Callable[[bytes], bytes]
) -> None:
    machine = Machine(Tier(0, tmp_path, 1 << 20))
    sequence = machine.compute(range(70))
    machine.save(sequence)
    keys = [block.key for block in sequence.known_blocks()]
    for key in keys[1:3]:
        path = tmp_path / f"{key.hex()}.kv"
        path.write_bytes(broken(path.read_bytes()))
    tier = Tier(0, tmp_path, 1 << 20)
    assert Machine(tier).restore(range(70)).ids == list(range(16))
    assert [tier.get(key) is None for key in keys] == [False, True, True, False]
    assert [tier.is_saved(key) for key in keys] == [True, False, False, True]
    assert len(warnings(caplog)) == 1
    assert "is broken and was removed" in warnings(caplog)[0]


def test_a_full_disk_is_reported_once_and_all_goes_on_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(Tier(0, tmp_path, 1 << 20))
    sequence = machine.compute(range(70))

    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    machine.save(sequence)
    monkeypatch.undo()
    assert machine.save(sequence, 1) == 0
    assert machine.restore(range(60)).ids == list(range(59))
    assert list(tmp_path.iterdir()) == []
    assert len(warnings(caplog)) == 1
    assert "No space left on device" in warnings(caplog)[0]


def test_a_folder_that_cannot_be_is_reported_once_and_all_goes_on_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    machine = Machine(Tier(0, tmp_path / "file" / "folder", 1 << 20))
    sequence = machine.compute(range(70))
    assert machine.save(sequence, 1) == 0
    assert machine.restore(range(60)).ids == list(range(59))
    assert len(warnings(caplog)) == 1


def test_a_folder_that_goes_away_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "kv"
    machine = Machine(Tier(0, folder, 1 << 20))
    folder.rmdir()
    machine.save(machine.compute(range(70)))
    assert len(warnings(caplog)) == 1


def test_two_tiers_on_one_folder_do_each_other_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both write, read and trim the same few files at once, as two processes would."""
    limit = 6 * FILE_BYTES
    keys = keys_of(12)

    def use(seed: int) -> int:
        tier, n_found = Tier(0, tmp_path, limit), 0
        for n in np.random.default_rng(seed).integers(0, len(keys), 300):
            state = tier.get(keys[n])
            n_found += state is not None
            assert state in (None, block(n))
            if state is None:
                tier.save(keys[n], block(n))
            tier.touch(keys[n : n + 2])
        return n_found

    with ThreadPoolExecutor(2) as threads:
        assert min(threads.map(use, (1, 2))) > 0
    assert warnings(caplog) == []
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * limit
    assert not list(tmp_path.glob("*.tmp"))


def test_what_another_process_saves_is_found_and_counted(tmp_path: Path) -> None:
    keys = keys_of(12)
    one, other = Tier(0, tmp_path, 6 * FILE_BYTES), Tier(0, tmp_path, 6 * FILE_BYTES)
    for n in range(6):
        one.save(keys[n], block(n))
    assert other.get(keys[5]) == block(5)
    other.save(keys[6], block(6))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 6 * FILE_BYTES


# -- whether to load -------------------------------------------------------------------------------


def test_nothing_is_loaded_that_is_computed_faster(tmp_path: Path) -> None:
    machine = Machine(Tier(0, tmp_path, 1 << 20))
    machine.save(machine.compute(range(70)))
    later = Machine(Tier(0, tmp_path, 1 << 20), s_per_token=1e-12)
    assert later.restore(range(70)).ids == []


def test_loads_are_predicted_from_loads_of_the_same_place() -> None:
    policy = LoadPolicy(s_per_token=1e-3)
    assert policy.worth(16, 1_000_000, "disk")
    for _ in range(20):
        policy.learn(1_000_000, 0.1, "disk")
    assert not policy.worth(16, 1_000_000, "disk")
    assert policy.worth(16, 1_000_000, "host")
    assert policy.worth(160, 1_000_000, "disk")


def test_one_slow_load_is_forgotten() -> None:
    policy = LoadPolicy(s_per_token=1e-3)
    for _ in range(20):
        policy.learn(1_000_000, 0.1, "disk")
    assert any(policy.worth(16, 1_000_000, "disk") for _ in range(200))
