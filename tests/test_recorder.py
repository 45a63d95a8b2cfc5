"""Recording: the tape is what was said and heard, on one clock, whatever happens."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicepipe import events as ev
from voicepipe.errors import ComponentError
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame, Pcm
from voicepipe.recorder import Recorder, recording
from voicepipe.transports import MemoryTransport

FRAME = CALLER_RATE_HZ // 100


def read_tape(path: Path) -> Pcm:
    """Shape [n, 2]: caller, agent."""
    with wave.open(str(path), "rb") as file:
        data = file.readframes(file.getnframes())
    return np.frombuffer(data, np.int16).reshape(-1, 2)


def hear(recorder: Recorder, n_frames: int, first: int = 0) -> None:
    for n in range(first, first + n_frames):
        recorder.hear(AudioFrame(np.full(FRAME, n % 1000, np.int16), CALLER_RATE_HZ, n * FRAME))


def test_both_sides_are_on_one_clock(tmp_path: Path) -> None:
    transport = MemoryTransport([], output_rate_hz=16_000)
    with recording(tmp_path / "s", transport, {"a": 1}) as (_, recorder):
        hear(recorder, 100)
        recorder.play(AudioFrame(np.full(320, 77, np.int16), 16_000, 8_000))
        hear(recorder, 400, 100)
        recorder(ev.BargeIn(t_media_s=1.5))
    tape = read_tape(tmp_path / "s" / "call.wav")
    assert tape.shape == (5 * 16_000, 2)
    np.testing.assert_array_equal(np.flatnonzero(tape[:, 1]), np.arange(8_000, 8_320))
    np.testing.assert_array_equal(tape[::FRAME, 0], np.arange(500))
    row = json.loads((tmp_path / "s" / "events.jsonl").read_text())
    assert row == {"t_media_s": 1.5, "t_loop_s": None, "type": "BargeIn", "text": ""}
    assert ev.from_json(row).t_media_s == 1.5


def test_another_output_rate_resamples_the_caller_in_place(tmp_path: Path) -> None:
    transport = MemoryTransport([], output_rate_hz=24_000)
    with recording(tmp_path / "s", transport, {}) as (_, recorder):
        for n in range(300):
            samples = np.zeros(FRAME, np.int16)
            if n == 100:
                samples[0] = 20_000  # a click at exactly 1 s
            recorder.hear(AudioFrame(samples, CALLER_RATE_HZ, n * FRAME))
    tape = read_tape(tmp_path / "s" / "call.wav")
    assert abs(len(tape) - 3 * 24_000) <= 72
    assert abs(int(np.argmax(tape[:, 0])) - 24_000) <= 1


@given(cuts=st.lists(st.integers(0, 30), max_size=4), n=st.integers(1, 30))
def test_what_was_cut_is_not_on_the_tape(cuts: list[int], n: int, tmp_path_factory: object) -> None:
    directory = tmp_path_factory.mktemp("tape")  # type: ignore[attr-defined]
    transport = MemoryTransport([], output_rate_hz=16_000)
    expected = np.zeros(5 * 16_000, np.int16)
    with recording(directory, transport, {}) as (_, recorder):
        for index in range(n):
            start = index * 320
            recorder.play(AudioFrame(np.full(320, index + 1, np.int16), 16_000, start))
            expected[start : start + 320] = index + 1
        for cut in cuts:
            recorder.cut(cut * 200)
            expected[cut * 200 :] = 0
        hear(recorder, 500)
    np.testing.assert_array_equal(read_tape(directory / "call.wav")[:, 1], expected)


def test_a_killed_session_leaves_a_readable_directory(tmp_path: Path) -> None:
    program = f"""
import os, numpy as np
from pathlib import Path
from voicepipe import events as ev
from voicepipe.frames import AudioFrame
from voicepipe.recorder import recording
from voicepipe.transports import MemoryTransport
with recording(Path({str(tmp_path)!r}), MemoryTransport([], output_rate_hz=16000), {{}}) as (_, r):
    for n in range(500):
        r.hear(AudioFrame(np.full(160, 5, np.int16), 16000, n * 160))
        r(ev.SpeechPaused(t_media_s=n / 100))
    os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 9
    assert len(read_tape(tmp_path / "call.wav")) >= 3 * 16_000
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 500


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    transport = MemoryTransport([])
    with (
        pytest.raises(ComponentError, match=r"recording: .*choose a folder"),
        recording(tmp_path / "file" / "s", transport, {}),
    ):
        pass


def test_a_full_disk_stops_the_recording_and_not_the_call(tmp_path: Path) -> None:
    """A file size limit makes the kernel refuse the write, as a full disk does."""
    program = f"""
import resource, signal, numpy as np
from pathlib import Path
from voicepipe.frames import AudioFrame
from voicepipe.recorder import recording
from voicepipe.transports import MemoryTransport
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with recording(Path({str(tmp_path)!r}), MemoryTransport([], output_rate_hz=16000), {{}}) as (_, r):
    for n in range(1000):
        r.hear(AudioFrame(np.full(160, 5, np.int16), 16000, n * 160))
print(r.error)
"""
    assert hasattr(resource, "RLIMIT_FSIZE")
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("recording stopped: ")
    assert "free some disk space" in done.stdout
    assert done.stderr.count("\n") == 1  # one line in the log, not one a frame
    assert os.path.getsize(tmp_path / "call.wav") <= 100_000
