"""Recorded callers: any audio file is a caller, what is none is one clear line; cues in time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from voicepipe.clock import run_virtual
from voicepipe.errors import UsageError
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame
from voicepipe.transports import (
    CallerTurn,
    Cue,
    MemoryTransport,
    WavTransport,
    load_call,
    read_speech,
)


def tone(rate_hz: int, seconds: float = 0.5) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    t = np.arange(round(rate_hz * seconds)) / rate_hz
    return 0.3 * np.sin(2 * np.pi * 440 * t)


@pytest.mark.parametrize("rate_hz", [8000, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT", "DOUBLE", "PCM_U8"])
def test_any_rate_channels_and_format(
    tmp_path: Path, rate_hz: int, channels: int, subtype: str
) -> None:
    path = tmp_path / "caller.wav"
    soundfile.write(path, np.tile(tone(rate_hz)[:, None], channels), rate_hz, subtype=subtype)
    samples = read_speech(path)
    assert samples.dtype == np.int16
    assert abs(len(samples) - CALLER_RATE_HZ // 2) <= 1
    assert abs(np.abs(samples[1000:-1000]).max() / 32768 - 0.3) < 0.02


def test_files_that_are_no_caller(tmp_path: Path) -> None:
    missing = tmp_path / "none.wav"
    text = tmp_path / "text.wav"
    text.write_text("this is no audio")
    empty_file = tmp_path / "zero.wav"
    empty_file.write_bytes(b"")
    no_samples = tmp_path / "empty.wav"
    soundfile.write(no_samples, np.zeros(0), 16_000)
    nan = tmp_path / "nan.wav"
    soundfile.write(nan, np.array([0.1, np.nan, 0.2]), 16_000, subtype="FLOAT")
    cut = tmp_path / "cut.flac"
    soundfile.write(cut, np.random.default_rng(0).normal(0, 0.1, 16_000), 16_000)
    cut.write_bytes(cut.read_bytes()[:9000])
    for path in (missing, text, empty_file, no_samples, nan, cut):
        with pytest.raises(UsageError) as caught:
            WavTransport(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        "not json",
        "{}",
        '{"file": "a.wav", "kind": "question", "text": "", "speech_start": 0, "speech_end": 1, '
        '"pauses": [], "after": {"on": "full moon"}}',
        '{"file": "a.wav", "kind": "question", "text": "", "speech_start": 0, "speech_end": 1, '
        '"pauses": [], "after": {"never": 1}}',
    ],
)
def test_a_bad_index_names_its_line(tmp_path: Path, row: str) -> None:
    soundfile.write(tmp_path / "a.wav", tone(16_000), 16_000)
    index = tmp_path / "index.jsonl"
    good = {
        "file": "a.wav",
        "kind": "question",
        "text": "hm",
        "speech_start": 0,
        "speech_end": 8000,
        "pauses": [],
    }
    index.write_text(json.dumps(good) + "\n" + row + "\n")
    with pytest.raises(UsageError, match=r"index.jsonl, line 2: "):
        load_call(index)


def speech(ms: int) -> CallerTurn:
    return CallerTurn(np.full(16 * ms, 3000, np.int16))


async def _call(transport: MemoryTransport, agent: list[tuple[float, float]]) -> list[int]:
    """Run a call in which the agent sounds during the given (start, length) in seconds; returns
    the media ms at which each caller frame with sound came, as one list of turn starts."""
    rate_hz = transport.output_rate_hz
    async with transport.open() as frames, asyncio.TaskGroup() as group:

        async def talk() -> None:
            for start_s, length_s in agent:
                await asyncio.sleep(start_s - transport.now_s())
                for n in range(round(length_s * 50)):
                    at = round(start_s * rate_hz) + n * rate_hz // 50
                    sound = np.full(rate_hz // 50, 5000, np.int16)
                    await transport.play(AudioFrame(sound, rate_hz, at))
                    await asyncio.sleep(0.02)

        group.create_task(talk())
        n_samples = 0
        async for frame in frames:
            assert frame.start_sample == n_samples
            assert transport.now_s() == pytest.approx(frame.end_s)
            n_samples = frame.end_sample
    return [round(at / 16) for at in transport.said_at]


def test_cues_follow_the_agent() -> None:
    transport = MemoryTransport(
        [
            CallerTurn(speech(500).samples, Cue("agent_silence", 300)),
            CallerTurn(speech(200).samples, Cue("agent_speech", 400), expects_reply=False),
            CallerTurn(speech(500).samples, Cue("agent_silence", 700)),
            CallerTurn(speech(100).samples, Cue("time", 9_000)),
        ]
    )
    starts = run_virtual(_call(transport, [(1.5, 2.0), (5.5, 1.0)]))
    assert starts == [300, 1900, 4200, 9000]


def test_an_agent_that_never_answers_does_not_hang_the_call() -> None:
    transport = MemoryTransport([speech(500), speech(500)])
    starts = run_virtual(_call(transport, []))
    assert starts == [1000, 16_500]


def test_room_noise_is_seeded_and_under_everything() -> None:
    async def track() -> np.ndarray[tuple[int], np.dtype[np.int16]]:
        transport = MemoryTransport([speech(100)], noise_dbfs=-60, seed=4)
        async with transport.open() as frames:
            return np.concatenate([frame.samples async for frame in frames])

    one, two = run_virtual(track()), run_virtual(track())
    np.testing.assert_array_equal(one, two)
    level_dbfs = 20 * np.log10(np.std(one[:10_000] / 32768))
    assert abs(level_dbfs + 60) < 0.5
