"""How amounts are read: money, units, percentages, ranges, fractions, and plain numbers."""

# ruff: noqa: RUF001 - look-alike signs are the subject

from __future__ import annotations

import re

from stages.tts.spoken.numbers import NUMBER, cardinal, digits, number, ordinal, pairs
from stages.tts.spoken.rewriting import Rule
from stages.tts.spoken.units import CURRENCIES, MAGNITUDES, PER, UNITS

_SIGNS = {
    "-": "minus ",
    "+": "plus ",
    "±": "plus or minus ",
    "~": "about ",
    "≈": "about ",
    "<": "less than ",
    ">": "more than ",
    "≤": "at most ",
    "≥": "at least ",
}
_SIGN = r"(?:(?<![\w.,)\]%°])(?P<sign>[-+±~≈<>≤≥]) ?)?"
_FRACTION = r"(?:\d{1,4} )?\d{1,3}/\d{1,3}(?![\d/])"
_AMOUNT = rf"(?:{_FRACTION}|\d{{1,3}}(?:[ _]\d{{3}})+(?!\d)|{NUMBER})"
_FREE = r"(?<![\w/])(?<!\d[.,])"
"""What follows is not part of a longer number or word."""
_BARE_VALUE = rf"(?P<low>{_AMOUNT})(?:(?: ?[-–] ?| to )[$€£¥]?(?P<high>{_AMOUNT}))?"
_VALUE = _FREE + _BARE_VALUE
_TIGHT_RANGE = rf"{_FREE}(?P<low>{_AMOUNT})(?:[-–]| – )(?P<high>{_AMOUNT})"

_SYMBOL = r"(?:US|CA|NZ|HK|C|A)?\$|[€£¥₹₩₽₿]"
_CODE = r"USD|CAD|AUD|EUR|GBP|JPY|CHF|INR|CNY|BTC"
_MAGNITUDE_WORD = r"hundred|thousand|million|billion|trillion"
_MONEY_MAGNITUDE = rf"(?: ?(?P<magnitude>{_MAGNITUDE_WORD}|mm|mil|mn|bn|tn|[kKmMbBtT])(?!\w))?"
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_PER = r"(?: ?/ ?(?P<per>[A-Za-z]{1,10})(?![\w/])(?P<per_power>\^[23])?)?"
_POWERS = {"^2": "square ", "^3": "cubic "}


def _values(match: re.Match[str]) -> str:
    """ "five", "minus five", "five to ten"."""
    found = match.groupdict()
    words = _SIGNS.get(found.get("sign") or "", "") + number(found["low"])
    return words + (f" to {number(found['high'])}" if found.get("high") else "")


def _per(match: re.Match[str]) -> str:
    per = match.group("per")
    if per is None:
        return ""
    name = PER.get(per, per)
    power = _POWERS.get(match.group("per_power") or "", "")
    if name == "second" and power:
        return f" per second {'squared' if power == 'square ' else 'cubed'}"
    return f" per {power}{name}"


def _money(match: re.Match[str]) -> str:
    currency = match.group("currency").strip()
    magnitude = match.group("magnitude")
    if magnitude or match.group("high"):
        large = f" {MAGNITUDES.get(magnitude.lower(), magnitude)}" if magnitude else ""
        words = f"{_values(match)}{large} {CURRENCIES[currency][1]}"
    else:
        sign = _SIGNS.get(match.group("sign") or "", "")
        words = sign + _price(match.group("low"), currency)
    return words + _per(match)


def _price(amount: str, currency: str) -> str:
    """ "three dollars and fifty cents"."""
    one, many, cent, cents = CURRENCIES[currency]
    whole, _, part = amount.partition(".")
    if len(part) != 2 or not cent:
        return f"{number(amount)} {one if amount == '1' else many}"
    n_whole, n_part = int(whole.replace(",", "") or "0"), int(part)
    in_cents = f"{cardinal(n_part)} {cent if n_part == 1 else cents}"
    if n_part and not n_whole:
        return in_cents
    words = f"{number(whole or '0')} {one if n_whole == 1 else many}"
    return f"{words} and {in_cents}" if n_part else words


def _unit(match: re.Match[str]) -> str:
    one, many = UNITS[match.group("unit")]
    low, magnitude = match.group("low"), match.group("magnitude")
    is_one = low == "1" or ("/" in low and " " not in low)
    as_adjective = match.group("gap") == "-"  # "a 5-km run"
    singular = as_adjective or (is_one and not match.group("high") and not magnitude)
    words = _values(match) + (f" {magnitude}" if magnitude else "")
    power = _POWERS.get(match.group("power") or "", "")
    return f"{words} {power}{one if singular else many}{_per(match)}"


def _inches(match: re.Match[str]) -> str:
    after = match.string[match.end() : match.end() + 4]
    as_adjective = match.group().endswith(".") and after[1:2].isalpha() and after != " of "
    return f"{number(match.group(1))} inch{'' if match.group(1) == '1' or as_adjective else 'es'}"


def _feet(match: re.Match[str]) -> str:
    return f"{number(match.group(1))} {'foot' if match.group(1) == '1' else 'feet'}"


def _ordinal(match: re.Match[str]) -> str:
    text = match.group(1).replace(",", "")
    return ordinal(int(text)) if len(text) <= 36 else digits(text)


