"""Server-sent events of a chat completion: bytes in, what they mean out; no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

MAX_LINE_BYTES = 1_000_000
"""No event of a spoken reply comes near it; without a limit a broken server fills the memory."""

HIDDEN_FIELDS = ("reasoning_content", "reasoning", "tool_calls", "function_call", "refusal")
"""Channels of a delta that are no speech."""


class BadStream(ValueError):
    """The endpoint sent what is no chat completion stream; the text says what."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a call of a tool: of its JSON, and mostly only in the first one id and name."""

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event says; fields it does not mention keep their defaults."""

    text: str = ""
    hidden: bool = False
    """It has a token of another channel: thinking, a tool call."""
    finished: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    calls: tuple[CallPart, ...] = ()

    @property
    def has_token(self) -> bool:
        """Whether the model said something, in whichever channel; roles and usage are nothing."""
        return bool(self.text) or self.hidden


DONE = Chunk(finished=True)


class Lines:
    """Cuts a stream of bytes into lines. Only line feeds end one (with or without a carriage
    return): JSON may hold U+2028 and others that `str.splitlines` takes for line ends too."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes. Raises BadStream when a line has no end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise BadStream(f"it sent a line of more than {MAX_LINE_BYTES:,} bytes")
        return [_text(line) for line in lines]

    def finish(self) -> str:
        """What came after the last line end."""
        return _text(self._rest)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", errors="replace")


def parse_line(line: str) -> Chunk | None:
    """The meaning of one line of the stream, None for lines without any (comments, blanks, other
    fields). Raises BadStream for data that is not understood and for errors the server reports."""
    if not line.startswith("data:"):
        return None
    data = line.removeprefix("data:").strip()
    if data == "[DONE]":
        return DONE
    try:
        event = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadStream(f"it sent bad JSON ({error})") from error
    if not isinstance(event, dict):
        raise BadStream("it sent an event that is no object")
    if event.get("error"):
        raise BadStream(f"it reports {error_text(event)}")
    choices = event.get("choices")
    choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
    delta = _object(choice.get("delta"))
    usage = _object(event.get("usage"))
    timings = _object(event.get("timings"))  # of llama-server, at the end
    cached = _count(_object(usage.get("prompt_tokens_details")).get("cached_tokens"))
    return Chunk(
        text=_string(delta.get("content")),
        hidden=any(delta.get(field) for field in HIDDEN_FIELDS),
        calls=_calls(delta.get("tool_calls")),
        finished=choice.get("finish_reason") is not None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(timings.get("cache_n")) if cached is None else cached,
        generated_tokens=_count(usage.get("completion_tokens")),
        drafted_tokens=_count(timings.get("draft_n")),
        accepted_tokens=_count(timings.get("draft_n_accepted")),
    )


def error_text(body: object) -> str:
    """What an error body says, in one line of at most 200 characters."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]


def _calls(value: object) -> tuple[CallPart, ...]:
    parts = []
    for part in map(_object, value if isinstance(value, list) else ()):
        function = _object(part.get("function"))
        arguments = function.get("arguments")
        whole = json.dumps(arguments) if isinstance(arguments, dict) else _string(arguments)
        name, id_ = _string(function.get("name")), _string(part.get("id"))
        parts.append(CallPart(_count(part.get("index")), id_, name, whole))
    return tuple(parts)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
