"""A smaller model with the same vocabulary, which guesses what the large one will say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from stages.llm.kv_blocks import n_common
from stages.llm.kv_pool import BLOCK_TOKENS, BlockPool, OutOfBlocks
from stages.llm.kv_pool import Sequence as KvSequence
from stages.llm.sampling import Sampling, choose
from stages.llm.step_plan import Rows
from stages.llm.transformer import Model

CHUNK = 16
"""Tokens of a prompt computed at once; longer ones would keep the large model waiting."""


class DraftEngine:
    """The small model and its cache, shared by all conversations. For the engine's thread."""

    def __init__(self, model: Model, kv_tokens: int) -> None:
        self._model = model
        n_blocks = max(kv_tokens, model.n_positions) // BLOCK_TOKENS
        store = model.new_store(n_blocks * BLOCK_TOKENS)
        self.compute = partial(model.step, store)
        self._pool = BlockPool(n_blocks, copy=store.copy)
        self._conversations: list[DraftConversation] = []
        """Who computed last comes last."""

    @property
    def token_s(self) -> float:
        """What one token costs, seconds."""
        return self._model.costs().of(1)

    def start_s(self, n_missing: int) -> float:
        """What a token costs beyond `token_s` because `n_missing` in front of it are not computed
        yet, seconds."""
        costs = self._model.costs()
        n_chunks, n_rest = divmod(1 + n_missing, CHUNK)
        rest_s = costs.of(n_rest) if n_rest else 0.0
        return n_chunks * costs.of(CHUNK) + rest_s - costs.of(1)

    @property
    def n_blocks_in_use(self) -> int:
        return self._pool.n_referenced

    def conversation(self) -> DraftConversation:
        conversation = DraftConversation(self)
        self._conversations.append(conversation)
        return conversation

    def known(self, ids: Sequence[int]) -> KvSequence:
        """What any conversation has computed of the start of `ids`, the last token left out."""
        return self._pool.match(ids)

    def append(self, conversation: DraftConversation, ids: Sequence[int]) -> list[int]:
        """Slots for `ids` at the end of `conversation`; when the cache is full, those who computed
        longest ago give up what they hold. Raises OutOfBlocks when that is not enough."""
        self._conversations.remove(conversation)
        others = iter([*self._conversations])
        self._conversations.append(conversation)
        while True:
            try:
                return conversation.sequence.append(ids)
            except OutOfBlocks:
                idle = next((other for other in others if other.sequence.ids), None)
                if idle is None:
                    raise
                idle.sequence.release()

    def forget(self, conversation: DraftConversation) -> None:
        self._conversations.remove(conversation)


class DraftConversation:
    """The small model's state of one conversation: a cache of tokens, whatever they are."""

    def __init__(self, engine: DraftEngine) -> None:
        self._engine = engine
        self.sequence = engine.known(())
        self.is_closed = False

    def prepare(self, ids: Sequence[int]) -> bool:
        """One chunk towards holding `ids`; whether more are needed."""
        self._advance(ids, n_logits=0)
        return self.n_missing(ids) > 0

    def n_missing(self, ids: Sequence[int]) -> int:
        """How many of `ids` are not computed."""
        return len(ids) - self._known(ids)

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Scores [vocabulary] of the token after `ids`."""
        self.sequence.truncate(min(self._known(ids), len(ids) - 1))
        found = None
        while found is None:
            found = self._advance(ids, n_logits=1)
        return found

    def close(self) -> None:
        """Holds nothing any more; a reply may still end after it, without drafts."""
        self.is_closed = True
        self.sequence.release()
        self._engine.forget(self)

    def _known(self, ids: Sequence[int]) -> int:
        return n_common(tuple(self.sequence.ids), tuple(ids))

    def _advance(self, ids: Sequence[int], *, n_logits: int) -> torch.Tensor | None:
        """A chunk further; logits [vocabulary] at the end of `ids`, if wanted."""
        self.sequence.truncate(self._known(ids))
        if not self.sequence.ids:
            self.sequence = self._engine.known(ids)
        sequence = self.sequence
        position = len(sequence.ids)
        chunk = list(ids[position : position + CHUNK])
        if not chunk:
            return None
        slots = self._engine.append(self, chunk)
        at_end = position + len(chunk) == len(ids)
        rows = Rows(chunk, position, slots, sequence.runs(), n_logits if at_end else 0)
        try:
            logits = self._engine.compute([rows])
        except BaseException:
            sequence.truncate(position)
            raise
        sequence.commit()
        return logits[0] if rows.n_logits else None


class ReplyDrafter:
    """`drafts.DraftModel` for one reply."""

    def __init__(
        self,
        engine: DraftEngine,
        conversation: DraftConversation,
        prompt_ids: Sequence[int],
        sampling: Sampling,
    ) -> None:
        self._engine = engine
        self._conversation = conversation
        self._sampling = sampling
        self._n_prompt = len(prompt_ids)
        self._ids = list(prompt_ids)

    @property
    def token_s(self) -> float:
        """See `drafts.DraftModel`."""
        return self._engine.token_s

    @property
    def start_s(self) -> float:
        """See `drafts.DraftModel`."""
        n_missing = self._conversation.n_missing(self._ids)
        return self._engine.start_s(max(n_missing - 1, 0))

    def extend(self, ids: Sequence[int]) -> None:
        self._ids += ids

    def truncate(self, n: int) -> None:
        del self._ids[n:]

    def next_tokens(self, n: int) -> list[int]:
        """See `drafts.DraftModel`; drawn with the large model's noise."""
        start = len(self._ids)
        for _ in range(0 if self._conversation.is_closed else n):
            logits = self._conversation.logits(self._ids)
            said = self._ids[self._n_prompt :]
            self._ids.append(choose(logits, self._sampling, len(self._ids), said))
        return self._ids[start:]
