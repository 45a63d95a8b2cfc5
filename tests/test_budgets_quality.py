"""The quality ledger."""

from __future__ import annotations

import math
from dataclasses import replace

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.ledger import Ledger, ledgers_of
from budgets.perceived import measure_sides
from budgets.quality import WordErrors, quality, understood, word_errors
from budgets.recording import Line, Recording
from budgets.tape import Tape, Track
from tests.budget_sessions import LOUDNESS, Composer, Exchange
from voicepipe import events as ev
from voicepipe.frames import Pcm

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=12)


@given(WORDS.filter(len), WORDS)
@settings(max_examples=80, deadline=None)
def test_word_errors_are_those_of_jiwer(truth: list[str], found: list[str]) -> None:
    errors = word_errors(" ".join(truth), " ".join(found))
    assert errors.n_words == len(truth)
    assert errors.rate == pytest.approx(jiwer.wer(" ".join(truth), " ".join(found)))


def test_case_and_punctuation_are_no_errors() -> None:
    assert word_errors("It\u2019s three o'clock, thanks!", "its THREE o'clock thanks").n_edits == 1
    assert word_errors("Well... yes.", "well yes") == WordErrors(0, 2)
    assert math.isnan(word_errors("", "a").rate)


def turns(*texts: str) -> list[Ledger]:
    composer = Composer()
    for text in texts:
        composer.exchange(Exchange(user=text))
    return ledgers_of(composer.events)


def test_a_line_cut_into_other_turns_is_still_understood() -> None:
    truth = [Line("book a table please"), Line("uh-huh", "backchannel"), Line("for two")]
    assert understood(truth, turns("book a", "table please for two")) == WordErrors(0, 6)
    assert understood(truth, turns("book a cable", "please for two")).n_edits == 1


def test_a_turn_that_was_taken_back_counts_once() -> None:
    first, second = turns("book a", "book a table")
    assert understood([Line("book a table")], [replace(first, reopened=True), second]).n_edits == 0


def recorded(composer: Composer, **config: object) -> Recording:
    composer.studio.seconds += 1
    caller, agent = (Track(composer.studio.track(s), 16_000) for s in ("caller", "agent"))
    return Recording("s", composer.events, config, Tape(caller, agent))


def test_words_are_counted_and_low_confidence_turns_too() -> None:
    composer = Composer()
    composer.exchange(Exchange(agent="one two three"))
    composer.exchange(Exchange(agent="four"))
    events = [
        replace(e, confidence=0.3) if isinstance(e, ev.Transcript) and e.t_media_s < 3 else e
        for e in composer.events
    ]
    ledgers = [replace(ledgers_of(events)[0], heard_text="one"), ledgers_of(events)[1]]
    found = quality(Recording("s", events, {}, None), ledgers)
    assert found.words_generated == 4
    assert found.words_heard == 2
    assert found.low_confidence_turns == 1
    assert math.isnan(found.stt.rate)
    assert math.isnan(found.tts.rate)


def test_replies_are_read_back_one_by_one() -> None:
    composer = Composer()
    composer.exchange(Exchange(agent="it is three", replies_s=1.0))
    composer.exchange(Exchange(agent="it is four", replies_s=1.5))
    recording = recorded(composer)
    assert recording.tape is not None
    lengths: list[float] = []

    def listen_back(samples: Pcm) -> str:
        lengths.append(np.flatnonzero(np.abs(samples) > 300).size and len(samples) / 16_000)
        return "it is three"

    sides = measure_sides(recording.tape, LOUDNESS)
    found = quality(recording, ledgers_of(composer.events), sides, listen_back)
    assert lengths == pytest.approx([1.2, 1.7], abs=0.02)
    assert found.tts == WordErrors(1, 6)


def test_qualities_add_up() -> None:
    one = quality(Recording("s", [], {"truth": ["a b"]}, None), turns("a"))
    assert (one + one).stt == WordErrors(2, 4)
