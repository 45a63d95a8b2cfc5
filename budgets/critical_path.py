"""What delayed one reply: the intervals between the caller's last word and its first sound."""

from __future__ import annotations

import math
from dataclasses import dataclass

from voicepipe import events as ev

STAGES = ("endpointing", "stt", "llm", "tts", "playout")
"""The rows of a ledger, in the order of the critical path."""

WORK_STAGES = ("stt", "llm", "tts")

_LATEST_S = 1e9
"""No session lasts 30 years: a later time is damage, and is taken for not known."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage really took, from when (after the caller's last voiced sample), and how much of
    it lay before it was certain that the caller was done, where it delays nobody. Milliseconds."""

    start_ms: float
    took_ms: float
    hidden_ms: float


@dataclass(slots=True)
class ReplyTimes:
    """What is known of one reply so far. Emission times in seconds, nan while not known."""

    held: bool = False
    text: str = ""
    started_s: float = math.nan
    phrase_s: float = math.nan
    ready_s: float = math.nan
    audible_s: float = math.nan
    """Media time of the first audible sample."""
    end_of_turn: ev.EndOfTurn | None = None
    """The one that the reply answers, once it is committed."""
    text_s: float = math.nan
    """When the caller's final text was there."""
    stt: Work | None = None
    reopened: bool = False
    n_dropped: int = 0


def rows_us(end: ev.EndOfTurn, reply: ReplyTimes) -> tuple[dict[str, int], tuple[str, ...]]:
    """The rows, which sum exactly to the time from the caller's last voiced sample to the first
    audible one of the reply, and the stages whose event is missing. Empty when not heard.

    Each row ends where its event was emitted, but never before the one before it nor after the
    first audible sample. Endpointing is what lies before its decision and, later, what nothing
    else explains: text is there and no reply begun, or all is ready and the reply still held.
    While a reply is being made, a late `EndOfTurn` costs nothing: turn detection may well wait.
    """
    begin, finish = _us(end.speech_end_s), _us(reply.audible_s)
    if begin is None or finish is None:
        return {}, ()
    marks = (
        ("endpointing", end.decided_s),
        ("stt", min(reply.text_s, end.t_loop_s)),
        ("endpointing", min(reply.started_s, end.t_loop_s) if reply.held else reply.started_s),
        ("llm", reply.phrase_s),
        ("tts", reply.ready_s),
        ("endpointing", end.t_loop_s),
        ("playout", reply.audible_s),
    )
    rows = dict.fromkeys(STAGES, 0)
    at = begin
    for stage, mark_s in marks:
        mark = _us(mark_s)
        if mark is None:
            continue
        # when damaged times have it that the reply came first, this is one negative row
        until = min(max(mark, at), finish)
        rows[stage] += until - at
        at = until
    own_marks = dict(reversed(marks))  # the first of each stage
    return rows, tuple(stage for stage in STAGES if _us(own_marks[stage]) is None)


def works(end: ev.EndOfTurn, reply: ReplyTimes) -> dict[str, Work]:
    """What the stages did, where it is known."""
    zero_s, certain_s = end.speech_end_s, _certain_s(end, reply)
    done = {
        "stt": reply.stt,
        "llm": work(zero_s, reply.started_s, reply.phrase_s, certain_s),
        "tts": work(zero_s, reply.phrase_s, reply.ready_s, certain_s),
    }
    return {stage: found for stage, found in done.items() if found is not None}


def saved_ms(end: ev.EndOfTurn, reply: ReplyTimes) -> float:
    """How much of making the first audio lay before it was certain that it is wanted."""
    if not reply.held:
        return 0.0
    certain_s = _certain_s(end, reply)
    made = work(end.speech_end_s, reply.started_s, reply.ready_s, certain_s)
    return 0.0 if made is None else made.hidden_ms


def work(zero_s: float, start_s: float, end_s: float, certain_s: float) -> Work | None:
    """None when one of its times is not known."""
    zero, start, end, certain = _us(zero_s), _us(start_s), _us(end_s), _us(certain_s)
    if zero is None or start is None or end is None or certain is None or end < start:
        return None
    hidden = min(max(certain - start, 0), end - start)
    return Work((start - zero) / 1000, (end - start) / 1000, hidden / 1000)


def _certain_s(end: ev.EndOfTurn, reply: ReplyTimes) -> float:
    """When decision and text were both there: a reply begun then would have been the usual one."""
    if _us(end.decided_s) is None or _us(reply.text_s) is None:
        return end.t_loop_s
    return min(max(end.decided_s, reply.text_s), end.t_loop_s)


def _us(t_s: float) -> int | None:
    """Whole microseconds, which is what events are written with; None when not known."""
    return round(t_s * 1e6) if abs(t_s) < _LATEST_S else None
