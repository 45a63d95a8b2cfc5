"""One conversation with a local model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from stages.llm.call_text import CallingText
from stages.llm.chat_ids import ChatIds
from stages.llm.dialogue import Said, Turn
from stages.llm.draft_model import ReplyDrafter
from stages.llm.drafts import (
    BestDraft,
    Draft,
    EarlierReply,
    ForcedDraft,
    ModelDraft,
    SuffixDraft,
)
from stages.llm.generation import Generation, Priority, Trunk
from stages.llm.grammar import Grammar
from stages.llm.metrics import ReplyTimer
from stages.llm.reply import Emit, GeneratedReply
from stages.llm.reply_text import ReplyText
from stages.llm.runtime import Runtime
from stages.llm.speculation import Speculation
from stages.llm.suffix import SuffixMemory
from stages.llm.text import ends_sentence
from stages.llm.tools import ToolSet
from stages.llm.verify import Verifier
from voicepipe.errors import ComponentError
from voicepipe.protocols import ReplyStats, ToolCall

log = logging.getLogger(__name__)

NEXT_TURN_TOKENS = 96
"""Room that a conversation keeps for the next user turn, so that compaction happens between turns
rather than in front of a reply."""

DRAFT_CONTEXT = 64
"""Tokens of a prompt, from its end, that are looked up in what was said before."""


class LocalConversation:
    """`protocols.Conversation`."""

    def __init__(self, runtime: Runtime, system: str, tools: ToolSet | None = None) -> None:
        self.runtime = runtime
        self.trunk = Trunk(runtime.pool.new_sequence())
        template = tools.template if tools else runtime.template
        self._chat = ChatIds(template, runtime.tokenizer, system)
        self._tools = tools
        self._hint = ""
        self._changed = asyncio.Event()
        self._speculation = Speculation()
        self._drafter = runtime.drafter.conversation() if runtime.drafter else None
        self._said = SuffixMemory()
        self._replies = runtime.replies.of((tuple(self._chat.system_ids), tools and tools.key))
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
        self._make_room(len(self._chat.next_user_ids(text)))
        return self._generated(Turn(text), self._chat.prompt(text), held=held)

    def reply_to_results(
        self, results: Sequence[str], *, held: bool = False, may_call: bool = True
    ) -> GeneratedReply:
        turn = self._chat.dialogue.answer(results)
        self._make_room(0, n_kept=1)
        prompt_ids = self._chat.results_prompt()
        return self._generated(turn, prompt_ids, held=held, may_call=may_call)

    def add_results(self, results: Sequence[str]) -> None:
        self._chat.dialogue.add_results(results)
        self._changed.set()

    def truncate(self, heard_text: str) -> None:
        self._chat.truncate(heard_text)
        self._changed.set()

    def add_user_text(self, text: str) -> None:
        self._chat.dialogue.add(text)
        self._begin_turn()

    def reopen(self) -> str:
        text = self._chat.dialogue.reopen()
        self._hint = text
        self._changed.set()
        return text

    # -- for its replies -----------------------------------------------------------------------

    @property
    def n_reply_tokens(self) -> int:
        """The most that a reply takes, without its header."""
        length = self.runtime.settings.length
        return length.max_tokens + (length.call_tokens if self._tools else 0)

    def adopt(self, turn: Turn, said: Said) -> None:
        is_first = not turn.replies
        self._chat.dialogue.adopt(turn, said)
        if said.ids:
            self._remember(self._chat.user_ids_of(turn) if is_first else [], said)
        self._begin_turn()

    def _begin_turn(self) -> None:
        """What comes next is something new."""
        self._hint, self._earlier = "", ()
        self._make_room(NEXT_TURN_TOKENS, n_kept=1 if self._chat.dialogue.waits else 0)
        self._changed.set()

    def keep_as_draft(self, reply_ids: Sequence[int]) -> None:
        """The next reply to this turn may turn out like this one."""
        self._earlier = list(reply_ids)

    # -- drafts --------------------------------------------------------------------------------

    def _generated(
        self, turn: Turn, prompt_ids: Sequence[int], *, held: bool, may_call: bool = True
    ) -> GeneratedReply:
        settings, tokenizer = self.runtime.settings, self.runtime.tokenizer
        grammar = self._tools.grammar(may_call=may_call) if self._tools else None
        text_of = CallingText if self._tools else ReplyText
        generation = Generation(
            prompt_ids,
            text=text_of(tokenizer, settings.length),
            verifier=Verifier(settings.sampling, grammar, tokenizer.eos_ids),
            draft=self._draft(prompt_ids, grammar),
            speculation=self._speculation,
            priority=Priority.HELD if held else Priority.RELEASED,
        )
        return GeneratedReply(_LocalReply(self, turn, generation))

    def _draft(self, prompt_ids: Sequence[int], grammar: Grammar | None) -> Draft | None:
        runtime, sources = self.runtime, self.runtime.settings.drafts
        drafts: list[Draft] = []
        if grammar is not None and "forced" in sources:
            drafts.append(ForcedDraft(grammar))
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

    def _remember(self, words: Sequence[int], said: Said) -> None:
        """What was said may be said again. Only speech is a draft for other conversations: the
        arguments of calls are the caller's words."""
        tokenizer = self.runtime.tokenizer
        ends = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
        reply = [*self._chat.header_ids, *said.ids, *ends]
        spoken = [*self._chat.header_ids, *tokenizer.cut(said.ids, said.text)]
        self.runtime.engine.between(partial(self._replies.add, spoken if said.calls else reply))
        self.runtime.engine.between(partial(self._said.add, [*words, *reply]))

    # -- ids -----------------------------------------------------------------------------------

    def history_ids(self) -> list[int]:
        """Everything said so far, as ids."""
        return self._chat.history()

    def ids_ahead(self) -> list[int]:
        """What the next prompt begins with, as far as that is known."""
        return self._chat.ahead(self._hint)

    def _make_room(self, n_words: int, n_kept: int = 0) -> None:
        """When `n_words` and a reply do not fit any more, drop the oldest turns down to half of
        the context: rarely, since everything after the system prompt is then computed anew. But
        not the last `n_kept`, which are not over."""
        n_positions = self.runtime.model.n_positions
        room = n_positions - n_words - self.n_reply_tokens - len(self._chat.header_ids)
        if self._chat.n_tokens > room:
            self._chat.shorten(min(n_positions // 2, room), n_kept)

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

    def __init__(self, conversation: LocalConversation, turn: Turn, generation: Generation) -> None:
        self.generation = generation
        self._conversation, self._turn = conversation, turn
        self._timer = ReplyTimer(asyncio.get_running_loop().time())

    @property
    def stats(self) -> ReplyStats:
        return self.generation.stats

    def release(self) -> None:
        self.generation.priority = Priority.RELEASED

    def adopt(self, text: str, calls: Sequence[ToolCall]) -> None:
        ids = self.generation.text.ids_of(text, calls)
        self._conversation.adopt(self._turn, Said(text, ids, calls))
        wanted = bool(text or calls)
        self._conversation.runtime.metrics.add(self._timer.result(self.stats, heard=wanted))

    def drop(self) -> None:
        if self.generation.text.ids:
            self._conversation.keep_as_draft(self.generation.text.ids)
        self._conversation.runtime.metrics.add(self._timer.result(self.stats, heard=False))

    async def generate(self, emit: Emit) -> None:
        runtime, generation = self._conversation.runtime, self.generation
        n_positions = runtime.model.n_positions
        n_needed = len(generation.prompt_ids) + self._conversation.n_reply_tokens
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

    async def _emit(self, emit: Emit) -> None:
        """Hand on what is there."""
        generation = self.generation
        now_s = asyncio.get_running_loop().time()
        self._timer.tokens(now_s, generation.stats.generated_tokens - self._timer.n_tokens)
        while generation.deltas:
            await emit(generation.deltas.popleft())
        if generation.over or ends_sentence(generation.text.text):
            self._timer.phrase(now_s)
