"""Session directories composed for tests: a tape and its events, with known truth."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from budgets.perceived import Detectors
from voicepipe import events as ev
from voicepipe.frames import AudioFrame, Pcm

CALLS = Path(__file__).parent.parent / "demos" / "calls"
RAMP_S = 0.002
Samples = NDArray[np.float64]


class LoudnessDetector:
    """A speech detector for tapes on which every sound is speech: a peak above -36 dBFS now or
    within the last `hang_over` frames."""

    def __init__(self, hang_over: int = 4) -> None:
        self._hang_over = hang_over
        self._left = 0

    def hear(self, frame: AudioFrame) -> float:
        loud = frame.samples.max() > 520
        self._left = self._hang_over if loud else self._left - 1
        return float(self._left > 0)


LOUDNESS = Detectors(LoudnessDetector, lambda: LoudnessDetector(2))


@functools.cache
def _clips() -> tuple[tuple[Samples, int], ...]:
    """The recorded demo callers, from their first loud sample on."""
    clips = []
    for path in sorted(CALLS.glob("*-request.flac")) + sorted(CALLS.glob("*-question.flac")):
        samples, rate_hz = soundfile.read(path, dtype="float64")
        clips.append((samples[_loud(samples)[0] :], rate_hz))
    return tuple(clips)


def _loud(samples: Samples) -> NDArray[np.int64]:
    """Where the 10 ms around a sample are above -26 dBFS, less 5 ms at either end."""
    level = np.sqrt(np.convolve(samples**2, np.full(160, 1 / 160), "same"))
    return np.flatnonzero(level > 10 ** (-26 / 20))[80:-80]


def speech(at_most_s: float, rate_hz: int, *, clip: int = 0) -> Samples:
    """Real speech that begins and ends loud, with 2 ms ramps, so that its edges are sample-exact.
    Shape [n], as long as the clip allows."""
    samples, clip_hz = _clips()[clip % len(_clips())]
    samples = samples[: round(at_most_s * clip_hz)]
    samples = soxr.resample(samples[: _loud(samples)[-1]], clip_hz, rate_hz)
    return faded(samples, rate_hz, RAMP_S)


def burst(seconds: float, rate_hz: int) -> Samples:
    """A sound with a speech-like spectrum and rhythm, for detectors that hear loudness."""
    return faded(_buzz(seconds, rate_hz), rate_hz, RAMP_S)


def faded(samples: Samples, rate_hz: int, seconds: float) -> Samples:
    ramp = np.linspace(0.0, 1.0, round(seconds * rate_hz) + 1)[1:]
    samples = samples.copy()
    samples[: len(ramp)] *= ramp
    samples[len(samples) - len(ramp) :] *= ramp[::-1]
    return samples


def _buzz(seconds: float, rate_hz: int) -> Samples:
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    tone: Samples = sum(
        (np.sin(2 * np.pi * 140 * k * t + k * k) / k for k in range(1, 12)), np.zeros(len(t))
    )
    return 0.1 * tone * (0.8 + 0.2 * np.sin(2 * np.pi * 4 * t))


@dataclass
class Studio:
    """Two tracks under construction; everything is at least as long as asked for."""

    rate_hz: int = 16_000
    seconds: float = 0.0
    _sounds: dict[str, list[tuple[float, Samples]]] = field(
        default_factory=lambda: {"caller": [], "agent": []}
    )

    def say(self, side: Literal["caller", "agent"], at_s: float, samples: Samples) -> float:
        """Returns the second at which it ends."""
        self._sounds[side].append((at_s, samples))
        end_s = at_s + len(samples) / self.rate_hz
        self.seconds = max(self.seconds, end_s + 1.0)
        return end_s

    def track(self, side: str, *, noise_dbfs: float = -math.inf, dc: float = 0.0) -> Pcm:
        n = round(self.seconds * self.rate_hz)
        noise = np.random.default_rng(len(side)).standard_normal(n)
        track = dc + noise * 10 ** (noise_dbfs / 20)
        for at_s, samples in self._sounds[side]:
            start = round(at_s * self.rate_hz)
            track[start : start + len(samples)] += samples
        return np.clip(np.rint(track * 32767), -32768, 32767).astype(np.int16)

    def write(self, path: Path, *, noise_dbfs: float = -math.inf, dc: float = 0.0) -> None:
        both = [self.track(side, noise_dbfs=noise_dbfs, dc=dc) for side in ("caller", "agent")]
        soundfile.write(path, np.stack(both, axis=1), self.rate_hz, subtype="PCM_16")


@dataclass(frozen=True)
class Exchange:
    """One turn to compose: what the caller says and what the stages take, in ms."""

    user: str = "what time is it"
    agent: str = "it is three o'clock"
    says_s: float = 1.0
    replies_s: float = 1.2
    endpointing: float = 300.0
    stt: float = 20.0
    llm: float = 120.0
    tts: float = 80.0
    playout: float = 15.0
    shift_ms: float = 0.0
    """How much later the sound is than the events have it."""
    eager_ms: float = math.nan
    """When the reply was begun, held, if it was."""
    reason: Literal["score", "timeout"] = "score"
    status: ev.TurnStatus = "completed"
    generated_tokens: int = 10

    @property
    def perceived_ms(self) -> float:
        rows = self.endpointing + self.stt + self.llm + self.tts + self.playout
        return rows + self.shift_ms


class Composer:
    """Writes exchanges one after the other: the events a session would publish, and its tape."""

    def __init__(self, rate_hz: int = 16_000) -> None:
        self.studio = Studio(rate_hz)
        self.events: list[ev.Event] = []
        self.truth: list[dict[str, object]] = []
        self.at_s = 1.0
        self._n_turns = 0

    def exchange(self, exchange: Exchange, *, recorded: bool = True) -> int:
        """Appends one turn; returns its number."""
        x, turn, rate_hz = exchange, self._n_turns, self.studio.rate_hz
        self._n_turns += 1
        start_s = self.at_s
        end_s = start_s + x.says_s
        decided_s = end_s + x.endpointing / 1000
        text_s = decided_s + x.stt / 1000
        phrase_s = text_s + x.llm / 1000
        ready_s = phrase_s + x.tts / 1000
        heard_s = ready_s + x.playout / 1000
        over_s = heard_s + x.replies_s
        if recorded:
            self.studio.say("caller", start_s, burst(x.says_s, rate_hz))
            self.studio.say("agent", heard_s + x.shift_ms / 1000, burst(x.replies_s, rate_hz))
        self.truth.append(
            {"text": x.user, "kind": "question", "speech_start_s": start_s, "speech_end_s": end_s}
        )
        held = math.isfinite(x.eager_ms)
        begun_s = end_s + x.eager_ms / 1000 if held else text_s
        add = self._add
        add(ev.SpeechStarted(t_media_s=start_s), start_s + 0.06)
        add(ev.SpeechPaused(t_media_s=end_s), end_s + 0.05)
        add(
            ev.Transcript(t_media_s=end_s, text=x.user, final=True, end_s=end_s, confidence=0.9),
            text_s,
        )
        started = ev.TurnStarted(t_media_s=begun_s, turn=turn, text=x.user, held=held)
        ended = ev.EndOfTurn(
            t_media_s=end_s, text=x.user, speech_end_s=end_s, decided_s=decided_s, reason=x.reason
        )
        if held:
            add(ev.EagerEndOfTurn(t_media_s=end_s, text=x.user, speech_end_s=end_s), begun_s)
            add(started, begun_s)
            add(ended, text_s)
            add(ev.TurnReleased(t_media_s=text_s, turn=turn), text_s)
        else:
            add(ended, text_s)
            add(started, text_s)
        add(ev.FirstToken(t_media_s=phrase_s, turn=turn), phrase_s - 0.02)
        add(ev.FirstPhrase(t_media_s=phrase_s, turn=turn, text=x.agent), phrase_s)
        add(ev.AudioReady(t_media_s=ready_s, turn=turn), ready_s)
        add(ev.FirstAudio(t_media_s=heard_s, turn=turn), ready_s + 0.001)
        add(
            ev.TurnFinished(
                t_media_s=over_s,
                turn=turn,
                status=x.status,
                user_text=x.user,
                text=x.agent,
                heard_text=x.agent,
                prompt_tokens=40,
                cached_tokens=30,
                generated_tokens=x.generated_tokens,
            ),
            over_s,
        )
        self.at_s = over_s + x.shift_ms / 1000 + 0.7
        return turn

    def add(self, event: ev.Event) -> None:
        """An event of one's own, emitted when it happens."""
        self._add(event, event.t_media_s)

    def _add(self, event: ev.Event, t_loop_s: float) -> None:
        fields = {name: getattr(event, name) for name in event.__dataclass_fields__}
        self.events.append(type(event)(**{**fields, "t_loop_s": t_loop_s}))

    def write(self, directory: Path, **config: object) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        self.studio.seconds += 5.0
        self.studio.write(directory / "call.wav")
        lines = [json.dumps(event.to_json()) + "\n" for event in self.events]
        (directory / "events.jsonl").write_text("".join(lines), encoding="utf-8")
        written = {"target_ms": 600.0, "truth": self.truth, **config}
        (directory / "config.json").write_text(json.dumps(written), encoding="utf-8")
        return directory


def compose(directory: Path, exchanges: Sequence[Exchange], **config: object) -> Path:
    """A session directory of these exchanges."""
    composer = Composer()
    for exchange in exchanges:
        composer.exchange(exchange)
    return composer.write(directory, **config)
