"""A conversation as token ids. The truth is a list of them; text is derived, and the cache follows.

Replies keep the ids they were generated with; words of users and results of tools have those that
the chat template gives them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from stages.llm.call_text import written
from stages.llm.dialogue import Dialogue, Turn
from stages.llm.template import After, ChatTemplate
from stages.llm.tokenizer import Tokenizer

MAX_TURNS_KEPT = 256
"""Turns of one conversation whose tokens are kept; more than fit a context of thousands."""

Tail = Literal["calls", "results", "header"]
"""Where the calls at the end of a conversation end: there, behind their results, or where the reply
to these begins."""


class ChatIds:
    """What was said, and the ids of it."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, system: str) -> None:
        self.dialogue = Dialogue()
        self.system_ids = template.system_ids(system)
        self.header_ids = template.reply_header_ids
        self._user_ids = lru_cache(MAX_TURNS_KEPT)(template.user_ids)
        self._result_ids = lru_cache(MAX_TURNS_KEPT)(template.result_ids)
        """Of the turns so far: their text is not tokenised again for every reply."""
        self._template, self._tokenizer = template, tokenizer

    def history(self) -> list[int]:
        """Everything said so far; calls at the end of which the results are to come end it."""
        return self._all("calls" if self.dialogue.waits else "results")

    @property
    def n_tokens(self) -> int:
        """Of all that was said, as far as the next user turn would find it."""
        return len(self._all("results"))

    def ahead(self, hint: str) -> list[int]:
        """History, the next user turn's header, and its words as far as they are known; in front
        of results history alone."""
        if self.dialogue.waits:
            return self.history()
        return self.history() + self.next_user_ids(hint, whole=False)

    def prompt(self, user: str) -> list[int]:
        """Up to where a reply to `user` begins."""
        return [*self._all("results"), *self.next_user_ids(user), *self.header_ids]

    def results_prompt(self) -> list[int]:
        """Up to where a reply to the results at the end begins."""
        return self._all("header")

    def next_user_ids(self, text: str, *, whole: bool = True) -> list[int]:
        """Words of the user that come now; `whole=False`: more of them will."""
        return self._template.user_ids(text, self._after(len(self.dialogue.turns)), whole=whole)

    def user_ids_of(self, turn: Turn) -> list[int]:
        """The words of one of the turns, with what is in front of them."""
        n = next(n for n, other in enumerate(self.dialogue.turns) if other is turn)
        return self._user_ids(turn.user, self._after(n))

    def truncate(self, heard_text: str) -> None:
        """See `protocols.Conversation`; calls behind a cut are written anew."""
        for said in self.dialogue.truncate(heard_text):
            said.ids = self._tokenizer.cut(said.ids, said.text)
            if said.calls:
                said.ids += self._tokenizer.encode_glue(written(said.calls))

    def shorten(self, n_tokens: int, n_kept: int) -> None:
        """Drop the oldest turns, but not the last `n_kept`, until at most `n_tokens` are left."""
        while len(self.dialogue.turns) > n_kept and self.n_tokens > n_tokens:
            del self.dialogue.turns[0]

    def _all(self, tail: Tail) -> list[int]:
        ids, turns = list(self.system_ids), self.dialogue.turns
        for n, turn in enumerate(turns):
            ids += self._turn(turn, self._after(n), tail if turn is turns[-1] else "results")
        return ids

    def _turn(self, turn: Turn, after: After, tail: Tail) -> list[int]:
        ids, replies = list(self._user_ids(turn.user, after)), turn.written
        if replies:
            ids += self.header_ids
        for said in replies:
            ids += said.ids
            end: Tail = tail if said is replies[-1] else "header"
            if said.calls and end != "calls":
                ids += self._result_ids(tuple(said.answers), reply=end == "header")
        return ids

    def _after(self, n: int) -> After:
        """What turn `n` comes after."""
        if n == 0:
            return "system" if self.system_ids else "start"
        written_before = self.dialogue.turns[n - 1].written
        if not written_before:
            return "user"
        return "results" if written_before[-1].calls else "reply"
