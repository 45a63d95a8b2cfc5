"""The only way to the speaker, and the only truth of what was heard.

A turn writes its frames to a `Lease`. A lease is *held* (nothing audible), *released*, *ducked* or
*revoked*; each of these takes effect at once and synchronously. `Lease.play` paces the frames to
the transport, at most `Transport.lead_s` ahead of real time, and keeps sample-exact account of
which audio, and so which words, were heard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from voicepipe.frames import AudioFrame, Pcm
from voicepipe.protocols import Transport

MAX_BUFFERED_S = 4.0
"""Audio a lease takes before `write` waits: enough to ride out a slow phrase, little enough that
a barge-in throws away at most this much synthesis."""

AUDIBLE_AMPLITUDE = 103
"""int16 amplitude of -50 dBFS: below it a sample of synthetic speech counts as silence."""

KEPT_BEFORE_AUDIBLE_S = 0.005
"""Leading silence that survives trimming, so that an onset does not click."""

DUCK_GAIN = 10 ** (-12 / 20)
"""-12 dB while it is open whether the caller wants the floor."""

GAIN_RAMP_S = 0.01
"""A change of gain takes this long, so that it does not click."""

UNDERRUN_S = 0.02
"""A gap between two frames of one reply that is longer than this can be heard."""


def first_audible(samples: Pcm) -> int | None:
    """Index of the first sample of at least `AUDIBLE_AMPLITUDE`, or None."""
    loud = np.abs(samples.astype(np.int32)) >= AUDIBLE_AMPLITUDE
    return int(np.argmax(loud)) if loud.any() else None


@dataclass(frozen=True, slots=True)
class LeaseWatch:
    """What the owner of a lease wants to be told. All are called synchronously."""

    ready: Callable[[], None]
    """The first audible audio was written."""
    sounding: Callable[[float, bool], None]
    """(media time in s, whether sound begins): the reply becomes audible, or stops being so."""
    underrun: Callable[[float], None]
    """(gap in s): the next frame of a reply that was playing came too late."""


class Playout:
    """Where the agent's sound is placed on the transport's clock. One for each session."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._next_sample = 0

    @property
    def rate_hz(self) -> int:
        return self._transport.output_rate_hz

    def lease(self, watch: LeaseWatch, *, held: bool) -> Lease:
        return Lease(self, watch, held=held)

    def now_sample(self) -> int:
        """The agent sample that is being heard now."""
        return round(self._transport.now_s() * self.rate_hz)

    def next_start(self) -> int:
        """Where the next frame goes: right after the last one, or now if that is past."""
        return max(self._next_sample, self.now_sample())

    async def sleep_until(self, sample: int) -> None:
        await asyncio.sleep(max(0.0, sample / self.rate_hz - self._transport.now_s()))

    async def send(self, frame: AudioFrame) -> None:
        """Hand a frame with its place to the transport."""
        self._next_sample = frame.end_sample
        await self._transport.play(frame)

    async def sleep_until_due(self, sample: int) -> None:
        await self.sleep_until(sample - round(self._transport.lead_s * self.rate_hz))

    def cut(self) -> int:
        """Silence everything that was sent and not yet heard; returns where sound stops."""
        stop = self._transport.clear(self.now_sample())
        self._next_sample = min(self._next_sample, stop)
        return stop

    def heard_until(self) -> int:
        """The sample up to which the far end has played, by its own report or by the clock."""
        reported = self._transport.heard_until()
        return self.now_sample() if reported is None else min(reported, self.now_sample())


