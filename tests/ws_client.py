"""A caller at the other end of the WebSocket protocol, with a clock and a tape of its own.

Knows nothing of the server but the protocol: it records in 20 ms pieces like a sound card, sends
each when its last sample is there, plays what it gets at once and without gaps on a virtual
speaker, drops what it has not played on `clear`, and reports what it has played. Its tape holds
what it sent and what it heard, both on its own sample clock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import soxr
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from voicepipe.frames import CALLER_RATE_HZ, Pcm
from voicepipe.transports import CallerTurn, Cue

CHUNK_S = 0.02
REPORT_EVERY_CHUNKS = 5
AUDIBLE = 103
"""int16 amplitude of -50 dBFS."""

ROOM_NOISE_DBFS = -66.0


class VirtualSpeaker:
    """Plays samples one after the other on the client's sample clock."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, Pcm]] = []
        self._sounds: list[tuple[int, int]] = []
        """First and one past the last audible sample of each piece that has any, in order. Found
        once: who looks at all of them for every chunk is late for the next."""
        self._free_at = 0  # the sample at which everything has been played
        self._dropped = 0
        self._received = 0

    def play(self, samples: Pcm, now: int) -> None:
        start = max(now, self._free_at)
        self._pieces.append((start, samples))
        loud = np.flatnonzero(np.abs(samples.astype(int)) >= AUDIBLE)
        if len(loud):
            self._sounds.append((start + int(loud[0]), start + int(loud[-1]) + 1))
        self._free_at = start + len(samples)
        self._received += len(samples)

    def clear(self, now: int) -> None:
        while self._pieces and self._pieces[-1][0] + len(self._pieces[-1][1]) > now:
            start, samples = self._pieces.pop()
            n = max(0, now - start)
            self._dropped += len(samples) - n
            if n:
                self._pieces.append((start, samples[:n]))
                break
        while self._sounds and self._sounds[-1][1] > now:
            start, _ = self._sounds.pop()
            if start < now:
                self._sounds.append((start, now))
                break
        self._free_at = min(self._free_at, now)

    def played(self, now: int) -> int:
        """How many of the received samples were played by `now`."""
        unplayed = 0
        for start, samples in reversed(self._pieces):
            if start + len(samples) <= now:
                break
            unplayed += min(len(samples), start + len(samples) - now)
        return self._received - self._dropped - unplayed

    def first_sound(self, since: int, now: int) -> int | None:
        """The first audible sample at or after `since` that was heard by now."""
        found = None
        for start, _ in reversed(self._sounds):
            if start < since:
                break
            found = start if start < now else found
        return found

    def last_sound(self, now: int) -> int:
        """One past the last audible sample that was heard by now; 0 when there was none."""
        return next((min(end, now) for start, end in reversed(self._sounds) if start < now), 0)

    def track(self, n: int) -> Pcm:
        track = np.zeros(n, np.int16)
        for start, samples in self._pieces:
            piece = samples[: max(0, n - start)]
            track[start : start + len(piece)] = piece
        return track


@dataclass(frozen=True)
class Heard:
    """A conversation as the client had it. Sample positions are on its own clock."""

    sample_rate_hz: int
    caller: Pcm
    agent: Pcm
    said_at: tuple[tuple[int, int], ...]
    """First and one past the last sample of each clip."""
    messages: tuple[tuple[float, dict[str, object]], ...]
    """The text messages, with the time of the client's clock at which each came."""

    @property
    def tape(self) -> Pcm:
        """Shape [n, 2]: what was sent, what was heard."""
        return np.stack([self.caller, self.agent], axis=1)

    def of_type(self, kind: str) -> list[dict[str, object]]:
        return [message for _, message in self.messages if message.get("type") == kind]


