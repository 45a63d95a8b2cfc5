"""The ledger: its rows, that they sum, and that order and damage cannot break it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.critical_path import STAGES
from budgets.ledger import UNATTRIBUTED, Ledger, TurnLedgers, ledgers_of
from tests.budget_sessions import Composer, Exchange
from voicepipe import events as ev


def one(exchange: Exchange) -> Ledger:
    composer = Composer()
    composer.exchange(exchange)
    (ledger,) = ledgers_of(composer.events)
    return ledger


def test_rows_are_what_the_stages_took() -> None:
    ledger = one(Exchange(endpointing=300, stt=20, llm=120, tts=80, playout=15))
    assert ledger.rows_ms == pytest.approx(
        {"endpointing": 300, "stt": 20, "llm": 120, "tts": 80, "playout": 15}, abs=0.01
    )
    assert ledger.total_ms == pytest.approx(535, abs=0.01)
    assert ledger.unknown == ()
    assert not ledger.eager
    assert ledger.saved_ms == 0.0


def test_the_measured_figure_adds_the_unattributed_row() -> None:
    ledger = one(Exchange()).against(548.25)
    assert ledger.rows_ms[UNATTRIBUTED] == pytest.approx(13.25, abs=0.01)
    assert ledger.total_ms == pytest.approx(548.25, abs=1e-9)
    assert one(Exchange()).against(500.0).rows_ms[UNATTRIBUTED] == pytest.approx(-35, abs=0.01)


def test_work_done_ahead_of_time_costs_nothing() -> None:
    """The reply begins 150 ms after the caller stopped and is ready 30 ms before the commit."""
    events = reply_events(held=True, started=0.150, phrase=0.220, ready=0.290, text_at=0.320)
    (ledger,) = ledgers_of(events)
    assert ledger.rows_ms == pytest.approx(
        {"endpointing": 300, "stt": 20, "llm": 0, "tts": 0, "playout": 30}
    )
    assert ledger.eager
    assert ledger.work["llm"].took_ms == pytest.approx(70)
    assert ledger.work["llm"].start_ms == pytest.approx(150)
    assert ledger.work["llm"].hidden_ms == pytest.approx(70)
    assert ledger.work["tts"].hidden_ms == pytest.approx(70)
    assert ledger.saved_ms == pytest.approx(140)


def test_only_what_lies_before_the_commit_is_hidden() -> None:
    events = reply_events(held=True, started=0.150, phrase=0.280, ready=0.400, text_at=0.320)
    (ledger,) = ledgers_of(events)
    assert ledger.rows_ms["tts"] == pytest.approx(80)
    assert ledger.work["tts"].took_ms == pytest.approx(120)
    assert ledger.work["tts"].hidden_ms == pytest.approx(40)
    assert ledger.saved_ms == pytest.approx(170), "of the 250 ms it took, those before the commit"


def with_text_at(at_s: float, events: list[ev.Event]) -> list[ev.Event]:
    """The caller pauses at 10 s, and the final text is there at this time after it."""
    pause = ev.SpeechPaused(t_media_s=10.0, t_loop_s=10.010)
    text = ev.Transcript(
        t_media_s=10.0, t_loop_s=10.0 + at_s, text="what time", final=True, end_s=10.0
    )
    return [pause, text, *events]


def test_an_end_of_turn_that_waits_for_the_reply_is_no_wait_for_text() -> None:
    """Certain at 300 ms with the text long there, announced at 550 when the reply nears."""
    events = reply_events(held=True, started=0.150, phrase=0.600, ready=0.700, text_at=0.550)
    (ledger,) = ledgers_of(with_text_at(0.1, events))
    assert ledger.rows_ms == pytest.approx(
        {"endpointing": 300, "stt": 0, "llm": 300, "tts": 100, "playout": 30}
    )
    assert ledger.work["llm"].hidden_ms == pytest.approx(150), "what ran before it was certain"
    assert ledger.saved_ms == pytest.approx(150)


def test_text_after_the_decision_is_waited_for() -> None:
    events = reply_events(held=True, started=0.150, phrase=0.600, ready=0.700, text_at=0.550)
    (ledger,) = ledgers_of(with_text_at(0.4, events))
    assert ledger.rows_ms["stt"] == pytest.approx(100)
    assert ledger.rows_ms["llm"] == pytest.approx(200)


def test_a_reply_that_is_held_although_it_is_ready_is_held_by_endpointing() -> None:
    events = reply_events(held=True, started=0.150, phrase=0.200, ready=0.250, text_at=0.800)
    (ledger,) = ledgers_of(with_text_at(0.1, events))
    assert ledger.rows_ms == pytest.approx(
        {"endpointing": 800, "stt": 0, "llm": 0, "tts": 0, "playout": 30}
    )


def test_a_reply_that_nobody_begins_is_delayed_by_endpointing() -> None:
    events = reply_events(started=0.500, text_at=0.500, phrase=0.550)
    (ledger,) = ledgers_of(with_text_at(0.1, [*events]))
    assert ledger.rows_ms["endpointing"] == pytest.approx(500)
    assert ledger.rows_ms["llm"] == pytest.approx(50)


def test_the_stt_work_is_the_finalisation_that_the_pause_asked_for() -> None:
    other = ev.Transcript(t_media_s=9.5, t_loop_s=10.02, text="what", final=True, end_s=9.5)
    pause = ev.SpeechPaused(t_media_s=10.0, t_loop_s=10.010)
    final = ev.Transcript(t_media_s=10.0, t_loop_s=10.115, text="what time", final=True, end_s=10.0)
    for events in ([pause, other, final], [pause, final, other]):
        (ledger,) = ledgers_of([*events, *reply_events()])
        assert ledger.work["stt"].start_ms == pytest.approx(10)
        assert ledger.work["stt"].took_ms == pytest.approx(105)
        assert ledger.work["stt"].hidden_ms == pytest.approx(105)


def test_a_missing_event_leaves_its_time_to_the_next_row() -> None:
    events = [e for e in reply_events() if not isinstance(e, ev.FirstPhrase)]
    (ledger,) = ledgers_of(events)
    assert ledger.unknown == ("llm",)
    assert ledger.rows_ms["llm"] == 0
    assert ledger.rows_ms["tts"] == pytest.approx(180)
    assert ledger.total_ms == pytest.approx(600)


def test_a_decision_whose_time_is_not_known_is_told() -> None:
    events = [
        replace(e, decided_s=math.nan) if isinstance(e, ev.EndOfTurn) else e for e in reply_events()
    ]
    (ledger,) = ledgers_of(events)
    assert ledger.unknown == ("endpointing",)
    assert ledger.rows_ms["stt"] == pytest.approx(320)


def test_a_reply_that_was_not_heard_has_no_rows() -> None:
    events = [e for e in reply_events() if not isinstance(e, ev.FirstAudio)]
    (ledger,) = ledgers_of(events)
    assert ledger.rows_us == {}
    assert math.isnan(ledger.total_ms)
    assert json.loads(json.dumps(ledger.to_json(), allow_nan=False))["perceived"] is None


def test_replies_that_no_turn_was_committed_to_have_no_ledger() -> None:
    dropped = [
        ev.TurnStarted(t_media_s=9, t_loop_s=9, turn=0, text="what", held=True),
        ev.TurnResumed(t_media_s=9.5, t_loop_s=9.5),
        finished(0, "superseded"),
    ]
    (ledger,) = ledgers_of([*dropped, *reply_events(turn=1)])
    assert ledger.turn == 1
    assert ledger.n_dropped == 1


def test_a_prepared_reply_that_is_used_was_not_dropped() -> None:
    (ledger,) = ledgers_of(reply_events(held=True, started=0.150))
    assert ledger.n_dropped == 0


def test_a_reply_to_no_end_of_turn_has_no_ledger() -> None:
    start = ev.TurnStarted(t_media_s=15, t_loop_s=15, turn=1, text="again", held=False)
    ledgers = ledgers_of([*reply_events(), start, finished(1)])
    assert [ledger.turn for ledger in ledgers] == [0]


def test_a_reopened_turn_is_marked_even_when_its_reply_had_finished() -> None:
    reopened = ev.TurnReopened(t_media_s=12.0, t_loop_s=12.0)
    *before, last = reply_events()
    for events in ([*before, reopened, last], [*before, last, reopened]):
        (ledger,) = ledgers_of(events)
        assert ledger.reopened


def test_each_end_of_turn_belongs_to_one_reply() -> None:
    composer = Composer()
    for ms in (100.0, 200.0, 300.0):
        composer.exchange(Exchange(endpointing=ms))
    found = [ledger.rows_ms["endpointing"] for ledger in ledgers_of(composer.events)]
    assert found == pytest.approx([100, 200, 300], abs=0.01)


def test_live_it_answers_when_a_turn_finishes_and_at_no_other_event() -> None:
    composer = Composer()
    composer.exchange(Exchange())
    composer.exchange(Exchange(eager_ms=150))
    ledgers = TurnLedgers()
    answers = [ledgers.feed(event) for event in composer.events]
    told = [e for e, a in zip(composer.events, answers, strict=True) if a is not None]
    assert [type(event) for event in told] == [ev.TurnFinished, ev.TurnFinished]
    row = next(a for a in answers if a is not None)
    json.dumps(row, allow_nan=False)
    assert row["turn"] == 0
    assert set(row["stages"]) == set(STAGES)  # type: ignore[call-overload]


def test_reversed_times_give_one_negative_row_and_still_sum() -> None:
    events = reply_events(audible=-0.5)
    (ledger,) = ledgers_of(events)
    assert ledger.total_us == -500_000
    assert ledger.rows_ms["endpointing"] == -500


def test_times_beyond_sense_count_as_not_known() -> None:
    (ledger,) = ledgers_of(reply_events(phrase=1e300, ready=math.inf))
    assert ledger.unknown == ("llm", "tts")
    assert ledger.total_ms == pytest.approx(600)


def finished(turn: int, status: ev.TurnStatus = "completed") -> ev.TurnFinished:
    return ev.TurnFinished(
        t_media_s=14.0,
        t_loop_s=14.0,
        turn=turn,
        status=status,
        user_text="what time",
        text="three",
        heard_text="three",
    )


TIMES = st.floats(-5, 50, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 1e300])


WHEN = {"t_media_s": TIMES, "t_loop_s": TIMES}
TURN = {**WHEN, "turn": st.integers(0, 3)}
TEXT = {**TURN, "text": st.just("a")}
EVENTS: st.SearchStrategy[list[ev.Event]] = st.lists(
    st.one_of(
        st.builds(ev.SpeechPaused, **WHEN),
        st.builds(ev.Transcript, **WHEN, text=st.just("a"), final=st.just(True), end_s=TIMES),
        st.builds(ev.EndOfTurn, **WHEN, text=st.just("a"), speech_end_s=TIMES, decided_s=TIMES),
        st.builds(ev.TurnReopened, **WHEN),
        st.builds(ev.TurnStarted, **TEXT, held=st.booleans()),
        st.builds(ev.TurnReleased, **TURN),
        st.builds(ev.FirstPhrase, **TEXT),
        st.builds(ev.AudioReady, **TURN),
        st.builds(ev.FirstAudio, **TURN),
        st.builds(finished, st.integers(0, 3)),
    ),
    max_size=40,
)


@given(EVENTS, TIMES)
@settings(max_examples=150, deadline=None)
def test_rows_sum_exactly_whatever_happens_in_whatever_order(
    events: list[ev.Event], measured_ms: float
) -> None:
    ledgers = ledgers_of(events)
    ends = known_us(e.speech_end_s for e in events if isinstance(e, ev.EndOfTurn))
    heard = known_us(e.t_media_s for e in events if isinstance(e, ev.FirstAudio))
    for ledger in ledgers:
        if ledger.rows_us:
            assert sum(ledger.rows_us.values()) == ledger.total_us
            assert ledger.total_us in {h - e for h in heard for e in ends}
            if ledger.total_us >= 0:
                assert min(ledger.rows_us.values()) >= 0
        if abs(measured_ms) < 1e6:
            against = ledger.against(measured_ms)
            assert against.total_us == round(measured_ms * 1000)
        for work in ledger.work.values():
            assert 0 <= work.hidden_ms <= work.took_ms
        json.dumps(ledger.to_json(), allow_nan=False)


@given(EVENTS)
@settings(max_examples=50, deadline=None)
def test_live_and_from_a_file_are_the_same(events: list[ev.Event]) -> None:
    ledgers = TurnLedgers()
    live = [ledger for event in events if (ledger := ledgers.take(event)) is not None]
    turns = {ledger.turn: ledger.rows_us for ledger in live}
    assert {ledger.turn: ledger.rows_us for ledger in ledgers_of(events)} == turns


def known_us(times_s: Iterable[float]) -> set[int]:
    return {round(t * 1e6) for t in times_s if abs(t) < 1e9}


def reply_events(
    *,
    turn: int = 0,
    held: bool = False,
    started: float = 0.320,
    phrase: float = 0.440,
    ready: float = 0.500,
    text_at: float = 0.320,
    audible: float | None = None,
) -> list[ev.Event]:
    """A turn whose caller stops at 10 s, decided 300 ms later; times are relative to that. Without
    `audible` the reply is heard at 600 ms, or for a held one 30 ms after the commit."""
    zero = 10.0
    if audible is None:
        audible = max(text_at, ready) + 0.030 if held else 0.600
    end = ev.EndOfTurn(
        t_media_s=zero, t_loop_s=zero + text_at, text="what time", speech_end_s=zero,
        decided_s=zero + 0.3,
    )  # fmt: skip
    start = ev.TurnStarted(
        t_media_s=zero + started, t_loop_s=zero + started, turn=turn, text="what time", held=held
    )
    release = ev.TurnReleased(t_media_s=zero + text_at, t_loop_s=zero + text_at, turn=turn)
    made: list[ev.Event] = [
        ev.FirstPhrase(t_media_s=zero + phrase, t_loop_s=zero + phrase, turn=turn, text="three"),
        ev.AudioReady(t_media_s=zero + ready, t_loop_s=zero + ready, turn=turn),
    ]
    begun = [start, *made, end, release] if held else [end, start, *made]
    heard = ev.FirstAudio(t_media_s=zero + audible, t_loop_s=zero + audible - 0.02, turn=turn)
    return [*begun, heard, finished(turn)]
