"""A remote caller's audio, put on one clock. Decides without I/O; the loop time is an argument.

Messages arrive when the network lets them: in lumps, late, too early, or not at all. What leaves is
a contiguous stream of 10 ms frames in step with real time:

- **The clock.** `zero_s` is the loop time of caller sample 0: the arrival of the first audio minus
  its length, since a live client sends a piece when its last sample was recorded. Audio that comes
  earlier than that clock says shows, in the first second, that the first piece was late, and moves
  the clock by up to `MAX_EARLY_S`. Later the clock follows what is early or late every time, slowly
  (the crystals of two machines differ by some tens of ppm): by no more than `DRIFT` allows.
- **Jitter.** A frame leaves as soon as its audio is there. Audio may be `PATIENCE_S` late (beyond
  the length of the pieces the client sends) before the stream goes on with silence. Patience costs
  nothing: silence that long is waited for anyway before a pause counts.
- **A client that stops sending** hears nothing of it: silence flows in step with real time.
- **A client that sends ahead** of real time (a file, or what a stalled network saved up) is
  buffered and paced, up to `MAX_BUFFERED_S`. While audio waits, the caller's pauses are shortened
  to `KEPT_PAUSE_S`, so that a live caller catches up at the first pause; no speech is dropped.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from voicepipe.frames import CALLER_RATE_HZ, FRAME_MS, AudioFrame, Pcm
from voicepipe.resample import Resampler

FRAME_SAMPLES = CALLER_RATE_HZ * FRAME_MS // 1000
FRAME_S = FRAME_MS / 1000

PATIENCE_S = 0.2
"""Lateness that is still jitter: a TCP retransmission on a good line (RFC 6298: 200 ms floor)."""

SILENT_LAG_S = 0.2
"""How far silence stays behind real time before the first audio: its piece may be that long."""

MAX_LAG_S = 1.0
"""Pieces longer than this count as this long: a client cannot stop the clock with a long one."""

MAX_EARLY_S = 0.1
"""How late the very first piece may have been; a client is not "early" beyond it, but ahead."""

SETTLING_S = 1.0
"""By then the first pieces, or those after a gap, have shown what they are: late, or a backlog."""

SMALL_EARLY_S = 0.04
"""After settling, more than this is a backlog, which the next pause of the caller's takes back."""

DRIFT = 200e-6
"""Bound on the difference of two sound clocks; consumer crystals keep within 100 ppm."""

DRIFT_WINDOW_S = 5.0
"""The least lateness within this time is the clock's, not the network's."""

KEPT_PAUSE_S = 0.2
"""Enough of a pause to hear that it is one; shorter ones are the closures inside words."""

SEEN_AHEAD_S = 0.02
"""Audio this far behind a frame must be quiet too, if it is there, so that no onset is cut."""

QUIET_AMPLITUDE = 103
"""-50 dBFS: no speech that a microphone was meant for, and above a quiet room."""

MAX_BUFFERED_S = 30.0
"""What a client may send ahead of real time: 960 kB."""

LAG_PIECES = 8
"""The longest of the last eight pieces says how long to wait for the next."""


