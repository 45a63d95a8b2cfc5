"""The ledger of a turn: where the time between the caller's last word and the reply went.

Synchronous and without a clock: events in, ledgers out. The same object follows a live session
(`TurnLedgers.take` for each event as it happens) and accounts for a recorded one (`ledgers_of`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from budgets.critical_path import STAGES, ReplyTimes, Work, rows_us, saved_ms, work, works
from voicepipe import events as ev

UNATTRIBUTED = "unattributed"
"""What the audio shows and the events do not: measured perceived latency less the other rows."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One reply that the caller's turn was committed to.

    `rows_us` are the intervals on the critical path in whole microseconds, so that they sum to
    `total_us` exactly; empty when the reply was never heard. Work that was done ahead of time has
    a row of 0. A stage whose event is missing has a row of 0 too and is named in `unknown`; its
    time is in the next row.
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
    """How much later its sound would have been ready, had the reply been begun when it was certain
    that it is wanted."""
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


class TurnLedgers:
    """Follows one session's events, in the order in which they happened.

    Any other order gives ledgers too, whose rows still sum to their total. Memory does not grow
    with the length of the session.
    """

    def __init__(self) -> None:
        self._replies: dict[int, ReplyTimes] = {}
        self._end_of_turn: ev.EndOfTurn | None = None
        self._committed: ReplyTimes | None = None
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
                reply = self._replies.pop(event.turn, ReplyTimes())
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

    def _reply(self, turn: int) -> ReplyTimes:
        return self._replies.setdefault(turn, ReplyTimes())

    def _commit(self, turn: int) -> None:
        """The reply answers the caller's turn that ended last. Each end of turn has one reply."""
        reply = self._reply(turn)
        if self._end_of_turn is None or reply.end_of_turn is not None:
            return
        reply.end_of_turn, self._end_of_turn = self._end_of_turn, None
        reply.text_s, reply.stt = self._text(reply.end_of_turn)
        reply.n_dropped, self._n_prepared = self._n_prepared - reply.held, 0
        self._committed, self.last_committed = reply, turn

    def _text(self, end: ev.EndOfTurn) -> tuple[float, Work | None]:
        """When the final text was there, at the latest with the end of turn; and the work from
        the pause that asked for it."""
        if self._pause is None or not self._finalised_s <= end.t_loop_s:
            return end.t_loop_s, None
        done = work(end.speech_end_s, self._pause.t_loop_s, self._finalised_s, end.decided_s)
        return self._finalised_s, done


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


def _ledger(finished: ev.TurnFinished, reply: ReplyTimes, end: ev.EndOfTurn) -> Ledger:
    rows, unknown = rows_us(end, reply)
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
        work=works(end, reply),
        saved_ms=saved_ms(end, reply),
        stop_ms=finished.stop_ms,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