def _exponent(match: re.Match[str]) -> str:
    exponent = match.group(1)
    if exponent in ("2", "3"):
        return " squared" if exponent == "2" else " cubed"
    sign = "minus " if exponent.startswith("-") else ""
    bare = exponent.lstrip("-+")
    return f" to the power of {sign}{number(bare) if bare.isdigit() else bare}"


def _code(match: re.Match[str]) -> str:
    return match.group(1) + digits(match.group(2))


def _numbered(match: re.Match[str]) -> str:
    text = match.group(1)
    return "number " + (digits(text) if len(text) > 3 else number(text))


NUMBERS: list[Rule] = [
    (re.compile(r"\b24/7\b"), "twenty-four seven"),
    (re.compile(r"\b50[/-]50\b"), "fifty-fifty"),
    (re.compile(r"\b9/11\b"), "nine eleven"),
    # digits that name something are read one by one
    (
        re.compile(
            r"(\b(?i:code|pin|passcode|password|extension|ext\.?|zip|(?:order|account|confirmation"
            r"|tracking|reference|serial|phone|card|case|ticket) number)"
            r"(?: is| was)?:? #?)(\d{3,20})(?![\w%]|[.,:/-]\d)"
        ),
        _code,
    ),
    (re.compile(r"(\b(?i:call|dial|text) )(\d{3,5})(?![\w%]|[.,:/-]\d)"), _code),
    (
        re.compile(
            r"(\b(?i:room|suite|flight(?: [a-z]{2})?|apartment|route|highway|interstate|bus|channel"
            r"|boeing|airbus|gate) )(\d{3,4})(?![\w%]|[.,:/-]\d)"
        ),
        lambda m: m.group(1) + pairs(m.group(2)),
    ),
    (
        re.compile(
            r"(?<![\w.,])(\d{3,4})(?= (?:[NSEW] )?(?:[A-Z][a-z]{1,20} ){1,2}"
            r"(?:Street|Avenue|Road|Lane|Drive|Boulevard|Court|Place|Way)\b)"
        ),
        lambda m: pairs(m.group(1)),
    ),
    (re.compile(r"#(\d{1,20})(?!\w)"), _numbered),
    (re.compile(r"\b0x(?=[0-9A-Fa-f])"), "hex "),
    (re.compile(r"(?<=\d) ?x ?(?=\d)|(?<=\d)×(?=\d)"), " by "),
    (
        re.compile(
            rf"{_SIGN}(?<!\w)(?P<currency>{_SYMBOL}|\b(?:{_CODE}) ) ?"
            rf"{_BARE_VALUE}{_MONEY_MAGNITUDE}{_PER}"
        ),
        _money,
    ),
    (
        re.compile(
            rf"{_SIGN}{_VALUE}(?: (?P<magnitude>{_MAGNITUDE_WORD}))? ?"
            rf"(?P<currency>[€£¥₹₩₽₿$]|(?:{_CODE})\b){_PER}"
        ),
        _money,
    ),
    (re.compile(r"(?<![\w.,])(\d{1,4}) ?¢"), lambda m: number(m.group(1)) + " cents"),
    (
        re.compile(r"(?<![\w.,])(\d{1,2})(?:'|′) ?(\d{1,2})(?:\"|″|'')"),
        lambda m: f"{number(m.group(1))} foot {number(m.group(2))}",
    ),
    (
        re.compile(
            rf"(?<![\w.,])({_AMOUNT})"
            r"(?:″|\"(?=[\s,.;)x×]|$)| ?in\b\.?(?=[,;)]| by|$)| ?in\.(?= [a-z]))"
        ),
        _inches,
    ),
    (re.compile(rf"(?<![\w.,])({_AMOUNT})(?:′|'(?=[\s,.;)x×]|$))"), _feet),
    (re.compile(rf"{_SIGN}{_VALUE} ?%"), lambda m: f"{_values(m)} percent"),
    (
        re.compile(
            rf"{_SIGN}{_VALUE}(?: (?P<magnitude>{_MAGNITUDE_WORD}))?(?P<gap>[ -]?)(?P<unit>{_UNIT})"
            rf"(?P<power>\^[23])?{_PER}(?![\w^'])(?:\.(?= [a-z\d]))?"
        ),
        _unit,
    ),
    (
        re.compile(rf"{_SIGN}{_VALUE} ?[Xx]\b(?!\^| (?:plus|minus|equals|times|is)\b)"),
        lambda m: f"{_values(m)} times",
    ),
    (re.compile(r"(\d{1,3}+(?:,\d{3})++|(?<![\d,])\d++)(?:st|nd|rd|th)\b"), _ordinal),
    (re.compile(r"(?<=[\w)])(?:\^|\*\*)[({]?([+-]?\d{1,4}|[a-z])[)}]?"), _exponent),
    (re.compile(r"(?<=\d) - (?=\d)"), " minus "),
    (re.compile(rf"{_SIGN}{_TIGHT_RANGE}"), _values),
    # "MP3", "A320", "4K", "COVID-19"
    (re.compile(r"(?<=[A-Za-z])-?(\d{3,4})(?!\d|[.,]\d)"), lambda m: f" {pairs(m.group(1))} "),
    (re.compile(r"(?<=[A-Za-z])-?(?=\d)|(?<=\d)(?=[A-Za-z])"), " "),
    (
        re.compile(rf"{_SIGN}(?P<low>{_AMOUNT})(?P<plus>\+(?!\d))?"),
        lambda m: _values(m) + (" plus" if m.group("plus") else ""),
    ),
]
