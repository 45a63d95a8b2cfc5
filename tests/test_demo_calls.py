"""The recorded call of the demo is what its index says, to the sample."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from demos.render_calls import AUDIBLE, CALL, CALLS, VOICE
from voicepipe.frames import CALLER_RATE_HZ, Pcm
from voicepipe.transports.wav import RecordedTurn, load_call, read_speech

INDEX = CALLS / "index.jsonl"
TURNS = load_call(INDEX)


def heard(turn: RecordedTurn) -> Pcm:
    return read_speech(turn.path)


def test_the_call_has_every_kind_of_turn() -> None:
    kinds = Counter(turn.kind for turn in TURNS)
    assert len(TURNS) >= 14
    assert kinds["pause"] == 3
    assert kinds["backchannel"] == kinds["bargein"] == 1
    assert min(kinds["question"], kinds["request"], kinds["short"]) >= 3


def test_the_index_is_the_one_of_the_script() -> None:
    rows = [json.loads(line) for line in INDEX.read_text(encoding="utf-8").splitlines()]
    assert [(row["kind"], row["voice"], row["after"]) for row in rows] == [
        (line.kind, VOICE, {"on": line.on, "delay_ms": line.delay_ms}) for line in CALL
    ]
    words = [line.text.replace(", ...", "") for line in CALL]
    assert [row["text"] for row in rows] == words
    assert {file.name for file in CALLS.glob("*.flac")} == {row["file"] for row in rows}


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.path.stem)
def test_the_truth_is_exact_to_the_sample(turn: RecordedTurn) -> None:
    samples = heard(turn)
    edges = [turn.speech_start, *(edge for pause in turn.pauses for edge in pause), turn.speech_end]
    sound = np.zeros(len(samples), bool)
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        sound[start:end] = True
        for edge in (start, end - 1):  # halved there by the fade that keeps a cut from clicking
            assert abs(int(samples[edge])) >= 0.45 * AUDIBLE * 32768
    assert not samples[~sound].any()


def test_the_hesitations_last_350_700_and_1100_ms() -> None:
    pauses = [pause for turn in TURNS for pause in turn.pauses]
    assert [(end - start) * 1000 / CALLER_RATE_HZ for start, end in pauses] == [350, 700, 1100]


def test_the_backchannel_and_the_barge_in_come_while_the_agent_speaks() -> None:
    for turn, before in zip(TURNS[1:], TURNS, strict=False):
        over = turn.turn.cue.on == "agent_speech"
        assert over == (turn.kind in ("backchannel", "bargein"))
        if over:  # a request for something long, so that there is a reply to talk over
            assert before.kind == "request"
            assert before.text.startswith(("Tell me", "Please tell me"))


def test_the_clips_are_small() -> None:
    assert sum(file.stat().st_size for file in CALLS.iterdir()) < 3_000_000
    assert sum(turn.turn.samples.size for turn in TURNS) / CALLER_RATE_HZ < 60
