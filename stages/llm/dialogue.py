"""What was said in a conversation: the turns that the model must know of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Turn:
    """What the user said and what was heard of the reply, "" if nothing was."""

    user: str
    reply: str = ""
    reply_ids: list[int] = field(default_factory=list)
    """The reply's tokens, for models that keep them; they spell `reply`."""


class Dialogue:
    """The turns of one conversation, oldest first."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def add(self, user: str, reply: str = "", reply_ids: Sequence[int] = ()) -> None:
        self.turns.append(Turn(user, reply, list(reply_ids)))

    def truncate(self, heard_text: str) -> Turn | None:
        """Cut the last reply to `heard_text` and return its turn, None when there is no reply.
        Raises ValueError when `heard_text` is no prefix of that reply."""
        turn = next((turn for turn in reversed(self.turns) if turn.reply), None)
        spoken = turn.reply if turn else ""
        if not spoken.startswith(heard_text):
            raise ValueError(f"heard text {heard_text!r} is no prefix of the reply {spoken!r}")
        if turn:
            turn.reply = heard_text
        return turn

    def reopen(self) -> str:
        """Take the last turn out; its user's text, "" when there is none."""
        return self.turns.pop().user if self.turns else ""

    def messages(self, system: str) -> list[dict[str, str]]:
        """The conversation as chat messages."""
        messages = [{"role": "system", "content": system}] if system else []
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.user})
            if turn.reply:
                messages.append({"role": "assistant", "content": turn.reply})
        return messages
