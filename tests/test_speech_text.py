# ruff: noqa: RUF001, E501 - look-alike signs are the subject, and a table reads best in lines

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tts.speech_text import speakable
from stages.tts.spoken.numbers import cardinal, ordinal, year
from voicepipe.clock import process_time_s

SPEAKABLE = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ'.,?!;: -]*")

NUMBERS = [
    ("There are 0 left.", "There are zero left."),
    ("I have 42 apples.", "I have forty-two apples."),
    ("It weighs 101 tons.", "It weighs one hundred one tons."),
    ("1,000 people", "one thousand people"),
    ("1,234,567 stars", "one million two hundred thirty-four thousand five hundred sixty-seven stars"),
    ("1 000 000 stars", "one million stars"),
    ("a list of 1,2,3", "a list of one, two, three"),
    ("Pi is 3.14159.", "Pi is three point one four one five nine."),
    ("0.5 or .5", "zero point five or point five"),
    ("It is -5 today.", "It is minus five today."),
    ("from -3 to +7", "from minus three to plus seven"),
    ("the 1st, 2nd, 3rd and 4th", "the first, second, third and fourth"),
    ("the 21st century", "the twenty-first century"),
    ("the 100th time", "the one hundredth time"),
    ("5 million people", "five million people"),
    ("2.5 billion years", "two point five billion years"),
    ("agent 007", "agent zero zero seven"),
    ("100+ people", "one hundred plus people"),
    ("~50 people", "about fifty people"),
    ("6.02e23", "six point zero two times ten to the power of twenty-three"),
    ("1e-5", "one times ten to the power of minus five"),
    ("12345678901234567890", "one two three, four five six, seven eight nine, zero one two, three four five six, seven eight nine zero"),
]  # fmt: skip

YEARS_AND_DATES = [
    ("In 1999 we met.", "In nineteen ninety-nine we met."),
    ("It is 2026.", "It is twenty twenty-six."),
    ("in 2005", "in two thousand five"),
    ("since 1905", "since nineteen oh five"),
    ("In 1776, they declared it.", "In seventeen seventy-six, they declared it."),
    ("There were 1776 of them.", "There were one thousand seven hundred seventy-six of them."),
    ("2000 people came.", "two thousand people came."),
    ("from 1999-2003", "from nineteen ninety-nine to two thousand three"),
    ("the 1990s and the 80s", "the nineteen nineties and the eighties"),
    ("the '90s", "the nineties"),
    ("the mid-1980s", "the mid-nineteen eighties"),
    ("2026-11-30", "November thirtieth, twenty twenty-six"),
    ("on 2026-11-30T14:05:00Z", "on November thirtieth, twenty twenty-six at fourteen oh five"),
    ("Nov 30, 2026", "November thirtieth, twenty twenty-six"),
    ("on Nov. 30", "on November thirtieth"),
    ("November 30th, 2026", "November thirtieth, twenty twenty-six"),
    ("on 30 November 2026", "on the thirtieth of November, twenty twenty-six"),
    ("the 4th of July", "the fourth of July"),
    ("11/30/2026", "November thirtieth, twenty twenty-six"),
    ("30/11/2026", "November thirtieth, twenty twenty-six"),
    ("30.11.2026", "November thirtieth, twenty twenty-six"),
    ("1/2/25", "January second, twenty twenty-five"),
    ("March 3-5", "March third to fifth"),
    ("March 2026", "March twenty twenty-six"),
    ("Mon, Nov 30", "Monday, November thirtieth"),
    ("open Mon-Fri", "open Monday to Friday"),
    ("May 5", "May fifth"),
    ("You may 5 times.", "You may five times."),
]

