"""How dates, times of day and years are read."""

# ruff: noqa: RUF001 - look-alike dashes are the subject

from __future__ import annotations

import re

from stages.tts.spoken.numbers import cardinal, ordinal, plural, year
from stages.tts.spoken.rewriting import Rule

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September"),
    *("October", "November", "December"),
)
_MONTH_NUMBER = {month[:3]: number for number, month in enumerate(_MONTHS, 1)}
_DAYS = {
    "Mon": "Monday",
    "Tue": "Tuesday",
    "Tues": "Tuesday",
    "Wed": "Wednesday",
    "Thu": "Thursday",
    "Thur": "Thursday",
    "Thurs": "Thursday",
    "Fri": "Friday",
    "Sat": "Saturday",
    "Sun": "Sunday",
}

_MONTH = (
    r"\b(?P<month>January|February|March|April|May|June|July|August|September|October|November"
    r"|December|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)\b\.?)"
)
_DAY = (
    r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?:\s?[-–]\s?(?P<last>\d{1,2})(?:st|nd|rd|th)?)?"
    r"(?![\d:/%]|[.,]\d)"
)
_YEAR = r"(?P<year>[12]\d{3})(?![\d,]\d|\d)"
_SHORT_DAY = r"(?:Mon|Tues?|Wed|Thu(?:rs?)?|Fri|Sat|Sun)"
_HALF_DAY = r"(?P<half>[ap]\.? ?m\b\.?|[AP]\.? ?M\b\.?)"
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?!\d|:\d)"
_YEAR_FOLLOWS = (
    r"in|since|until|till|from|by|of|to|year|years|circa|around|before|after|during|late|early|mid"
    r"|through|between|class|summer|winter|spring|fall|autumn"
)


def _month(text: str) -> str:
    return _MONTHS[_MONTH_NUMBER[text[:3]] - 1]


def _is_date(month: int, day: int) -> bool:
    return 1 <= month <= 12 and 1 <= day <= 31


def _in_words(number_of_month: int, day: int, of_year: int | None) -> str:
    words = f"{_MONTHS[number_of_month - 1]} {ordinal(day)}"
    return words if of_year is None else f"{words}, {year(of_year)}"


def _full_year(text: str) -> int:
    value = int(text)
    if len(text) > 2:
        return value
    return value + (2000 if value < 70 else 1900)


def _iso(match: re.Match[str]) -> str:
    of_year, month, day = int(match.group(1)), int(match.group(2)), int(match.group(3))
    if not _is_date(month, day):
        return match.group()
    words = _in_words(month, day, of_year)
    return f"{words} at {match.group(4)}" if match.group(4) else words


def _numeric(match: re.Match[str]) -> str:
    """Month first, as in the US, unless that cannot be; with dots day first, as in Europe."""
    first, second, of_year = int(match.group(1)), int(match.group(3)), _full_year(match.group(4))
    month, day = (second, first) if match.group(2) == "." else (first, second)
    if not _is_date(month, day):
        month, day = day, month
    return _in_words(month, day, of_year) if _is_date(month, day) else match.group()


def _month_day(match: re.Match[str]) -> str:
    day, last = int(match.group("day")), match.group("last")
    if not 1 <= day <= 31:
        return match.group()
    words = f"{_month(match.group('month'))} {ordinal(day)}"
    if last:
        words += f" to {ordinal(int(last))}"
    if match.group("year"):
        words += f", {year(int(match.group('year')))}"
    return words


def _day_month(match: re.Match[str]) -> str:
    day, last = int(match.group("day")), match.group("last")
    if not 1 <= day <= 31:
        return match.group()
    words = ordinal(day) + (f" to {ordinal(int(last))}" if last else "")
    words = f"the {words} of {_month(match.group('month'))}"
    if match.group("year"):
        words += f", {year(int(match.group('year')))}"
    return words


def _month_year(match: re.Match[str]) -> str:
    return f"{_month(match.group('month'))} {year(int(match.group('year')))}"


def _decade(match: re.Match[str]) -> str:
    century, tens = match.group(1), match.group(2)
    if not century:
        return plural(cardinal(int(tens)))
    return plural(year(int(century + tens)))


def _year_or_number(match: re.Match[str]) -> str:
    value = int(match.group("year"))
    counted = match.group("counted")
    if match.group("before") or (1900 <= value < 2100 and not counted):
        if counted and value < 1900:
            return match.group()
        return (match.group("before") or "") + year(value) + (counted or "")
    return match.group()