@dataclass
class _Client:
    socket: ClientConnection
    rate_hz: int
    turns: Sequence[CallerTurn]
    patience_s: float
    hang_up_s: float
    zero_s: float
    speaker: VirtualSpeaker = field(default_factory=VirtualSpeaker)
    sent: list[Pcm] = field(default_factory=list)
    said_at: list[tuple[int, int]] = field(default_factory=list)
    messages: list[tuple[float, dict[str, object]]] = field(default_factory=list)

    def now(self) -> int:
        return round((asyncio.get_running_loop().time() - self.zero_s) * self.rate_hz)

    async def report(self) -> None:
        played = self.speaker.played(self.now())
        await self.socket.send(json.dumps({"type": "playback", "played_samples": played}))

    async def listen(self) -> None:
        try:
            async for message in self.socket:
                if isinstance(message, bytes):
                    self.speaker.play(np.frombuffer(message, "<i2").astype(np.int16), self.now())
                    continue
                fields = json.loads(message)
                self.messages.append((self.now() / self.rate_hz, fields))
                if fields.get("type") == "clear":
                    self.speaker.clear(self.now())
                    await self.report()
        except ConnectionClosed:
            return

    async def speak(self) -> None:
        n = round(CHUNK_S * self.rate_hz)
        noise = np.random.default_rng(0)
        amplitude = 32768 * 10 ** (ROOM_NOISE_DBFS / 20)
        waiting = [(turn, _at_rate(turn.samples, self.rate_hz)) for turn in self.turns]
        saying = np.zeros(0, np.int16)
        sample = 0
        while waiting or len(saying) or not self._is_over(sample):
            if waiting and not len(saying) and self._is_due(waiting[0][0].cue, sample):
                saying = waiting.pop(0)[1]
                self.said_at.append((sample, sample + len(saying)))
            chunk = noise.normal(0.0, amplitude, n)
            chunk[: len(saying)] += saying[:n]
            saying = saying[n:]
            sample += n
            pcm = np.clip(np.rint(chunk), -32768, 32767).astype(np.int16)
            end_s = self.zero_s + sample / self.rate_hz
            await asyncio.sleep(max(0.0, end_s - asyncio.get_running_loop().time()))
            self.sent.append(pcm)
            await self.socket.send(pcm.astype("<i2").tobytes())
            if sample // n % REPORT_EVERY_CHUNKS == 0:
                await self.report()
        await self.socket.send('{"type": "end"}')

    def _is_due(self, cue: Cue, now: int) -> bool:
        delay = round(cue.delay_ms / 1000 * self.rate_hz)
        if cue.on == "time" or not self.said_at:
            return now >= delay
        began = self.speaker.first_sound(self.said_at[-1][1], now)
        tired = now >= self.said_at[-1][1] + self.patience_s * self.rate_hz
        if cue.on == "agent_speech":
            return tired or (began is not None and now >= began + delay)
        if self.turns[len(self.said_at) - 1].expects_reply and began is None:
            return tired
        return now >= max(self.said_at[-1][1], self.speaker.last_sound(now)) + delay

    def _is_over(self, now: int) -> bool:
        """All was said, and the last answer was heard or did not come."""
        end = Cue("agent_silence", self.hang_up_s * 1000)
        return self._is_due(end, now)


def _at_rate(samples: Pcm, rate_hz: int) -> Pcm:
    resampled = soxr.resample(samples.astype(np.float32), CALLER_RATE_HZ, rate_hz)
    pcm: Pcm = np.clip(np.rint(resampled), -32768, 32767).astype(np.int16)
    return pcm


async def converse(
    url: str,
    turns: Sequence[CallerTurn],
    *,
    sample_rate_hz: int = CALLER_RATE_HZ,
    patience_s: float = 15.0,
    hang_up_s: float = 2.0,
) -> Heard:
    """Say `turns` to the server at `url`, each at its cue, in real time, and listen.

    Waits `patience_s` for an answer before it goes on without one; hangs up after `hang_up_s` of
    silence behind the last.
    """
    async with connect(url, max_size=None, compression=None) as socket:
        await socket.send(json.dumps({"type": "start", "sample_rate": sample_rate_hz}))
        zero_s = asyncio.get_running_loop().time()
        client = _Client(socket, sample_rate_hz, turns, patience_s, hang_up_s, zero_s)
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(client.listen())
            with suppress(ConnectionClosed):
                await client.speak()
            await listening
        caller = np.concatenate([np.zeros(0, np.int16), *client.sent])
        return Heard(
            sample_rate_hz=sample_rate_hz,
            caller=caller,
            agent=client.speaker.track(len(caller)),
            said_at=tuple(client.said_at),
            messages=tuple(client.messages),
        )
