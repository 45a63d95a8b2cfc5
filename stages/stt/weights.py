"""Reads the weights of a CTranslate2 model folder (`model.bin`, binary versions 5 and 6).

The layout, after ctranslate2's python/ctranslate2/specs/model_spec.py, little endian: version u32;
name of the spec; revision u32; number of variables u32; for each its name, rank u8, dimensions u32,
type u8, number of bytes u32 and the bytes; number of aliases u32; for each the alias and the name
of a variable. A string is a length u16 and so many bytes, the last of them 0.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from voicepipe.errors import ComponentError

Arrays = dict[str, NDArray[np.generic]]

VERSIONS = (5, 6)

_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
"""By their number in the file."""


def read_variables(model_bin: Path, scope: str) -> Arrays:
    """The variables under `scope/`, named without it; a shared variable appears under its alias
    too. Raises ComponentError for a file that is not such a model or is damaged."""
    try:
        with model_bin.open("rb") as file:
            return _read(file, f"{scope}/")
    except (OSError, ValueError, IndexError) as error:
        raise ComponentError(
            f"{model_bin}: not a readable CTranslate2 model ({error}): fetch the model again"
        ) from error


def _read(file: BinaryIO, scope: str) -> Arrays:
    (version,) = _unpack(file, "I")
    if version not in VERSIONS:
        raise ValueError(f"binary version {version}, wants {' or '.join(map(str, VERSIONS))}")
    _string(file)
    _unpack(file, "I")
    (n_variables,) = _unpack(file, "I")
    found: Arrays = {}
    for _ in range(n_variables):
        name = _string(file)
        (rank,) = _unpack(file, "B")
        shape = _unpack(file, f"{rank}I")
        kind, n_bytes = _unpack(file, "BI")
        if name.startswith(scope):
            array = np.frombuffer(_bytes(file, n_bytes), _TYPES[kind])
            found[name.removeprefix(scope)] = array.reshape(shape)
        else:
            file.seek(n_bytes, 1)
    (n_aliases,) = _unpack(file, "I")
    for _ in range(n_aliases):
        alias, name = _string(file), _string(file)
        if name.removeprefix(scope) in found:
            found[alias.removeprefix(scope)] = found[name.removeprefix(scope)]
    return found


def _bytes(file: BinaryIO, n_bytes: int) -> bytes:
    found = file.read(n_bytes)
    if len(found) < n_bytes:
        raise ValueError("it ends too early")
    return found


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack(f"<{layout}", _bytes(file, struct.calcsize(f"<{layout}")))


def _string(file: BinaryIO) -> str:
    (n_bytes,) = _unpack(file, "H")
    return _bytes(file, n_bytes)[:-1].decode("utf-8")
