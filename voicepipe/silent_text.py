"""What of a reply is not for the ear (thinking, tool calls, JSON) and what must stay in one piece.

Silent text stays part of the reply's text, and so of the history; it only never reaches a voice.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum

_NAMES = (
    *("think", "thinking", "thought", "thoughts", "reasoning", "reflection", "scratchpad"),
    *("tool_call", "tool_calls", "tool_response", "function_call", "function_calls"),
)
_CLOSERS = {f"<{name}>": f"</{name}>" for name in _NAMES} | {"<|python_tag|>": "<|eom_id|>"}
_STRAY_CLOSERS = frozenset(f"</{name}>" for name in _NAMES)

_LONGEST_TAG = 80
_LONGEST_SPAN = 200
"""Characters after which an opening bracket or backtick is taken for a plain character: longer
than any link text or inline code that is read aloud."""
_LONGEST_TARGET = 2000


class Kind(Enum):
    SPOKEN = "spoken"
    UNSPOKEN = "unspoken"
    """Markup whose spoken form is not its letters: a fenced code block, the target of a link."""
    SILENT = "silent"
    ALL_SILENT = "all silent"
    """The end of thinking that never began: some chat templates open it themselves, so all of the
    text up to here was silent."""


_Span = Generator[Kind, str, Kind | None]
"""Recognises one span, from the character after its opener. Is sent one character at a time and
yields what the span is if the text ends there; returns the kind of the whole span when the
character sent last closed it, None when that character shows that there is no span."""


def _until(closer: str, kind: Kind) -> _Span:
    tail = ""
    while tail != closer:
        tail = (tail + (yield kind).lower())[-len(closer) :]
    return kind


def _tag() -> _Span:
    tag = "<"
    while not tag.endswith(">"):
        char = yield Kind.SPOKEN
        if char.isspace() or char == "<" or len(tag) > _LONGEST_TAG:
            return None
        tag += char.lower()
    if tag in _STRAY_CLOSERS:
        return Kind.ALL_SILENT
    closer = "</function>" if tag.startswith("<function=") else _CLOSERS.get(tag)
    return (yield from _until(closer, Kind.SILENT)) if closer else None


def _json_object() -> _Span:
    char = yield Kind.SPOKEN
    while char.isspace():
        char = yield Kind.SPOKEN
    if char == "}":
        return Kind.SILENT
    if char != '"':
        return None
    yield from _json_string()
    char = yield Kind.SILENT
    while char.isspace():
        char = yield Kind.SILENT
    if char != ":":
        return None
    depth = 1
    while depth:
        char = yield Kind.SILENT
        if char == '"':
            yield from _json_string()
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
    return Kind.SILENT


def _json_string() -> _Span:
    while (char := (yield Kind.SILENT)) != '"':
        if char == "\\":
            yield Kind.SILENT
    return Kind.SILENT


def _bracket() -> _Span:
    """`[text](target)` stays whole; `[TOOL_CALLS]` (Mistral) silences the rest of the reply."""
    text = "["
    while not text.endswith("]"):
        char = yield Kind.SPOKEN
        if char in "[{\n" or len(text) > _LONGEST_SPAN:
            return None
        text += char
    if text == "[TOOL_CALLS]":
        yield from _until("</s>", Kind.SILENT)
        return Kind.SILENT
    if (yield Kind.SPOKEN) != "(":
        return None
    for _ in range(_LONGEST_TARGET):
        char = yield Kind.UNSPOKEN
        if char == ")":
            return Kind.SPOKEN
        if char == "\n":
            return None
    return None


def _backticks() -> _Span:
    n = 1
    while (char := (yield Kind.SPOKEN)) == "`":
        n += 1
    if n >= 3:
        return (yield from _until("`" * n, Kind.UNSPOKEN))
    code = char
    while not code.endswith("`" * n):
        if char == "\n" or len(code) > _LONGEST_SPAN:
            return None
        char = yield Kind.SPOKEN
        code += char
    return Kind.SPOKEN


_OPENERS = {"<": _tag, "{": _json_object, "[": _bracket, "`": _backticks}


class ReplyScanner:
    """Follows a reply character by character.

    Of the last character, as far as is known by then: `kind` says what it is for the voice, and
    `inside` that there must be no cut in front of it, because a span that should stay whole (or
    may turn out to be one) opened before it. `open` says that such a span goes on.
    """

    def __init__(self) -> None:
        self.kind = Kind.SPOKEN
        self.inside = False
        self.silent: list[tuple[int, int]] = []
        """Silent spans that are over, as (start, end) in characters of the reply."""
        self._n_chars = 0
        self._start = 0
        self._span: _Span | None = None

    @property
    def open(self) -> bool:
        return self._span is not None

    def step(self, char: str) -> None:
        """Take the next character of the reply."""
        self._n_chars += 1
        self.kind = Kind.SPOKEN
        self.inside = False
        if self._span is not None:
            try:
                self.kind = self._span.send(char)
                self.inside = True
                return
            except StopIteration as over:
                self._span = None
                if over.value is not None:
                    self.kind = over.value
                    self.inside = True
                    self._close(over.value)
                    return
        if char in _OPENERS:
            self._span = _OPENERS[char]()
            self._start = self._n_chars - 1
            self.kind = next(self._span)

    def finish(self) -> None:
        """The text ends here: a span that is still open ends with it."""
        if self._span is not None:
            self._span = None
            self._close(self.kind)

    def _close(self, kind: Kind) -> None:
        if kind is Kind.SILENT:
            self.silent.append((self._start, self._n_chars))
        elif kind is Kind.ALL_SILENT:
            self.silent = [(0, self._n_chars)]


def without_silent(text: str) -> str:
    """`text` without its silent spans, also one that it leaves open or never opened."""
    scanner = ReplyScanner()
    for char in text:
        scanner.step(char)
    scanner.finish()
    ends = [0, *(end for _, end in scanner.silent)]
    starts = [*(start for start, _ in scanner.silent), len(text)]
    return "".join(text[end:start] for end, start in zip(ends, starts, strict=True))
