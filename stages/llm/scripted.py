"""A language model that says what it is told to, with seeded latencies: for tests and demos of
everything around it. Under the virtual clock it takes no real time."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from stages.llm.dialogue import Dialogue
from stages.llm.reply import GeneratedReply
from voicepipe.errors import ComponentError
from voicepipe.protocols import Conversation, ReplyStats

Breakage = Literal["raise", "raise_midway", "hang", "hang_midway", "nothing"]
"""What goes wrong with a reply: an error before or after its first token, silence for ever before
or after it, or an end without a token."""

TOKEN = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class Latency:
    """Of a scripted reply: until its first token, and between tokens. Each is drawn uniformly
    within +-`jitter` of itself (0..1), from `seed`, the conversation's number and the reply's."""

    first_token_ms: float = 50.0
    per_token_ms: float = 10.0
    jitter: float = 0.0
    seed: int = 0


class ScriptedLLM:
    """Answers from `replies`: the k-th user turn of a conversation gets the k-th of them, round and
    round, or what a function makes of the user's text. Tokens are words.

    `broken` says in which user turns (counted from 0 in what the conversation holds) what goes
    wrong. An empty `replies` never says anything.
    """

    def __init__(
        self,
        replies: Sequence[str] | Callable[[str], str],
        *,
        first_token_ms: float = 50.0,
        per_token_ms: float = 10.0,
        jitter: float = 0.0,
        seed: int = 0,
        broken: Mapping[int, Breakage] | None = None,
    ) -> None:
        self._replies = replies
        self._latency = Latency(first_token_ms, per_token_ms, jitter, seed)
        self._broken = dict(broken or {})
        self._n_opened = 0

    def open(self, system: str) -> AbstractAsyncContextManager[Conversation]:
        return self._open(system)

    @asynccontextmanager
    async def _open(self, system: str) -> AsyncIterator[Conversation]:
        script = _Script(self._replies, self._latency, self._broken, self._n_opened)
        self._n_opened += 1
        yield _ScriptedConversation(script, system)


@dataclass(slots=True)
class _Script:
    """What one conversation will say, and how."""

    replies: Sequence[str] | Callable[[str], str]
    latency: Latency
    broken: Mapping[int, Breakage]
    conversation: int
    n_replies: int = 0

    def line(self, turn: int, user_text: str) -> _Line:
        if callable(self.replies):
            text = self.replies(user_text)
        else:
            text = self.replies[turn % len(self.replies)] if self.replies else ""
        delays = random.Random(f"{self.latency.seed}/{self.conversation}/{self.n_replies}")
        self.n_replies += 1
        return _Line(TOKEN.findall(text), self.latency, self.broken.get(turn), delays)


@dataclass(slots=True)
class _Line:
    """One reply as it will be given."""

    tokens: list[str]
    latency: Latency
    breakage: Breakage | None
    delays: random.Random

    async def delay(self, ms: float) -> None:
        spread = self.latency.jitter * self.delays.uniform(-1, 1)
        await asyncio.sleep(ms * (1 + spread) / 1000)


class _ScriptedConversation:
    """`protocols.Conversation` without a model."""

    def __init__(self, script: _Script, system: str) -> None:
        self._script, self._system = script, system
        self.dialogue = Dialogue()

    def extend(self, text: str) -> None:
        """Nothing to prefill."""

    def reply(self, text: str, *, held: bool = False) -> GeneratedReply:
        said = sum(_n_tokens(m["content"]) for m in self.dialogue.messages(self._system))
        stats = ReplyStats(prompt_tokens=said + _n_tokens(text), cached_tokens=said)
        line = self._script.line(len(self.dialogue.turns), text)
        return GeneratedReply(_ScriptedReply(self, text, line, stats))

    def truncate(self, heard_text: str) -> None:
        self.dialogue.truncate(heard_text)

    def add_user_text(self, text: str) -> None:
        self.dialogue.add(text)

    def reopen(self) -> str:
        return self.dialogue.reopen()


@dataclass(slots=True)
class _ScriptedReply:
    """`ReplySource` that waits and speaks."""

    conversation: _ScriptedConversation
    user_text: str
    line: _Line
    stats: ReplyStats = field(default_factory=ReplyStats)

    def release(self) -> None:
        """Nothing is shared, so nothing has to come first."""

    def drop(self) -> None:
        """Nothing is kept of it."""

    def adopt(self, text: str) -> None:
        self.conversation.dialogue.add(self.user_text, text)

    async def generate(self, emit: Callable[[str], Awaitable[None]]) -> None:
        line = self.line
        await line.delay(line.latency.first_token_ms)
        await self._break("")
        for n, token in enumerate(line.tokens):
            if n > 0:
                await line.delay(line.latency.per_token_ms)
            self.stats = replace(self.stats, generated_tokens=n + 1)
            await emit(token)
            if n == 0:
                await self._break("_midway")

    async def _break(self, moment: str) -> None:
        breakage = self.line.breakage
        if breakage == "nothing":
            self.line.tokens = []
        elif breakage == f"raise{moment}":
            raise ComponentError("scripted language model: told to fail at this reply")
        elif breakage == f"hang{moment}":
            await asyncio.Event().wait()


def _n_tokens(text: str) -> int:
    return len(TOKEN.findall(text))
