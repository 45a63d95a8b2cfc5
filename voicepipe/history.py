"""What was said in a session, as both sides heard it. Written once a turn, from its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Message:
    """One side's words: for the agent exactly those that were heard."""

    role: Literal["user", "agent"]
    text: str


class History:
    """The messages of a session in order."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def turn(self, user_text: str, agent_heard: str) -> None:
        """Record a user turn and what was heard of the reply to it."""
        self._messages.append(Message("user", user_text))
        if agent_heard.strip():
            self._messages.append(Message("agent", agent_heard))

    def reopen(self) -> str:
        """Take the last user turn and its reply out again; returns the user's text, or ""."""
        for index in range(len(self._messages) - 1, -1, -1):
            if self._messages[index].role == "user":
                text = self._messages[index].text
                del self._messages[index:]
                return text
        return ""
