"""From token bytes to text that may be spoken: whole characters, no stop string, a sensible end."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

SENTENCE_END = re.compile(r"[.!?\u2026][\"'\u201d\u2019)\]*_]*$")
NO_SENTENCE_END = re.compile(r"(?:\b(?:[A-Za-z]|Mr|Mrs|Ms|Dr|St|vs|etc|e\.g|i\.e|No)|\d)\.$")
"""Initials, abbreviations and numbers (of a list) whose full stop ends nothing."""


def ends_sentence(text: str) -> bool:
    """Whether speech may end after `text`."""
    return bool(SENTENCE_END.search(text)) and not NO_SENTENCE_END.search(text)


class TextStream:
    """Turns the bytes of tokens into deltas.

    The deltas are whole characters and concatenate to the text of all tokens (bytes that are no
    UTF-8 become U+FFFD), cut in front of whichever of `stops` is complete first. What could be the
    start of a stop string is held back, and no more than that.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stop = ""
        """The stop string that was met; nothing comes any more."""
        self.after_stop = ""
        """What came with its end and is no part of it."""

    @property
    def stopped(self) -> bool:
        return bool(self.stop)

    @property
    def is_suspect(self) -> bool:
        """Whether what came last may be the start of a stop string."""
        return bool(self._held)

    def feed(self, token: bytes) -> str:
        """The text that is certain after this token, maybe ""."""
        return self._released(self._decoder.decode(token), final=False)

    def finish(self) -> str:
        """The rest of the text."""
        return self._released(self._decoder.decode(b"", final=True), final=True)

    def _released(self, text: str, *, final: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        self._held = ""
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, start = min(found)
            self.stop, self.after_stop = text[start:end], text[end:]
            return text[:start]
        if not final and (n_held := self._n_suspect(text)):
            self._held = text[-n_held:]
            text = text[:-n_held]
        return text

    def _n_suspect(self, text: str) -> int:
        """Length of the longest end of `text` that is the start of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self._stops):
                return n
        return 0
