"""What was said in a conversation: the turns that the model must know of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from voicepipe.errors import UsageError
from voicepipe.protocols import ToolCall

Message = dict[str, Any]
"""As in OpenAI's API."""

NO_RESULT = "No result is known yet. The call was made; do not repeat it."
"""What the model reads as the result of a call that has none when the conversation goes on."""


@dataclass(slots=True)
class Said:
    """One reply: what was heard of it, the calls it ended with, and their results."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    """Its tokens, for models that keep them; they spell `text` and the calls."""
    calls: Sequence[ToolCall] = ()
    results: Sequence[str] | None = None

    @property
    def waits(self) -> bool:
        """Whether its calls have no results."""
        return bool(self.calls) and self.results is None

    @property
    def answers(self) -> Sequence[str]:
        """What the model is to read after its calls, one for each."""
        return [NO_RESULT] * len(self.calls) if self.results is None else self.results


@dataclass(slots=True)
class Turn:
    """What the user said and the replies: the first to that, each other one to the results of the
    calls of the one before it."""

    user: str
    replies: list[Said] = field(default_factory=list)

    @property
    def written(self) -> list[Said]:
        """The replies of which there is anything left."""
        return [said for said in self.replies if said.text or said.calls]

    @property
    def reply(self) -> str:
        """All that was heard."""
        return "".join(said.text for said in self.replies)


class Dialogue:
    """The turns of one conversation, oldest first."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    @property
    def waits(self) -> bool:
        """Whether the last reply made calls that have no results yet."""
        return bool(self.turns and self.turns[-1].replies and self.turns[-1].replies[-1].waits)

    def add(self, user: str) -> Turn:
        """A user turn without a reply."""
        self.turns.append(Turn(user))
        return self.turns[-1]

    def adopt(self, turn: Turn, said: Said) -> None:
        """`said` replies to `turn`, which is new, or to results in it."""
        if not turn.replies:
            self.turns.append(turn)
        turn.replies.append(said)

    def answer(self, results: Sequence[str]) -> Turn:
        """Give the calls of the last reply their results; its turn. Again until there is a reply
        to them. Raises UsageError as `protocols.Conversation.reply_to_results`."""
        turn = self.turns[-1] if self.turns else None
        last = turn.replies[-1] if turn and turn.replies else None
        if turn is None or last is None or not last.calls:
            raise UsageError("the last reply made no calls: there are no results to reply to")
        last.results = _matching(results, last)
        return turn

    def add_results(self, results: Sequence[str]) -> None:
        """Give the latest calls without results theirs. Raises UsageError where there are none."""
        replies = [said for turn in self.turns for said in turn.replies if said.waits]
        if not replies:
            raise UsageError("no calls wait for results: they have some, or their turn is gone")
        replies[-1].results = _matching(results, replies[-1])

    def truncate(self, heard_text: str) -> list[Said]:
        """Cut the last reply (all of its turn's in a row) to `heard_text`; which were cut. Raises
        ValueError when `heard_text` is no prefix of it."""
        turn = next((turn for turn in reversed(self.turns) if turn.replies), Turn(""))
        if not turn.reply.startswith(heard_text):
            raise ValueError(f"heard text {heard_text!r} is no prefix of the reply {turn.reply!r}")
        cut, left = [], heard_text
        for said in turn.replies:
            heard, left = left[: len(said.text)], left[len(said.text) :]
            if heard != said.text:
                said.text = heard
                cut.append(said)
        return cut

    def reopen(self) -> str:
        """Take the last turn out; its user's text, "" when there is none."""
        return self.turns.pop().user if self.turns else ""

    def messages(self, system: str) -> list[Message]:
        """The conversation as chat messages."""
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.user})
            for said in turn.written:
                messages += _messages(said)
        return messages


def _messages(said: Said) -> list[Message]:
    message: Message = {"role": "assistant", "content": said.text}
    if not said.calls:
        return [message]
    calls = [
        {
            "type": "function",
            "id": call.id,
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for call in said.calls
    ]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(said.calls, said.answers, strict=True)
    ]
    return [{**message, "tool_calls": calls}, *results]


def _matching(results: Sequence[str], said: Said) -> list[str]:
    if len(results) != len(said.calls):
        raise UsageError(
            f"{len(results)} results for {len(said.calls)} calls: give one for each, in their order"
        )
    return list(results)
