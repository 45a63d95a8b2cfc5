"""Streams for the tests of STTs: what is fed, what came of it, and what must be true of that."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import soundfile as sf

from stages.stt import WhisperSTT
from voicepipe.clock import run_virtual
from voicepipe.events import EndOfTurn, SpeechPaused, SpeechStarted, Transcript
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame, Pcm
from voicepipe.models import path_of
from voicepipe.protocols import SpeechInput, SpeechToText

CALLS = Path(__file__).parent.parent / "demos" / "calls"

NOTICED_MS = 80
"""After its first sample, speech is noticed; after the last one, a pause is noticed 20 ms later."""


@dataclass(frozen=True)
class Clip:
    """A caller turn: 16 kHz samples and where in them somebody speaks."""

    samples: Pcm
    speech: tuple[tuple[int, int], ...]
    text: str = ""


@cache
def loaded(name: str, language: str = "en") -> WhisperSTT:
    """A real recogniser, loaded once for all tests."""
    return WhisperSTT(path_of(name), language=language)


def recorded(name: str) -> Clip:
    """One of the demo's callers."""
    with (CALLS / "index.jsonl").open() as lines:
        [row] = [row for line in lines if (row := json.loads(line))["file"] == name]
    samples, _ = sf.read(CALLS / name, dtype="int16")
    edges = [row["speech_start"], *np.ravel(row["pauses"]).tolist(), row["speech_end"]]
    return Clip(samples, tuple(zip(edges[::2], edges[1::2], strict=True)), row["text"])


def sound(samples: np.ndarray, gain: float = 1.0) -> Clip:
    """Samples -1..1 that a voice activity detector took for speech throughout."""
    pcm = np.clip(samples * gain * 32767, -32768, 32767).astype(np.int16)
    return Clip(pcm, ((0, len(pcm)),))


def joined(clips: Sequence[Clip], gap_s: float = 0.3) -> Clip:
    """One clip after the other, as if the caller never paused for long enough to be noticed."""
    gap = np.zeros(round(gap_s * CALLER_RATE_HZ), np.int16)
    pieces = [piece for clip in clips for piece in (clip.samples, gap)]
    samples = np.concatenate(pieces)
    start, end = clips[0].speech[0][0], len(samples) - len(gap)
    return Clip(samples, ((start, end),), " ".join(clip.text for clip in clips))


def items(
    clip: Clip, *, frame_ms: Sequence[float] = (10,), start: int = 0, end_turn: bool = True
) -> list[SpeechInput]:
    """The clip, half a second of silence, and what turn detection says, each when it is noticed.
    Frame lengths are taken from `frame_ms`, round and round."""
    samples = np.concatenate([clip.samples, np.zeros(CALLER_RATE_HZ // 2, np.int16)])
    noticed = NOTICED_MS * CALLER_RATE_HZ // 1000
    marks: list[tuple[int, SpeechInput]] = []
    for first, last in clip.speech:
        onset, offset = (start + first) / CALLER_RATE_HZ, (start + last) / CALLER_RATE_HZ
        marks.append((first + noticed, SpeechStarted(t_media_s=onset)))
        marks.append((last + noticed + 320, SpeechPaused(t_media_s=offset)))
    if end_turn:
        ended_s = (start + clip.speech[-1][1]) / CALLER_RATE_HZ
        end = EndOfTurn(t_media_s=ended_s + 0.4, text="", speech_end_s=ended_s, decided_s=ended_s)
        marks.append((len(samples), end))
    found: list[SpeechInput] = []
    at, i = 0, 0
    while at < len(samples):
        n = max(1, round(frame_ms[i % len(frame_ms)] * CALLER_RATE_HZ / 1000))
        frame = AudioFrame(samples[at : at + n], CALLER_RATE_HZ, start + at)
        found.append(frame)
        at, i = at + frame.n_samples, i + 1
        while marks and marks[0][0] <= at:
            found.append(marks.pop(0)[1])
    return found + [mark for _, mark in marks]


async def fed(given: Sequence[SpeechInput], *, paced: bool = True) -> AsyncIterator[SpeechInput]:
    """`given` in real time by the loop's clock, or all at once."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for item in given:
        if paced and isinstance(item, AudioFrame):
            await asyncio.sleep(max(0.0, began_s + item.end_s - loop.time()))
        yield item


async def transcribed(
    stt: SpeechToText, given: Sequence[SpeechInput], *, paced: bool = True
) -> list[Transcript]:
    async with stt.open(fed(given, paced=paced)) as transcripts:
        return [transcript async for transcript in transcripts]


def transcribe(
    stt: SpeechToText, given: Sequence[SpeechInput], *, paced: bool = True
) -> list[Transcript]:
    """All transcripts, in virtual time: the model takes none."""
    return run_virtual(transcribed(stt, given, paced=paced))


def finals(transcripts: Sequence[Transcript]) -> list[str]:
    return [transcript.text for transcript in transcripts if transcript.final]


def check(given: Sequence[SpeechInput], transcripts: Sequence[Transcript]) -> None:
    """What `SpeechToText.open` promises, when nothing was voided."""
    pauses = [item.t_media_s for item in given if isinstance(item, SpeechPaused)]
    assert [t.end_s for t in transcripts if t.final] == pauses
    turn_ends = [item.speech_end_s for item in given if isinstance(item, EndOfTurn)]
    for before, after in zip([None, *transcripts], transcripts, strict=False):
        assert after.t_media_s == after.end_s
        assert after.start_s <= after.end_s
        assert after.text.startswith(after.stable_text)
        assert math.isnan(after.confidence) or 0 <= after.confidence <= 1
        assert after.text == after.text.strip()
        if before is None:
            continue
        assert after.final or before.end_s <= after.end_s
        if not any(before.end_s <= end < after.end_s for end in turn_ends):
            assert after.stable_text.startswith(before.stable_text)
            assert after.start_s == before.start_s
