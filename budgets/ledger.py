"""The ledger of a turn: where the time between the caller's last word and the reply went.

Synchronous and without a clock: events in, ledgers out. The same object follows a live session
(`TurnLedgers.take` for each event as it happens) and accounts for a recorded one (`ledgers_of`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from voicepipe import events as ev

STAGES = ("endpointing", "stt", "llm", "tts", "playout")
"""The intervals on the critical path, in order; what each ends with is in `_marks`."""

UNATTRIBUTED = "unattributed"
"""What the audio shows and the events do not: measured perceived latency less the other rows."""

WORK_STAGES = ("stt", "llm", "tts")

_LATEST_S = 1e9
"""No session lasts 30 years: a later time is damage, and is taken for not known."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage really took, from when (after the caller's last voiced sample), and how much of
    it lay before the turn was committed, where it delays nobody. Milliseconds."""

    start_ms: float
    took_ms: float
    hidden_ms: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """One reply that the caller's turn was committed to.

    `rows_us` are the intervals on the critical path in whole microseconds, so that they sum to
    `total_us` exactly; empty when the reply was never heard. Each row ends where its event was
    emitted, but never before the row before it nor after the first audible sample: work that was
    done ahead of time has a row of 0. A stage whose event is missing has a row of 0 too and is
    named in `unknown`; its time is in the next row.
    """

    turn: int
    status: ev.TurnStatus
    user_text: str
    text: str
    heard_text: str
    speech_end_s: float
    """The caller's last voiced sample as turn detection saw it."""
    first_audio_s: float
    """The first audible sample as playout placed it; nan when nothing was heard."""
    reason: str
    """Why the turn ended: score, timeout, typed."""
    eager: bool
    """The reply was begun before the end of the turn was certain."""
    n_dropped: int = 0
    """Replies that were prepared for this turn of the caller's and not used."""
    reopened: bool = False
    """The caller went on: the reply came too early."""
    rows_us: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    work: Mapping[str, Work] = field(default_factory=dict)
    saved_ms: float = 0.0
    """How much later the reply's sound would have been ready, had it been begun at the commit."""
    stop_ms: float = math.nan

    @property
    def total_us(self) -> int:
        return sum(self.rows_us.values())

    @property
    def total_ms(self) -> float:
        """Perceived latency: as the events have it, or as measured once `against` was called.
        nan when the reply was not heard."""
        return self.total_us / 1000 if self.rows_us else math.nan

    @property
    def rows_ms(self) -> dict[str, float]:
        return {stage: us / 1000 for stage, us in self.rows_us.items()}

    def against(self, measured_ms: float) -> Ledger:
        """This ledger with an `unattributed` row that makes it sum to what the audio shows."""
        rows = {stage: self.rows_us.get(stage, 0) for stage in STAGES}
        rows[UNATTRIBUTED] = round(measured_ms * 1000) - sum(rows.values())
        return replace(self, rows_us=rows)

    def to_json(self) -> dict[str, object]:
        """JSON-ready; times in ms, null where a time is not known."""
        return {
            "turn": self.turn,
            "status": self.status,
            "user": self.user_text,
            "agent_heard": self.heard_text,
            "perceived": _known(self.total_ms),
            "stages": self.rows_ms,
            "work": {
                stage: {"start": work.start_ms, "took": work.took_ms, "hidden": work.hidden_ms}
                for stage, work in self.work.items()
            },
            "eager": self.eager,
            "saved": self.saved_ms,
            "reason": self.reason,
            "reopened": self.reopened,
            "stop": _known(self.stop_ms),
        }


@dataclass(slots=True)
class _Reply:
    """What is known of one reply so far; times are emission times unless said otherwise."""

    held: bool = False
    text: str = ""
    started_s: float = math.nan
    phrase_s: float = math.nan
    ready_s: float = math.nan
    audible_s: float = math.nan
    """Media time."""
    end_of_turn: ev.EndOfTurn | None = None
    stt: Work | None = None
    reopened: bool = False
    n_dropped: int = 0


