"""Calls of tools as endpoints stream them: in pieces, which say whose they are."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from dataclasses import dataclass

from stages.llm.sse import CallPart
from voicepipe.protocols import ToolCall


class BadCall(ValueError):
    """The model made a call that cannot be run; the text says what is wrong with it."""


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: str = ""


class CallParts:
    """Puts the calls of one reply together."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._at: dict[int | None, _Call] = {}

    def add(self, part: CallPart) -> None:
        """Pieces of one call have one index. It is forgotten, or always 0, at servers that send
        calls whole: then another id, or without an index another name, is another call."""
        call = self._at.get(part.index)
        if (
            call is None
            or (part.id and call.id and part.id != call.id)
            or (part.index is None and part.name)
        ):
            call = self._at[part.index] = _Call()
            self._calls.append(call)
        call.id = call.id or part.id
        call.name = call.name or part.name
        call.arguments += part.arguments

    def whole(self, tools: Collection[str]) -> list[ToolCall]:
        """The calls, now that the reply is over. Raises BadCall when one is not of `tools` or its
        arguments are no JSON object."""
        return [_whole(call, tools) for call in self._calls]


def _whole(call: _Call, tools: Collection[str]) -> ToolCall:
    if call.name not in tools:
        raise BadCall(f"it called a tool {call.name!r}, which it was not told of")
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise BadCall(f"it called {call.name!r} with bad JSON ({error})") from error
    if not isinstance(arguments, dict):
        raise BadCall(f"it called {call.name!r} with arguments that are no object")
    return ToolCall(call.name, arguments, call.id or f"call_{secrets.token_hex(8)}")
