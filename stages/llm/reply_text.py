"""From a reply's tokens to its text, and where it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from stages.llm.text import TextStream, ends_sentence
from stages.llm.tokenizer import Tokenizer
from voicepipe.errors import UsageError
from voicepipe.protocols import ToolCall


@dataclass(frozen=True, slots=True)
class ReplyLength:
    """When a reply ends if the model does not end it: at the first sentence end after
    `soft_tokens`, at the latest after `max_tokens`, or in front of one of `stops`. None of it
    counts in calls of tools, which have `call_tokens` of their own: half a call is none."""

    soft_tokens: int = 24
    max_tokens: int = 60
    stops: tuple[str, ...] = ()
    call_tokens: int = 256

    def __post_init__(self) -> None:
        for name in ("max_tokens", "call_tokens"):
            if (n := getattr(self, name)) < 1:
                raise UsageError(f"{name} is {n}: a reply needs at least 1 token")


class ReplyText:
    """The text of one reply while its tokens come."""

    def __init__(self, tokenizer: Tokenizer, length: ReplyLength) -> None:
        self._tokenizer = tokenizer
        self._length = length
        self._stream = TextStream(length.stops)
        self.text = ""
        """All deltas so far."""
        self.ids: list[int] = []
        """The tokens that are part of the reply."""
        self.deltas: deque[str | ToolCall] = deque()
        """Text, never empty, and behind all of it the calls of tools, each whole."""

    @property
    def n_left(self) -> int:
        """How many tokens may still come."""
        return self._length.max_tokens - len(self.ids)

    def take(self, token: int) -> bool:
        """The next token; whether more are wanted."""
        if self._ends_before(token):
            self._put(self._stream.finish())
            return False
        self.ids.append(token)
        self._put(self._stream.feed(self._tokenizer.bytes_of[token]))
        if self._stream.stopped or self.n_left == 0:
            self._put(self._stream.finish())
            return False
        return True

    def ids_of(self, text: str, calls: Sequence[ToolCall]) -> list[int]:
        """The tokens of what was read: a beginning of the text, or all of it and first calls."""
        return self._tokenizer.cut(self.ids, text)

    def _ends_before(self, token: int) -> bool:
        tokenizer = self._tokenizer
        if token in tokenizer.eos_ids or token in tokenizer.control_ids:
            return True
        long_enough = len(self.ids) >= self._length.soft_tokens
        starts_anew = tokenizer.bytes_of[token][:1].isspace()
        return long_enough and starts_anew and ends_sentence(self.text)

    def _put(self, delta: str) -> None:
        if delta:
            self.text += delta
            self.deltas.append(delta)