class CallerStream:
    """`push` what arrives, `open` it once, then `take` frames; `wake_s` says when to look again."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self._resampler = Resampler(sample_rate_hz, CALLER_RATE_HZ)
        self._buffer = np.zeros(0, np.int16)
        self._n_in = 0  # at the client's rate, silence included
        self._n_taken = 0
        self._zero_s: float | None = None
        self._earliest_zero_s = 0.0  # as of `_anchored_s`
        self._anchored_s = 0.0
        self._followed_s = 0.0
        self._settles_s = 0.0
        self._pieces_s: deque[float] = deque(maxlen=LAG_PIECES)
        self._n_quiet = 0  # samples since the last loud frame that was taken
        self._starved = False
        self._least_late_s = np.inf
        self._window_ends_s = 0.0
        self.filled_s = 0.0
        """Silence put in for audio that did not come."""
        self.shed_s = 0.0
        """Quiet audio left out to catch up."""

    def now_s(self, loop_s: float) -> float:
        """Media time: seconds since caller sample 0; 0 before there is one."""
        return 0.0 if self._zero_s is None else max(0.0, loop_s - self._zero_s)

    def open(self, loop_s: float) -> None:
        """Frames are wanted from now on; without audio so far the stream begins with silence."""
        if self._zero_s is None:
            self._anchor(loop_s)
            self._starved = True

    def push(self, samples: Pcm, loop_s: float) -> bool:
        """The next piece, shape [n], arrived now. False: too far ahead, the piece was dropped."""
        if len(self._buffer) / CALLER_RATE_HZ > MAX_BUFFERED_S:
            return False
        length_s = len(samples) / self._rate_hz
        if self._zero_s is None:
            self._anchor(loop_s - length_s)
        if self._starved:  # this piece is not late: the client began to send again
            self._fill(self.now_s(loop_s) - length_s - self._end_s)
            self._settles_s = loop_s + SETTLING_S
        self._starved = False
        self._pieces_s.append(min(length_s, MAX_LAG_S))
        self._append(samples)
        self._follow(loop_s)
        return True

    def take(self, loop_s: float) -> AudioFrame | None:
        """The next frame, if it is due: its audio is there and its time has come."""
        self._shed(loop_s)
        now_s = self.now_s(loop_s)
        if self.gives_up(loop_s):
            self._fill(now_s - self._lag_s - self._end_s)
            self._starved = True
        if len(self._buffer) < FRAME_SAMPLES or self._next_end_s > now_s + 1e-9:
            return None
        frame = AudioFrame(self._buffer[:FRAME_SAMPLES].copy(), CALLER_RATE_HZ, self._n_taken)
        self._buffer = self._buffer[FRAME_SAMPLES:]
        self._n_taken += FRAME_SAMPLES
        self._n_quiet = self._n_quiet + FRAME_SAMPLES if _is_quiet(frame.samples) else 0
        return frame

    def gives_up(self, loop_s: float) -> bool:
        """Audio is so late that `take` now puts silence in its place."""
        return len(self._buffer) < FRAME_SAMPLES and self.now_s(loop_s) >= self._give_up_s

    def wake_s(self) -> float:
        """The loop time at which `take` may have something new, if nothing arrives before."""
        due_s = self._next_end_s if len(self._buffer) >= FRAME_SAMPLES else self._give_up_s
        return (self._zero_s or 0.0) + due_s

    @property
    def _next_end_s(self) -> float:
        return (self._n_taken + FRAME_SAMPLES) / CALLER_RATE_HZ

    @property
    def _end_s(self) -> float:
        """Media time of the end of what is in the stream so far."""
        return self._n_in / self._rate_hz - self.shed_s

    @property
    def _lag_s(self) -> float:
        return max(self._pieces_s, default=SILENT_LAG_S)

    @property
    def _give_up_s(self) -> float:
        """Media time at which missing audio becomes silence."""
        if self._starved:
            return self._next_end_s + self._resampler.delay_s + self._lag_s
        return self._end_s + self._lag_s + PATIENCE_S

    def _anchor(self, zero_s: float) -> None:
        self._zero_s = self._anchored_s = zero_s
        self._earliest_zero_s = zero_s - MAX_EARLY_S

    def _fill(self, gap_s: float) -> None:
        n = math.ceil(gap_s * self._rate_hz)
        if n > 0:
            self._append(np.zeros(n, np.int16))
            self.filled_s += n / self._rate_hz

    def _append(self, samples: Pcm) -> None:
        self._n_in += len(samples)
        self._buffer = np.concatenate([self._buffer, self._resampler.feed(samples)])

    def _follow(self, loop_s: float) -> None:
        """Let the clock follow the client's."""
        assert self._zero_s is not None
        late_s = self.now_s(loop_s) - self._end_s
        if late_s < 0.0 and loop_s < self._anchored_s + SETTLING_S:
            self._zero_s = max(self._zero_s + late_s, min(self._zero_s, self._earliest_zero_s))
        elif -SMALL_EARLY_S <= late_s < 0.0 and loop_s >= self._settles_s:
            self._zero_s += max(late_s, -DRIFT * (loop_s - self._followed_s))
        self._followed_s = loop_s
        self._least_late_s = min(self._least_late_s, max(0.0, late_s))
        if loop_s >= self._window_ends_s:
            self._zero_s += min(self._least_late_s, DRIFT * DRIFT_WINDOW_S)
            self._least_late_s = np.inf
            self._window_ends_s = loop_s + DRIFT_WINDOW_S

    def _shed(self, loop_s: float) -> None:
        """Shorten a pause of the caller's while audio waits that should have been heard."""
        n_seen = FRAME_SAMPLES + round(SEEN_AHEAD_S * CALLER_RATE_HZ)
        while (
            self._n_quiet >= KEPT_PAUSE_S * CALLER_RATE_HZ
            and self._end_s - self.now_s(loop_s) > FRAME_S + 1e-9
            and len(self._buffer) >= FRAME_SAMPLES
            and _is_quiet(self._buffer[:n_seen])
        ):
            self._buffer = self._buffer[FRAME_SAMPLES:]
            self.shed_s += FRAME_S


def _is_quiet(samples: Pcm) -> bool:
    return bool(np.abs(samples.astype(np.int32)).max() <= QUIET_AMPLITUDE)
