"""Speech-to-text: how long after the caller's last sound the words are there, and are they right?

`voicepipe bench stt`. Each clip is heard in real time, with the marks of our voice detection; at
its last pause stock faster-whisper starts to transcribe what was heard, while ours has been
decoding all along and has to finish. Same weights, same threads, in alternation. Human speech when
it lies next to the checkout, else the demo's callers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from faster_whisper import WhisperModel

from benchmarks.turn_corpus import CHECKOUT, WIDER, frames
from budgets.quality import WordErrors, word_errors
from stages.stt import WhisperSTT
from turn_detection import SileroVAD
from turn_detection.voice import Voice
from voicepipe.clock import process_time_s
from voicepipe.events import EndOfTurn, SpeechPaused, SpeechStarted
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame, Pcm
from voicepipe.models import path_of
from voicepipe.protocols import SpeechInput
from voicepipe.provenance import provenance

MODEL = "whisper-tiny.en"
N_THREADS = 1
"""As `stt_threads` of a default configuration."""

MAX_CLIPS = 40
"""Two minutes of speech, heard in real time, and as much again for the others."""

SILENCE_S = 0.5
"""After each clip: its pause must be noticed."""

OURS, BEAM_5, BEAM_1 = "ours", "stock beam 5", "stock beam 1"

Row = dict[str, object]


@dataclass(frozen=True, slots=True)
class Clip:
    """One turn of a caller's."""

    text: str
    heard: Sequence[SpeechInput]
    """Frames, and the marks where they become known."""
    last_voiced_s: float
    noticed_s: float
    """When the last pause became known."""

    @property
    def samples(self) -> Pcm:
        """What was heard when the last pause became known."""
        return np.concatenate(
            [
                f.samples
                for f in self.heard
                if isinstance(f, AudioFrame) and f.end_s <= self.noticed_s
            ]
        )


@dataclass(slots=True)
class Figures:
    """What was measured of one recogniser."""

    tail_ms: list[float] = field(default_factory=list)
    """From the last voiced sample to the words."""
    decode_ms: list[float] = field(default_factory=list)
    """From the moment the pause was known."""
    errors: WordErrors = field(default_factory=WordErrors)

    def take(self, clip: Clip, took_s: float, text: str) -> None:
        self.decode_ms.append(took_s * 1000)
        self.tail_ms.append((clip.noticed_s - clip.last_voiced_s + took_s) * 1000)
        self.errors += word_errors(clip.text, text)

    def rows(self, who: str) -> list[Row]:
        n_words = self.errors.n_words
        wer = {"what": f"{who} wer_percent", "n": n_words, "p50": self.wer_percent, "p95": None}
        tails = _row(f"{who} tail_ms", self.tail_ms)
        return [tails, _row(f"{who} after_pause_ms", self.decode_ms), wer]

    @property
    def wer_percent(self) -> float:
        return round(100 * self.errors.rate, 2)


def run(json_file: Path | None = None) -> str:
    """Measure, write `json_file` when one is given, return the table."""
    folder = WIDER / "human" if (WIDER / "human").is_dir() else CHECKOUT / "demos" / "calls"
    recorded = clips(folder)
    ours = WhisperSTT(path_of(MODEL), n_threads=N_THREADS)
    stock = WhisperModel(
        str(path_of(MODEL)), device="cpu", compute_type="int8", cpu_threads=N_THREADS
    )
    figures = {OURS: Figures(), BEAM_5: Figures(), BEAM_1: Figures()}
    _stock(stock, recorded[0], 1)  # the first time is slower, for both
    asyncio.run(_ours(ours, recorded[0]))
    for clip in recorded:  # alternating, so that a busy moment hits all of them
        figures[BEAM_5].take(clip, *_stock(stock, clip, 5))
        figures[BEAM_1].take(clip, *_stock(stock, clip, 1))
        figures[OURS].take(clip, *asyncio.run(_ours(ours, clip)))
    rows = [row for who, found in figures.items() for row in found.rows(who)]
    ratios = _ratios(figures)
    if json_file is not None:
        document = json.dumps(_document(rows, ratios, folder), indent=1)
        json_file.write_text(document + "\n", encoding="utf-8")
    return _table(rows, ratios)