TIMES = [
    ("at 10:30 am", "at ten thirty A-M"),
    ("at 10:30 a.m. sharp", "at ten thirty A-M sharp"),
    ("We met at 5 p.m. Then we ate.", "We met at five P-M. Then we ate."),
    ("7pm", "seven P-M"),
    ("at 14:05", "at fourteen oh five"),
    ("12:00", "twelve o'clock"),
    ("15:00", "fifteen hundred"),
    ("00:00", "midnight"),
    ("9:00 AM", "nine A-M"),
    ("9am-5pm", "nine A-M to five P-M"),
    ("5-6 pm", "five to six P-M"),
    ("from 9:30 to 11:45", "from nine thirty to eleven forty-five"),
    ("10:30:15", "ten thirty and fifteen seconds"),
    ("10:00-11:30 am", "ten o'clock to eleven thirty A-M"),
    ("open 24/7", "open twenty-four seven"),
    ("a ratio of 16:9", "a ratio of sixteen to nine"),
    ("at 5 PM EST", "at five P-M EST"),
]

MONEY = [
    ("$3.50", "three dollars and fifty cents"),
    ("It costs $1.", "It costs one dollar."),
    ("$0.99", "ninety-nine cents"),
    ("$1.01", "one dollar and one cent"),
    ("$5.00", "five dollars"),
    ("$1,299.99", "one thousand two hundred ninety-nine dollars and ninety-nine cents"),
    ("€20", "twenty euros"),
    ("20€ or 20 €", "twenty euros or twenty euros"),
    ("£2.50", "two pounds and fifty pence"),
    ("£1.2m", "one point two million pounds"),
    ("$5 billion", "five billion dollars"),
    ("$10M", "ten million dollars"),
    ("$50k", "fifty thousand dollars"),
    ("¥500", "five hundred yen"),
    ("20 USD", "twenty US dollars"),
    ("USD 20", "twenty US dollars"),
    ("$5-10", "five to ten dollars"),
    ("$1,000-$2,000", "one thousand to two thousand dollars"),
    ("$5m–$10m", "five million dollars to ten million dollars"),
    ("$9.99/month", "nine dollars and ninety-nine cents per month"),
    ("-$5", "minus five dollars"),
    ("50¢", "fifty cents"),
    ("1.000,50 €", "one thousand euros and fifty cents"),
    ("A$30", "thirty Australian dollars"),
]

UNITS = [
    ("5 km", "five kilometers"),
    ("1 km", "one kilometer"),
    ("3kg", "three kilograms"),
    ("0.5 L", "zero point five liters"),
    ("a 5-km run", "a five kilometer run"),
    ("20°C", "twenty degrees Celsius"),
    ("-5 °C", "minus five degrees Celsius"),
    ("72°F", "seventy-two degrees Fahrenheit"),
    ("a 45° angle", "a forty-five degrees angle"),
    ("60 mph", "sixty miles per hour"),
    ("100 km/h", "one hundred kilometers per hour"),
    ("5 m/s", "five meters per second"),
    ("10 MB/s", "ten megabytes per second"),
    ("16 GB of RAM", "sixteen gigabytes of ram"),
    ("100 ms", "one hundred milliseconds"),
    ("3.5 GHz", "three point five gigahertz"),
    ("5-10 km", "five to ten kilometers"),
    ("5 to 10 kg", "five to ten kilograms"),
    ("He is 5'10\" tall.", "He is five foot ten tall."),
    ("6 ft 2 in", "six feet two inches"),
    ("4 x 6 in", "four by six inches"),
    ("1920x1080 px", "one thousand nine hundred twenty by one thousand eighty pixels"),
    ("20 m²", "twenty square meters"),
    ("3 cm^3", "three cubic centimeters"),
    ("2 hrs 30 min", "two hours thirty minutes"),
    ("Wait 5 min. Then go.", "Wait five minutes. Then go."),
    ("1/2 tsp salt", "one half teaspoon salt"),
    ("2 1/2 cups", "two and a half cups"),
    ("½ cup and 1¾ oz", "one half cup and one and three quarters ounces"),
    ("20 µm", "twenty micrometers"),
    ("9.8 m/s²", "nine point eight meters per second squared"),
    ("5 kg/m³", "five kilograms per cubic meter"),
    ("a 10-minute walk", "a ten-minute walk"),
    ("5 tokens/s", "five tokens per second"),
    ("10x faster", "ten times faster"),
    ("a 7B model", "a seven B model"),
]

