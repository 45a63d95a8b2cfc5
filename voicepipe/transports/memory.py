"""A caller in memory: clips said at their cue, and the agent's sound kept as a track.

Runs in step with the event loop's clock: in real time under an ordinary loop, in no time at all
under `voicepipe.clock.VirtualLoop`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from voicepipe.errors import UsageError
from voicepipe.frames import CALLER_RATE_HZ, FRAME_MS, AudioFrame, Pcm
from voicepipe.playout import AUDIBLE_AMPLITUDE

FRAME_SAMPLES = CALLER_RATE_HZ * FRAME_MS // 1000

PATIENCE_S = 15.0
"""How long a caller waits for an answer before saying the next thing anyway."""

HANG_UP_S = 2.0
"""Silence after the last reply before the caller is gone."""


@dataclass(frozen=True, slots=True)
class Cue:
    """When a caller turn is said.

    - `agent_silence`: `delay_ms` after the agent, having answered the caller's last turn, fell
      silent (the first turn: after the start of the call);
    - `agent_speech`: `delay_ms` after the agent began its answer to the caller's last turn;
    - `time`: `delay_ms` after the start of the call.
    """

    on: Literal["agent_silence", "agent_speech", "time"] = "agent_silence"
    delay_ms: float = 1000.0


@dataclass(frozen=True, slots=True)
class CallerTurn:
    """What a caller says: 16 kHz mono int16 `samples` of shape [n], at `cue`."""

    samples: Pcm
    cue: Cue = field(default_factory=Cue)
    expects_reply: bool = True
    """False for a backchannel: the next cue then counts from the reply that went on."""


class MemoryTransport:
    """Says `turns` and keeps what the agent plays. One call for each object.

    `noise_dbfs` adds white room noise (seeded) under the whole caller track; None leaves digital
    silence between the clips.
    """

    lead_s = 0.06

    def __init__(
        self,
        turns: Sequence[CallerTurn],
        *,
        output_rate_hz: int = 24_000,
        noise_dbfs: float | None = None,
        seed: int = 0,
    ) -> None:
        for index, turn in enumerate(turns):
            if turn.samples.dtype != np.int16 or turn.samples.ndim != 1 or not len(turn.samples):
                raise UsageError(f"caller turn {index}: expected mono int16 samples, at least one")
        self._turns = tuple(turns)
        self._output_rate_hz = output_rate_hz
        self._noise = np.random.default_rng(seed)
        self._noise_amplitude = 0.0 if noise_dbfs is None else 32768 * 10 ** (noise_dbfs / 20)
        self._zero_s = 0.0
        self._said_at: list[int] = []
        self._agent = AgentTrack(output_rate_hz)

    @property
    def output_rate_hz(self) -> int:
        return self._output_rate_hz

    @property
    def agent(self) -> AgentTrack:
        """What the caller heard of the agent."""
        return self._agent

    @property
    def said_at(self) -> tuple[int, ...]:
        """Caller sample (16 kHz) at which each turn so far began."""
        return tuple(self._said_at)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._zero_s

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncIterator[AudioFrame]]:
        self._zero_s = asyncio.get_running_loop().time()
        async with aclosing(self._frames()) as frames:
            yield frames

    async def play(self, frame: AudioFrame) -> None:
        self._agent.play(frame)

    def clear(self, from_sample: int) -> int:
        self._agent.cut(from_sample)
        return from_sample

    def heard_until(self) -> int | None:
        return None

    async def _frames(self) -> AsyncGenerator[AudioFrame, None]:
        sample = 0
        waiting = list(self._turns)
        saying: Pcm = np.zeros(0, np.int16)
        while waiting or len(saying) or not self._hung_up(sample):
            if waiting and not len(saying) and self._is_due(waiting[0].cue, sample):
                saying = waiting.pop(0).samples
                self._said_at.append(sample)
            piece, saying = saying[:FRAME_SAMPLES], saying[FRAME_SAMPLES:]
            end_s = (sample + FRAME_SAMPLES) / CALLER_RATE_HZ
            await asyncio.sleep(max(0.0, end_s - self.now_s()))
            yield AudioFrame(self._in_the_room(piece), CALLER_RATE_HZ, sample)
            sample += FRAME_SAMPLES

    def _in_the_room(self, piece: Pcm) -> Pcm:
        """One frame: the clip's samples, silence behind them, room noise under all."""
        frame = np.zeros(FRAME_SAMPLES)
        frame[: len(piece)] = piece
        if self._noise_amplitude:
            frame += self._noise.normal(0.0, self._noise_amplitude, FRAME_SAMPLES)
        return np.clip(np.rint(frame), -32768, 32767).astype(np.int16)

    def _last_end_s(self) -> float:
        """Media time at which the caller's last turn was over."""
        if not self._said_at:
            return 0.0
        turn = self._turns[len(self._said_at) - 1]
        return (self._said_at[-1] + len(turn.samples)) / CALLER_RATE_HZ

    def _is_due(self, cue: Cue, sample: int) -> bool:
        now_s, delay_s = sample / CALLER_RATE_HZ, cue.delay_ms / 1000
        if cue.on == "time":
            return now_s >= delay_s
        last_s = self._last_end_s()
        if cue.on == "agent_speech":
            began_s = self._agent.first_sound_after(last_s)
            if began_s is None:
                return self._tired(now_s, last_s)
            return now_s >= began_s + delay_s
        if not self._said_at:
            return now_s >= delay_s
        turn = self._turns[len(self._said_at) - 1]
        if turn.expects_reply and self._agent.first_sound_after(last_s) is None:
            return self._tired(now_s, last_s)
        return now_s >= max(last_s, self._agent.last_sound_s) + delay_s

    def _tired(self, now_s: float, last_s: float) -> bool:
        return now_s >= last_s + PATIENCE_S

    def _hung_up(self, sample: int) -> bool:
        """All was said, and the last answer was heard (or did not come)."""
        now_s, last_s = sample / CALLER_RATE_HZ, self._last_end_s()
        expects = bool(self._said_at) and self._turns[len(self._said_at) - 1].expects_reply
        if expects and self._agent.first_sound_after(last_s) is None:
            return self._tired(now_s, last_s)
        return now_s >= max(last_s, self._agent.last_sound_s) + HANG_UP_S


