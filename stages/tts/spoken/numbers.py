"""English number words, American style: "one hundred twenty-three", no "and".

Written out here because the usual library (num2words) is LGPL, does not install from wheels alone
and says "one hundred and twenty-three"; what a voice needs of it fits on this page.
"""

from __future__ import annotations

import re

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_POWERS = (
    *("", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion"),
    *("sextillion", "septillion", "octillion", "nonillion", "decillion"),
)
_LARGEST = 10 ** (3 * len(_POWERS))
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}

NUMBER = r"(?:\d{1,3}+(?:,\d{3})++(?!\d)(?:\.\d++)?|\d++(?:\.\d++)?|(?<![\w.])\.\d++)"
"""Regex of "5", "1,234.50" and ".5". Possessive: the time it takes is linear in the digits."""


def cardinal(n: int) -> str:
    """ "forty-two", also of negative numbers; digit by digit from 10^36 on."""
    if n < 0:
        return "minus " + cardinal(-n)
    if n >= _LARGEST:
        return digits(str(n))
    if n < 1000:
        return _below_thousand(n)
    groups: list[str] = []
    for power in _POWERS:
        n, group = divmod(n, 1000)
        if group:
            groups.append(f"{_below_thousand(group)} {power}".rstrip())
    return " ".join(reversed(groups))


def _below_thousand(n: int) -> str:
    if n >= 100:
        rest = f" {_below_thousand(n % 100)}" if n % 100 else ""
        return f"{_SMALL[n // 100]} hundred{rest}"
    if n < 20:
        return _SMALL[n]
    return _TENS[n // 10 - 2] + (f"-{_SMALL[n % 10]}" if n % 10 else "")


def ordinal(n: int) -> str:
    """ "forty-second"."""
    return _as_ordinal(cardinal(n))


def _as_ordinal(words: str) -> str:
    split = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[split:]
    if last in _ORDINALS:
        return words[:split] + _ORDINALS[last]
    return words[:split] + (last[:-1] + "ie" if last.endswith("y") else last) + "th"


def year(n: int) -> str:
    """ "nineteen oh five", "two thousand six", "twenty twenty-six"."""
    if not 1000 <= n <= 9999 or n % 1000 < 10:
        return cardinal(n)
    century, rest = divmod(n, 100)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def pairs(text: str) -> str:
    """Three or four digits as in a model name: "three twenty", "forty ninety"."""
    n = int(text)
    if len(text) == 4:
        return year(n) if n >= 1000 else digits(text)
    if n < 100 or n % 100 == 0:
        return cardinal(n) if n >= 100 else digits(text)
    return f"{cardinal(n // 100)} {'oh ' if n % 100 < 10 else ''}{cardinal(n % 100)}"


def plural(words: str) -> str:
    """Of number words: "nineties", "hundreds", "sixes"."""
    if words.endswith("y"):
        return words[:-1] + "ies"
    return words + ("es" if words.endswith("x") else "s")


def digits(text: str) -> str:
    """The digits of `text` one by one, many in groups: "one two three, four five six"."""
    names = [_SMALL[int(c)] for c in text if c in "0123456789"]
    if len(names) <= 5:
        return " ".join(names)
    sizes = [3] * (len(names) // 3)
    for i in range(len(names) % 3):
        sizes[-1 - i % len(sizes)] += 1
    groups, at = [], 0
    for size in sizes:
        groups.append(" ".join(names[at : at + size]))
        at += size
    return ", ".join(groups)


_HALVES = {2: ("half", "halves"), 4: ("quarter", "quarters")}
_NAMED_FRACTIONS = frozenset((2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64))


def fraction(top: int, bottom: int) -> str:
    """ "three quarters", "eight out of ten", "one hundred twenty over eighty"."""
    if bottom in _NAMED_FRACTIONS and 0 < top < bottom:
        one, many = _HALVES.get(bottom, (ordinal(bottom), ordinal(bottom) + "s"))
        return f"{cardinal(top)} {one if top == 1 else many}"
    return f"{cardinal(top)} {'out of' if top <= bottom else 'over'} {cardinal(bottom)}"


def number(text: str) -> str:
    """The words of a number as it is written: "1,234", "0.50", "007", "1/2", "2 1/2"."""
    if "/" in text:
        return _mixed(text)
    whole, _, decimals = text.partition(".")
    if decimals:
        point = f"point {digits(decimals).replace(',', '')}"
        return f"{_whole(whole)} {point}" if whole else point
    return _whole(whole)


def _whole(text: str) -> str:
    bare = re.sub(r"\D", "", text)
    leading_zero = len(text) > 1 and text[0] == "0"
    a_code = bare == text and len(text) >= 8 and not text.endswith("000")
    if leading_zero or a_code or len(bare) > 36:
        return digits(text)
    return cardinal(int(bare))


def _mixed(text: str) -> str:
    found = re.fullmatch(r"(?:(\d+) )?(\d+)/(\d+)", text)
    if found is None:
        return " ".join(number(part) for part in re.findall(NUMBER, text))
    whole, top, bottom = found.groups()
    part = fraction(int(top), int(bottom))
    if whole is None:
        return part
    if part.startswith("one "):
        part = ("an " if part[4] in "aeiou" else "a ") + part[4:]
    return f"{cardinal(int(whole))} and {part}"
