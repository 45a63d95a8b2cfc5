"""Reading GGUF files: metadata and dequantised tensors, or one line that says what is wrong.

The container is documented in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. It is
parsed here because `gguf.GGUFReader` takes seconds for a vocabulary; dequantising is the package's.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
from numpy.typing import NDArray

from voicepipe.errors import ComponentError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
VALUES_AT_ONCE = 262_144
"""Quantised values that one thread turns into floats at once: they stay in its caches, and Python
costs nothing beside them. Ten times as many take twice as long each."""
MAX_THREADS = 8
MAX_DIMS = 4
MAX_NESTING = 4
SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major (outermost first); `offset` is in the file."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int

    @property
    def n_bytes(self) -> int:
        block, block_bytes = GGML_QUANT_SIZES[self.kind]
        return prod(self.shape) // block * block_bytes


class GgufFile:
    """A GGUF file, memory-mapped. Raises ComponentError when it is missing or not sound."""

    def __init__(self, path: Path) -> None:
        """`path` is the file, or a folder with one .gguf file."""
        path = gguf_at(path)
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ComponentError(
                f"model file {path}: cannot be read ({error}): fetch it again with "
                "`voicepipe models fetch`"
            ) from error
        try:
            self.metadata, self.tensors = _Cursor(self._bytes).header()
        except (struct.error, ValueError, KeyError, OverflowError, MemoryError) as error:
            raise self.broken(f"{error}") from error
        for name, info in self.tensors.items():
            if info.offset + info.n_bytes > len(self._bytes):
                raise self.broken(f"it ends inside tensor {name}")

    def broken(self, why: str) -> ComponentError:
        """The error that says that this file is unusable and `why`."""
        return ComponentError(
            f"model file {self.path}: not a sound GGUF file ({why}): fetch it again with "
            "`voicepipe models fetch`"
        )

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of the tensor `name`, read-only."""
        info = self.tensors[name]
        return np.frombuffer(self._bytes, np.uint8, info.n_bytes, info.offset)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """The tensor `name`, dequantised, of shape `tensors[name].shape`."""
        if name not in self.tensors:
            raise self.broken(f"tensor {name} is missing")
        info, raw = self.tensors[name], self.raw(name)
        block, block_bytes = GGML_QUANT_SIZES[info.kind]
        values = np.empty(prod(info.shape), np.float32)
        step = VALUES_AT_ONCE // block

        def fill(first_block: int) -> None:
            blocks = raw[None, first_block * block_bytes : (first_block + step) * block_bytes]
            piece = dequantize(blocks, info.kind)[0]
            values[first_block * block :][: len(piece)] = piece

        try:
            _for_each(fill, range(0, len(raw) // block_bytes, step))
            return values.reshape(info.shape)
        except NotImplementedError as error:
            raise ComponentError(
                f"model file {self.path}: tensor {name} has type {info.kind.name}, which is not "
                "supported: use a Q4_0 to Q8_0, K-quant, F16 or BF16 file"
            ) from error


def _for_each(work: Callable[[int], None], items: Sequence[int]) -> None:
    """Do `work` for all `items`, in threads when there are several: numpy lets go of the lock."""
    n_threads = min(len(items), os.cpu_count() or 1, MAX_THREADS)
    if n_threads < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(work, items):
            pass


def gguf_at(path: Path) -> Path:
    """`path` itself, or the one GGUF file in that folder. Raises ComponentError when there is not
    exactly one."""
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise ComponentError(
            f"model folder {path}: it must have exactly one .gguf file, found {found}: name the "
            "file itself"
        )
    return files[0]


class _Cursor:
    """Reads the header front to back; struct.error or ValueError at anything unsound."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> tuple[dict[str, object], dict[str, TensorInfo]]:
        if self._data[:4] != MAGIC:
            raise ValueError("it does not start with GGUF")
        self._at = 4
        version = self._scalar("I")
        if version not in VERSIONS:
            raise ValueError(f"version {version}")
        n_tensors, n_fields = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, object] = {}
        for _ in range(n_fields):
            name = self._string()
            metadata[name] = self._value(GGUFValueType(self._scalar("I")))
        relative = {self._string(): self._tensor_info() for _ in range(n_tensors)}
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"alignment {alignment}")
        start = -(-self._at // alignment) * alignment
        tensors = {
            name: TensorInfo(info.shape, info.kind, start + info.offset)
            for name, info in relative.items()
        }
        return metadata, tensors

    def _tensor_info(self) -> TensorInfo:
        n_dims = self._scalar("I")
        if not 1 <= n_dims <= MAX_DIMS:
            raise ValueError(f"a tensor of {n_dims} dimensions")
        innermost_first = tuple(self._scalar("Q") for _ in range(n_dims))
        kind = GGMLQuantizationType(self._scalar("I"))
        if innermost_first[0] % GGML_QUANT_SIZES[kind][0]:
            raise ValueError(f"a {kind.name} tensor with rows of {innermost_first[0]}")
        return TensorInfo(innermost_first[::-1], kind, self._scalar("Q"))

    def _value(self, kind: GGUFValueType, depth: int = 0) -> object:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind == GGUFValueType.STRING:
            return self._string()
        if depth > MAX_NESTING:
            raise ValueError("arrays nested too deep")
        of, n = GGUFValueType(self._scalar("I")), self._scalar("Q")
        if n > len(self._data):
            raise ValueError(f"an array of {n} values")
        if of in SCALARS:
            values = struct.unpack_from(f"<{n}{SCALARS[of]}", self._data, self._at)
            self._at += struct.calcsize(f"<{n}{SCALARS[of]}")
            return list(values)
        return [self._value(of, depth + 1) for _ in range(n)]

    def _scalar(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value  # type: ignore[no-any-return]

    def _string(self) -> str:
        n = self._scalar("Q")
        end = self._at + n
        if end > len(self._data):
            raise ValueError("it ends inside a text")
        raw = self._data[self._at : end]
        self._at = end
        return raw.decode("utf-8", errors="surrogateescape")
