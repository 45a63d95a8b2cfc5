"""The quality ledger."""

from __future__ import annotations

import math
from dataclasses import replace

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.digits import digits_apart
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


@pytest.mark.parametrize(
    ("spelled", "digits"),
    [
        ("twenty three", "23"),
        ("at three thirty", "at 3:30"),
        ("five five five one two", "555-12"),
        ("one hundred and five", "100 and 5"),
        ("two thousand twenty four", "2024"),
        ("nineteen eighty four", "1984"),
        ("three million two hundred thousand one", "3,200,001"),
        ("ten past ten", "10 past 10"),
        ("zero one zero", "010"),
        ("one hundred five", "105"),
        ("a hundred times", "a hundred times"),
        ("thousand", "thousand"),
    ],
)
def test_numbers_may_be_spelled_or_not(spelled: str, digits: str) -> None:
    assert word_errors(spelled, digits).n_edits == 0


@given(st.integers(0, 9_999_999))
@settings(max_examples=50, deadline=None)
def test_every_number_is_read_as_it_is_spelled(number: int) -> None:
    assert digits_apart(spell(number)) == list(str(number))


ONES = [
    *["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
    *["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"],
    "nineteen",
]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spell(number: int) -> list[str]:
    for scale, name in ((1_000_000, "million"), (1_000, "thousand"), (100, "hundred")):
        if number >= scale:
            rest = number % scale
            return [*spell(number // scale), name, *(spell(rest) if rest else [])]
    if number < 20:
        return [ONES[number]]
    return [TENS[number // 10], *([ONES[number % 10]] if number % 10 else [])]


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
