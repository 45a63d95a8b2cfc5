"""A language model that says what it is told to, with seeded latencies: for tests and demos of
everything around it. Under the virtual clock it takes no real time."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from stages.llm.dialogue import Dialogue, Said, Turn
from stages.llm.reply import Emit, GeneratedReply
from stages.llm.tools import as_openai
from voicepipe.errors import ComponentError
from voicepipe.protocols import Conversation, ReplyStats, ToolCall, ToolSpec

Breakage = Literal["raise", "raise_midway", "hang", "hang_midway", "nothing"]
"""What goes wrong with a reply: an error before or after its first token, silence for ever before
or after it, or an end without a token."""

TOKEN = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class ScriptedCalls:
    """A reply that calls tools: `text` is said, `calls` are made, and what `then` makes of their
    results is the reply to those."""

    calls: Sequence[ToolCall]
    text: str = ""
    then: Callable[[Sequence[str]], str | ScriptedCalls] = " ".join


Scripted = str | ScriptedCalls
"""One reply. A call takes the time of a word."""

Replies = Sequence[Scripted] | Callable[[str], Scripted]


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
    round, or what a function makes of the user's text. Tokens are words. Which tools it was told of
    makes no difference.

    `broken` says in which user turns (counted from 0 in what the conversation holds) what goes
    wrong. An empty `replies` never says anything.
    """

    def __init__(
        self,
        replies: Replies,
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

    def open(
        self, system: str, tools: Sequence[ToolSpec] = ()
    ) -> AbstractAsyncContextManager[Conversation]:
        return self._open(system, tools)

    @asynccontextmanager
    async def _open(self, system: str, tools: Sequence[ToolSpec]) -> AsyncIterator[Conversation]:
        as_openai(tools)  # which may be wrong
        script = _Script(self._replies, self._latency, self._broken, self._n_opened)
        self._n_opened += 1
        yield _ScriptedConversation(script, system)


@dataclass(slots=True)
class _Script:
    """What one conversation will say, and how."""

    replies: Replies
    latency: Latency
    broken: Mapping[int, Breakage]
    conversation: int
    n_replies: int = 0

    def line(self, turn: int, user_text: str) -> _Line:
        if callable(self.replies):
            reply = self.replies(user_text)
        else:
            reply = self.replies[turn % len(self.replies)] if self.replies else ""
        return self.line_of(reply, self.broken.get(turn))

    def line_of(self, reply: Scripted, breakage: Breakage | None = None) -> _Line:
        delays = random.Random(f"{self.latency.seed}/{self.conversation}/{self.n_replies}")
        self.n_replies += 1
        calling = ScriptedCalls((), reply) if isinstance(reply, str) else reply
        tokens = [*TOKEN.findall(calling.text), *calling.calls]
        return _Line(tokens, self.latency, breakage, delays, calling)


@dataclass(slots=True)
class _Line:
    """One reply as it will be given."""

    tokens: list[str | ToolCall]
    latency: Latency
    breakage: Breakage | None
    delays: random.Random
    reply: ScriptedCalls

    async def delay(self, ms: float) -> None:
        spread = self.latency.jitter * self.delays.uniform(-1, 1)
        await asyncio.sleep(ms * (1 + spread) / 1000)


class _ScriptedConversation:
    """`protocols.Conversation` without a model."""

    def __init__(self, script: _Script, system: str) -> None:
        self._script, self._system = script, system
        self.dialogue = Dialogue()
        self._made: list[tuple[Said, ScriptedCalls]] = []
        """Adopted replies and what they are in the script."""

    def extend(self, text: str) -> None:
        """Nothing to prefill."""

    def reply(self, text: str, *, held: bool = False) -> GeneratedReply:
        line = self._script.line(len(self.dialogue.turns), text)
        return self._generated(Turn(text), self._n_said(), _n_tokens(text), line)

    def reply_to_results(
        self, results: Sequence[str], *, held: bool = False, may_call: bool = True
    ) -> GeneratedReply:
        n_before = self._n_said()
        turn = self.dialogue.answer(results)
        (calling,) = (calling for said, calling in self._made if said is turn.replies[-1])
        reply = calling.then(results)
        if isinstance(reply, ScriptedCalls) and not may_call:
            reply = reply.text
        line = self._script.line_of(reply)
        return self._generated(turn, n_before, sum(map(_n_tokens, results)), line)

    def add_results(self, results: Sequence[str]) -> None:
        self.dialogue.add_results(results)

    def truncate(self, heard_text: str) -> None:
        self.dialogue.truncate(heard_text)

    def add_user_text(self, text: str) -> None:
        self.dialogue.add(text)

    def reopen(self) -> str:
        return self.dialogue.reopen()

    def adopt(self, turn: Turn, said: Said, calling: ScriptedCalls) -> None:
        self.dialogue.adopt(turn, said)
        self._made.append((said, calling))

    def _generated(self, turn: Turn, n_before: int, n_new: int, line: _Line) -> GeneratedReply:
        stats = ReplyStats(prompt_tokens=n_before + n_new, cached_tokens=n_before)
        return GeneratedReply(_ScriptedReply(self, turn, line, stats))

    def _n_said(self) -> int:
        return sum(_n_tokens(m["content"]) for m in self.dialogue.messages(self._system))


@dataclass(slots=True)
class _ScriptedReply:
    """`ReplySource` that waits and speaks."""

    conversation: _ScriptedConversation
    turn: Turn
    line: _Line
    stats: ReplyStats = field(default_factory=ReplyStats)

    def release(self) -> None:
        """Nothing is shared, so nothing has to come first."""

    def drop(self) -> None:
        """Nothing is kept of it."""

    def adopt(self, text: str, calls: Sequence[ToolCall]) -> None:
        self.conversation.adopt(self.turn, Said(text, calls=calls), self.line.reply)

    async def generate(self, emit: Emit) -> None:
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
