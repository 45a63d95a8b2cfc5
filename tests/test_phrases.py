# ruff: noqa: RUF001 - look-alike punctuation is the subject

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicepipe.phrases import Length, PhraseLengths, PhraseSplitter
from voicepipe.silent_text import without_silent


def split(text: str, lengths: PhraseLengths | None = None) -> list[str]:
    splitter = PhraseSplitter(lengths)
    return [phrase.text for phrase in splitter.feed(text) + splitter.finish()]


def letters(text: str) -> int:
    return sum((3 if c.isdigit() else 1) for c in text if c.isalnum())


NEVER = Length(first=1000, growth=0, most=1000)
EVERY_SENTENCE = PhraseLengths(Length(first=1, growth=0, most=1), NEVER, NEVER, NEVER)


@pytest.mark.parametrize(
    "text",
    [
        "Sure!| I can help you with that.| What would you like to know about the city of Paris?",
        "Of course,| I will look that up for you right now.",
        "Yes, I can tell you what the weather is like,| just a moment.",
        "The capital of Australia is Canberra,| and it was chosen as a compromise, "
        "they say, between Sydney and Melbourne.",
        "I was going to suggest the museum| because it is open until nine in the evening.",
        "I would recommend taking the second train| from platform four tomorrow morning.",
        "Here are three ideas:|\n\n1. A walk by the river.| It is lovely in autumn.\n"
        "2. The museum\n3. The old town|\n\nWhich one do you like?",
        "What?|! No way.",
        '"Really?" she asked.| Then she left.',
        "Great idea 😊| Let us begin with the first step.",
        "今天天气很好。|我们去公园吧！|你觉得怎么样？「好的。」他说。",
        "Well... let me think,| for a moment, what I would do",
        "1, 2, 3,| 4, 5, 6, 7, 8, 9,| 10, 11, 12, 13",
        "We went on a walk to see the old town hall| which was closed",
        "It could reach something| between 3-4 °C tomorrow in the evening",
        "I need you to come over to the old house of my parents| there",
        "We have to see to it to have to do it to be to go to bed| early",
        "Yesterday two researchers discovered behind the temple| ruins from long ago",
        "Yesterday two researchers discovered nearly 15 km| of roads",
        "Today is November 30, 2026,| and I am fine.",
        "It began — slowly —| in the year nineteen hundred.",
    ],
)
def test_cuts_where_a_speaker_would_pause(text: str) -> None:
    assert split(text.replace("|", "")) == text.split("|")


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith met Mr. and Mrs. Jones vs. Prof. Green on St. Mark's Place.",
        "He likes fruit, e.g. Apples, i.e. Red ones, cf. Table 3.",
        "It costs 3.5 million or 1,000.50 dollars at 10:30.",
        "The U.S. Senate and the U.K. Parliament wrote to Washington, D.C. Yesterday's mail came.",
        "J. K. Rowling and J.R.R. Tolkien are writers.",
        "Meet at 5 p.m. on Nov. 30 at No. 5 Baker St. London.",
        "See https://example.com/a.b?c=d.e!f and write to john.doe@example.co.uk now.",
        "Version 2.10.1 of node.js and main.py came out.",
        "Use `a. B? c! d` for that.",
        "See [the docs. Really? Yes](https://example.com) for that.",
        "Well... Let me see… Maybe.",
        "Apples etc. are fine.",
        "Is 5 - 3 = 2 or November 30, 2026?",
    ],
)
def test_no_end_of_sentence_inside(text: str) -> None:
    assert split(text, EVERY_SENTENCE) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "We met at 5 p.m.| Then we left.",
        "Apples, pears, etc.| They are all good.",
        "No.| I cannot do that.",
        "So do I.| Let us go.",
        "It was 1999.| Then came 2000.",
        "He said (really!) nothing.| Yes.",
        "That's **great!**| Let us go.",
        'He said "Go."| Then he went.',
        "First line without a stop|\nSecond line| \n\nThird",
        "- apples|\n- pears",
        "1. Apples|\n2. Pears",
        "Hello!| Hi?| Good.",
        "Ja.| Ök.| É.",
        "नमस्ते।| ठीक है।",
    ],
)
def test_ends_of_sentences(text: str) -> None:
    assert split(text.replace("|", ""), EVERY_SENTENCE) == text.split("|")


def test_a_first_phrase_is_there_without_waiting_for_more() -> None:
    """How many characters the first phrase needs: latency is counted in these."""
    for text, needed in [
        ("Sure! I can help.", "Sure!"),
        ("Really? I see.", "Really?"),
        ("Of course, I can.", "Of course, "),
        ("Sure.\nI can.", "Sure.\n"),
        ("Sure. I can.", "Sure. I"),
        ("今天。好", "今天。好"),
    ]:
        splitter = PhraseSplitter()
        fed = ""
        for char in text:
            fed += char
            if splitter.feed(char):
                break
        assert fed == needed


def test_later_phrases_are_longer() -> None:
    sentences = [f"This is sentence number {n}." for n in ["one", "two", "six", "ten"] * 3]
    phrases = split(" ".join(sentences))
    assert phrases[0] == sentences[0]
    assert [p.count(".") for p in phrases[1:-1]] == [1] + [2] * (len(phrases) - 3)


@pytest.mark.parametrize(
    "silent", ["<think>Hmm. Is it? Yes!\n\nSo.</think>\n\n", '{"a": "b. C? d"}']
)
def test_silent_text_travels_with_the_next_spoken_words(silent: str) -> None:
    assert split(silent + "Yes. No.") == [silent + "Yes.", " No."]
    assert split("Yes. " + silent + "Nope! Well.") == ["Yes.", " " + silent + "Nope!", " Well."]
    assert split(silent) == [silent]


