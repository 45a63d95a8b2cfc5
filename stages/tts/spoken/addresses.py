"""How addresses are read: web, e-mail, network, files, versions, telephone numbers."""

from __future__ import annotations

import re

from stages.tts.spoken.numbers import digits
from stages.tts.spoken.rewriting import Rule

_TLD = (
    "com|org|net|edu|gov|mil|io|ai|dev|app|info|biz|co|me|tv|ly|gg|us|uk|ca|de|fr|eu|es|it|nl|ch|at"
    "|jp|cn|in|au|br|tech|xyz|cloud|online|site|store|blog|ms"
)
_TLD_AS_LETTERS = {"io": "I-O", "ai": "A-I", "tv": "TV", "uk": "UK", "us": "US", "eu": "EU"}
_LONGEST_SEGMENT = 24
_MOST_SEGMENTS = 2
_WORD = re.compile(r"[A-Za-z0-9]+|[-_.~+%]")
_SIGNS = {"-": "dash", "_": "underscore", ".": "dot", "~": "tilde", "+": "plus", "%": ""}


def _part(text: str) -> str:
    """A piece of an address: words, with the names of the signs between them."""
    words = [_SIGNS.get(word, word) for word in _WORD.findall(text)]
    return " ".join(word for word in words if word)


def _host(name: str) -> str:
    labels = name.lower().removeprefix("www.").split(".")
    labels = [*labels[:-1], _TLD_AS_LETTERS.get(labels[-1], labels[-1])]
    return " dot ".join(_part(label) for label in labels if label)


def _web(match: re.Match[str]) -> str:
    """The host and the first short pieces of the path: what one would tell a friend. Nobody can
    follow a query string by ear."""
    found = match.group("host")
    if "@" in found:  # user:password@host
        found = found.rsplit("@", 1)[1]
    host, _, port = found.partition(":")
    spoken = _host(host)
    if port:
        spoken += f" port {port}"
    path = re.split(r"[?#]", match.group("path") or "", maxsplit=1)[0]
    for segment in [s for s in path.split("/") if s][:_MOST_SEGMENTS]:
        if len(segment) > _LONGEST_SEGMENT or not re.fullmatch(r"[\w.~-]+", segment):
            break
        spoken += f" slash {_part(segment)}"
    return spoken


def _email(match: re.Match[str]) -> str:
    return f"{_part(match.group(1))} at {_host(match.group(2))}"


def _dotted(match: re.Match[str]) -> str:
    return match.group().replace(".", " dot ")


def _version(match: re.Match[str]) -> str:
    name = "version " if match.group(1) else ""
    return name + " point ".join(match.group(2).split("."))


def _phone(match: re.Match[str]) -> str:
    text = match.group()
    groups = re.findall(r"\d+", text)
    plus = "plus " if "+" in text else ""
    return plus + ", ".join(digits(group) for group in groups)


def _path(match: re.Match[str]) -> str:
    parts = [_part(part) for part in re.split(r"[/\\]", match.group())]
    return " slash ".join(parts).strip()


_URL_END = r"(?<![.,;:!?'\")\]}])"

ADDRESSES: list[Rule] = [
    (re.compile(r"\b(?:mailto|tel):(?=\S)", re.I), ""),
    (
        re.compile(
            r"\b([A-Za-z0-9][\w.+%-]{0,63})@((?:[A-Za-z0-9-]{1,63}\.){1,5}[A-Za-z]{2,24})\b(?!@)"
        ),
        _email,
    ),
    (
        re.compile(
            r"\b(?:https?|ftp|wss?|file)://(?P<host>[^\s/?#<>\"]{1,253})"
            rf"(?P<path>[/?#][^\s<>\"]{{0,900}})?{_URL_END}",
            re.I,
        ),
        _web,
    ),
    (
        re.compile(
            rf"(?<![\w@./-])(?P<host>(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}(?:{_TLD})(?::\d{{2,5}}(?!\d))?)"
            rf"(?P<path>/[^\s<>\"]{{0,900}})?{_URL_END}(?![\w@-])",
        ),
        _web,
    ),
    # a telephone number: +49 30 1234567, (555) 123-4567, 1-800-555-0199, 555-0199, 020 7946 0958
    (
        re.compile(
            r"(?<![\w.])(?:\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,6}"
            r"|(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}"
            r"|\d{3}-\d{4}"
            r"|0\d{2,4}[ -]\d{3,4}[ -]\d{3,4}"
            r"|\d{4}([ -])\d{4}\1\d{4}\1\d{4})(?![\w-]|\.\d)"
        ),
        _phone,
    ),
    # 978-3-16-148410-0, but not a date
    (
        re.compile(
            r"(?<![\w./-])(?!\d{4}-\d\d?-\d\d?(?!\d))(?!\d\d?-\d\d?-\d{2,4}(?!\d))"
            r"\d+(?:-\d+){2,7}(?![\w/-]|\.\d)"
        ),
        _phone,
    ),
    (
        re.compile(r"(?<![\w.])(localhost|(?:\d{1,3}\.){3}\d{1,3}):(\d{2,5})(?!\w)"),
        r"\1 port \2",
    ),
    (re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)"), _dotted),
    (
        re.compile(
            r"(?<![\w.])(v ?)?(?!\d\d?\.\d\d?\.\d{4}\b)(\d{1,4}(?:\.\d{1,5}){2,4})(?![\d]|\.\d)",
            re.I,
        ),
        _version,
    ),
    (
        re.compile(r"(?<![\w.])(v(?:er\.?)? ?)(\d{1,4}(?:\.\d{1,5})?)(?![\w]|\.\d)", re.I),
        _version,
    ),
    # /etc/hosts, ~/notes, C:\Users\me, ./run.sh
    (
        re.compile(
            r"(?<![\w/.])(?:[A-Za-z]:(?=\\)|~(?=/)|\.{1,2}(?=/))?(?:[/\\][\w.-]{1,60}){1,9}[/\\]?(?<![.])"
        ),
        _path,
    ),
]
"""In this order: what is found first may contain what would be found later."""
