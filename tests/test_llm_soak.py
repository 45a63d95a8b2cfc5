"""A short stretch of what `benchmarks.soak` does for ten thousand turns."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import soak


def test_nothing_is_left_of_hundreds_of_turns_however_they_ended(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    soak.run(200, file)
    facts = json.loads(file.read_text(encoding="utf-8"))["ratios"]
    assert facts["blocks_in_use_at_the_end"] <= 8, "only the state of system prompts"
    assert facts["replies_alive_at_the_end"] == 0
    assert facts["replies_left_unfinished"] > 20, "none was cancelled in the middle"
    assert facts["blocks_evicted"] > 0, "the cache was too large to show anything"
