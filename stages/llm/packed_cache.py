"""Prepared weights on disk, so that a model is rotated and quantised once a machine, not a start.

An entry is a safetensors file named after everything that it depends on. It is written beside its
place and moved there, its checksum is compared before it is used, and whatever is wrong with it
costs a warning and the time of preparing anew.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from stages.llm import linear, prepare, rope, rotation
from stages.llm.prepare import Precision, Prepared

log = logging.getLogger(__name__)

SUFFIX = ".prepared.safetensors"
MAX_ENTRIES = 4
"""Kept in a folder, newest first: models and versions that nobody uses any more go."""

CODE = (linear, prepare, rope, rotation)
"""What turns a file's weights into prepared ones."""


class PackedCache:
    """Prepared weights of the model at `model_path` (a file, or a folder whose files count), kept
    in `folder`."""

    def __init__(self, folder: Path, model_path: Path) -> None:
        self._folder = folder
        self._identity = _digest([*_model_files(model_path), *_code_files()])

    def load(self, precision: Precision) -> Prepared | None:
        """What `save` was given; None when there is nothing, or nothing sound."""
        path = self._path(precision)
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                tensors: Prepared = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                stored = (file.metadata() or {}).get("checksum")
        except (OSError, SafetensorError) as error:
            log.warning("prepared weights %s: cannot be read, made anew: %s", path, error)
            return None
        if stored != _checksum(tensors):
            log.warning("prepared weights %s: damaged, made anew", path)
            return None
        path.touch()
        return tensors

    def save(self, precision: Precision, tensors: Prepared) -> None:
        """Keep `tensors` for the next start; a warning when that is impossible."""
        path = self._path(precision)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                written = Path(scratch) / path.name
                save_file(tensors, written, {"checksum": _checksum(tensors)})
                os.replace(written, path)
            self._drop_oldest()
        except (OSError, SafetensorError) as error:
            log.warning("prepared weights cannot be kept in %s: %s", self._folder, error)

    def _path(self, precision: Precision) -> Path:
        name = hashlib.sha256(f"{self._identity} {precision} {torch.__version__}".encode())
        return self._folder / f"{name.hexdigest()[:32]}{SUFFIX}"

    def _drop_oldest(self) -> None:
        entries = sorted(self._folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        for path in entries[:-MAX_ENTRIES]:
            path.unlink(missing_ok=True)


def _model_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    kinds = ("*.gguf", "*.safetensors", "config.json")
    return sorted(file for kind in kinds for file in path.glob(kind))


def _code_files() -> list[Path]:
    return [Path(module.__file__) for module in CODE if module.__file__]


def _digest(paths: Iterable[Path]) -> str:
    """SHA-256 over the contents of files."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _checksum(tensors: Prepared) -> str:
    """CRC-32 over names, shapes and contents."""
    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        crc = zlib.crc32(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode(), crc)
        crc = zlib.crc32(tensor.view(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"
