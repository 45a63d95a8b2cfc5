"""How transcripts end, and what asks for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turn_detection.backchannel import MAX_WORDS, is_backchannel, may_become_backchannel
from turn_detection.caller_turn import without_prefix
from turn_detection.score import EndScore
from turn_detection.wording import Ending, ending
from voicepipe.wording import normalised


@pytest.mark.parametrize(
    "text",
    [
        "What is the capital of France?",
        "I forgot my password and I can't log in.",
        "Please remind me to call my mother at 6.",
        "Yes.",
        "Where are you from?",
        "Who are they?",
        "Can you tell me how tall Mount Everest is?",
        "Twenty three.",
        "My number is 555 1234.",
        "Call me at two one two five five five one two three four.",
        "Never mind that.",
        'She said "stop."',
        "Well done!",
    ],
)
def test_sentences_that_could_be_all(text: str) -> None:
    assert ending(text) is Ending.COMPLETE


@pytest.mark.parametrize("text", ["tomorrow", "I want to fly to Boston", "", "   ", "?!"])
def test_words_that_end_openly(text: str) -> None:
    assert ending(text) is Ending.OPEN


@pytest.mark.parametrize(
    "text",
    [
        "I'd like to book a table for.",
        "My phone number is 555.",
        "five five five one",
        "Can you tell me?",
        "I was wondering if you could.",
        "Well, the thing is that.",
        "So um...",
        "It happened on the 3rd of March and then...",
        "Could you send it to?",
        "What is the difference between?",
        "My name is Robert and I.",
        "I think, you know",
        "Well,",
        "I want the, the",
        "Um",
        "I would like\u2026",
        "Can you help me with?",
    ],
)
def test_words_after_which_more_is_to_come(text: str) -> None:
    """Mostly what Whisper tiny.en makes of the first halves of sentences, full stop included."""
    assert ending(text) is Ending.UNFINISHED


@given(st.text(max_size=60))
def test_any_text_ends_somehow_and_formatting_inside_it_does_not_matter(text: str) -> None:
    assert ending(text) is ending(f"  {text}  ")
    assert isinstance(is_backchannel(text), bool)


@pytest.mark.parametrize(
    "text",
    [
        "Uh-huh.",
        "uh huh",
        "Mm-hmm.",
        "Mhm",
        "MM",
        "Hmm.",
        "Yeah.",
        "yeah yeah yeah",
        "Okay, okay.",
        "Right.",
        "I see.",
        "Oh, I see!",
        "Got it, thanks.",
        "Oh. Okay.",
        "That's right.",
    ],
)
def test_backchannels(text: str) -> None:
    assert is_backchannel(text)
    assert may_become_backchannel(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "...",
        "No.",
        "Stop.",
        "Wait, stop.",
        "Yeah, but what about tomorrow?",
        "Okay, stop.",
        "yeah yeah yeah yeah yeah",
        "I see a problem.",
        "Right now",
        "Hold on a second.",
    ],
)
def test_no_backchannels(text: str) -> None:
    assert not is_backchannel(text)


@pytest.mark.parametrize("text", ["", "I", "Go", "Yeah I", "m", "That", "that makes", "Of", "y"])
def test_beginnings_of_backchannels(text: str) -> None:
    assert may_become_backchannel(text)


@pytest.mark.parametrize(
    "text", ["No", "Wait", "Hold", "Actually", "Sorry", "Stop. Stop.", "I said"]
)
def test_first_words_that_no_backchannel_begins_with(text: str) -> None:
    assert not may_become_backchannel(text)


@given(st.lists(st.sampled_from(["yeah", "Okay,", "mm", "I see.", "got it", "uh-huh"]), min_size=1))
def test_backchannels_add_up_to_backchannels_of_limited_length(pieces: list[str]) -> None:
    text = " ".join(pieces)
    short = len(normalised(text).split()) <= MAX_WORDS
    assert is_backchannel(text) is short


@given(st.text("ab '-.", max_size=20), st.text("ab '-.", max_size=20))
def test_a_prefix_is_cut_off_by_its_words(prefix: str, rest: str) -> None:
    text = f"{prefix} {rest}"
    assert normalised(without_prefix(text, prefix)) == normalised(rest)


def test_a_prefix_that_is_none_stays() -> None:
    assert without_prefix("Yeah. What time is it?", "Uh-huh") == "Yeah. What time is it?"
    assert without_prefix("Yesterday was fine.", "Yes") == "Yesterday was fine."
    assert without_prefix("Uh-huh. What time is it?", "uh huh") == "What time is it?"


@given(
    p=st.floats(0, 1),
    silence_s=st.floats(0, 10),
    more_s=st.floats(0, 5),
    end=st.sampled_from(Ending),
)
def test_more_silence_and_a_surer_model_never_lower_the_score(
    p: float, silence_s: float, more_s: float, end: Ending
) -> None:
    score = EndScore()
    q = score.probability(p, silence_s, end)
    assert 0.0 <= q <= 1.0
    assert score.probability(p, silence_s + more_s, end) >= q
    assert score.probability(min(1.0, p + 0.1), silence_s, end) >= q
    assert score.probability(p, silence_s, Ending.COMPLETE) >= q
    assert score.probability(p, silence_s, Ending.UNFINISHED) <= q


def test_without_a_model_the_score_is_that_of_an_undecided_one() -> None:
    score = EndScore()
    unknown = score.probability(float("nan"), 0.7, Ending.COMPLETE)
    assert unknown == pytest.approx(score.probability(0.5, 0.7, Ending.COMPLETE))
