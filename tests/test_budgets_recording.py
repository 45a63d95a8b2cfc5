"""Session directories as they are found: damaged, cut off, older, newer, hostile."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.recording import find_sessions, load
from budgets.tape import BadTape, Track, read_tape
from tests.budget_sessions import Exchange, compose
from voicepipe.errors import UsageError
from voicepipe.events import Event, TurnFinished


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return compose(tmp_path / "s", [Exchange(), Exchange()])


def test_a_whole_session_loses_nothing(session: Path) -> None:
    recording = load(session)
    assert recording.losses == ()
    assert recording.target_ms == 600
    assert recording.tape is not None
    assert [line.text for line in recording.truth] == ["what time is it"] * 2
    assert len(recording.events) == len((session / "events.jsonl").read_text().splitlines())


def test_a_line_that_was_being_written_is_a_loss_that_is_told(session: Path) -> None:
    path = session / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    recording = load(session)
    assert len(recording.events) == whole.count(b"\n") - 1
    assert recording.losses == (
        "events.jsonl: its last line was cut off: the session did not end by itself",
    )


def test_a_last_line_that_only_lacks_its_newline_counts(session: Path) -> None:
    path = session / "events.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    recording = load(session)
    assert recording.losses == ()
    assert isinstance(recording.events[-1], TurnFinished)


def test_events_and_fields_of_a_newer_version_are_skipped_and_counted(session: Path) -> None:
    path = session / "events.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    newer = [{"t_media_s": 1, "t_loop_s": 1, "type": "TeaServed", "cups": 2}] * 2
    rows = [{**row, "colour": "blue"} for row in rows] + newer
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recording = load(session)
    assert len(recording.events) == len(rows) - 2
    assert recording.losses == ("events.jsonl: 2 events of unknown type TeaServed skipped",)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b"3",
        b"null",
        b'"TurnStarted"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"t_media_s": 1}',
        b'{"type": 7}',
        b'{"type": ["TurnStarted"]}',
        b'{"type": "TurnStarted", "t_media_s": 1, "turn": "x", "text": "", "held": true}',
        b'{"type": "TurnStarted", "t_media_s": 1, "turn": null, "text": "", "held": true}',
        b'{"type": "TurnStarted", "t_media_s": true, "turn": 1, "text": "", "held": true}',
        b'{"type": "TurnStarted", "t_media_s": 1, "turn": 1, "text": 5, "held": true}',
        b'{"type": "TurnStarted", "t_media_s": 1, "turn": 1, "text": ""}',
        b'{"type": "Event", "t_media_s": 1}',
    ],
)
def test_broken_lines_are_skipped_and_counted(session: Path, line: bytes) -> None:
    path = session / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(line + b"\n" + whole)
    recording = load(session)
    assert len(recording.events) == whole.count(b"\n")
    assert len(recording.losses) == 1


@given(st.binary(max_size=400))
@settings(max_examples=100, deadline=None)
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    directory = tmp_path_factory.mktemp("junk")
    for name in ("events.jsonl", "config.json", "call.wav"):
        (directory / name).write_bytes(junk)
    recording = load(directory)
    assert recording.tape is None
    assert all("\n" not in loss for loss in recording.losses)


def test_unknown_times_are_read_as_such(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        '{"type": "SpeechPaused", "t_media_s": NaN, "t_loop_s": null}\n'
        '{"type": "SpeechPaused", "t_media_s": Infinity, "t_loop_s": 1e300}\n'
        '{"type": "SpeechPaused", "t_media_s": 3, "t_loop_s": -1}\n'
    )
    events = load(tmp_path).events
    assert [known(event) for event in events] == [(0, 0), (0, 0), (1, 1)]


def known(event: Event) -> tuple[bool, bool]:
    return not math.isnan(event.t_media_s), not math.isnan(event.t_loop_s)


@pytest.mark.parametrize("config", ["", "{", "[1]", "null", "NaN"])
def test_a_broken_configuration_costs_the_target_only(session: Path, config: str) -> None:
    (session / "config.json").write_text(config)
    recording = load(session)
    assert recording.target_ms == 600
    assert recording.truth == []
    assert len(recording.losses) == 1
    assert recording.losses[0].startswith("config.json: ")


@pytest.mark.parametrize(
    ("config", "target_ms"),
    [
        ({"target_ms": 800}, 800),
        ({"agent": {"target_ms": 700.0}}, 700),
        ({"target_ms": "fast"}, 600),
        ({"target_ms": -3}, 600),
        ({"target_ms": True}, 600),
    ],
)
def test_the_target_is_where_the_configuration_has_it(
    session: Path, config: dict[str, object], target_ms: float
) -> None:
    (session / "config.json").write_text(json.dumps(config))
    assert load(session).target_ms == target_ms


def test_truth_may_be_plain_lines_or_objects_or_nonsense(session: Path) -> None:
    truth = ["hello", {"text": "bye", "speech_end_s": 3}, {"text": None}, 7, None, {}]
    (session / "config.json").write_text(json.dumps({"truth": truth}))
    lines = load(session).truth
    assert [line.text for line in lines] == ["hello", "bye"]
    assert lines[1].speech_end_s == 3


def test_sessions_are_found_below_a_directory_and_once(tmp_path: Path) -> None:
    for name in ("b", "a/deep"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "events.jsonl").touch()
    found = find_sessions([tmp_path, tmp_path / "b"])
    assert found == [tmp_path / "a" / "deep", tmp_path / "b"]


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_what_is_no_session_is_one_clear_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as error:
        find_sessions([tmp_path / name])
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)


def wav(rate_hz: int = 16_000, n_channels: int = 2, n: int = 100, bits: int = 16) -> bytes:
    body = np.arange(n * n_channels * bits // 16, dtype=np.int16).tobytes()
    width = n_channels * bits // 8
    head = struct.pack("<HHIIHH", 1, n_channels, rate_hz, rate_hz * width, width, bits)
    parts = b"fmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts


def test_left_is_the_caller_and_right_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "call.wav"
    path.write_bytes(wav(n=3))
    tape = read_tape(path)
    assert tape.caller.samples.tolist() == [0, 2, 4]
    assert tape.agent.samples.tolist() == [1, 3, 5]
    assert tape.damage == ""


@pytest.mark.parametrize(
    ("damage", "n"),
    [
        (lambda raw: raw[:-7], 98),
        (lambda raw: raw[:40] + b"\0\0\0\0" + raw[44:], 100),
        (lambda raw: raw[:40] + b"\xff\xff\xff\x7f" + raw[44:], 100),
    ],
    ids=["truncated", "size never written", "size too large"],
)
def test_a_tape_cut_off_is_read_as_far_as_it_goes(
    tmp_path: Path, damage: Callable[[bytes], bytes], n: int
) -> None:
    path = tmp_path / "call.wav"
    path.write_bytes(damage(wav()))
    tape = read_tape(path)
    assert len(tape.caller.samples) == n
    assert "cut off" in tape.damage


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "is no WAV"),
        (b"RIFF\0\0\0\0WAVE", "holds no samples"),
        (wav(n=0), "holds no samples"),
        (wav(n_channels=1), "has 1 channel; two are needed"),
        (wav(n_channels=3), "has 3 channels; two are needed"),
        (wav(bits=32), "has 32-bit samples"),
        (wav(rate_hz=0), "no usable format"),
        (wav()[:30], "holds no samples"),
        (b"RIFF\0\0\0\0WAVEdata\4\0\0\0abcd", "no usable format"),
    ],
)
def test_a_tape_that_cannot_be_measured_says_why(tmp_path: Path, raw: bytes, why: str) -> None:
    (tmp_path / "call.wav").write_bytes(raw)
    with pytest.raises(BadTape, match=why):
        read_tape(tmp_path / "call.wav")


def test_a_missing_tape_is_a_loss(session: Path) -> None:
    (session / "call.wav").unlink()
    recording = load(session)
    assert recording.tape is None
    assert len(recording.losses) == 1
    assert recording.losses[0].startswith("call.wav: cannot be read")


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
def test_what_the_detectors_hear_is_aligned_in_time(tmp_path: Path, rate_hz: int) -> None:
    track = np.zeros((2 * rate_hz + 17, 2), np.int16)
    track[rate_hz : rate_hz + rate_hz // 10] = 8_000
    soundfile.write(tmp_path / "call.wav", track, rate_hz, subtype="PCM_16")
    heard = read_tape(tmp_path / "call.wav").caller.heard_at_16khz()
    loud = np.flatnonzero(heard > 4_000)
    assert loud[0] / 16_000 == pytest.approx(1.0, abs=0.001)
    assert loud[-1] / 16_000 == pytest.approx(1.1, abs=0.001)
    assert len(Track(np.zeros(0, np.int16), rate_hz).heard_at_16khz()) == 0