class TurnLedgers:
    """Follows one session's events, in the order in which they happened.

    Any other order gives ledgers too, whose rows still sum to their total. Memory does not grow
    with the length of the session.
    """

    def __init__(self) -> None:
        self._replies: dict[int, _Reply] = {}
        self._end_of_turn: ev.EndOfTurn | None = None
        self._committed: _Reply | None = None
        self._n_prepared = 0
        self._pause: ev.SpeechPaused | None = None
        self._finalised_s = math.nan
        self.last_committed: int | None = None
        """The turn that a `TurnReopened` would be about, which may have finished already."""

    def feed(self, event: ev.Event) -> Mapping[str, object] | None:
        """`take`, JSON-ready: what a server sends to its client when a turn is over."""
        ledger = self.take(event)
        return None if ledger is None else ledger.to_json()

    def take(self, event: ev.Event) -> Ledger | None:
        """The next event. Returns the ledger of the turn that it finishes, if it finishes one
        that the caller's turn was committed to."""
        match event:
            case ev.TurnStarted() | ev.TurnReleased():
                self._begin_or_release(event)
            case ev.FirstPhrase():
                self._reply(event.turn).phrase_s = event.t_loop_s
            case ev.AudioReady():
                self._reply(event.turn).ready_s = event.t_loop_s
            case ev.FirstAudio():
                self._reply(event.turn).audible_s = event.t_media_s
            case ev.TurnFinished():
                reply = self._replies.pop(event.turn, _Reply())
                if reply.end_of_turn is not None:
                    return _ledger(event, reply, reply.end_of_turn)
            case _:
                self._listen(event)
        return None

    def _listen(self, event: ev.Event) -> None:
        match event:
            case ev.SpeechPaused():
                self._pause, self._finalised_s = event, math.nan
            case ev.Transcript(final=True):
                if self._pause is not None and event.end_s == self._pause.t_media_s:
                    self._finalised_s = event.t_loop_s
            case ev.EndOfTurn():
                self._end_of_turn = event
            case ev.TurnReopened():
                if self._committed is not None:
                    self._committed.reopened = True

    def _begin_or_release(self, event: ev.TurnStarted | ev.TurnReleased) -> None:
        if isinstance(event, ev.TurnStarted):
            reply = self._reply(event.turn)
            reply.held, reply.text, reply.started_s = event.held, event.text, event.t_loop_s
            self._n_prepared += event.held
            if event.held:
                return
        self._commit(event.turn)

    def _reply(self, turn: int) -> _Reply:
        return self._replies.setdefault(turn, _Reply())

    def _commit(self, turn: int) -> None:
        """The reply answers the caller's turn that ended last. Each end of turn has one reply."""
        reply = self._reply(turn)
        if self._end_of_turn is None or reply.end_of_turn is not None:
            return
        reply.end_of_turn, self._end_of_turn = self._end_of_turn, None
        reply.stt = self._stt_work(reply.end_of_turn)
        reply.n_dropped, self._n_prepared = self._n_prepared - reply.held, 0
        self._committed, self.last_committed = reply, turn

    def _stt_work(self, end: ev.EndOfTurn) -> Work | None:
        """From the pause that asked for the final transcript to the transcript."""
        pause_s = math.nan if self._pause is None else self._pause.t_loop_s
        return _work(end.speech_end_s, pause_s, self._finalised_s, end.decided_s)


def ledgers_of(events: Iterable[ev.Event]) -> list[Ledger]:
    """The ledgers of a whole session, in the order in which its turns finished."""
    ledgers, finished = TurnLedgers(), dict[int, Ledger]()
    for event in events:
        ledger = ledgers.take(event)
        if ledger is not None:
            finished[ledger.turn] = ledger
        reopened = ledgers.last_committed
        if isinstance(event, ev.TurnReopened) and reopened in finished:
            finished[reopened] = replace(finished[reopened], reopened=True)
    return list(finished.values())


def _ledger(finished: ev.TurnFinished, reply: _Reply, end: ev.EndOfTurn) -> Ledger:
    rows, unknown = _rows(end, reply)
    zero_s, commit_s = end.speech_end_s, end.t_loop_s
    work = {
        "stt": reply.stt,
        "llm": _work(zero_s, reply.started_s, reply.phrase_s, commit_s),
        "tts": _work(zero_s, reply.phrase_s, reply.ready_s, commit_s),
    }
    return Ledger(
        turn=finished.turn,
        status=finished.status,
        user_text=finished.user_text or reply.text or end.text,
        text=finished.text,
        heard_text=finished.heard_text,
        speech_end_s=end.speech_end_s,
        first_audio_s=reply.audible_s,
        reason=end.reason,
        eager=reply.held,
        n_dropped=reply.n_dropped,
        reopened=reply.reopened,
        rows_us=rows,
        unknown=unknown,
        work={stage: done for stage, done in work.items() if done is not None},
        saved_ms=_saved_ms(reply, end),
        stop_ms=finished.stop_ms,
    )


def _marks(end: ev.EndOfTurn, reply: _Reply) -> tuple[float, ...]:
    """Where each row of STAGES ends."""
    return end.decided_s, end.t_loop_s, reply.phrase_s, reply.ready_s, reply.audible_s


def _rows(end: ev.EndOfTurn, reply: _Reply) -> tuple[dict[str, int], tuple[str, ...]]:
    begin, finish = _us(end.speech_end_s), _us(reply.audible_s)
    if begin is None or finish is None:
        return {}, ()
    borders, unknown = [begin], []
    for stage, mark_s in zip(STAGES, _marks(end, reply), strict=True):
        mark = _us(mark_s)
        if mark is None:
            unknown.append(stage)
            mark = borders[-1]
        borders.append(min(max(mark, borders[-1]), finish))
    # A reply that is heard before its caller fell silent (damaged times) is one negative row.
    rows = {
        stage: after - before
        for stage, (before, after) in zip(STAGES, pairwise(borders), strict=True)
    }
    return rows, tuple(unknown)


def _saved_ms(reply: _Reply, end: ev.EndOfTurn) -> float:
    """The part of making the first audio that lay before the commit."""
    if not reply.held:
        return 0.0
    made = _work(end.speech_end_s, reply.started_s, reply.ready_s, end.t_loop_s)
    return 0.0 if made is None else made.hidden_ms


def _work(zero_s: float, start_s: float, end_s: float, commit_s: float) -> Work | None:
    """None when one of its times is not known."""
    zero, start, end, commit = _us(zero_s), _us(start_s), _us(end_s), _us(commit_s)
    if zero is None or start is None or end is None or commit is None or end < start:
        return None
    hidden = min(max(commit - start, 0), end - start)
    return Work((start - zero) / 1000, (end - start) / 1000, hidden / 1000)


def _us(t_s: float) -> int | None:
    """Whole microseconds, which is what events are written with; None when not known."""
    return round(t_s * 1e6) if abs(t_s) < _LATEST_S else None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