def clips(folder: Path, n_most: int = MAX_CLIPS) -> list[Clip]:
    """The clips of a folder with an `index.jsonl`, evenly chosen if they are too many. Those in
    which our voice detection finds nobody are left out: the recognisers are compared."""
    (model,) = path_of("silero-vad").glob("*.onnx")
    vad = SileroVAD(model)
    lines = (folder / "index.jsonl").read_text(encoding="utf-8").splitlines()
    chosen = np.unique(np.linspace(0, len(lines) - 1, n_most).round().astype(int))
    found = []
    for row in (json.loads(lines[i]) for i in chosen):
        samples, _ = soundfile.read(folder / row["file"], dtype="int16")
        if clip := _noticed(samples, row["text"], lambda: Voice(vad)):
            found.append(clip)
    return found


def _noticed(samples: Pcm, text: str, voice: Callable[[], Voice]) -> Clip | None:
    silence = np.zeros(round(SILENCE_S * CALLER_RATE_HZ), np.int16)
    ear = voice()
    heard: list[SpeechInput] = []
    last_voiced_s = noticed_s = 0.0
    speaking = False
    for frame in frames(np.concatenate([samples, silence])):
        heard.append(frame)
        if edge := ear.hear(frame):
            speaking = edge.began
            at_s = edge.at / CALLER_RATE_HZ
            if speaking:
                heard.append(SpeechStarted(t_media_s=at_s))
            else:
                heard.append(SpeechPaused(t_media_s=at_s))
                last_voiced_s, noticed_s = at_s, frame.end_s
    if speaking or not noticed_s:
        return None
    ended = EndOfTurn(t_media_s=noticed_s, text="", speech_end_s=last_voiced_s, decided_s=noticed_s)
    return Clip(text, [*heard, ended], last_voiced_s, noticed_s)


def _stock(model: WhisperModel, clip: Clip, beam_size: int) -> tuple[float, str]:
    """Seconds and text of `transcribe` as it comes, on what was heard by then."""
    samples = clip.samples.astype(np.float32) / np.float32(32768)
    start_s = process_time_s()
    segments, _ = model.transcribe(samples, language="en", beam_size=beam_size)
    text = " ".join(segment.text.strip() for segment in segments)
    return process_time_s() - start_s, text


async def _ours(stt: WhisperSTT, clip: Clip) -> tuple[float, str]:
    """Seconds from the last pause to its final, the clip being heard in real time."""
    loop = asyncio.get_running_loop()
    paused_s = 0.0

    async def microphone() -> AsyncIterator[SpeechInput]:
        nonlocal paused_s
        start_s = loop.time()
        for item in clip.heard:
            if isinstance(item, AudioFrame):
                await asyncio.sleep(start_s + item.end_s - loop.time())
            elif isinstance(item, SpeechPaused):
                paused_s = loop.time()
            yield item

    took_s, text = 0.0, ""
    async with stt.open(microphone()) as transcripts:
        async for transcript in transcripts:
            if transcript.final:
                took_s, text = loop.time() - paused_s, transcript.text
    return took_s, text


def _ratios(figures: dict[str, Figures]) -> dict[str, float]:
    ours, stock = figures[OURS], figures[BEAM_5]

    def ratio(mine: list[float], theirs: list[float]) -> float:
        return round(float(np.median(mine) / np.median(theirs)), 3)

    return {
        "tail_vs_stock": ratio(ours.tail_ms, stock.tail_ms),
        "tail_vs_stock_beam_1": ratio(ours.tail_ms, figures[BEAM_1].tail_ms),
        "after_pause_vs_stock": ratio(ours.decode_ms, stock.decode_ms),
        "wer_delta_points": round(ours.wer_percent - stock.wer_percent, 2),
    }


def _row(what: str, values: list[float]) -> Row:
    p50, p95 = np.percentile(values, [50, 95])
    return {"what": what, "n": len(values), "p50": round(p50, 1), "p95": round(p95, 1)}


def _document(rows: list[Row], ratios: dict[str, float], folder: Path) -> Row:
    return {
        "schema": "voicepipe.bench/1",
        "bench": "stt",
        "machine": provenance((MODEL, "silero-vad"), {"stt": N_THREADS}),
        "config": {"clips": folder.name, "max_clips": MAX_CLIPS, "model": MODEL},
        "rows": rows,
        "ratios": ratios,
    }


def _table(rows: list[Row], ratios: dict[str, float]) -> str:
    lines = [f"{'':32}{'n':>5}{'p50':>10}{'p95':>10}"]
    for row in rows:
        p95 = "" if row["p95"] is None else f"{row['p95']:10.1f}"
        lines.append(f"{row['what']:32}{row['n']:5}{row['p50']:10.2f}{p95}")
    lines += [f"{name:32}     {ratio:10.3f}" for name, ratio in ratios.items()]
    return "\n".join(lines)