class AgentTrack:
    """The agent's sound as it was heard, on its own sample clock."""

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._frames: list[AudioFrame] = []
        self._audible: list[AudioFrame] = []

    @property
    def frames(self) -> tuple[AudioFrame, ...]:
        return tuple(self._frames)

    @property
    def last_sound_s(self) -> float:
        """End of the last audible frame so far, 0.0 before the first."""
        return self._audible[-1].end_s if self._audible else 0.0

    def first_sound_after(self, t_s: float) -> float | None:
        """Start of the first audible frame that begins at `t_s` or later."""
        index = bisect_left(self._audible, t_s, key=lambda frame: frame.start_s)
        return self._audible[index].start_s if index < len(self._audible) else None

    def samples(self) -> Pcm:
        """The track from sample 0 on, shape [n], silence where nothing was played."""
        end = max((frame.end_sample for frame in self._frames), default=0)
        track = np.zeros(end, np.int16)
        for frame in self._frames:
            track[frame.start_sample : frame.end_sample] = frame.samples
        return track

    def play(self, frame: AudioFrame) -> None:
        if self._frames and frame.start_sample < self._frames[-1].end_sample:
            raise UsageError(
                f"agent track: frame at {frame.start_sample} overlaps the one that ends at "
                f"{self._frames[-1].end_sample}"
            )
        self._append(frame)

    def cut(self, from_sample: int) -> None:
        while self._frames and self._frames[-1].start_sample >= from_sample:
            self._pop()
        if self._frames and self._frames[-1].end_sample > from_sample:
            last = self._pop()
            kept = last.samples[: from_sample - last.start_sample]
            self._append(replace(last, samples=kept))

    def _append(self, frame: AudioFrame) -> None:
        self._frames.append(frame)
        if np.any(np.abs(frame.samples.astype(np.int32)) >= AUDIBLE_AMPLITUDE):
            self._audible.append(frame)

    def _pop(self) -> AudioFrame:
        frame = self._frames.pop()
        if self._audible and self._audible[-1] is frame:
            self._audible.pop()
        return frame
