from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages.llm import huge_pages
from stages.llm.huge_pages import PAGE_BYTES, anonymous_ranges, collapse

MAPS = """\
7f0000000000-7f0000a00000 rw-p 00000000 00:00 0
7f0001000000-7f0001a00000 r--p 00000000 00:00 0
7f0002000000-7f0002a00000 rw-p 00000000 08:01 1234                       /usr/lib/some file.so
7f0003000000-7f0003001000 rw-p 00000000 00:00 0                          [heap]
"""


def test_memory_holds_the_same_after_it_moved() -> None:
    before = torch.arange(4 * PAGE_BYTES // 8)
    n_bytes = collapse()
    assert n_bytes >= 0
    assert n_bytes % PAGE_BYTES == 0
    assert torch.equal(before, torch.arange(4 * PAGE_BYTES // 8))


def test_only_what_is_writable_and_of_no_file_moves() -> None:
    assert list(anonymous_ranges(MAPS)) == [
        (0x7F0000000000, 0x7F0000A00000),
        (0x7F0003000000, 0x7F0003001000),
    ]


def test_systems_without_a_map_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "MAPS", tmp_path / "absent")
    assert collapse() == 0
