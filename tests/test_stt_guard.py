"""Hallucinations are doubted, and real words are not."""

from __future__ import annotations

import math

import pytest

from stages.stt.guard import MIN_VOICED_S, voice_needed_s, without_loop
from stages.stt.words import Word


def words(text: str, probability: float = 0.7) -> list[Word]:
    return [Word(f" {w}", (0,), (math.log(probability),)) for w in text.split()]


def cut(text: str, duration_s: float, *, whole: bool = True) -> str:
    return "".join(w.text for w in without_loop(words(text), duration_s, whole=whole)).strip()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Why is the sky blue? Why is the sky blue? Why is the", "Why is the sky blue?"),
        ("oh oh oh oh oh oh oh", "oh"),
        ("So I said no no no no no no no no no", "So I said no"),
        ("bye bye, bye bye, bye bye, bye bye", "bye"),
    ],
)
def test_a_decoder_that_had_to_be_stopped_is_cut_to_its_first_round(text: str, kept: str) -> None:
    assert cut(text, 1.4, whole=False) == kept


def test_a_loop_that_began_in_the_words_before_is_cut_to_its_first_round() -> None:
    said, before = "answering. The number is not answering. The number", words("The number is not")
    kept = without_loop(words(said), 1.4, whole=False, after=before)
    assert "".join(word.text for word in kept).strip() == "answering."


def test_a_text_that_is_too_much_for_its_time_is_cut() -> None:
    twice = "The number is not answering. the number is not answering."
    assert cut(twice, 1.2) == "The number is not answering."
    assert cut(twice, 4.0) == twice


@pytest.mark.parametrize(
    "text", ["no no no", "I had had enough of that that day", "five five five"]
)
def test_people_repeat_themselves(text: str) -> None:
    assert cut(text, 2.0) == text
    assert cut(text, 2.0, whole=False) == text


@pytest.mark.parametrize("text", ["", "Hello", "one two three four five six seven eight"])
def test_without_repetition_nothing_is_cut(text: str) -> None:
    assert cut(text, 0.1, whole=False) == text


def needed(
    text: str, probability: float = 0.7, no_speech: float = 0.1, loop: bool = False
) -> float:
    return voice_needed_s(words(text, probability), no_speech=no_speech, looped=loop)


def test_ordinary_words_are_believed() -> None:
    assert needed("What is the capital of France?") == 0.0
    assert needed("Maybe", 0.3) == 0.0


def test_what_whisper_says_of_silence_needs_as_much_voice_as_saying_it_takes() -> None:
    assert needed("Thank you.") == pytest.approx(0.27)
    assert needed("Thanks for watching!") == pytest.approx(0.57)
    assert needed("I'll be right back.") > MIN_VOICED_S
    assert needed("you") == MIN_VOICED_S


def test_doubtful_words_need_some_voice() -> None:
    assert needed("Be that", probability=0.1) == MIN_VOICED_S
    assert needed("Be that", no_speech=0.7) == MIN_VOICED_S
    assert needed("Be that", loop=True) == MIN_VOICED_S
    assert needed("...") == MIN_VOICED_S
