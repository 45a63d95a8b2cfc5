"""Where a number came from: versions, hashes and the machine, as JSON for `config.json`."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from voicepipe import models as store
from voicepipe.machine import cpu_model, memory_limit_bytes, n_usable_cpus

CHECKOUT = Path(__file__).parent.parent
GIT_PATIENCE_S = 5.0


def provenance(
    models: Iterable[str] = (), threads: Mapping[str, int] | None = None
) -> dict[str, object]:
    """What a run was made with. `models` are the names that it took from the model store, `threads`
    the threads of each stage. Nothing in it names a person, a folder or a host."""
    return {
        "voicepipe": installed_version("voicepipe"),
        "git_commit": git_commit(CHECKOUT),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": {"model": cpu_model(), "usable": n_usable_cpus()},
        "memory_mb": memory_limit_bytes() // 1_000_000,
        "packages": package_versions(),
        "models": {name: store.hashes(name) for name in models},
        "threads": dict(threads or {}),
        "torch_threads": torch_threads(),
    }


def installed_version(distribution: str) -> str | None:
    """None when the distribution is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def package_versions() -> dict[str, str]:
    """The installed version of everything that voicepipe asks for, the extras included."""
    try:
        requirements = metadata.requires("voicepipe") or []
    except metadata.PackageNotFoundError:
        requirements = []
    names = {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requirements}
    versions = {name: installed_version(name) for name in sorted(names - {"voicepipe"})}
    return {name: version for name, version in versions.items() if version}


def git_commit(checkout: Path) -> str | None:
    """The commit of a checkout, with "-dirty" when files were changed; None outside of one."""
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return None
    asked = [git, "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        said = subprocess.run(
            [*asked, "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return None
    return said.stdout.strip() or None


def torch_threads() -> int | None:
    """The threads of one torch operation, if this process has loaded torch at all."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch else None
