"""A language model on this machine: conversations over one engine and one set of weights."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from stages.llm.background import Background
from stages.llm.decoder import Decoder
from stages.llm.dialogue import Dialogue, Turn
from stages.llm.engine import Engine, Priority, Ticket
from stages.llm.kv import KvCache
from stages.llm.load import Precision
from stages.llm.reply import GeneratedReply
from stages.llm.sampling import Sampling
from stages.llm.template import After
from stages.llm.text import TextStream, ends_sentence
from voicepipe.errors import ComponentError, UsageError
from voicepipe.protocols import Conversation, ReplyStats

log = logging.getLogger(__name__)

MAX_PREFIXES = 8
"""System prompts whose state is kept; more than an agent has."""

NEXT_TURN_TOKENS = 96
"""Room that a conversation keeps for the next user turn, so that compaction happens between turns
rather than in front of a reply."""


@dataclass(frozen=True, slots=True)
class ReplyLength:
    """When a reply ends if the model does not end it: at the first sentence end after
    `soft_tokens`, at the latest after `max_tokens`, or in front of one of `stops`."""

    soft_tokens: int = 24
    max_tokens: int = 60
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens is {self.max_tokens}: a reply needs at least 1 token")


class LocalLLM:
    """A Llama-family model from a GGUF file (or the folder that has it), in torch on the CPU.

    `n_threads` are used to prefill, `n_decode_threads` to generate: a token is too little work to
    be worth waiting for a second core, above all when another stage needs that core. Sequences are
    at most `context_tokens` long; older turns are dropped in time. Raises ComponentError when the
    file is missing, broken or of an unsupported kind.
    """

    def __init__(
        self,
        model_path: Path,
        *,
        n_threads: int = 2,
        n_decode_threads: int = 1,
        context_tokens: int = 2048,
        sampling: Sampling | None = None,
        length: ReplyLength | None = None,
        precision: Precision = "int8",
    ) -> None:
        if min(n_threads, n_decode_threads) < 1:
            raise UsageError(f"{n_threads} and {n_decode_threads} threads: give at least 1 each")
        self.decoder = Decoder(
            model_path,
            n_positions=context_tokens,
            precision=precision,
            n_threads=n_threads,
            n_decode_threads=n_decode_threads,
        )
        self.decoder.warm_up()
        self.engine = Engine("llm")
        self.sampling = sampling or Sampling()
        self.length = length or ReplyLength()
        self._prefixes: OrderedDict[tuple[int, ...], KvCache] = OrderedDict()

    def open(self, system: str) -> AbstractAsyncContextManager[Conversation]:
        """See `protocols.LanguageModel`. The first conversation with a system prompt computes its
        state, later ones copy it. Raises ComponentError when it does not fit the context."""
        return self._open(system)

    def close(self) -> None:
        """End the engine's thread; no conversation may be open."""
        self.engine.close()

    @asynccontextmanager
    async def _open(self, system: str) -> AsyncIterator[Conversation]:
        conversation = _LocalConversation(self, system)
        prefix = await self._prefix(conversation.ids_ahead())
        await self.engine.run(
            Ticket(Priority.AHEAD), conversation.cache.adopt_prefix, prefix, len(prefix.ids)
        )
        async with Background(conversation.keep_ahead):
            yield conversation

    async def _prefix(self, ids: Sequence[int]) -> KvCache:
        """The state of `ids`, computed at most once for all conversations that begin so."""
        key = tuple(ids)
        if len(key) + NEXT_TURN_TOKENS + self.length.max_tokens > self.decoder.n_positions:
            raise ComponentError(
                f"language model: a system prompt of {len(key)} tokens leaves no room in a context "
                f"of {self.decoder.n_positions}: shorten it or raise context_tokens"
            )
        cache = self._prefixes.setdefault(key, self.decoder.new_cache())
        self._prefixes.move_to_end(key)
        while len(self._prefixes) > MAX_PREFIXES:
            self._prefixes.popitem(last=False)
        while await self.engine.run(Ticket(Priority.AHEAD), _advance_ahead, self, cache, key):
            pass
        return cache


