"""Recorded turns and the pauses in them, as the turn benchmark sees them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from faster_whisper import WhisperModel

from benchmarks.rehearsal import Heard
from turn_detection import SileroVAD, SmartTurn
from turn_detection.voice import Voice
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame, Pcm
from voicepipe.models import path_of
from voicepipe.protocols import Float32

CHECKOUT = Path(__file__).parent.parent
WIDER = CHECKOUT.parent / "shared" / "data"
"""Calls for evaluation only, when they lie next to the checkout; else the demo's call serves."""

GRID_S = 0.1
LONGEST_S = 1.0
"""The model's answer to a longer silence is taken to be its answer to this one."""

MAX_TOKENS = 60
"""More than anybody says here: what goes on for longer goes round in circles."""

SHORTEST_PAUSE_S = 0.2
ROOM_DBFS = -72.0
"""Level of the noise that goes on when a clip has ended; a line is never digitally silent."""


@dataclass(frozen=True, slots=True)
class Clip:
    """One recorded turn of one caller."""

    name: str
    kind: str
    samples: Pcm
    """With room noise after it."""
    speech_start_s: float
    speech_end_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """A silence in a turn (a hold) or after it."""

    clip: Clip
    start_s: float
    length_s: float
    """inf after the turn."""
    text: str
    """As understood up to here."""
    p_audio: tuple[float, ...]
    """By Smart Turn after 0.1, 0.2, ... s of it."""

    @property
    def hold(self) -> bool:
        return self.length_s < np.inf


def clips() -> list[Clip]:
    """Synthetic callers and human speakers where they are to be had, else the demo's caller."""
    folders = [WIDER / "caller", WIDER / "human"] if WIDER.is_dir() else [CHECKOUT / "demos/calls"]
    return [clip for folder in folders for clip in _clips_in(folder)]


def _clips_in(folder: Path) -> Iterator[Clip]:
    rng = np.random.default_rng(0)
    for line in (folder / "index.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        samples, rate_hz = soundfile.read(folder / row["file"], dtype="int16")
        if rate_hz != CALLER_RATE_HZ:
            raise ValueError(f"{row['file']}: {rate_hz} Hz instead of {CALLER_RATE_HZ}")
        room = rng.normal(0.0, 32768 * 10 ** (ROOM_DBFS / 20), 4 * CALLER_RATE_HZ)
        loud = np.flatnonzero(np.abs(samples) > 32768 * 10 ** (-45 / 20))
        yield Clip(
            name=row["file"],
            kind=row.get("kind", "human"),
            samples=np.concatenate([samples, np.rint(room).astype(np.int16)]),
            speech_start_s=row.get("speech_start", int(loud[0])) / CALLER_RATE_HZ,
            speech_end_s=row.get("speech_end", int(loud[-1]) + 1) / CALLER_RATE_HZ,
        )


def frames(samples: Pcm) -> list[AudioFrame]:
    """10 ms frames."""
    size = CALLER_RATE_HZ // 100
    return [
        AudioFrame(samples[start : start + size], CALLER_RATE_HZ, start)
        for start in range(0, len(samples) - size + 1, size)
    ]


@dataclass(frozen=True, slots=True)
class Ears:
    """The models that pauses are judged with."""

    vad: SileroVAD
    smart_turn: SmartTurn
    whisper: WhisperModel

    @classmethod
    def load(cls) -> Ears:
        """From the model store, one thread each."""
        (vad,) = path_of("silero-vad").glob("*.onnx")
        (turn,) = path_of("smart-turn-v3.2-cpu").glob("*.onnx")
        whisper = WhisperModel(
            str(path_of("whisper-tiny.en")), device="cpu", compute_type="int8", cpu_threads=1
        )
        return cls(SileroVAD(vad), SmartTurn(turn), whisper)

    def hear(self, samples: Float32) -> Heard:
        """What Whisper understands, with punctuation."""
        found, _ = self.whisper.transcribe(
            samples, beam_size=1, temperature=0.0, max_new_tokens=MAX_TOKENS
        )
        segments = list(found)
        if not segments:
            return Heard("")
        sure = float(np.mean([segment.avg_logprob for segment in segments]))
        return Heard(" ".join(segment.text.strip() for segment in segments), math.exp(sure))

    def pauses(self, clip: Clip) -> list[Pause]:
        """Every pause of at least 0.2 s that the voice detector finds, the one after it last."""
        voice = Voice(self.vad)
        edges = [edge for frame in frames(clip.samples) if (edge := voice.hear(frame))]
        found = []
        for n, edge in enumerate(edges):
            following = edges[n + 1].at if n + 1 < len(edges) else None
            length_s = np.inf if following is None else (following - edge.at) / CALLER_RATE_HZ
            if not edge.began and length_s >= SHORTEST_PAUSE_S:
                found.append(self._pause(clip, edge.at, length_s))
        return found

    def _pause(self, clip: Clip, start: int, length_s: float) -> Pause:
        n_grid = int(min(LONGEST_S, length_s) / GRID_S)
        ends = [start + round(n * GRID_S * CALLER_RATE_HZ) for n in range(1, n_grid + 1)]
        samples = clip.samples.astype(np.float32) / np.float32(32768)
        heard = samples[: start + round(0.15 * CALLER_RATE_HZ)]
        return Pause(
            clip=clip,
            start_s=start / CALLER_RATE_HZ,
            length_s=length_s,
            text=self.hear(heard).text,
            p_audio=tuple(self.smart_turn.probability(samples[:end]) for end in ends),
        )


def by_clip(pauses: Sequence[Pause]) -> dict[str, list[Pause]]:
    """The pauses of each turn."""
    turns: dict[str, list[Pause]] = {}
    for pause in pauses:
        turns.setdefault(pause.clip.name, []).append(pause)
    return turns
