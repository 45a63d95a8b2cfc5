"""Recorded callers: audio files said into a call at their cue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from voicepipe.errors import UsageError
from voicepipe.frames import CALLER_RATE_HZ, Pcm
from voicepipe.transports.memory import CallerTurn, Cue, MemoryTransport

ROOM_NOISE_DBFS = -66.0
"""A quiet room: recorded clips are said into this, so that silence is never digital silence."""


def read_speech(path: Path) -> Pcm:
    """An audio file as 16 kHz mono int16, shape [n]: other rates, channels (mixed down) and
    sample formats are converted. Raises UsageError for what is missing, empty or no audio."""
    try:
        with soundfile.SoundFile(path) as file:
            promised = file.frames
            samples = file.read(dtype="float32", always_2d=True)
            rate_hz = file.samplerate
    except (OSError, soundfile.LibsndfileError) as error:
        raise UsageError(
            f"{path}: cannot be read as audio ({error}): give a WAV, FLAC or OGG file"
        ) from error
    if len(samples) == 0:
        raise UsageError(f"{path}: has no samples: record it again")
    if len(samples) < promised:
        raise UsageError(
            f"{path}: truncated: its header promises {promised} samples, {len(samples)} are there"
        )
    if not np.isfinite(samples).all():
        raise UsageError(f"{path}: has samples that are not numbers (NaN or infinite)")
    mono = samples.mean(axis=1)
    if rate_hz != CALLER_RATE_HZ:
        mono = soxr.resample(mono, rate_hz, CALLER_RATE_HZ)
    if len(mono) == 0:
        raise UsageError(f"{path}: too short: not one sample is left at {CALLER_RATE_HZ} Hz")
    samples_16: Pcm = np.clip(np.rint(mono * 32768), -32768, 32767).astype(np.int16)
    return samples_16


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One line of a call's `index.jsonl`: a clip with its truth. Sample positions at 16 kHz."""

    path: Path
    kind: str
    text: str
    speech_start: int
    speech_end: int
    pauses: tuple[tuple[int, int], ...]
    turn: CallerTurn


def load_call(index: Path) -> list[RecordedTurn]:
    """The turns of a recorded call, in order. `index` is a JSON-lines file with the fields file,
    kind, text, speech_start, speech_end, pauses and after (the cue: `on` and `delay_ms`)."""
    try:
        lines = index.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{index}: cannot be read ({error.strerror})") from error
    turns = [_recorded(index, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not turns:
        raise UsageError(f"{index}: lists no turns")
    return turns


def _recorded(index: Path, number: int, line: str) -> RecordedTurn:
    try:
        row = json.loads(line)
        cue = Cue(**row.get("after", {}))
        if cue.on not in ("agent_silence", "agent_speech", "time"):
            raise ValueError(f"unknown cue {cue.on!r}")
        path = index.parent / row["file"]
        return RecordedTurn(
            path=path,
            kind=row["kind"],
            text=row["text"],
            speech_start=int(row["speech_start"]),
            speech_end=int(row["speech_end"]),
            pauses=tuple((int(a), int(b)) for a, b in row["pauses"]),
            turn=CallerTurn(read_speech(path), cue, expects_reply=row["kind"] != "backchannel"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{index}, line {number}: {type(error).__name__}: {error}") from error


class WavTransport(MemoryTransport):
    """Audio files as the caller: each is said once the agent has answered the one before.

    `files` may be any rate, channel count and format that libsndfile reads.
    """

    def __init__(self, *files: str | Path, output_rate_hz: int = 24_000) -> None:
        if not files:
            raise UsageError("WavTransport: no file given: name at least one recording")
        super().__init__(
            [CallerTurn(read_speech(Path(file))) for file in files],
            output_rate_hz=output_rate_hz,
            noise_dbfs=ROOM_NOISE_DBFS,
        )


def call_transport(
    call: Sequence[RecordedTurn], *, output_rate_hz: int = 24_000
) -> MemoryTransport:
    """A recorded call with its own cues."""
    return MemoryTransport(
        [recorded.turn for recorded in call],
        output_rate_hz=output_rate_hz,
        noise_dbfs=ROOM_NOISE_DBFS,
    )