def _advance_ahead(llm: LocalLLM, cache: KvCache, ids: Sequence[int]) -> bool:
    """One prefill step towards `ids`; whether more are needed. Runs on the engine's thread."""
    if cache.n_common(ids) == len(ids):
        return False
    if len(cache.ids) > cache.n_common(ids):
        llm.decoder.align(cache, ids)
    llm.decoder.advance(cache, ids)
    return len(cache.ids) < len(ids)


class _LocalConversation:
    """`protocols.Conversation`: the truth is a list of token ids, the cache follows it."""

    def __init__(self, llm: LocalLLM, system: str) -> None:
        self.llm = llm
        self.cache = llm.decoder.new_cache()
        self._template = llm.decoder.template
        self._system_ids = self._template.system_ids(system)
        self._dialogue = Dialogue()
        self._hint = ""
        self._changed = asyncio.Event()
        self._leased = False
        """Whether a reply runs on `cache`; otherwise prefilling ahead does."""

    # -- protocols.Conversation ----------------------------------------------------------------

    def extend(self, text: str) -> None:
        self._hint = text
        self._changed.set()

    def reply(self, text: str, *, held: bool = False) -> GeneratedReply:
        priority = Priority.HELD if held else Priority.RELEASED
        return GeneratedReply(_LocalReply(self, text, self._prompt_ids(text), Ticket(priority)))

    def truncate(self, heard_text: str) -> None:
        turn = self._dialogue.truncate(heard_text)
        if turn is not None:
            turn.reply_ids = self.llm.decoder.tokenizer.cut(turn.reply_ids, heard_text)
            self._changed.set()

    def add_user_text(self, text: str) -> None:
        self.add_turn(text, "", ())

    def reopen(self) -> str:
        text = self._dialogue.reopen()
        self._hint = text
        self._changed.set()
        return text

    # -- for its replies -----------------------------------------------------------------------

    def add_turn(self, user: str, reply: str, reply_ids: Sequence[int]) -> None:
        self._dialogue.add(user, reply, reply_ids)
        self._hint = ""
        self._make_room(NEXT_TURN_TOKENS)
        self._changed.set()

    def lease(self) -> KvCache:
        """The conversation's cache, or another where a reply already runs on that."""
        if self._leased:
            return self.llm.decoder.new_cache()
        self._leased = True
        return self.cache

    def give_back(self, cache: KvCache) -> None:
        """The reply on `cache` is over; the latest one's cache is kept."""
        if cache is self.cache:
            self._leased = False
        elif not self._leased:
            self.cache = cache
        self._changed.set()

    # -- ids -----------------------------------------------------------------------------------

    def history_ids(self) -> list[int]:
        """Everything said so far, as ids."""
        ids = list(self._system_ids)
        for n, turn in enumerate(self._dialogue.turns):
            ids += self._turn_ids(turn, self._after(n))
        return ids

    def ids_ahead(self) -> list[int]:
        """History, the next user turn's header, and its words as far as they are known."""
        after = self._after(len(self._dialogue.turns))
        return self.history_ids() + self._template.user_ids(self._hint, after, whole=False)

    def _prompt_ids(self, text: str) -> list[int]:
        after = self._after(len(self._dialogue.turns))
        words = self._template.user_ids(text, after)
        self._make_room(len(words))
        after = self._after(len(self._dialogue.turns))
        return [
            *self.history_ids(),
            *self._template.user_ids(text, after),
            *self._template.reply_header_ids,
        ]

    def _turn_ids(self, turn: Turn, after: After) -> list[int]:
        ids = self._template.user_ids(turn.user, after)
        if turn.reply:
            ids += self._template.reply_header_ids + turn.reply_ids
        return ids

    def _after(self, n: int) -> After:
        """What turn `n` comes after."""
        if n > 0:
            return "reply" if self._dialogue.turns[n - 1].reply else "user"
        return "system" if self._system_ids else "start"

    def _make_room(self, n_words: int) -> None:
        """When `n_words` and a reply do not fit any more, drop the oldest turns down to half of
        the context: rarely, since everything after the system prompt is then computed anew."""
        n_positions = self.llm.decoder.n_positions
        room = (
            n_positions
            - n_words
            - self.llm.length.max_tokens
            - len(self._template.reply_header_ids)
        )
        if len(self.history_ids()) <= room:
            return
        while self._dialogue.turns and len(self.history_ids()) > min(n_positions // 2, room):
            del self._dialogue.turns[0]

    async def keep_ahead(self) -> None:
        """Compute what the next reply will need, whenever no reply runs and it has changed."""
        ticket = Ticket(Priority.AHEAD)
        while True:
            await self._changed.wait()
            self._changed.clear()
            more = True
            while more:
                async with self.llm.engine.turn(ticket):
                    ids = self.ids_ahead()
                    if self._leased or len(ids) > self.llm.decoder.n_positions:
                        break
                    more = await self.llm.engine.step(_advance_ahead, self.llm, self.cache, ids)


class _LocalReply:
    """`ReplySource`: generates from `prompt_ids` on a cache of its own or the conversation's."""

    def __init__(
        self, conversation: _LocalConversation, text: str, prompt_ids: list[int], ticket: Ticket
    ) -> None:
        self.stats = ReplyStats(prompt_tokens=len(prompt_ids))
        self._conversation, self._user_text = conversation, text
        self._decoder, self._engine = conversation.llm.decoder, conversation.llm.engine
        self.prompt_ids, self._ticket = prompt_ids, ticket
        self._ids: list[int] = []

    def release(self) -> None:
        self._ticket.priority = Priority.RELEASED

    def adopt(self, text: str) -> None:
        ids = self._decoder.tokenizer.cut(self._ids, text)
        self._conversation.add_turn(self._user_text, text, ids)

    async def generate(self, emit: Callable[[str], Awaitable[None]]) -> None:
        n_needed = len(self.prompt_ids) + self._conversation.llm.length.max_tokens
        if n_needed > self._decoder.n_positions:
            raise ComponentError(
                f"language model: prompt and reply need {n_needed} tokens, the context has "
                f"{self._decoder.n_positions}: raise context_tokens or shorten the system prompt"
            )
        cache: KvCache | None = None
        try:
            async with self._engine.turn(self._ticket):
                cache = self._conversation.lease()
                token = await self._engine.step(self._begin, cache)
            while token is None:
                token = await self._engine.run(self._ticket, self._prefill, cache)
            await self._stream(cache, token, emit)
        finally:
            if cache is not None:
                self._conversation.give_back(cache)

    async def _stream(
        self, cache: KvCache, token: int, emit: Callable[[str], Awaitable[None]]
    ) -> None:
        length, tokenizer = self._conversation.llm.length, self._decoder.tokenizer
        stream, text = TextStream(length.stops), ""
        while True:
            self.stats = replace(self.stats, generated_tokens=self.stats.generated_tokens + 1)
            if token == tokenizer.eos_id or token in tokenizer.control_ids:
                break
            token_bytes = tokenizer.bytes_of[token]
            long_enough = len(self._ids) >= length.soft_tokens
            if long_enough and token_bytes[:1].isspace() and ends_sentence(text):
                break
            self._ids.append(token)
            if delta := stream.feed(token_bytes):
                text += delta
                await emit(delta)
            if stream.stopped or len(self._ids) >= length.max_tokens:
                break
            following = await self._engine.run(self._ticket, self._decode, cache)
            assert following is not None, "one token fits one step"
            token = following
        if rest := stream.finish():
            await emit(rest)

    # -- on the engine's thread ----------------------------------------------------------------

    def _begin(self, cache: KvCache) -> int | None:
        ours = self._conversation.cache
        if cache is not ours:
            cache.adopt_prefix(ours, ours.n_common(self.prompt_ids))
        n_cached = self._decoder.align(cache, self.prompt_ids)
        self.stats = replace(self.stats, cached_tokens=n_cached)
        return self._prefill(cache)

    def _prefill(self, cache: KvCache) -> int | None:
        return self._next(cache, self.prompt_ids)

    def _decode(self, cache: KvCache) -> int | None:
        return self._next(cache, [*self.prompt_ids, *self._ids])

    def _next(self, cache: KvCache, ids: list[int]) -> int | None:
        """One step; the token that follows `ids`, None as long as the cache lacks some of them."""
        logits = self._decoder.advance(cache, ids)
        if logits is None:
            return None
        sampling = self._conversation.llm.sampling
        return self._decoder.choose(logits, sampling, len(ids), self._ids)
