"""What the scheduler advances: replies being generated, and the state conversations keep ready."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch

from stages.llm.drafts import NOTHING, Draft, Proposal
from stages.llm.kv_blocks import n_common
from stages.llm.kv_pool import BlockPool
from stages.llm.kv_pool import Sequence as KvSequence
from stages.llm.reply_text import ReplyText
from stages.llm.speculation import Costs, Speculation
from stages.llm.verify import Verifier
from voicepipe.protocols import ReplyStats, ToolCall

log = logging.getLogger(__name__)


class Priority(IntEnum):
    """Whose prompt is computed first when several wait."""

    RELEASED = 0
    """A reply that somebody waits for."""
    HELD = 1
    """A reply that may never be heard."""
    AHEAD = 2
    """Tokens that will probably be needed."""


@dataclass(eq=False, slots=True)
class Trunk:
    """What a conversation keeps between its replies: attention state that is brought to `target`
    when nothing else is to be done, and that replies fork."""

    sequence: KvSequence
    target: list[int] = field(default_factory=list)
    error: Exception | None = None
    last_used: int = 0
    """The scheduler's step; who was idle longest gives its state up first when space is short."""
    is_closed: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether nothing more is to be expected."""
        return self.is_closed or self.error is not None or self.sequence.ids == self.target

    def aim(self, ids: Sequence[int]) -> None:
        """Hold `ids` next, those in front of it included."""
        self.target = list(ids)
        self.error = None

    def align(self) -> None:
        """Forget what is not on the way to the target."""
        n = n_common(tuple(self.sequence.ids), tuple(self.target))
        if n < len(self.sequence.ids):
            self.sequence.truncate(n)

    def missing(self) -> Sequence[int]:
        return self.target[len(self.sequence.ids) :]

    def replace(self, sequence: KvSequence) -> None:
        """Keep `sequence` instead; nothing, once closed."""
        self.sequence.release()
        self.sequence = sequence
        if self.is_closed:
            sequence.release()

    def close(self) -> None:
        """Its conversation is over; a reply may still end after it."""
        self.is_closed = True
        self.sequence.release()


class Generation:
    """One reply on a fork of its conversation's trunk: the prompt is computed, then tokens come,
    several a step when drafts of them are right."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        *,
        text: ReplyText,
        verifier: Verifier,
        draft: Draft | None,
        speculation: Speculation,
        priority: Priority,
    ) -> None:
        self.prompt_ids = list(prompt_ids)
        self.text = text
        self.priority = priority
        self.sequence: KvSequence | None = None
        """From the first step on."""
        self.over = False
        self.error: Exception | None = None
        self.stats = ReplyStats(prompt_tokens=len(self.prompt_ids))
        self._verifier = verifier
        self._draft = draft
        self._speculation = speculation
        self._generated: list[int] = []
        self._n_cached = self._n_drafted = self._n_accepted = self._n_verified = 0

    @property
    def deltas(self) -> deque[str | ToolCall]:
        """What was generated and not yet taken out."""
        return self.text.deltas

    @property
    def is_decoding(self) -> bool:
        """Whether the whole prompt is computed."""
        return bool(self._generated)

    def begin(self, trunk: Trunk, pool: BlockPool) -> None:
        """Take over what is computed of the prompt: the trunk's, or another conversation's if that
        is more. One token is left to compute."""
        ours = n_common(tuple(trunk.sequence.ids), tuple(self.prompt_ids[:-1]))
        matched = pool.match(self.prompt_ids)
        if len(matched.ids) > ours:
            self.sequence = matched
        else:
            matched.release()
            self.sequence = trunk.sequence.fork()
            self.sequence.truncate(ours)
        self._n_cached = len(self.sequence.ids)
        self._count()

    def missing(self) -> Sequence[int]:
        """Of the prompt or, when that is complete, the last token."""
        assert self.sequence is not None
        if self._generated:
            return self._generated[-1:]
        return self.prompt_ids[len(self.sequence.ids) :]

    def proposal(self, costs: Costs, n_other_rows: int) -> Proposal:
        """What probably comes after the last token, as far as it is worth checking."""
        room = self.text.n_left - 1
        if self._draft is None or room < 1:
            return NOTHING
        try:
            return self._speculation.propose(self._draft, costs, n_other_rows, room)
        except Exception:
            log.exception("drafts fail; the reply goes on without")
            self._draft = None
            return NOTHING

    def take(self, logits: torch.Tensor, proposal: Proposal) -> None:
        """Go on with `logits` [1 + number of drafts, vocabulary], those after the last known token
        and after each of its drafts, whose state the sequence holds."""
        assert self.sequence is not None
        drafts = proposal.ids
        n_sure = len(self.sequence.ids) - len(drafts)
        found = self._verifier.verify(logits, drafts, position=n_sure, generated=self._generated)
        n_accepted = len(found) - 1
        self.sequence.truncate(n_sure + n_accepted)
        if proposal:
            self._speculation.learn(proposal, len(drafts), n_accepted)
            self._n_drafted += len(drafts)
            self._n_accepted += n_accepted
            self._n_verified += 1
        if self._draft is not None:
            self._draft.observe(found)
        for token in found:
            self._generated.append(token)
            if not self.text.take(token):
                self.over = True
                break
        self._count()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.over = True

    def forget(self) -> None:
        """Give the state of a reply that is over to others."""
        if self.sequence is not None:
            self.sequence.release()
            self.sequence = None

    def close(self, trunk: Trunk) -> None:
        """Nothing more is wanted; what was computed stays with the conversation."""
        self.over = True
        if self.sequence is not None:
            trunk.replace(self.sequence)
            trunk.target = list(self.sequence.ids)
            self.sequence = None

    def _count(self) -> None:
        self.stats = ReplyStats(
            prompt_tokens=len(self.prompt_ids),
            cached_tokens=self._n_cached,
            generated_tokens=len(self._generated),
            drafted_tokens=self._n_drafted,
            accepted_tokens=self._n_accepted,
            verify_steps=self._n_verified,
        )
