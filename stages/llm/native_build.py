"""The compiled decoder: built once a machine with its own C compiler, and loaded.

Where there is no compiler, or a processor without AVX2, models run on torch's operators instead.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import subprocess
import tempfile
from pathlib import Path

import torch

from voicepipe.machine import c_compiler
from voicepipe.models import state_root

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "native"
MAIN = "decoder.c"
FLAGS = ("-O3", "-std=c11", "-mavx2", "-mfma", "-mf16c", "-shared", "-fPIC", "-pthread")
CAPABLE = ("AVX2", "AVX512")
"""What torch calls processors with these instructions."""
TIMEOUT_S = 120
MAX_KEPT = 4
"""Builds of other versions kept beside the one in use."""


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """The compiled decoder, None where it cannot be had; the log says why."""
    return load_native(state_root() / "native")


def load_native(folder: Path) -> ctypes.CDLL | None:
    """The compiled decoder in `folder`, compiled if it is not there yet, or not sound."""
    if torch.backends.cpu.get_cpu_capability() not in CAPABLE:
        log.info("models run on torch's operators: the processor has no AVX2")
        return None
    compiler = c_compiler()
    if compiler is None:
        log.info("models run on torch's operators, slower: there is no C compiler")
        return None
    path = folder / f"decoder-{_identity(compiler)}.so"
    if path.exists():
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            log.warning("%s is not sound, compiling it again: %s", path, error)
    try:
        _compile(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        path.unlink(missing_ok=True)
        log.warning("models run on torch's operators, slower: %s", _reason(error))
        return None


def _identity(compiler: str) -> str:
    """Names everything that the result depends on."""
    digest = hashlib.sha256(repr((compiler, os.stat(compiler).st_mtime_ns, FLAGS)).encode())
    for source in sorted(SOURCES.glob("*.[ch]")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(compiler: str, path: Path) -> None:
    """Compile beside `path`, then move there, so that what is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        subprocess.run(
            [compiler, *FLAGS, str(SOURCES / MAIN), "-o", name, "-lm"],
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    builds = sorted(path.parent.glob("decoder-*.so"), key=lambda p: p.stat().st_mtime)
    for old in builds[:-MAX_KEPT]:
        old.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    said = getattr(error, "stderr", None)
    lines = said.strip().splitlines() if isinstance(said, str) else []
    return lines[0] if lines else str(error)
