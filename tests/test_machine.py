"""What containers allow, read from trees like those that the kernel shows."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from voicepipe import machine

MANY_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "n_cpus"),
    [
        ({}, MANY_CPUS),
        ({"cpu.max": "max 100000"}, MANY_CPUS),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "9900000 100000"}, MANY_CPUS),
        ({"cpu.max": "100000 0"}, MANY_CPUS),
        ({"cpu.max": "nonsense"}, MANY_CPUS),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, MANY_CPUS),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_usable_cpus_follow_the_quota(tmp_path: Path, files: dict[str, str], n_cpus: int) -> None:
    assert machine.n_usable_cpus(plant(tmp_path, files)) == n_cpus


def test_memory_is_the_smaller_of_machine_and_container(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total
    assert machine.memory_limit_bytes(tmp_path) == total
    assert machine.memory_limit_bytes(plant(tmp_path, {"memory.max": "max"})) == total
    assert machine.memory_limit_bytes(plant(tmp_path, {"memory.max": "1000000"})) == 1_000_000
    old = plant(tmp_path / "v1", {"memory/memory.limit_in_bytes": "2000000"})
    assert machine.memory_limit_bytes(old) == 2_000_000
    assert machine.memory_limit_bytes(plant(tmp_path, {"memory.max": str(2**63)})) == total


def test_free_memory_is_what_the_container_has_left(tmp_path: Path) -> None:
    assert 0 < machine.memory_free_bytes(tmp_path) <= psutil.virtual_memory().total
    new = plant(tmp_path / "v2", {"memory.max": "5000000", "memory.current": "4000000"})
    assert machine.memory_free_bytes(new) == 1_000_000
    over = plant(tmp_path / "over", {"memory.max": "5000000", "memory.current": "6000000"})
    assert machine.memory_free_bytes(over) == 0
    v1 = {"memory/memory.limit_in_bytes": "5000000", "memory/memory.usage_in_bytes": "1"}
    assert machine.memory_free_bytes(plant(tmp_path / "v1", v1)) == 4_999_999


def test_the_processor_is_named(tmp_path: Path) -> None:
    info = plant(tmp_path, {"cpuinfo": "processor : 0\nmodel name\t: Toy 3000\nflags\t: a avx2"})
    assert machine.cpu_model(info / "cpuinfo") == "Toy 3000"
    assert machine.cpu_flags(info / "cpuinfo") == {"a", "avx2"}
    assert machine.cpu_flags(tmp_path / "nothing") == frozenset()
    assert machine.cpu_model(tmp_path / "nothing")
