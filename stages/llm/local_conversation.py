"""One conversation with a local model. The truth is a list of token ids; the cache follows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial

from stages.llm.dialogue import Dialogue, Turn
from stages.llm.draft_model import ReplyDrafter
from stages.llm.drafts import BestDraft, Draft, EarlierReply, ModelDraft, SuffixDraft
from stages.llm.generation import Generation, Priority, Trunk
from stages.llm.metrics import ReplyTimer
from stages.llm.reply import GeneratedReply
from stages.llm.reply_text import ReplyText
from stages.llm.runtime import Runtime
from stages.llm.speculation import Speculation
from stages.llm.suffix import SuffixMemory
from stages.llm.template import After
from stages.llm.text import ends_sentence
from stages.llm.verify import Verifier
from voicepipe.errors import ComponentError
from voicepipe.protocols import ReplyStats

log = logging.getLogger(__name__)

NEXT_TURN_TOKENS = 96
"""Room that a conversation keeps for the next user turn, so that compaction happens between turns
rather than in front of a reply."""

MAX_TURNS_KEPT = 256
"""Turns of one conversation whose tokens are kept; more than fit a context of thousands."""

DRAFT_CONTEXT = 64
"""Tokens of a prompt, from its end, that are looked up in what was said before."""


class LocalConversation:
    """`protocols.Conversation`."""

    def __init__(self, runtime: Runtime, system: str) -> None:
        self.runtime = runtime
        self.trunk = Trunk(runtime.pool.new_sequence())
        self._template = runtime.template
        self._system_ids = self._template.system_ids(system)
        self._header_ids = self._template.reply_header_ids
        self._user_ids = lru_cache(MAX_TURNS_KEPT)(self._template.user_ids)
        """Of the turns so far: their text is not tokenised again for every reply."""
        self._dialogue = Dialogue()
        self._hint = ""
        self._changed = asyncio.Event()
        self._speculation = Speculation()
        self._drafter = runtime.drafter.conversation() if runtime.drafter else None
        self._said = SuffixMemory()
        self._replies = runtime.replies.of(tuple(self._system_ids))
        self._earlier: Sequence[int] = ()
        """The latest dropped reply to the turn that is not over."""

    def begin(self, prefix: Trunk) -> None:
        """Start from the state of the system prompt. Between steps, as `end`."""
        self.trunk.replace(prefix.sequence.fork())
        self.trunk.target = list(self.trunk.sequence.ids)
        self.runtime.scheduler.add_trunk(self.trunk)

    def end(self) -> None:
        self.runtime.scheduler.remove_trunk(self.trunk)
        if self._drafter is not None:
            self._drafter.close()

    # -- protocols.Conversation ----------------------------------------------------------------

    def extend(self, text: str) -> None:
        self._hint = text
        self._changed.set()

    def reply(self, text: str, *, held: bool = False) -> GeneratedReply:
        settings, tokenizer = self.runtime.settings, self.runtime.tokenizer
        prompt_ids = self._prompt_ids(text)
        generation = Generation(
            prompt_ids,
            text=ReplyText(tokenizer, settings.length),
            verifier=Verifier(settings.sampling, end_ids=tokenizer.eos_ids),
            draft=self._draft(prompt_ids),
            speculation=self._speculation,
            priority=Priority.HELD if held else Priority.RELEASED,
        )
        return GeneratedReply(_LocalReply(self, text, generation))

    def truncate(self, heard_text: str) -> None:
        turn = self._dialogue.truncate(heard_text)
        if turn is not None:
            turn.reply_ids = self.runtime.tokenizer.cut(turn.reply_ids, heard_text)
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
        self._hint, self._earlier = "", ()
        if reply_ids:
            self._remember(user, reply_ids)
        self._make_room(NEXT_TURN_TOKENS)
        self._changed.set()

    def keep_as_draft(self, reply_ids: Sequence[int]) -> None:
        """The next reply to this turn may turn out like this one."""
        self._earlier = list(reply_ids)

    # -- drafts --------------------------------------------------------------------------------

    def _draft(self, prompt_ids: Sequence[int]) -> Draft | None:
        runtime, sources = self.runtime, self.runtime.settings.drafts
        drafts: list[Draft] = []
        if self._earlier and "earlier-reply" in sources:
            drafts.append(EarlierReply(self._earlier))
        for memory in (self._said, self._replies) if "suffix" in sources else ():
            cursor = memory.cursor()
            cursor.follow(prompt_ids[-DRAFT_CONTEXT:])
            drafts.append(SuffixDraft(cursor))
        if runtime.drafter and self._drafter and "model" in sources:
            sampling = runtime.settings.sampling
            model = ReplyDrafter(runtime.drafter, self._drafter, prompt_ids, sampling)
            drafts.append(ModelDraft(model, len(prompt_ids), len(runtime.tokenizer)))
        return BestDraft(drafts, self._speculation.expected_tokens) if drafts else None

    def _remember(self, user: str, reply_ids: Sequence[int]) -> None:
        """What was said may be said again. Only replies are drafts for other conversations."""
        tokenizer = self.runtime.tokenizer
        ends = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
        reply = [*self._header_ids, *reply_ids, *ends]
        words = self._template.user_ids(user, self._after(len(self._dialogue.turns) - 1))
        self.runtime.engine.between(partial(self._replies.add, reply))
        self.runtime.engine.between(partial(self._said.add, [*words, *reply]))

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
        self._make_room(len(self._template.user_ids(text, after)))
        after = self._after(len(self._dialogue.turns))
        return [
            *self.history_ids(),
            *self._template.user_ids(text, after),
            *self._header_ids,
        ]

    def _turn_ids(self, turn: Turn, after: After) -> list[int]:
        ids = self._user_ids(turn.user, after)
        return [*ids, *self._header_ids, *turn.reply_ids] if turn.reply else ids

    def _after(self, n: int) -> After:
        """What turn `n` comes after."""
        if n > 0:
            return "reply" if self._dialogue.turns[n - 1].reply else "user"
        return "system" if self._system_ids else "start"

    def _make_room(self, n_words: int) -> None:
        """When `n_words` and a reply do not fit any more, drop the oldest turns down to half of
        the context: rarely, since everything after the system prompt is then computed anew."""
        n_positions = self.runtime.model.n_positions
        n_reply = self.runtime.settings.length.max_tokens + len(self._header_ids)
        room = n_positions - n_words - n_reply
        if len(self.history_ids()) <= room:
            return
        while self._dialogue.turns and len(self.history_ids()) > min(n_positions // 2, room):
            del self._dialogue.turns[0]

    async def keep_ahead(self) -> None:
        """Compute what the next reply will need, whenever nothing is more urgent."""
        runtime, drafter = self.runtime, self._drafter
        while True:
            await self._changed.wait()
            self._changed.clear()
            ids = self.ids_ahead()
            if len(ids) > runtime.model.n_positions:
                continue
            try:
                await runtime.reach(self.trunk, ids, self._changed.is_set)
                if drafter is not None:
                    await runtime.prepare_draft(drafter, ids, self._changed.is_set)
            except Exception:
                log.exception("nothing is prepared for the next reply, which takes longer")


class _LocalReply:
    """`ReplySource`: one generation on a fork of the conversation's trunk."""

    def __init__(self, conversation: LocalConversation, text: str, generation: Generation) -> None:
        self.generation = generation
        self._conversation, self._user_text = conversation, text
        self._timer = ReplyTimer(asyncio.get_running_loop().time())

    @property
    def stats(self) -> ReplyStats:
        return self.generation.stats

    def release(self) -> None:
        self.generation.priority = Priority.RELEASED

    def adopt(self, text: str) -> None:
        runtime = self._conversation.runtime
        ids = runtime.tokenizer.cut(self.generation.text.ids, text)
        self._conversation.add_turn(self._user_text, text, ids)
        runtime.metrics.add(self._timer.result(self.stats, heard=bool(text)))

    def drop(self) -> None:
        if self.generation.text.ids:
            self._conversation.keep_as_draft(self.generation.text.ids)
        self._conversation.runtime.metrics.add(self._timer.result(self.stats, heard=False))

    async def generate(self, emit: Callable[[str], Awaitable[None]]) -> None:
        runtime, generation = self._conversation.runtime, self.generation
        n_positions = runtime.model.n_positions
        n_needed = len(generation.prompt_ids) + runtime.settings.length.max_tokens
        if n_needed > n_positions:
            raise ComponentError(
                f"language model: prompt and reply need {n_needed} tokens, the context has "
                f"{n_positions}: raise context_tokens or shorten the system prompt"
            )
        engine, scheduler = runtime.engine, runtime.scheduler
        engine.between(partial(scheduler.submit, generation, self._conversation.trunk))
        try:
            while not generation.over or generation.deltas:
                await engine.until(lambda: generation.over or bool(generation.deltas))
                await self._emit(emit)
        finally:
            engine.between(partial(scheduler.close, generation))
        if generation.error is not None:
            raise generation.error

    async def _emit(self, emit: Callable[[str], Awaitable[None]]) -> None:
        """Hand on what is there."""
        generation = self.generation
        now_s = asyncio.get_running_loop().time()
        self._timer.tokens(now_s, generation.stats.generated_tokens - self._timer.n_tokens)
        while generation.deltas:
            await emit(generation.deltas.popleft())
        if generation.over or ends_sentence(generation.text.text):
            self._timer.phrase(now_s)
