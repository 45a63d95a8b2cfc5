"""What a far-away player is playing. Decides without I/O; the loop time is an argument.

The client plays the samples it gets one after the other, at once or right after those it already
has, and drops what is left when it is told to `clear`. It may report how many samples it has played
since the connection began. From these facts follows which agent sample is heard at which moment.

The network's delay does not matter for where the sound stops: sound and `clear` take it both.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT_S = 2.0
"""Sent audio is remembered for this long after it should have been heard, for late reports."""


@dataclass(slots=True)
class _Span:
    """Samples that are played without a gap: contiguous in the agent's time and in the count."""

    start: int  # agent clock
    count: int  # what the client has played in all before this span
    n: int
    heard_s: float  # loop time at which the first of them is heard, on a player without delay

    @property
    def end(self) -> int:
        return self.start + self.n


class RemoteSpeaker:
    """Tell it what is `sent`, `reported` and `clear`ed, in order."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self._spans: deque[_Span] = deque()
        self._next_count = 0
        self._silent_from_s = 0.0  # loop time at which all that was sent has been heard
        self._cleared = False  # and nothing sent since
        self._reports = False
        self._delay_s = 0.0  # of the player, by its reports

    @property
    def next_sample(self) -> int:
        """One past the last sample that was sent and not cleared (agent clock)."""
        return self._spans[-1].end if self._spans else 0

    def backlog_s(self, loop_s: float) -> float:
        """How much sound the client has left to play."""
        return max(0.0, self._silent_from_s - loop_s)

    def sent(self, start: int, n: int, loop_s: float) -> None:
        """Agent samples start ... start + n were sent now."""
        last = self._spans[-1] if self._spans else None
        if last and last.end == start and loop_s <= self._silent_from_s and not self._cleared:
            last.n += n
        else:
            heard_s = max(loop_s, self._silent_from_s)
            self._spans.append(_Span(start, self._next_count, n, heard_s))
        last = self._spans[-1]
        self._next_count += n
        self._silent_from_s = last.heard_s + last.n / self._rate_hz
        self._cleared = False
        while len(self._spans) > 1 and self._spans[1].heard_s < loop_s - KEPT_S:
            self._spans.popleft()

    def reported(self, n_played: int, loop_s: float) -> None:
        """The client has played `n_played` samples in all."""
        if self._cleared:  # it plays nothing now, so this is where it stopped: the exact count
            self._next_count = n_played
        self._reports = True
        for span in reversed(self._spans):
            if span.count <= n_played <= span.count + span.n:
                delay_s = loop_s - span.heard_s - (n_played - span.count) / self._rate_hz
                drained = n_played == span.count + span.n  # it may have waited since: no news
                self._delay_s = max(0.0, min(delay_s, self._delay_s) if drained else delay_s)
                return

    def clear(self, from_sample: int, loop_s: float) -> int:
        """The client drops what it has not played. Returns where the sound stops: the sample that
        is being heard now, and never less than `from_sample`."""
        stop = self.heard(loop_s)
        while self._spans and self._spans[-1].start >= stop:
            self._next_count = self._spans.pop().count
        if self._spans and self._spans[-1].end > stop:
            last = self._spans[-1]
            last.n = stop - last.start
            self._next_count = last.count + last.n
        self._silent_from_s = min(self._silent_from_s, loop_s)
        self._cleared = True
        return max(from_sample, stop)

    def heard(self, loop_s: float) -> int:
        """The agent sample that is being heard now; 0 before the first."""
        at_s = loop_s - self._delay_s
        for span in reversed(self._spans):
            if span.heard_s <= at_s:
                return span.start + min(span.n, round((at_s - span.heard_s) * self._rate_hz))
        return self._spans[0].start if self._spans else 0

    def heard_until(self, loop_s: float) -> int | None:
        """The same, if the client reports at all."""
        return self.heard(loop_s) if self._reports else None
