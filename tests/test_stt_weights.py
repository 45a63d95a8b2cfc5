"""Reading CTranslate2's model files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.stt.weights import read_variables
from voicepipe.errors import ComponentError

MATRIX = np.arange(6, dtype=np.float16).reshape(2, 3)
HEADS = np.array(6, dtype=np.int16)


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def variable(name: str, kind: int, array: np.ndarray) -> bytes:
    head = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
    return text(name) + head + struct.pack("<BI", kind, array.nbytes) + array.tobytes()


def model(version: int = 6) -> bytes:
    variables = [
        variable("encoder/big", 0, np.zeros(50, np.float32)),
        variable("decoder/embeddings/weight", 4, MATRIX),
        variable("decoder/num_heads", 2, HEADS),
    ]
    alias = text("decoder/projection/weight") + text("decoder/embeddings/weight")
    head = struct.pack("<I", version) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    return head + b"".join(variables) + struct.pack("<I", 1) + alias


def test_the_variables_of_a_scope_and_their_aliases(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(model())
    found = read_variables(file, "decoder")
    assert set(found) == {"embeddings/weight", "num_heads", "projection/weight"}
    assert found["projection/weight"].tolist() == MATRIX.tolist()
    assert int(found["num_heads"]) == 6


def problem_with(path: Path) -> str:
    with pytest.raises(ComponentError, match="fetch the model again") as raised:
        read_variables(path, "decoder")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_another_version_a_missing_file_and_any_other_file_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    assert str(file) in problem_with(file)
    file.write_bytes(model(version=7))
    assert "version 7" in problem_with(file)
    file.write_bytes(b"GGUF" * 100)
    problem_with(file)


@given(kept=st.floats(0, 0.999))
def test_a_file_that_ends_too_early_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, kept: float
) -> None:
    file = tmp_path_factory.mktemp("cut") / "model.bin"
    file.write_bytes(model()[: int(kept * len(model()))])
    problem_with(file)


@given(st.binary(max_size=300).filter(lambda b: b[:2] != b"\0\0"))
def test_rubbish_is_one_line(tmp_path_factory: pytest.TempPathFactory, rubbish: bytes) -> None:
    file = tmp_path_factory.mktemp("rubbish") / "model.bin"
    file.write_bytes(struct.pack("<I", 6) + rubbish)
    problem_with(file)
