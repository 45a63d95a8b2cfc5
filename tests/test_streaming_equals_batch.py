# ruff: noqa: RUF001 - look-alike punctuation is the subject
"""What streams must give the same as what is given all at once, however its input is cut."""

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tts.speech_text import speakable
from voicepipe.phrases import PhraseSplitter

REPLIES = (
    "Sure! Here's a quick plan for your day in Paris:\n\n1. **Louvre** – opens at 9:00 a.m., "
    "tickets cost €22.\n2. **Lunch** near Rue St. Honoré, about $25-30 per person.\n3. **Eiffel "
    "Tower** at 5:30 p.m. (330 m tall!)\n\nShall I book it for Nov. 30, 2026?",
    "The capital of Australia is Canberra, and it was chosen as a compromise between Sydney and "
    "Melbourne in 1908. It has about 450,000 people, i.e. 1.8% of the country.",
    "<think>The user asks for 5 + 3. Easy.</think>5 + 3 = 8. Anything else?",
    'Dr. Smith said "You should rest." Then he left at 10:45. You can call him at (555) 123-4567 '
    "or write to dr.smith@example.com, e.g. tomorrow.",
    'Use `git commit -m "Fix it. Now"` and then:\n\n```bash\ngit push origin main\n```\n\nThat\'s '
    "all! See [the docs](https://git-scm.com/docs) for more.",
    "It's -5°C outside, so wear a coat. By 2:00 pm it should reach 3-4 °C, but don't count on it… "
    "The wind blows at 40 km/h.",
    "I don't have access to real-time data, however, I can tell you that the train usually leaves "
    "every 15 min. from platform 4, and the ride takes 1 1/2 hours.",
    "| Item | Price |\n|---|---|\n| Tea | $3.50 |\n| Cake | $4.25 |\n\nThat's $7.75 in total.",
    "Great question 😊! World War II lasted from 1939 to 1945. Henry VIII ruled from 1509-1547. "
    "The U.S. Senate has 100 members; No. 1 is the Vice President.",
    "Version 2.10.1 of Node.js was released on 2026-11-30. It's 3x faster, and uses 16 GB of RAM "
    "at most. Visit https://nodejs.org/en/blog for details!",
    'Yes, I can tell you what the weather is like, just a moment. {"name": "get_weather", '
    '"arguments": {"city": "Paris. Now!"}} It is 20 degrees there',
    "so the thing is that when you take the second train from platform four tomorrow morning you "
    "will arrive at the central station about twenty minutes before the museum opens",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20. Done counting!",
    "Il fait beau — n'est-ce pas ? « Oui ! » dit-elle. 今天天气很好。我们去公园吧！你觉得怎么样？",
)

texts = st.sampled_from(REPLIES) | st.text() | st.lists(st.sampled_from(REPLIES)).map("\n".join)


def phrases(deltas: Iterable[str]) -> list[str]:
    splitter = PhraseSplitter()
    found = [phrase for delta in deltas for phrase in splitter.feed(delta)]
    return [phrase.text for phrase in found + splitter.finish()]


def words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text)


@given(texts, st.data())
def test_phrases_however_the_reply_arrives(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    at_once = phrases([text])
    assert phrases(pieces) == at_once
    assert phrases(text) == at_once


@pytest.mark.parametrize("text", REPLIES)
def test_phrase_by_phrase_the_same_words_are_said(text: str) -> None:
    said = " ".join(speakable(phrase) for phrase in phrases([text]))
    assert words(said) == words(speakable(text))
