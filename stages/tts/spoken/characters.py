"""One way of writing what Unicode lets one write in several."""

# ruff: noqa: RUF001 - look-alike characters are the subject

from __future__ import annotations

import re
import unicodedata

_UNIFY = str.maketrans(
    {
        **dict.fromkeys("‘’‛ʼ´＇", "'"),
        **dict.fromkeys("“”„‟«»〝〞＂", '"'),
        **dict.fromkeys("\u2010\u2011\u2212", "-"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff\ufe0e\ufe0f", None),
        "\u20e3": ", ",  # the frame of a digit in a box
        **dict.fromkeys("™®©℠", " "),
        "º": "°",
        "²": "^2",
        "³": "^3",
        "⁻": "^-",
        **{sign: f"^{digit}" for sign, digit in zip("⁰¹⁴⁵⁶⁷⁸⁹", "01456789", strict=True)},
        "。": ".",
        "、": ",",
        "⁄": "/",
        "ł": "l",
        "Ł": "L",
        "đ": "d",
        "Đ": "D",
        "ı": "i",
    }
)
_VULGAR_FRACTION = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")


def unified(text: str) -> str:
    """One way of writing what Unicode lets one write in several."""
    text = _VULGAR_FRACTION.sub(" ", text).translate(_UNIFY)
    text = unicodedata.normalize("NFKC", text).translate(_UNIFY)
    if text.isascii():
        return text
    return "".join(str(unicodedata.digit(c, c)) if c.isdecimal() else c for c in text)


def in_latin(text: str) -> str:
    """Letters without what Western European languages do not put on them ("ř" -> "r"), and nothing
    of what has no Latin letter in it."""
    return text if text.isascii() else "".join(_base(c) for c in text)


def _base(char: str) -> str:
    if char <= "ÿ" or char in "–—―…":
        return char
    base = unicodedata.normalize("NFD", char)[0]
    return base if base.isascii() else " "
