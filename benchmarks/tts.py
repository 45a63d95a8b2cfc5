"""Text-to-speech: time to first sound, cost, and whether it can be understood.

`voicepipe bench tts`. Each voice speaks the same replies; a small recognizer writes them down. The
package piper-tts (GPL-3, needed for this benchmark only) runs in alternation with ours, with the
same phonemes and the same number of threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jiwer
import numpy as np
import onnxruntime
import soxr
from faster_whisper import WhisperModel
from numpy.typing import NDArray
from piper import AudioChunk, PiperVoice
from piper.config import PiperConfig

from stages.tts import KokoroTTS, PiperTTS
from voicepipe.clock import process_time_s
from voicepipe.models import path_of
from voicepipe.protocols import Phrase, TextToSpeech
from voicepipe.provenance import provenance

RATE_HZ = 16_000
"""What the recognizer hears: also the cost of resampling is in the figures."""

N_THREADS = 1
N_RUNS = 15

FIRST_PHRASE = "Sure, I can help you with that."

KOKORO = "kokoro"
"""Takes as long as its speech: it is timed less often."""

REPLIES = (
    "The capital of France is Paris.",
    "A week has many days, and a year has even more of them.",
    "You could try roasted chicken with potatoes and a green salad.",
    "The sky looks blue because air scatters blue light more than red light.",
    "I would be happy to book a table by the window for this evening.",
    "Try to go to bed at the same time every night, and keep your room dark and cool.",
    "London is the largest city in England, and it stands on the river Thames.",
    "Once upon a time, a clever fox lived at the edge of a quiet forest.",
)


@dataclass
class Figures:
    """What was measured of one voice."""

    first_audio_ms: list[float] = field(default_factory=list)
    real_time_factor: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    def rows(self, voice: str) -> list[dict[str, object]]:
        return [
            _row(f"{voice} first_audio_ms", self.first_audio_ms),
            _row(f"{voice} real_time_factor", self.real_time_factor),
            {"what": f"{voice} wer", "n": len(self.said), "p50": self.wer, "p95": None},
        ]

    @property
    def wer(self) -> float:
        return round(jiwer.wer(self.said, self.heard), 4)


def run(json_file: Path | None = None) -> str:
    """Measure, write `json_file` when one is given, return the table."""
    stock = _stock_piper(path_of("piper-en_US-joe-medium"))
    piper = path_of("piper-en_US-joe-medium")
    voices: dict[str, TextToSpeech] = {
        "piper": PiperTTS(piper, n_threads=N_THREADS),
        "piper with espeak": PiperTTS(piper, pronouncer="espeak", n_threads=N_THREADS),
        KOKORO: KokoroTTS(path_of("kokoro-82m"), n_threads=N_THREADS),
    }
    figures = {name: Figures() for name in voices}
    stock_first_ms: list[float] = []
    for _ in range(N_RUNS):  # alternating, so that a busy moment hits all of them
        for name, voice in voices.items():
            if name != KOKORO or len(figures[name].first_audio_ms) < N_RUNS // 3:
                figures[name].first_audio_ms.append(_timed(voice, FIRST_PHRASE).first_ms)
        stock_first_ms.append(_first_piece_ms(partial(stock.synthesize, FIRST_PHRASE)))
    recognizer = _Recognizer(path_of("whisper-tiny.en"))
    for name, voice in voices.items():
        for reply in REPLIES:
            spoken = _timed(voice, reply)
            figures[name].real_time_factor.append(spoken.real_time_factor)
            figures[name].said.append(_words(reply))
            figures[name].heard.append(_words(recognizer.hear(spoken.samples)))
    rows = [row for name in voices for row in figures[name].rows(name)]
    rows.append(_row("stock piper first_audio_ms", stock_first_ms))
    ours = figures["piper with espeak"].first_audio_ms
    ratios = {"first_audio_vs_stock_piper": round(_median(ours) / _median(stock_first_ms), 3)}
    if json_file is not None:
        document = json.dumps(_document(rows, ratios), indent=1)
        json_file.write_text(document + "\n", encoding="utf-8")
    return _table(rows, ratios)


@dataclass(frozen=True, slots=True)
class Spoken:
    """One reply as it was spoken."""

    first_ms: float
    real_time_factor: float
    samples: NDArray[np.float32]


def _timed(voice: TextToSpeech, text: str) -> Spoken:
    async def speak() -> Spoken:
        async def one() -> AsyncIterator[Phrase]:
            yield Phrase(text)

        pieces, first_s = [], None
        start_s = process_time_s()
        async with voice.open(one(), sample_rate_hz=RATE_HZ) as frames:
            async for frame in frames:
                first_s = process_time_s() - start_s if first_s is None else first_s
                pieces.append(frame.samples)
        took_s = process_time_s() - start_s
        samples = np.concatenate(pieces).astype(np.float32) / np.float32(32768)
        return Spoken((first_s or took_s) * 1000, took_s * RATE_HZ / len(samples), samples)

    return asyncio.run(speak())


def _stock_piper(folder: Path) -> PiperVoice:
    """The package's own voice, with as many threads as ours and warmed up like ours."""
    (model,) = folder.glob("*.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = N_THREADS
    settings = json.loads(model.with_name(model.name + ".json").read_text(encoding="utf-8"))
    voice = PiperVoice(
        config=PiperConfig.from_dict(settings),
        session=onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"]),
    )
    for _ in voice.synthesize(FIRST_PHRASE):
        pass
    return voice


def _first_piece_ms(synthesize: Callable[[], Iterable[AudioChunk]]) -> float:
    """Until the first piece is there, as 16 kHz PCM like ours."""
    start_s = process_time_s()
    chunk = next(iter(synthesize()))
    soxr.resample(chunk.audio_int16_array, chunk.sample_rate, RATE_HZ)
    return (process_time_s() - start_s) * 1000


class _Recognizer:
    def __init__(self, folder: Path) -> None:
        self._model = WhisperModel(
            str(folder), device="cpu", compute_type="int8", cpu_threads=N_THREADS
        )

    def hear(self, samples: NDArray[np.float32]) -> str:
        segments, _ = self._model.transcribe(samples, beam_size=1, temperature=0.0)
        return " ".join(segment.text for segment in segments)


def _words(text: str) -> str:
    kept = "".join(c if c.isalnum() or c == "'" else " " for c in text.lower())
    return " ".join(kept.split())


def _median(values: list[float]) -> float:
    return float(np.median(values))


def _row(what: str, values: list[float]) -> dict[str, object]:
    p50, p95 = np.percentile(values, [50, 95])
    return {"what": what, "n": len(values), "p50": round(p50, 3), "p95": round(p95, 3)}


def _document(rows: list[dict[str, object]], ratios: dict[str, float]) -> dict[str, object]:
    names = ("piper-en_US-joe-medium", "kokoro-82m", "whisper-tiny.en")
    return {
        "schema": "voicepipe.bench/1",
        "bench": "tts",
        "machine": provenance(names, {"tts": N_THREADS}),
        "config": {"first_phrase": FIRST_PHRASE, "rate_hz": RATE_HZ, "n_runs": N_RUNS},
        "rows": rows,
        "ratios": ratios,
    }


def _table(rows: list[dict[str, object]], ratios: dict[str, float]) -> str:
    lines = [f"{'':32}{'n':>4}{'p50':>10}{'p95':>10}"]
    for row in rows:
        p95 = "" if row["p95"] is None else f"{row['p95']:10.3f}"
        lines.append(f"{row['what']:32}{row['n']:4}{row['p50']:10.3f}{p95}")
    lines += [f"{name:32}    {ratio:10.3f}" for name, ratio in ratios.items()]
    return "\n".join(lines)