SHARES = [
    ("50%", "fifty percent"),
    ("99.9 %", "ninety-nine point nine percent"),
    ("10-20%", "ten to twenty percent"),
    ("-3%", "minus three percent"),
    ("pages 3-5", "pages three to five"),
    ("pages 10–12", "pages ten to twelve"),
    ("1/2, 1/3 and 3/4", "one half, one third and three quarters"),
    ("8/10", "eight out of ten"),
    ("120/80", "one hundred twenty over eighty"),
    ("a 50/50 chance", "a fifty-fifty chance"),
    ("They won 3-2.", "They won three to two."),
]

MATHEMATICS = [
    ("2 + 2 = 4", "two plus two equals four"),
    ("5 - 3 = 2", "five minus three equals two"),
    ("5 × 3 = 15", "five times three equals fifteen"),
    ("5 * 3", "five times three"),
    ("10 ÷ 2", "ten divided by two"),
    ("10 / 2", "ten divided by two"),
    ("x² + y³", "x squared plus y cubed"),
    ("10^6 or 2**8", "ten to the power of six or two to the power of eight"),
    ("x ≤ 5", "x is at most five"),
    ("x >= 5", "x is at least five"),
    ("a < b", "a is less than b"),
    ("<5 minutes", "less than five minutes"),
    ("x ≠ y", "x is not equal to y"),
    ("f(x) = 2x + 1", "f of x equals two x plus one"),
    ("Tap Settings > Privacy.", "Tap Settings, Privacy."),
    ("√16", "square root of sixteen"),
    ("20 ± 2", "twenty plus or minus two"),
    ("π is about 3", "pi is about three"),
    (r"\(\frac{a}{b} \times c\)", "a over b times c"),
]

NAMES = [
    ("Dr. Smith and Mr. Jones", "Doctor Smith and Mister Jones"),
    ("Mrs. Lee met Ms. Ray.", "Missus Lee met Miz Ray."),
    ("Dr Smith", "Doctor Smith"),
    ("Prof. Green", "Professor Green"),
    ("St. Louis", "Saint Louis"),
    ("5 Main St., Springfield", "five Main Street, Springfield"),
    ("1600 Pennsylvania Ave.", "sixteen hundred Pennsylvania Avenue."),
    ("Mt. Everest", "Mount Everest"),
    ("fruit, e.g. apples", "fruit, for example, apples"),
    ("the capital, i.e., Paris", "the capital, that is, Paris"),
    ("apples, pears, etc.", "apples, pears, et cetera."),
    ("cats vs. dogs", "cats versus dogs"),
    ("Roe v. Wade", "Roe versus Wade"),
    ("No. 5", "Number five"),
    ("see Fig. 3 and p. 12", "see Figure three and page twelve"),
    ("No. I can't.", "No. I can't."),
    ("approx. 5 kg", "approximately five kilograms"),
    ("J. K. Rowling", "J-K Rowling"),
    ("J.R.R. Tolkien", "J-R-R Tolkien"),
    ("John F. Kennedy", "John F Kennedy"),
    ("Martin Luther King Jr. was born here.", "Martin Luther King Junior was born here."),
    ("the U.S. Senate", "the U-S Senate"),
    ("He lives in the U.S.", "He lives in the U-S."),
    ("She has a Ph.D. in math.", "She has a PhD in math."),
    ("NASA and the FBI", "NASA and the FBI"),
    ("The API returns JSON.", "The API returns JSON."),
    ("What is your ETA?", "What is your E-T-A?"),
    ("Do NOT touch it.", "Do not touch it."),
    ("AT&T and R&D", "A-T and T and R and D"),
    ("Q&A", "Q and A"),
    ("World War II", "World War two"),
    ("Henry VIII", "Henry the eighth"),
    ("Chapter IV", "Chapter four"),
    ("John and I", "John and I"),
    ("Malcolm X", "Malcolm X"),
    ("option A or B", "option A- or B"),
    ("A dog", "A dog"),
    ("MP3, B2B and H2O", "MP three, B two B and H two O"),
    ("COVID-19", "COVID nineteen"),
    ("GPT-4o", "GPT four o"),
    ("an Airbus A320", "an Airbus A- three twenty"),
    ("5G and 4K", "five G and four K"),
    ("C++, C# and F#", "C plus plus, C sharp and F sharp"),
    ("Python 3.11", "Python three point one one"),
    ("version 2.10.1", "version two point ten point one"),
    ("v1.2", "version one point two"),
    ("Room 101", "Room one oh one"),
]

