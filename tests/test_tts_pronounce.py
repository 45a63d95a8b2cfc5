"""How text sounds, by word list, by rule and by espeak."""

# ruff: noqa: RUF001 - phonemes are written in IPA

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.tts.kokoro import SYMBOLS
from stages.tts.letters import letters_to_sound
from stages.tts.lexicon import LexiconPronouncer
from stages.tts.pronounce import EspeakPronouncer, Pronouncer, respelled
from stages.tts.pronouncers import pronouncer_named
from voicepipe.errors import ComponentError, UsageError

pytestmark = pytest.mark.models  # the word list comes from the model store


@pytest.fixture(scope="module")
def lexicon() -> LexiconPronouncer:
    return LexiconPronouncer()


@pytest.fixture(scope="module", params=["lexicon", "espeak"])
def pronouncer(request: pytest.FixtureRequest) -> Pronouncer:
    return pronouncer_named(request.param)


def sound(pronouncer: Pronouncer, text: str) -> str:
    return "|".join(
        "".join(word.phonemes for word in sentence) for sentence in pronouncer.pronounce(text)
    )


@pytest.mark.parametrize(
    ("text", "phonemes"),
    [
        ("Hello, hello!", "həlˈO, həlˈO!"),
        ("the end", "ði ˈɛnd"),
        ("the dog", "ðə dˈɔɡ"),
        ("A dog.", "ɐ dˈɔɡ."),
        ("to do", "tə dˈu"),
        ("to eat", "tʊ ˈit"),
        ("that's", "ðæts"),
        ("voicepipe's", "vˈYspˌIps"),
        ("podcasted", "pˈɑdkˌæstᵻd"),
        ("uh-huh", "əhˈʌ"),
        ("A-M", "ˈA ˈɛm"),
        ("ZQJ", "zˌikjˌuʤˈA"),
        ("m²³", "ˈɛm"),
        ("²³", "tˈu θɹˈi"),
        ("7 42", "sˈɛvən fˈɔɹ tˈu"),
        ("One. Two?", "wˈʌn.|tˈu?"),
        ("café", "kæfˈA"),
    ],
)
def test_the_word_list_in_context(lexicon: LexiconPronouncer, text: str, phonemes: str) -> None:
    assert sound(lexicon, text) == phonemes


@pytest.mark.parametrize(
    ("word", "phonemes"), [("blorf", "blˈɔɹf"), ("knake", "nˈAk"), ("phoom", "fˈum"), ("", "")]
)
def test_unknown_words_are_read_by_their_letters(word: str, phonemes: str) -> None:
    assert letters_to_sound(word) == phonemes


texts = st.one_of(
    st.text(max_size=80),
    st.text("abcxyz'-. ,!?-ABC0123é’²½½\U0001f600\n\x00", max_size=80),
    st.sampled_from(["a" * 2000, "xq" * 1000, "1" * 200, "-" * 200, "''" * 50]),
)


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_any_text_can_be_pronounced(pronouncer: Pronouncer, text: str) -> None:
    sentences = pronouncer.pronounce(text)
    words = [word for sentence in sentences for word in sentence]
    starts = [word.start for word in words]
    assert starts == sorted(starts)
    assert all(0 <= start < len(text) for start in starts)
    assert all(sentences)
    assert all(word.phonemes.strip() for word in words)


@pytest.mark.parametrize("text", ["", " \n\t", "...", "?!", "\U0001f600", "- - -", "\x00\x1b"])
def test_nothing_to_say(pronouncer: Pronouncer, text: str) -> None:
    assert pronouncer.pronounce(text) == []


def test_every_word_has_its_place(pronouncer: Pronouncer) -> None:
    text = "Sure, I can help you. What do you need?"
    words = [word for sentence in pronouncer.pronounce(text) for word in sentence]
    assert [text[word.start :].split()[0] for word in words] == text.split()


def test_both_alphabets_say_the_same(lexicon: LexiconPronouncer) -> None:
    espeak = EspeakPronouncer()
    for text in ("Sure, I like the story.", "Show eight joyous churches.", "How about now?"):
        ours = [w.phonemes for sentence in lexicon.pronounce(text) for w in sentence]
        theirs = [w.phonemes for sentence in espeak.pronounce(text) for w in sentence]
        assert _bare(respelled(word, "kokoro", "espeak") for word in ours) == _bare(theirs)
        assert _bare(respelled(word, "espeak", "kokoro") for word in theirs) == _bare(ours)


def _bare(words: Iterable[str]) -> str:
    """Without stress, length and punctuation."""
    return "".join(c for word in words for c in word if c not in "ˈˌː ,.?")


def test_every_sound_of_the_word_list_is_in_kokoros_alphabet(lexicon: LexiconPronouncer) -> None:
    words = "the quick brown fox judges vision, thing! church? azure: they; booking… — butter"
    assert set(sound(lexicon, words).replace("|", "")) <= set(SYMBOLS)


def test_unknown_pronouncers_and_languages_are_refused() -> None:
    with pytest.raises(UsageError, match="use one of espeak, lexicon"):
        pronouncer_named("telepathy")
    with pytest.raises(UsageError, match="knows English, not 'de'"):
        pronouncer_named("lexicon", "de")
    with pytest.raises(ComponentError, match="'xx-nowhere' does not work"):
        EspeakPronouncer("xx-nowhere")