def test_nothing_of_thinking_that_never_began_is_a_phrase_of_its_own() -> None:
    four = Length(first=4, growth=0, most=4)
    text = "So. </think>Well now, this"
    assert split(text, PhraseLengths(four, four)) == ["So. </think>Well now,", " this"]


def test_a_block_of_code_stays_whole_however_long() -> None:
    code = "```python\n" + "print('Hello. You? Yes!')\n\n" * 50 + "```"
    assert split(f"Here is the code:\n{code}\nIt prints.") == [
        "Here is the code:",
        f"\n{code}\nIt prints.",
    ]


def test_text_without_punctuation_is_cut_between_words() -> None:
    lengths = PhraseLengths()
    phrases = split("lorem ipsum dolor " * 200)
    assert letters(phrases[0]) < lengths.word.first + 10
    assert all(letters(p) < lengths.word.most + 10 for p in phrases)
    assert all(p.startswith(" ") for p in phrases[1:])


def test_an_endless_word_is_cut() -> None:
    n = PhraseLengths().endless
    assert [len(p) for p in split("a" * 2 * n + "b")] == [n, n, 1]


def test_a_real_long_word_is_not() -> None:
    url = "https://example.com/" + "path/" * 40
    assert split(f"See {url} now") == [f"See {url}", " now"]


def test_an_unclosed_bracket_does_not_stop_the_voice() -> None:
    phrases = split("He [said that " + "it is so. And then " * 50)
    assert len(phrases) > 10


def test_nothing_comes_of_nothing() -> None:
    assert split("") == []
    assert split(" \n ") == [" \n "]
    splitter = PhraseSplitter()
    splitter.feed("Yes")
    assert [p.text for p in splitter.finish()] == ["Yes"]
    assert splitter.finish() == []


A_REPLY = (
    "I the train station because and tomorrow Dr. e.g. 3.5 1,000 however wonderful 10:30 St. "
    "example.com a@b.co U.S. ... 😊 — - \n 1. **bold** (so) `a b` $5 today"
)
words = st.sampled_from(A_REPLY.split(" "))
ends = st.sampled_from(["", "", "", ",", ".", "?", "!", ":", ";", "...", "?!", '."', "\n", "。"])
sentences = st.lists(st.tuples(words, ends).map("".join)).map(" ".join)
mess = st.lists(
    st.sampled_from(
        ["<think>", "</think>", '{"a":', "}", "[", "](", ")", "`", "```", "\n", " ", ".", "? ", "a",
         "B", "3", "…", "。", "今", "—", ", ", "and ", '"', "😊"]
    )
).map("".join)  # fmt: skip
replies = sentences | mess | st.text()


@given(replies)
def test_phrases_are_the_text(text: str) -> None:
    assert "".join(split(text)) == text


@given(replies)
def test_all_phrases_but_the_last_have_something_to_say(text: str) -> None:
    for phrase in split(text)[:-1]:
        assert any(c.isalnum() for c in without_silent(phrase))


@given(sentences)
def test_cuts_fall_between_words(text: str) -> None:
    """... or behind a dash, a full stop of Chinese, or a `?` that is part of "?!"."""
    phrases = split(text)
    for before, after in itertools.pairwise(phrases):
        assert after[0].isspace() or before[-1] in "—。?"


@given(sentences)
def test_phrases_have_a_limit(text: str) -> None:
    most = PhraseLengths().word.most + max(map(letters, re.split(r"\s+", text)), default=0)
    assert all(letters(phrase) <= most for phrase in split(text))


def starvation_s(text: str, *, letters_per_s: float, real_time_factor: float) -> float:
    """The longest time that a listener waits inside the reply, when letters come at that rate and
    each phrase takes 50 ms and its share of real time to synthesise."""
    heard_to = synth_to = waited = 0.0
    n_fed = 0
    for i, phrase in enumerate(split(text)):
        n_fed += len(phrase)
        speech_s = letters(phrase) / 13
        synth_to = max(synth_to, (n_fed + 2) / letters_per_s) + 0.05 + real_time_factor * speech_s
        if i:
            waited = max(waited, synth_to - heard_to)
        heard_to = max(heard_to, synth_to) + speech_s
    return waited


plain_words = st.sampled_from(["see", "the", "great", "river", "station", "wonderful", "and", "to"])
plain_ends = st.sampled_from(["", "", "", "", "", "", ",", ".", "!"])
plain_text = st.lists(st.tuples(plain_words, plain_ends).map("".join), min_size=20).map(" ".join)


@given(plain_text)
def test_playback_hardly_starves(text: str) -> None:
    """The worst is a one-word sentence followed by many words without punctuation. 100 letters
    a second is about 22 tokens."""
    assert starvation_s(text, letters_per_s=100, real_time_factor=0.1) < 0.65
    assert starvation_s(text, letters_per_s=300, real_time_factor=0.1) < 0.3


def test_playback_of_ordinary_sentences_does_not_starve() -> None:
    """All the waiting is behind "Sure!", where a listener expects a pause."""
    text = (
        "Sure! The old town is lovely in the evening, and most museums stay open until nine. I "
        "would start at the cathedral, walk down to the river and have dinner there. Shall I look "
        "for a restaurant? There is one with a terrace right by the bridge that opens at six."
    )
    assert starvation_s(text, letters_per_s=100, real_time_factor=0.1) < 0.3
    assert starvation_s(text, letters_per_s=300, real_time_factor=0.1) < 0.05
