"""Session directories: `call.wav`, `events.jsonl`, `config.json`.

`recording` wraps a transport so that what passes through it is also written down: the left channel
is the caller as received, the right one the agent as played, on the transport's one sample clock.
A session that is killed leaves a directory that can still be read.
"""

from __future__ import annotations

import json
import logging
import wave
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from voicepipe.errors import ComponentError
from voicepipe.events import Event
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame, Pcm
from voicepipe.protocols import Transport
from voicepipe.resample import Resampler

log = logging.getLogger(__name__)

HOLD_BACK_S = 1.0
"""Audio younger than this is not written yet: what was sent ahead may still be cut."""

CHUNK_S = 1.0
"""Audio is written in pieces of about this length, each leaving a valid file."""


class Tape:
    """A stereo track under construction: caller and agent samples placed on one clock."""

    def __init__(self, path: Path, rate_hz: int) -> None:
        self._file = wave.open(str(path), "wb")  # noqa: SIM115 - closed by `close`
        self._file.setnchannels(2)
        self._file.setsampwidth(2)
        self._file.setframerate(rate_hz)
        self._rate_hz = rate_hz
        self._resampler = Resampler(CALLER_RATE_HZ, rate_hz)
        self._caller: list[Pcm] = []
        self._n_caller = 0
        self._agent: list[AudioFrame] = []
        self._n_written = 0

    def hear(self, frame: AudioFrame) -> None:
        """The next caller frame."""
        piece = self._resampler.feed(frame.samples)
        self._caller.append(piece)
        self._n_caller += len(piece)
        due = self._n_caller - round(HOLD_BACK_S * self._rate_hz)
        if due - self._n_written >= CHUNK_S * self._rate_hz:
            self._write(due)

    def play(self, frame: AudioFrame) -> None:
        self._agent.append(frame)

    def cut(self, from_sample: int) -> None:
        """Nothing of the agent's was heard from here on."""
        kept = []
        for frame in self._agent:
            n_kept = max(0, from_sample - frame.start_sample)
            if n_kept:
                samples = frame.samples[:n_kept]
                kept.append(AudioFrame(samples, frame.sample_rate_hz, frame.start_sample))
        self._agent = kept

    def close(self) -> None:
        """Write the rest, up to where the caller's track ends."""
        self._write(self._n_caller)
        self._file.close()

    def _write(self, end: int) -> None:
        """Write both channels up to sample `end`."""
        n = end - self._n_written
        both = np.zeros((max(0, n), 2), np.int16)
        caller = np.concatenate([*self._caller, np.zeros(0, np.int16)])
        both[:, 0] = caller[: len(both)]
        self._caller = [caller[len(both) :]]
        later = []
        for frame in self._agent:
            first = max(frame.start_sample, self._n_written)
            last = min(frame.end_sample, end)
            if first < last:
                offset = frame.start_sample
                piece = frame.samples[first - offset : last - offset]
                both[first - self._n_written : last - self._n_written, 1] = piece
            if frame.end_sample > end:
                later.append(frame)
        self._agent = later
        self._file.writeframes(both.tobytes())
        self._n_written += len(both)


class Recorder:
    """Writes one session directory; an `Observer`. Made by `recording`.

    When the disk fills up, recording stops with one line in the log and in `error`; the call goes
    on.
    """

    def __init__(
        self, directory: Path, tape: Tape, events: IO[str], config: Mapping[str, object]
    ) -> None:
        self.directory = directory
        self.error: ComponentError | None = None
        self._config = dict(config)
        self._tape = tape
        self._events = events

    def __call__(self, event: Event) -> None:
        self._try(lambda: self._log(json.dumps(event.to_json())))

    def describe(self, more: Mapping[str, object]) -> None:
        """Add what became known during the session to `config.json`."""
        self._config |= more
        self._try(lambda: _write_config(self.directory, self._config))

    def hear(self, frame: AudioFrame) -> None:
        self._try(lambda: self._tape.hear(frame))

    def play(self, frame: AudioFrame) -> None:
        self._try(lambda: self._tape.play(frame))

    def cut(self, from_sample: int) -> None:
        self._try(lambda: self._tape.cut(from_sample))

    def close(self) -> None:
        self._try(self._tape.close)

    def _log(self, line: str) -> None:
        self._events.write(line + "\n")
        self._events.flush()

    def _try(self, write: Callable[[], None]) -> None:
        if self.error is not None:
            return
        try:
            write()
        except OSError as error:
            self.error = ComponentError(
                f"recording stopped: {self.directory}: {error.strerror}: free some disk space; "
                "the call goes on unrecorded"
            )
            log.error("%s", self.error)


class RecordedTransport:
    """A transport whose audio also goes to a recorder; otherwise the transport itself."""

    def __init__(self, transport: Transport, recorder: Recorder) -> None:
        self._transport = transport
        self._recorder = recorder

    @property
    def output_rate_hz(self) -> int:
        return self._transport.output_rate_hz

    @property
    def lead_s(self) -> float:
        return self._transport.lead_s

    def now_s(self) -> float:
        return self._transport.now_s()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncIterator[AudioFrame]]:
        async with self._transport.open() as frames, aclosing(self._heard(frames)) as heard:
            yield heard

    async def _heard(self, frames: AsyncIterator[AudioFrame]) -> AsyncGenerator[AudioFrame, None]:
        async for frame in frames:
            self._recorder.hear(frame)
            yield frame

    async def play(self, frame: AudioFrame) -> None:
        await self._transport.play(frame)
        self._recorder.play(frame)

    def clear(self, from_sample: int) -> int:
        stop = self._transport.clear(from_sample)
        self._recorder.cut(stop)
        return stop

    def heard_until(self) -> int | None:
        return self._transport.heard_until()


def _write_config(directory: Path, config: Mapping[str, object]) -> None:
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")


@contextmanager
def recording(
    directory: Path, transport: Transport, config: Mapping[str, object]
) -> Iterator[tuple[RecordedTransport, Recorder]]:
    """Record a session over `transport` into `directory`, which is made. `config` becomes
    `config.json`. Yields the transport to use and the observer to add. Raises ComponentError when
    the directory cannot be written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_config(directory, config)
        tape = Tape(directory / "call.wav", transport.output_rate_hz)
        events = (directory / "events.jsonl").open("w", encoding="utf-8")
    except OSError as error:
        raise ComponentError(
            f"recording: {directory}: {error.strerror}: choose a folder that can be written, "
            "on a disk with free space"
        ) from error
    with events:
        recorder = Recorder(directory, tape, events, config)
        try:
            yield RecordedTransport(transport, recorder), recorder
        finally:
            recorder.close()
