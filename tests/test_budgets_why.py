"""The sentence for a slow turn."""

from __future__ import annotations

import math

import pytest

from budgets.ledger import ledgers_of
from budgets.plan import BudgetPlan
from budgets.why import why_slow
from tests.budget_sessions import Composer, Exchange
from voicepipe import events as ev

PLAN = BudgetPlan.default()


def told(
    exchange: Exchange, *mishaps: ev.Fault | ev.Degraded, measured_ms: float = math.nan
) -> str:
    composer = Composer()
    composer.exchange(exchange)
    (ledger,) = ledgers_of(composer.events)
    if math.isfinite(measured_ms):
        ledger = ledger.against(measured_ms)
    return why_slow(ledger, PLAN, mishaps)


def test_a_turn_within_the_target_needs_no_excuse() -> None:
    assert told(Exchange()) == ""


@pytest.mark.parametrize(
    ("exchange", "cause"),
    [
        (Exchange(endpointing=900), "endpointing took 900 ms where 330 are planned (it was not"),
        (Exchange(endpointing=1500, reason="timeout"), "so the silence timed out"),
        (Exchange(stt=400), "stt took 400 ms where 30 are planned (the decision waited"),
        (Exchange(llm=500), "llm took 500 ms where 120 are planned (nothing was prepared"),
        (Exchange(llm=500, eager_ms=200), "(the first phrase took"),
        (Exchange(tts=500, eager_ms=200), "(its sound took 500 ms"),
        (Exchange(playout=400), "playout took 400 ms where 48 are planned (sound that was ready"),
    ],
)
def test_the_stage_that_overran_is_named_with_its_cause(exchange: Exchange, cause: str) -> None:
    sentence = told(exchange)
    assert cause in sentence
    assert sentence.startswith(f"{exchange.perceived_ms:,.0f} ms, ")
    assert sentence.endswith(".")
    assert sentence.count(" took ") <= 2 + sentence.count("(")


def test_a_reply_that_was_dropped_is_told() -> None:
    composer = Composer()
    composer.add(ev.TurnStarted(t_media_s=1.5, turn=7, text="what", held=True))
    composer.exchange(Exchange(llm=500))
    (ledger,) = ledgers_of(composer.events)
    assert "what was prepared answered other words" in why_slow(ledger, PLAN)


def test_what_happened_meanwhile_is_told_once() -> None:
    at_s = {"t_media_s": 2.5, "t_loop_s": 2.5}
    fault = ev.Fault(**at_s, kind="tts_error", detail="boom")
    before = ev.Fault(t_media_s=1.5, t_loop_s=1.5, kind="llm_error", detail="boom")
    saved = ev.Degraded(**at_s, stage="llm", what="the first cap", why="late", saved_ms=40)
    sentence = told(Exchange(endpointing=900), before, fault, fault, saved)
    assert sentence.count("fault tts_error") == 1
    assert "llm_error" not in sentence
    assert "llm gave up the first cap to save 40 ms" in sentence


def test_a_difference_between_sound_and_events_is_told() -> None:
    assert "the sound shows 465 ms more than this" in told(Exchange(), measured_ms=1000)


def test_a_turn_a_little_over_everywhere_names_the_worst_stage() -> None:
    slow = Exchange(endpointing=340, stt=40, llm=140, tts=90, playout=55)
    assert "llm took 140 ms" in told(slow)
    assert told(slow).count("planned") == 1