class Lease:
    """One reply's right to the speaker. Made by `Playout.lease`; written and played by its turn.

    `write` and `close` belong to the turn's producer, `play` to the turn; `hold`, `release`,
    `duck`, `unduck` and `revoke` to the session and may be called at any time, in any order.
    """

    def __init__(self, playout: Playout, watch: LeaseWatch, *, held: bool) -> None:
        self._playout = playout
        self._watch = watch
        self._held = held
        self._revoked = False
        self._closed = False
        self._complete = False
        self._gain = 1.0
        self._target_gain = 1.0
        self._waiting: deque[AudioFrame] = deque()
        self._buffered_samples = 0
        self._sent: deque[AudioFrame] = deque()  # not yet surely heard
        self._labels: list[tuple[int, str]] = []  # (start sample, text) of what was sent
        self._pending_text = ""  # labels of trimmed frames
        self._audible_offset: int | None = None  # of the first audible sample, in the first frame
        self._sounding = False
        self._end_sample: int | None = None  # where the sound stopped or will stop
        self._changed = asyncio.Event()

    @property
    def held(self) -> bool:
        return self._held

    @property
    def revoked(self) -> bool:
        return self._revoked

    @property
    def ready(self) -> bool:
        """Whether audible audio has been written."""
        return self._audible_offset is not None

    @property
    def started(self) -> bool:
        """Whether any of it was sent to the speaker."""
        return bool(self._labels)

    @property
    def stopped_s(self) -> float | None:
        """Media time of the end of the sound that was heard, once it was cut or has ended."""
        return None if self._end_sample is None else self._end_sample / self._playout.rate_hz

    @property
    def heard_text(self) -> str:
        """The labels of all frames that began to be heard, concatenated."""
        if self._complete:  # nothing can take back what was sent to its end
            return "".join(text for _, text in self._labels)
        until = self._playout.heard_until()
        if self._end_sample is not None:
            until = min(until, self._end_sample)
        return "".join(text for start, text in self._labels if start < until)

    # -- the producer's side -------------------------------------------------------------------

    async def write(self, frame: AudioFrame) -> None:
        """Add a frame (at the playout's rate). Waits while `MAX_BUFFERED_S` are buffered; drops
        the frame when the lease is revoked. Leading silence of the reply is trimmed."""
        while self._buffered_samples > MAX_BUFFERED_S * self._playout.rate_hz:
            if self._revoked:
                return
            self._changed.clear()
            await self._changed.wait()
        if not self._revoked:
            self._append(frame)

    def close(self) -> None:
        """No more frames will be written; text without sound still counts as said at the end."""
        if self._pending_text and not self._revoked:
            empty = np.zeros(0, np.int16)
            self._push(AudioFrame(empty, self._playout.rate_hz, 0, self._pending_text))
            self._pending_text = ""
        self._closed = True
        self._changed.set()

    def _append(self, frame: AudioFrame) -> None:
        if not self.ready:
            offset = first_audible(frame.samples)
            if offset is None:
                self._pending_text += frame.text
                return
            kept = min(offset, round(KEPT_BEFORE_AUDIBLE_S * frame.sample_rate_hz))
            self._audible_offset = kept
            text, self._pending_text = self._pending_text + frame.text, ""
            frame = replace(frame, samples=frame.samples[offset - kept :], text=text)
            self._push(frame)
            self._watch.ready()
            return
        self._push(frame)

    def _push(self, frame: AudioFrame) -> None:
        self._waiting.append(frame)
        self._buffered_samples += frame.n_samples
        self._changed.set()

    # -- the session's side --------------------------------------------------------------------

    def hold(self) -> None:
        """Fall silent now; what was sent and not heard is kept, to go on from there."""
        if self._held or self._revoked:
            return
        self._held = True
        if self._sounding:
            self._requeue(self._playout.cut())
        self._changed.set()

    def release(self) -> None:
        """Let the sound flow."""
        self._held = False
        self._changed.set()

    def duck(self) -> None:
        self._target_gain = DUCK_GAIN

    def unduck(self) -> None:
        self._target_gain = 1.0

    def revoke(self) -> None:
        """Fall silent now and for good."""
        if self._revoked:
            return
        self._revoked = True
        if self._sounding:
            self._stop_sounding(self._playout.cut())
        self._waiting.clear()
        self._buffered_samples = 0
        self._changed.set()

    def _requeue(self, stop: int) -> None:
        """Put back what was sent for `stop` and later; a frame cut in two keeps its second part."""
        unheard = [frame for frame in self._sent if frame.end_sample > stop]
        self._sent.clear()
        self._labels = [(start, text) for start, text in self._labels if start < stop]
        for frame in reversed(unheard):
            cut = max(0, stop - frame.start_sample)
            text = frame.text if cut == 0 else ""
            self._waiting.appendleft(replace(frame, samples=frame.samples[cut:], text=text))
            self._buffered_samples += frame.n_samples - cut
        self._stop_sounding(stop)

    def _stop_sounding(self, stop: int) -> None:
        self._sounding = False
        self._end_sample = stop
        self._watch.sounding(stop / self._playout.rate_hz, False)

    # -- the turn's side -----------------------------------------------------------------------

    async def play(self) -> None:
        """Send frames when they are due. Returns once all of a closed lease was heard, or at
        once when it is revoked."""
        while not self._revoked:
            if self._held or not self._waiting:
                if self._closed and not self._waiting:
                    if not await self._heard_to_the_end():
                        continue
                    return
                self._changed.clear()
                await self._changed.wait()
                continue
            start = self._playout.next_start()
            await self._playout.sleep_until_due(start)
            if self._waiting and not self._held and not self._revoked:
                await self._send()

    async def _send(self) -> None:
        frame = self._waiting.popleft()
        self._buffered_samples -= frame.n_samples
        start = self._playout.next_start()
        if self._sent and self._sounding:
            gap = start - self._sent[-1].end_sample
            if gap > UNDERRUN_S * self._playout.rate_hz:
                self._watch.underrun(gap / self._playout.rate_hz)
        frame = replace(frame, samples=self._shaped(frame.samples), start_sample=start)
        if frame.text or not self._labels:
            self._labels.append((start, frame.text))
        self._sent.append(frame)
        while self._sent[0].end_sample < self._playout.heard_until() - self._playout.rate_hz:
            self._sent.popleft()
        if not self._sounding:
            self._sounding, self._end_sample = True, None
            audible = start + (self._audible_offset or 0)
            self._audible_offset = 0
            self._watch.sounding(audible / self._playout.rate_hz, True)
        self._changed.set()  # `write` may go on
        await self._playout.send(frame)

    async def _heard_to_the_end(self) -> bool:
        """Wait until the last frame is over; False if the lease was held or revoked meanwhile."""
        if self._sent:
            end = self._sent[-1].end_sample
            await self._playout.sleep_until(end)
            if self._held or self._revoked:
                return False
            self._stop_sounding(end)
        self._complete = True
        return True

    def _shaped(self, samples: Pcm) -> Pcm:
        """Apply the gain, ramping towards its target."""
        if self._gain == self._target_gain == 1.0:
            return samples
        step = (1.0 - DUCK_GAIN) / (GAIN_RAMP_S * self._playout.rate_hz)
        ramp = np.arange(1, len(samples) + 1) * step
        if self._gain < self._target_gain:
            gains = np.minimum(self._gain + ramp, self._target_gain)
        else:
            gains = np.maximum(self._gain - ramp, self._target_gain)
        if len(gains):
            self._gain = float(gains[-1])
        shaped: Pcm = (samples * gains).astype(np.int16)
        return shaped
