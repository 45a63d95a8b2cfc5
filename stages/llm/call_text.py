"""The text of a reply that may call tools: what is spoken, and the calls behind it.

A call is `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, as Qwen and Hermes write it; the
tags are tokens of their own or spelled out. A reply that begins with a brace is calls without tags,
as smaller ones of these models write them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from stages.llm.reply_text import ReplyLength, ReplyText
from stages.llm.text import ends_sentence
from stages.llm.tokenizer import Tokenizer
from voicepipe.errors import ComponentError
from voicepipe.protocols import ToolCall

OPENING, CLOSING = "<tool_call>", "</tool_call>"


def written(calls: Sequence[ToolCall]) -> str:
    """Calls as models write them."""
    bodies = (
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        for call in calls
    )
    return "\n".join(f"{OPENING}\n{body}\n{CLOSING}" for body in bodies)


class Reader(Protocol):
    """Reads calls while they come."""

    def feed(self, data: bytes) -> list[ToolCall]:
        """The calls that `data` completes."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether what came last begins no further call."""
        ...


class BareReader:
    """`Reader` of calls without tags."""

    def __init__(self) -> None:
        self._raw = b""

    def feed(self, data: bytes) -> list[ToolCall]:
        self._raw += data
        try:
            text = self._raw.decode().lstrip()
            call, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            return []
        self._raw = text[end:].encode()
        return [ToolCall(call["name"], call["arguments"])]

    @property
    def is_over(self) -> bool:
        return self._raw.lstrip()[:1] not in (b"", b"{")


class TaggedReader:
    """`Reader` of what follows the first opening tag."""

    def __init__(self) -> None:
        self._raw = b""
        self._in_call = True

    def feed(self, data: bytes) -> list[ToolCall]:
        self._raw += data
        calls = []
        while call := self._next():
            calls.append(call)
        return calls

    @property
    def is_over(self) -> bool:
        return not self._in_call and not OPENING.encode().startswith(self._raw.lstrip())

    def _next(self) -> ToolCall | None:
        """A call ends at the first closing tag that is not inside of a string of it."""
        if not self._in_call:
            rest = self._raw.lstrip()
            if not rest.startswith(OPENING.encode()):
                return None
            self._in_call, self._raw = True, rest.removeprefix(OPENING.encode())
        at = -1
        while (at := self._raw.find(CLOSING.encode(), at + 1)) >= 0:
            try:
                call = json.loads(self._raw[:at])
            except ValueError:
                continue
            self._in_call, self._raw = False, self._raw[at + len(CLOSING) :]
            return ToolCall(call["name"], call["arguments"])
        return None


class CallingText(ReplyText):
    """`ReplyText` of a model that may call tools, under a `ToolCallGrammar`.

    The reply ends after its calls. It does not end between a sentence and a call, nor inside of
    one: ComponentError when the first call is not over after `call_tokens`.
    """

    def __init__(self, tokenizer: Tokenizer, length: ReplyLength) -> None:
        super().__init__(tokenizer, replace(length, stops=(OPENING, CLOSING, *length.stops)))
        tags = {tokenizer.token_id(tag): tag.encode() for tag in (OPENING, CLOSING)}
        self._spelled = {n: tag for n, tag in tags.items() if n in tokenizer.control_ids}
        """Tags that are control tokens, which spell nothing elsewhere."""
        self._reader: Reader | None = None
        """From the first opening tag or brace on."""
        self._n_spoken = 0
        """Tokens in front of the one that completes that."""
        self._ends: list[int] = []
        """Of each call: the number of tokens to its end."""

    @property
    def n_left(self) -> int:
        if self._reader is None:
            return super().n_left
        return self._n_spoken + self._length.call_tokens - len(self.ids)

    def take(self, token: int) -> bool:
        if self._ends_before(token):
            return self._finish()
        self.ids.append(token)
        data = self._spelled.get(token, self._tokenizer.bytes_of[token])
        if self._reader is not None:
            return self._read(self._reader, data)
        if data.lstrip()[:1] == b"{" and not self.text.strip():
            return self._begin_calls(BareReader(), data)
        self._put(self._stream.feed(data))
        if self._stream.stop == OPENING:
            return self._begin_calls(TaggedReader(), self._stream.after_stop.encode())
        if token in self._spelled:  # a closing tag of nothing
            self.ids.pop()
        if self._stream.stopped or (self.n_left <= 0 and not self._stream.is_suspect):
            return self._finish()
        return True

    def ids_of(self, text: str, calls: Sequence[ToolCall]) -> list[int]:
        if calls:
            return self.ids[: self._ends[len(calls) - 1]]
        spoken = self.ids if self._reader is None else self.ids[: self._n_spoken]
        return self._tokenizer.cut(spoken, text)

    def _begin_calls(self, reader: Reader, data: bytes) -> bool:
        self._reader, self._n_spoken = reader, len(self.ids) - 1
        return self._read(reader, data)

    def _read(self, reader: Reader, data: bytes) -> bool:
        calls = reader.feed(data)
        self.deltas.extend(calls)
        self._ends += [len(self.ids)] * len(calls)
        if self.n_left <= 0 and not self._ends:
            raise ComponentError(
                f"language model: a call of a tool was not over after {self._length.call_tokens} "
                "tokens: bound the texts in its schema (maxLength), or raise call_tokens"
            )
        return self._finish() if reader.is_over or self.n_left <= 0 else True

    def _finish(self) -> bool:
        """Nothing more is wanted: neither half a tag nor anything behind the last call."""
        tail = self._stream.finish()
        if len(tail) == 1 or not (OPENING.startswith(tail) or CLOSING.startswith(tail)):
            self._put(tail)
        if self._ends:
            del self.ids[self._ends[-1] :]
        return False

    def _ends_before(self, token: int) -> bool:
        tokenizer = self._tokenizer
        if token in tokenizer.eos_ids:
            return True
        if token in tokenizer.control_ids:
            return token not in self._spelled
        if self._reader is not None or len(self.ids) < self._length.soft_tokens:
            return False
        data, opening = tokenizer.bytes_of[token], OPENING.encode()
        starts_anew = data[:1].isspace() or self.text[-1:].isspace()
        word = data.lstrip()
        may_call = self._stream.is_suspect or opening.startswith(word) or word.startswith(opening)
        return starts_anew and not may_call and ends_sentence(self.text.rstrip())