def _years(match: re.Match[str]) -> str:
    return f"{year(int(match.group(1)))} to {year(int(match.group(2)))}"


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match.group("hour")), int(match.group("minute"))
    half, second = match.group("half"), match.group("second")
    if hour > 24 or minute > 59:  # a ratio, or a verse
        return " to ".join(re.findall(r"\d+", match.group()))
    words = _clock_words(hour, minute, spoken_half=bool(half))
    if second and int(second):
        words += f" and {cardinal(int(second))} seconds"
    return words + (_half_of_day(match) if half else "")


def _clock_words(hour: int, minute: int, *, spoken_half: bool) -> str:
    if minute:
        return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"
    if spoken_half:
        return cardinal(hour)
    if hour in (0, 24):
        return "midnight"
    return f"{cardinal(hour)} o'clock" if hour <= 12 else f"{cardinal(hour)} hundred"


def _half_of_day(match: re.Match[str]) -> str:
    """ " A-M": with the hyphen voices read the letters, "AM" may become the verb. A dot at the end
    of the text, or before a capital, also ends the sentence."""
    half = match.group("half")
    after = match.string[match.end() :].lstrip()[:1]
    ends = half.endswith(".") and (not after or after.isupper())
    return f" {half[0].upper()}-M{'.' if ends else ''}"


def _hour(match: re.Match[str]) -> str:
    first = match.group("first")
    words = f"{cardinal(int(first))} to " if first else ""
    return words + cardinal(int(match.group("hour"))) + _half_of_day(match)


def _weekday(match: re.Match[str]) -> str:
    return re.sub(_SHORT_DAY, lambda m: _DAYS[m.group()], match.group()).replace(".", "")


def _weekdays(match: re.Match[str]) -> str:
    return f"{_DAYS[match.group(1)]} to {_DAYS[match.group(2)]}"


DATES: list[Rule] = [
    (
        re.compile(
            r"(?<![\w/-])(\d{4})[-/](\d{1,2})[-/](\d{1,2})"
            r"(?:[T ](\d{2}:\d{2})(?::\d{2}(?:\.\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?)?(?![\w/-])"
        ),
        _iso,
    ),
    (re.compile(r"(?<![\w/.-])(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})(?![\w/-]|\.\d)"), _numeric),
    (re.compile(rf"\b({_SHORT_DAY})\.?\s?[-–]\s?({_SHORT_DAY})\b\.?"), _weekdays),
    (re.compile(rf"\b{_SHORT_DAY}\.?(?=,? (?:{_MONTH[2:]}|\d{{1,2}}\b))"), _weekday),
    (re.compile(r"\b(?:Tues?|Wed|Thu(?:rs?)?|Fri)\.(?=[\s,])"), _weekday),
    (re.compile(rf"{_MONTH} {_DAY}(?:(?:,| of)? {_YEAR})?"), _month_day),
    (re.compile(rf"(?<![\w.:/-])(?:the )?{_DAY}(?: of)? {_MONTH}(?:,? {_YEAR})?"), _day_month),
    (re.compile(rf"{_MONTH},?(?: of)? {_YEAR}"), _month_year),
    (
        re.compile(r"\b(?P<month>(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec))\.(?=[\s,])"),
        lambda m: _month(m.group("month")),
    ),
    (re.compile(rf"(?<![\w.:]){_CLOCK}(?: ?{_HALF_DAY})?"), _time),
    (
        re.compile(
            rf"(?<![\w.:])(?:(?P<first>\d{{1,2}})\s?[-–]\s?)?(?P<hour>\d{{1,2}}) ?{_HALF_DAY}(?!\w)"
        ),
        _hour,
    ),
    (
        re.compile(r"(?<![\w.:])(\d{1,3}):(\d{1,3})(?![\w:])"),
        r"\1 to \2",
    ),
    (re.compile(r"(?<![\w.,])(1\d|20)(\d0)'?s\b"), _decade),
    (re.compile(r"(?:(?<=the )|(?<=early )|(?<=late )|(?<=mid-)|(?<!\w)')()(\d0)'?s\b"), _decade),
    (
        re.compile(
            r"(?<![\w.,/$€£#-])(1[1-9]\d\d|20\d\d) ?[-–] ?(1[1-9]\d\d|20\d\d|\d\d)"
            r"(?![\w/%-]|[.,:]\d)"
        ),
        _years,
    ),
    (
        re.compile(
            rf"(?<![\w.,/$#-])(?P<before>\b(?i:{_YEAR_FOLLOWS})(?: the)?[ -])?(?<![\d.,/$#])"
            r"(?P<year>1[1-9]\d\d|20\d\d|(?<=[Yy]ear )\d{3,4})(?![\w/%]|[.,:]\d)"
            r"(?P<counted> (?!was|is|has|as|does|its|this)(?:[a-z]{2,20}s|people|men|women)\b)?",
        ),
        _year_or_number,
    ),
]
