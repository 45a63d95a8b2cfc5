"""Render the recorded call of `make demo`: `python -m demos.render_calls [--check]`.

Each line of `CALL` is spoken by a Kokoro voice that is no agent's default, cut at its first and
last audible sample, put between short silences and written as 16 kHz mono FLAC, with one line of
truth in `index.jsonl`. The two halves of a hesitation are spoken separately, the first one with
the intonation of a comma, so that the pause between them is exact. `--check` transcribes every
clip and prints what a small recognizer understands.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import soundfile
import soxr
from faster_whisper import WhisperModel
from numpy.typing import NDArray

from stages.tts.kokoro import SAMPLE_RATE_HZ, KokoroVoice
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.models import path_of
from voicepipe.transports.wav import load_call, read_speech

CALLS = Path(__file__).parent / "calls"

VOICE = "af_bella"

MARGIN = CALLER_RATE_HZ // 10
"""Silence on both sides of a clip."""

AUDIBLE = 10 ** (-45 / 20)
"""A line begins and ends at this level; room noise under a call lies 20 dB below it."""

PEAK = 10 ** (-6 / 20)
"""Every line is as loud as its loudest sample allows."""

FADE = CALLER_RATE_HZ // 500
"""2 ms: a cut at an audible sample must not click."""


@dataclass(frozen=True, slots=True)
class Line:
    """What the caller says. A gap splits the text at its " ... " by `gap_ms` of silence."""

    kind: str
    text: str
    gap_ms: int = 0
    on: str = "agent_silence"
    delay_ms: int = 700


CALL = (
    Line("short", "Hello."),
    Line("question", "What is the capital of France?"),
    Line("question", "How many days are there in a week?", delay_ms=900),
    Line("pause", "I would like to book a, ... table for two.", gap_ms=350),
    Line("short", "Yes."),
    Line("request", "Can you recommend a good book?", delay_ms=800),
    Line("pause", "My favorite color is, ... dark green.", gap_ms=700),
    Line("request", "Tell me something about the city of London."),
    Line("backchannel", "Mm-hmm.", on="agent_speech", delay_ms=700),
    Line("question", "Why is the sky blue?", delay_ms=1000),
    Line("pause", "Can you help me with, ... my homework tonight?", gap_ms=1100),
    Line("request", "Please tell me a long story about a fox."),
    Line("bargein", "Wait, wait, what is the fox called?", on="agent_speech", delay_ms=1500),
    Line("question", "What should I cook for dinner?", delay_ms=900),
    Line("request", "Give me one tip for sleeping well."),
    Line("short", "Thank you, goodbye.", delay_ms=800),
)


def spoken(voice: KokoroVoice, text: str) -> NDArray[np.float64]:
    """A line without the silence around it, 16 kHz, shape [n]."""
    pieces = [piece.samples for piece in voice.say(text)]
    samples = soxr.resample(
        np.concatenate(pieces).astype(np.float64), SAMPLE_RATE_HZ, CALLER_RATE_HZ, "VHQ"
    )
    samples *= PEAK / np.abs(samples).max()
    loud = np.flatnonzero(np.abs(samples) >= AUDIBLE)
    cut: NDArray[np.float64] = samples[loud[0] : loud[-1] + 1]
    ramp = np.linspace(0.5, 1.0, FADE)
    cut[:FADE] *= ramp
    cut[-FADE:] *= ramp[::-1]
    return cut


def render(voice: KokoroVoice, line: Line, file: Path) -> dict[str, object]:
    """Write one clip; returns its line of the index. Sample positions count from its start."""
    silence = np.zeros(MARGIN)
    parts = [silence]
    pauses: list[list[int]] = []
    for n, half in enumerate(line.text.split(" ... ")):
        if n > 0:
            start = sum(map(len, parts))
            gap = line.gap_ms * CALLER_RATE_HZ // 1000
            parts.append(np.zeros(gap))
            pauses.append([start, start + gap])
        parts.append(spoken(voice, half))
    speech_end = sum(map(len, parts))
    samples = np.concatenate([*parts, silence])
    soundfile.write(file, np.rint(samples * 32767).astype(np.int16), CALLER_RATE_HZ)
    return {
        "file": file.name,
        "kind": line.kind,
        "text": line.text.replace(", ... ", " ").replace(" ... ", " "),
        "voice": VOICE,
        "n_samples": len(samples),
        "speech_start": MARGIN,
        "speech_end": speech_end,
        "pauses": pauses,
        "after": {"on": line.on, "delay_ms": line.delay_ms},
    }


def check(index: Path) -> None:
    """Print how a small recognizer hears each clip."""
    model = WhisperModel(
        str(path_of("whisper-tiny.en")), device="cpu", compute_type="int8", cpu_threads=2
    )
    for turn in load_call(index):
        samples = read_speech(turn.path).astype(np.float32) / 32768
        segments, _ = model.transcribe(samples, beam_size=1, temperature=0.0)
        heard = "".join(segment.text for segment in segments).strip()
        said, understood = (_words(text) for text in (turn.text, heard))
        wer = jiwer.wer(said, understood) if understood else 1.0
        print(f"{turn.path.name}  {len(samples) / CALLER_RATE_HZ:4.1f} s  {wer:4.0%}  {heard}")


def _words(text: str) -> str:
    kept = "".join(c if c.isalnum() or c == "'" else " " for c in text.lower())
    return " ".join(kept.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only transcribe what is rendered")
    index = CALLS / "index.jsonl"
    if not parser.parse_args().check:
        voice = KokoroVoice(
            path_of("kokoro-82m"), VOICE, pronouncer="lexicon", n_threads=2, speed=1.0
        )
        rows = [
            render(voice, line, CALLS / f"{n:02}-{line.kind}.flac")
            for n, line in enumerate(CALL, start=1)
        ]
        index.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    check(index)


if __name__ == "__main__":
    main()