ADDRESSES = [
    ("Visit example.com today.", "Visit example dot com today."),
    ("https://www.example.com/", "example dot com"),
    ("See https://example.com/docs/intro?x=1#top.", "See example dot com slash docs slash intro."),
    ("http://localhost:8000", "localhost port eight thousand"),
    ("john.doe@example.co.uk", "john dot doe at example dot co dot UK"),
    ("my_name@mail-box.org", "my underscore name at mail dash box dot org"),
    ("call (555) 123-4567", "call five five five, one two three, four five six seven"),
    ("555-0199", "five five five, zero one nine nine"),
    ("+1 555 123 4567", "plus one, five five five, one two three, four five six seven"),
    ("+49 30 1234567", "plus four nine, three zero, one two three, four five six seven"),
    ("1-800-555-0199", "one, eight zero zero, five five five, zero one nine nine"),
    ("Call 911!", "Call nine one one!"),
    ("Your code is 482913.", "Your code is four eight two, nine one three."),
    ("zip code 90210", "zip code nine zero two one zero"),
    ("192.168.1.1", "one hundred ninety-two dot one hundred sixty-eight dot one dot one"),
    ("Edit /etc/hosts.", "Edit slash etc slash hosts."),
    ("Open main.py in Node.js", "Open main dot py in Node dot js"),
    ("@alice on #python", "at alice on hashtag python"),
    ("You are #1!", "You are number one!"),
]

MARKUP = [
    ("**Bold**, *italic*, __strong__ and ~~gone~~", "Bold, italic, strong and gone"),
    ("# Title\n\nText.", "Title. Text."),
    ("- apples\n- pears", "apples. pears"),
    ("* [ ] wash\n* [x] dry", "wash. dry"),
    ("1. Mix.\n2. Bake", "one, Mix. two, Bake"),
    ("a) yes\nb) no", "a. yes. b. no"),
    ("> quoted\n\nText", "quoted. Text"),
    ("A line\nthat goes on", "A line that goes on"),
    ("One\n\n---\n\nTwo", "One. Two"),
    ("[the docs](https://example.com/a?b=c)", "the docs"),
    ("![a cat](cat.png)", "a cat"),
    ("<https://example.com>", "example dot com"),
    ("Use `pip install`.", "Use pip install."),
    ("`foo()` is snake_case", "foo is snake case"),
    ("Run:\n```\nls -la\n```", "Run: ls dash la"),
    ("So:\n```python\nx = 1\ny = 2\n```\nDone.", "So: code block. Done."),
    ("| Name | Age |\n|------|-----|\n| Ann | 30 |", "Name, Age. Ann, thirty"),
    ("It is known.[1] Really [2, 3].", "It is known. Really."),
    ("<b>Hi</b><br>You &amp; me", "Hi. You and me"),
    ("Tom &lt;3 Ann", "Tom Ann"),
    ("Paris (the capital) is big", "Paris, the capital, is big"),
    ("item(s)", "items"),
    ("She said \"Hi.\"", "She said Hi."),
    ("‘Don’t,’ he said", "Don't, he said"),
    ("rock 'n' roll", "rock n roll"),
    ("Well... maybe", "Well, maybe"),
    ("Well… maybe", "Well, maybe"),
    ("It — slowly — began", "It, slowly, began"),
    ("It--slowly--began", "It, slowly, began"),
    ("a well-known fact", "a well-known fact"),
    ("What?! No!!!", "What? No!"),
    ("A → B", "A to B"),
    ("yes/no", "yes no"),
    ("Great 😊🎉 job 👍🏽", "Great job"),
    ("1️⃣ Open it", "one, Open it"),
    ("Nice :) really ;-)", "Nice really"),
    ("Thanks™ © 2026", "Thanks twenty twenty-six"),
    ("café, naïve, Zoë, Dvořák and Łódź", "café, naïve, Zoë, Dvorák and Lódz"),
    ("你好 means hello", "means hello"),
    ("ﬁne Ｗｉｄｅ", "fine Wide"),
]  # fmt: skip

