"""Server-sent events of a chat completion: lines in, what they mean out; no I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass


class BadStream(ValueError):
    """The endpoint sent what is no chat completion stream; the text says what."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event says; fields it does not mention keep their defaults."""

    text: str = ""
    finished: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    generated_tokens: int | None = None


DONE = Chunk(finished=True)


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
    except json.JSONDecodeError as error:
        raise BadStream(f"it sent bad JSON ({error})") from error
    if not isinstance(event, dict):
        raise BadStream("it sent an event that is no object")
    if event.get("error"):
        raise BadStream(f"it reports {error_text(event)}")
    choices = event.get("choices") or [{}]
    choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
    usage = event.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    return Chunk(
        text=text if isinstance(text, str) else "",
        finished=choice.get("finish_reason") is not None,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(details.get("cached_tokens") if isinstance(details, dict) else 0) or 0,
        generated_tokens=_count(usage.get("completion_tokens")),
    )


def error_text(body: object) -> str:
    """What an error body says, in one line of at most 200 characters."""
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:200]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
