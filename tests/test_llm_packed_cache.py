from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from stages.llm import packed_cache
from stages.llm.gguf_blocks import Blocks
from stages.llm.gguf_file import GgufFile
from stages.llm.packed_cache import MAX_ENTRIES, PackedCache
from stages.llm.prepare import Preparation, Prepared
from stages.llm.transformer import Model, Rows, load_model
from stages.llm.weights import GgufWeights
from tests import llm_tiny

IDS = list(range(20))


class Unreadable:
    """Weights that must not be needed."""

    def __init__(self) -> None:
        self.config = GgufWeights(GgufFile(llm_tiny.model_file())).config

    def has(self, name: str) -> bool:
        raise AssertionError(name)

    def tensor(self, name: str) -> torch.Tensor:
        raise AssertionError(name)

    def blocks(self, name: str) -> Blocks:
        raise AssertionError(name)


def prepared() -> Prepared:
    weights = GgufWeights(GgufFile(llm_tiny.model_file()))
    return Preparation(weights.config, "int8").prepared(weights)


def logits(model: Model) -> torch.Tensor:
    rows = Rows(IDS, 0, range(len(IDS)), [(0, len(IDS))], len(IDS))
    return model.step(model.new_store(32), [rows])


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_a_second_start_prepares_nothing_and_computes_the_same(tmp_path: Path) -> None:
    weights = GgufWeights(GgufFile(llm_tiny.model_file()))
    cache = PackedCache(tmp_path / "new", llm_tiny.model_file())
    first = load_model(weights, n_positions=32, cache=cache)
    second = load_model(Unreadable(), n_positions=32, cache=cache)
    assert torch.equal(logits(first), logits(second))
    assert len(entries(tmp_path / "new")) == 1


def test_a_damaged_entry_is_made_anew_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache, tensors = PackedCache(tmp_path, llm_tiny.model_file()), prepared()
    cache.save("int8", tensors)
    (entry,) = entries(tmp_path)
    whole = entry.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"", b"\xff" * 40):
        caplog.clear()
        entry.write_bytes(damaged)
        assert cache.load("int8") is None
        assert len(caplog.records) == 1
    cache.save("int8", tensors)
    again = cache.load("int8")
    assert again is not None
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)


def test_other_weights_precisions_and_code_are_other_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = prepared()
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    PackedCache(tmp_path / "kept", file).save("int8", tensors)
    assert PackedCache(tmp_path / "kept", file).load("int8") is not None
    assert PackedCache(tmp_path / "kept", file).load("float32") is None
    file.write_bytes(b"two")
    assert PackedCache(tmp_path / "kept", file).load("int8") is None
    file.write_bytes(b"one")
    monkeypatch.setattr(packed_cache, "CODE", ())
    assert PackedCache(tmp_path / "kept", file).load("int8") is None


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    tensors = {"embedding": torch.zeros(2)}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    PackedCache(tmp_path / "kept", folder).save("int8", tensors)
    (folder / "README.md").write_text("changes nothing")
    assert PackedCache(tmp_path / "kept", folder).load("int8") is not None
    (folder / "config.json").write_text("{ }")
    assert PackedCache(tmp_path / "kept", folder).load("int8") is None


def test_the_oldest_entries_go(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    for n in range(MAX_ENTRIES + 2):
        file.write_bytes(bytes([n]))
        PackedCache(tmp_path / "kept", file).save("int8", {"embedding": torch.zeros(2)})
        for entry in entries(tmp_path / "kept"):
            os.utime(entry, (entry.stat().st_mtime - 100, entry.stat().st_mtime - 100))
    assert len(entries(tmp_path / "kept")) == MAX_ENTRIES
    assert PackedCache(tmp_path / "kept", file).load("int8") is not None


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = PackedCache(tmp_path / "file" / "kept", llm_tiny.model_file())
    cache.save("int8", {"embedding": torch.zeros(2)})
    assert cache.load("int8") is None
    assert len(caplog.records) == 1