SILENT = [
    ("<think>They want 5.</think>Five.", "Five."),
    ("<think>never closed", ""),
    ("no opener</think> Yes.", "Yes."),
    ('<tool_call>{"name": "f"}</tool_call>', ""),
    ('{"name": "f", "arguments": {"x": "}"}} Done.', "Done."),
    ("😊", ""),
    ("---", ""),
    (" \n ", ""),
    ("", ""),
    ("?!", ""),
]

CASES = [
    *(NUMBERS + YEARS_AND_DATES + TIMES + MONEY + UNITS + SHARES),
    *(MATHEMATICS + NAMES + ADDRESSES + MARKUP + SILENT),
]


@pytest.mark.parametrize(("text", "spoken"), CASES)
def test_is_said_as_a_person_would_say_it(text: str, spoken: str) -> None:
    assert speakable(text) == spoken


@pytest.mark.parametrize("spoken", [spoken for _, spoken in CASES])
def test_what_is_in_words_already_stays(spoken: str) -> None:
    assert speakable(spoken) == spoken


VALUES = {cardinal(n): n for n in range(100)} | {"hundred": 100}
POWERS = {cardinal(1000**k).removeprefix("one "): 1000**k for k in range(1, 12)}


def value(words: str) -> int:
    """What the words of a number mean."""
    total = below_thousand = 0
    for word in words.split():
        if word in POWERS:
            total += below_thousand * POWERS[word]
            below_thousand = 0
        elif word == "hundred":
            below_thousand *= 100
        else:
            below_thousand += VALUES[word]
    return total + below_thousand


@given(st.integers(0, 10**36 - 1))
def test_the_words_of_a_number_mean_it(n: int) -> None:
    assert value(cardinal(n)) == n
    assert value(speakable(f"{n:,}")) == n


def test_ordinals_and_years() -> None:
    assert [ordinal(n) for n in (1, 12, 20, 42, 100, 1000)] == [
        *("first", "twelfth", "twentieth", "forty-second", "one hundredth", "one thousandth")
    ]
    assert [year(n) for n in (1066, 1900, 1909, 2000, 2010, 476)] == [
        *("ten sixty-six", "nineteen hundred", "nineteen oh nine", "two thousand", "twenty ten"),
        "four hundred seventy-six",
    ]


HOSTILE = (
    *("1", "1-", "1/", "$1", "<a ", "[a](", "(", "&#", "|a", "\n- ", "> ", "Jan 1 ", "1 1/2"),
    *('{"a', "'", "¼", " ,", "今", "^1", "/a"),
)


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_costs_no_more_than_its_length(piece: str) -> None:
    """Four times the text takes about four times as long, and not sixteen."""

    def cost_s(n_chars: int) -> float:
        text = (piece * n_chars)[:n_chars]
        start_s = process_time_s()
        speakable(text)
        return process_time_s() - start_s

    assert cost_s(4_000) < 10 * max(cost_s(1_000), cost_s(1_000), 0.01)


pieces = st.sampled_from(
    [*string.printable, *(word for text, _ in CASES for word in text.split(" "))]
)
texts = st.text() | st.lists(pieces).map("".join) | st.lists(pieces).map(" ".join)


@given(texts)
def test_any_text_becomes_speakable(text: str) -> None:
    spoken = speakable(text)
    assert SPEAKABLE.fullmatch(spoken)
    assert spoken == spoken.strip()
    assert "  " not in spoken
    assert not spoken or any(c.isalpha() for c in spoken)


@given(
    st.lists(st.sampled_from([spoken for _, spoken in CASES if spoken]), max_size=4).map(". ".join)
)
def test_sentences_in_words_stay(text: str) -> None:
    assert speakable(text) == speakable(speakable(text))
