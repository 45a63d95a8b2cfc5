"""What of a model's text is meant to be heard, for endpoints that send all of it as content."""

from __future__ import annotations

from collections.abc import Sequence

SILENT_TAGS = ("think", "thinking", "tool_call")
"""Of the chat formats of Qwen, DeepSeek and Hermes."""


class SpokenText:
    """Takes `<think>...</think>` and its like out of a stream of text, and the white space behind.

    What could be the start of a tag is held back, and no more than that; an element that is never
    closed is silent to the end.
    """

    def __init__(self, tags: Sequence[str] = SILENT_TAGS) -> None:
        self._ends = {f"<{tag}>": f"</{tag}>" for tag in tags}
        self._held = ""
        self._until = ""
        """The tag that ends the silence, "" while there is none."""
        self._after_tag = False

    def feed(self, text: str) -> str:
        """The text that is certain to be meant to be heard, maybe ""."""
        self._held += text
        spoken = []
        while True:
            marks = [self._until] if self._until else list(self._ends)
            found = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
            if not found:
                break
            at, mark = min(found)
            spoken.append(self._heard(self._held[:at]))
            self._held = self._held[at + len(mark) :]
            self._after_tag = bool(self._until)
            self._until = "" if self._until else self._ends[mark]
        n_safe = len(self._held) - _n_suspect(self._held, marks)
        spoken.append(self._heard(self._held[:n_safe]))
        self._held = self._held[n_safe:]
        return "".join(spoken)

    def finish(self) -> str:
        """The rest of the text."""
        rest, self._held = self._held, ""
        return self._heard(rest)

    def _heard(self, text: str) -> str:
        if self._until:
            return ""
        if self._after_tag:
            text = text.lstrip()
            self._after_tag = not text
        return text


def _n_suspect(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of `text` that is the start of one of `marks`."""
    longest = min(len(text), max(map(len, marks)) - 1)
    return next(
        (n for n in range(longest, 0, -1) if any(mark.startswith(text[-n:]) for mark in marks)), 0
    )
