"""Which piece of a phrase begins with which spoken word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tts.labels import MAX_COMPARISONS, Label, labels_of

words = st.sampled_from(["a", "b", "Yes,", "**bold**", "-", "\U0001f600", "$5", "don't", "\n", " "])
phrases = st.one_of(st.text(max_size=60), st.lists(words, max_size=30).map(" ".join))


@given(text=phrases, spoken=phrases)
def test_labels_concatenate_to_the_phrase_and_never_go_back(text: str, spoken: str) -> None:
    labels = labels_of(text, spoken)
    assert "".join(label.text for label in labels) == text
    starts = [label.start for label in labels]
    assert starts == sorted(starts)
    assert all(0 <= start <= len(spoken) for start in starts)


def test_plain_words_are_matched_one_to_one() -> None:
    assert labels_of("Sure, I can. ", "Sure, I can.") == [
        Label("Sure,", 0),
        Label(" I", 6),
        Label(" can. ", 8),
    ]


def test_a_word_that_is_spoken_as_several_does_not_shift_the_others() -> None:
    spoken = "It costs five dollars and ten cents, ok?"
    labels = labels_of("It costs **$5.10**, ok?", spoken)
    assert [(label.text, spoken[label.start :].split()[0]) for label in labels] == [
        ("It", "It"),
        (" costs", "costs"),
        (" **$5.10**,", "five"),
        (" ok?", "ok?"),
    ]


def test_what_is_not_spoken_belongs_to_the_word_before_it() -> None:
    labels = labels_of("* Hi \U0001f600 - there \U0001f600 ", "Hi there")
    assert labels == [Label("* Hi \U0001f600 -", 0), Label(" there \U0001f600 ", 3)]


@pytest.mark.parametrize("text", ["", " \n", "\U0001f600", "---"])
def test_nothing_to_say_is_one_label_at_most(text: str) -> None:
    assert labels_of(text, "") == ([Label(text, 0)] if text else [])


def test_a_very_long_phrase_is_spread_evenly() -> None:
    text, spoken = "a b " * MAX_COMPARISONS, "b a " * MAX_COMPARISONS
    labels = labels_of(text, spoken)
    assert [label.start for label in labels] == [2 * i for i in range(len(labels))]
