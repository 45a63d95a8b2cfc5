"""Words become stable when two hypotheses agree on them, and then stay."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.stt.agreement import MIN_NEWS, N_OPEN, GrowingText
from stages.stt.words import Word

STEP = MIN_NEWS


def words(text: str, probability: float = 0.9) -> list[Word]:
    return [Word(f" {w}", (hash(w) % 1000,), (math.log(probability),)) for w in text.split()]


def grown(*hypotheses: str) -> GrowingText:
    """Each hypothesis is the whole text, as if the decoder had kept to the stable words."""
    text = GrowingText()
    for i, hypothesis in enumerate(hypotheses):
        text.take(words(hypothesis)[len(text.stable) :], (i + 1) * STEP)
    return text


def test_one_hypothesis_makes_nothing_stable() -> None:
    text = grown("What is the capital")
    assert text.text == "What is the capital"
    assert text.stable_text == ""


def test_what_two_in_a_row_agree_on_is_stable_but_for_the_end() -> None:
    text = grown("What is the cap", "What is the capital of France")
    assert text.stable_text == "What is the"
    assert text.text == "What is the capital of France"


def test_the_end_of_a_hypothesis_stays_open_even_if_agreed_on() -> None:
    text = grown("What is the capital", "What is the capital")
    assert len(text.open) == N_OPEN
    assert text.text == "What is the capital"


def test_agreement_is_about_words_not_their_writing() -> None:
    text = grown("So. What is", "so, what is the matter here now")
    assert text.stable_text == "so, what is"


def test_the_same_audio_heard_twice_is_no_second_opinion() -> None:
    text = GrowingText()
    text.take(words("What is the capital of"), STEP)
    text.take(words("What is the capital of"), STEP + MIN_NEWS - 1)
    assert text.stable_text == ""


def test_words_that_the_decoder_doubts_stay_open() -> None:
    text = GrowingText()
    for i in (1, 2):
        text.take([*words("What time do"), *words("you", 0.2), *words("most banks open")], i * STEP)
    assert text.stable_text == "What time do"


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=8), max_size=12), st.data())
def test_text_never_flickers_back_over_stable_words(
    hypotheses: list[list[str]], data: st.DataObject
) -> None:
    text = GrowingText()
    stable = ""
    for i, hypothesis in enumerate(hypotheses):
        text.take(words(" ".join(hypothesis)), (i + 1) * STEP)
        assert text.stable_text.startswith(stable)
        assert text.text.startswith(text.stable_text)
        assert text.known == [t for word in text.stable for t in word.tokens]
        stable = text.stable_text
        if data.draw(st.booleans()):
            before = text.text
            text.settle(data.draw(st.integers(0, len(text.stable) + len(text.open))))
            assert text.text == before
            assert text.stable_text.startswith(stable)
            stable = text.stable_text


def test_settled_words_are_context_and_no_longer_decoded() -> None:
    text = grown("Stop it. And go on now", "Stop it. And go on now please")
    assert text.n_sentences_stable() == 2
    text.settle(2)
    assert text.before == [t for word in words("Stop it.") for t in word.tokens]
    assert text.known == [t for word in text.stable for t in word.tokens]
    assert text.text == "Stop it. And go on now please"
    assert text.n_sentences_stable() == 0


def test_news_are_the_words_that_were_not_there_before() -> None:
    text = grown("What is")
    assert [word.spoken for word in text.news(words("what is the"))] == ["the"]
    assert text.news(words("What")) == []
    assert [word.spoken for word in text.news(words("Who is"))] == ["who", "is"]


def test_confidence_is_the_mean_probability_of_a_token() -> None:
    assert math.isnan(GrowingText().confidence)
    text = GrowingText()
    text.take([*words("sure", 1.0), *words("unsure", 0.25)], STEP)
    assert text.confidence == pytest.approx(0.5)
