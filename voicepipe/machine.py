"""What this machine is: processor and memory as this process may use them, containers included."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
CPU_INFO = Path("/proc/cpuinfo")
C_COMPILERS = ("cc", "gcc", "clang")


def n_usable_cpus(cgroup: Path = CGROUP) -> int:
    """Processors that this process may keep busy: its affinity, or less under a container's quota
    (cgroup v2 `cpu.max`, v1 `cpu.cfs_quota_us`). At least 1."""
    if hasattr(os, "sched_getaffinity"):
        n_cpus = len(os.sched_getaffinity(0))
    else:
        n_cpus = os.cpu_count() or 1
    quota = _cpu_quota(cgroup)
    return n_cpus if quota is None else max(1, min(n_cpus, math.ceil(quota)))


def _cpu_quota(cgroup: Path) -> float | None:
    """Processors' worth of time per period, or None without a limit."""
    if text := _read(cgroup / "cpu.max"):
        quota, _, period = text.partition(" ")
    else:
        quota = _read(cgroup / "cpu" / "cpu.cfs_quota_us")
        period = _read(cgroup / "cpu" / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def memory_limit_bytes(cgroup: Path = CGROUP) -> int:
    """Memory that this process may use at most: the machine's, or its container's limit."""
    total = int(psutil.virtual_memory().total)
    for file in (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"):
        limit = _read(file)
        if limit.isdigit():
            return min(total, int(limit))
    return total


def memory_free_bytes(cgroup: Path = CGROUP) -> int:
    """Memory that is left before this process is killed or starts to swap."""
    free = int(psutil.virtual_memory().available)
    for limit_file, used_file in (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (
            cgroup / "memory" / "memory.limit_in_bytes",
            cgroup / "memory" / "memory.usage_in_bytes",
        ),
    ):
        limit, used = _read(limit_file), _read(used_file)
        if limit.isdigit() and used.isdigit():
            return max(0, min(free, int(limit) - int(used)))
    return free


def cpu_model(cpu_info: Path = CPU_INFO) -> str:
    """The processor's name as its maker writes it; the architecture where it cannot be read."""
    for line in _read(cpu_info).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model"}:
            return value.strip()
    if platform.system() == "Darwin":
        asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return platform.processor() or platform.machine()


def cpu_flags(cpu_info: Path = CPU_INFO) -> frozenset[str]:
    """The instruction set extensions that Linux reports; empty elsewhere."""
    for line in _read(cpu_info).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def c_compiler() -> str | None:
    """The path of a C compiler with gcc's options, None when there is none."""
    return next(filter(None, map(shutil.which, C_COMPILERS)), None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
