"""Numbers as digits, however they were written: "twenty three", "23" and "2 3" are the same words.

Transcribers write numbers as digits and callers' lines spell them out; neither is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_UNITS = {
    name: value
    for value, name in enumerate(
        [
            *["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
            *["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"],
            *["seventeen", "eighteen", "nineteen"],
        ]
    )
}
_TENS = {
    name: value * 10
    for value, name in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], start=2
    )
}
_SCALES = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}


def digits_apart(words: Sequence[str]) -> list[str]:
    """`words` (lower case) with every cardinal number, spelled or not, as single digits."""
    return [
        piece for word in _spelled_out(words) for piece in (word if word.isdecimal() else [word])
    ]


def _spelled_out(words: Sequence[str]) -> Iterator[str]:
    """Runs of number words become one decimal word each."""
    at = 0
    while at < len(words):
        value, length = _number(words, at)
        yield words[at] if value is None else str(value)
        at += max(1, length)


def _number(words: Sequence[str], start: int) -> tuple[int | None, int]:
    """The longest number that begins at `start`, and how many words it takes."""
    whole, part, last, at = 0, None, 1_000_000_000, start
    while at < len(words):
        word = words[at]
        if word in _SCALES and part is not None:
            scale = _SCALES[word]
            if scale == 100:
                part *= 100
            else:
                whole, part = whole + part * scale, 0
            last = scale
        elif (value := _UNITS.get(word, _TENS.get(word))) is not None:
            # after "twenty" only "one" to "nine" go on, after "hundred" anything below 100
            room = 10 if last in _TENS.values() else 100 if last >= 100 else 0
            if part is not None and not (0 < value < room):
                break
            part, last = (part or 0) + value, value
        else:
            break
        at += 1
    return (None if part is None else whole + part), at - start
