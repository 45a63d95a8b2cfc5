"""Decides what each step of the model computes, over all conversations, and computes it.

Every running decode advances in every step; what else fits into the inter-token time is given to
prompts, the most urgent first, in chunks. Knows no clock, no loop and no thread: the engine calls
`step` on its thread and everything else between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from stages.llm.drafts import NOTHING, Proposal
from stages.llm.generation import Generation, Priority, Trunk
from stages.llm.kv_pool import BlockPool, OutOfBlocks
from stages.llm.kv_pool import Sequence as KvSequence
from stages.llm.speculation import Costs
from stages.llm.step_plan import Rows
from voicepipe.errors import ComponentError

CHUNKS = (128, 64, 32, 16, 8, 4)
"""Tokens of prompts computed in one step: the most that keep within the time a step may take."""

MAX_STEP_S = 0.06
"""What a running reply waits for its next token at most; also what a new turn has to wait for."""

AHEAD_COST = 1.5
"""What may never be needed may lengthen a running reply's step by half."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One conversation's share of a step."""

    owner: Generation | Trunk
    rows: Rows
    proposal: Proposal = NOTHING


class Scheduler:
    """The jobs of one model. Not thread-safe: see the module."""

    def __init__(
        self,
        compute: Callable[[Sequence[Rows]], torch.Tensor],
        costs: Callable[[], Costs],
        pool: BlockPool,
    ) -> None:
        """`compute` takes the rows of a step and returns the logits [sum of n_logits, vocabulary]
        they ask for, in order; it blocks for about `costs().of(number of rows)` seconds."""
        self._compute = compute
        self._costs = costs
        self._pool = pool
        self._trunks: list[Trunk] = []
        self._generations: list[tuple[Generation, Trunk]] = []
        self._ended: list[Generation] = []
        """Replies that were over before this step."""
        self.n_steps = 0

    def add_trunk(self, trunk: Trunk) -> None:
        trunk.last_used = self.n_steps
        self._trunks.append(trunk)

    def remove_trunk(self, trunk: Trunk) -> None:
        self._trunks.remove(trunk)
        trunk.close()

    def submit(self, generation: Generation, trunk: Trunk) -> None:
        """Generate; the generation is `over` when it has ended or failed."""
        trunk.last_used = self.n_steps
        self._generations.append((generation, trunk))

    def close(self, generation: Generation) -> None:
        """No step is taken for it any more; its blocks go to its conversation, or are free."""
        for entry in self._generations:
            if entry[0] is generation:
                self._generations.remove(entry)
                generation.close(entry[1])
                return

    def step(self) -> None:
        """Compute what is most urgent; nothing when there is nothing to do."""
        parts = self._plan()
        if not parts:
            return
        self.n_steps += 1
        try:
            logits = self._compute([part.rows for part in parts])
        except Exception as error:  # noqa: BLE001 - raised again where each reply is read
            for part in parts:
                _fail(part, error)
        else:
            self._deliver(parts, logits)

    def _deliver(self, parts: Sequence[_Part], logits: torch.Tensor) -> None:
        at = 0
        for part in parts:
            n = part.rows.n_logits
            try:
                if n and isinstance(part.owner, Generation):
                    part.owner.take(logits[at : at + n], part.proposal)
                assert part.owner.sequence is not None
                part.owner.sequence.commit()
            except Exception as error:  # noqa: BLE001 - raised again where the reply is read
                _fail(part, error)
            at += n

    def _plan(self) -> list[_Part]:
        running = [entry for entry in self._generations if not entry[0].over]
        self._ended = [generation for generation, _ in self._generations if generation.over]
        parts: list[_Part] = []
        n_rows = 0
        decoding = [generation for generation, _ in running if generation.is_decoding]
        for n, generation in enumerate(decoding):
            n_others = n_rows + len(decoding) - n - 1
            if part := self._decode(generation, n_others):
                parts.append(part)
                n_rows += len(part.rows.ids)
        waiting = [entry for entry in running if not entry[0].is_decoding]
        urgent = min((generation.priority for generation, _ in waiting), default=Priority.AHEAD)
        room = self._room(n_rows, urgent)
        for generation, trunk in waiting:
            if (
                room > 0
                and generation.priority == urgent
                and (part := self._prefill(generation, trunk, room, n_rows))
            ):
                parts.append(part)
                n_rows += len(part.rows.ids)
                room -= len(part.rows.ids)
        if urgent == Priority.AHEAD:
            parts += self._ahead(room)
        return parts

    def _room(self, n_rows: int, priority: Priority) -> int:
        """Tokens of prompts that fit into a step beside `n_rows` of running replies."""
        costs = self._costs()
        limit_s = MAX_STEP_S
        if n_rows and priority == Priority.AHEAD:
            limit_s = min(limit_s, AHEAD_COST * costs.of(n_rows))
        return next((n for n in CHUNKS if costs.of(n_rows + n) <= limit_s), CHUNKS[-1])

    def _decode(self, generation: Generation, n_others: int) -> _Part | None:
        proposal = generation.proposal(self._costs(), n_others)
        ids = [*generation.missing(), *proposal.ids]
        return self._part(generation, ids, 1 + len(proposal), proposal)

    def _prefill(
        self, generation: Generation, trunk: Trunk, room: int, n_rows: int
    ) -> _Part | None:
        if generation.sequence is None:
            generation.begin(trunk, self._pool)
        missing = generation.missing()
        if len(missing) > room:
            return self._part(generation, missing[:room], 0)
        proposal = generation.proposal(self._costs(), n_rows + len(missing) - 1)
        return self._part(generation, [*missing, *proposal.ids], 1 + len(proposal), proposal)

    def _ahead(self, room: int) -> list[_Part]:
        """Work on what conversations will probably need."""
        parts = []
        for trunk in self._trunks:
            if room <= 0:
                break
            if trunk.is_ready:
                continue
            trunk.align()
            missing = trunk.missing()[:room]
            if missing and (part := self._part(trunk, missing, 0)):
                parts.append(part)
                room -= len(missing)
        return parts

    def _part(
        self,
        owner: Generation | Trunk,
        ids: Sequence[int],
        n_logits: int,
        proposal: Proposal = NOTHING,
    ) -> _Part | None:
        """The rows for `ids`, with room for them in the cache; None when there is none."""
        assert owner.sequence is not None
        position = len(owner.sequence.ids)
        try:
            slots = owner.sequence.append(ids)
        except OutOfBlocks:
            if proposal:  # a guess is not worth others' state
                return self._part(owner, ids[: -len(proposal)], 1)
            found = self._make_room(owner, owner.sequence, ids)
            if found is None:
                return None
            slots = found
        rows = Rows(ids, position, slots, owner.sequence.runs(), n_logits)
        return _Part(owner, rows, proposal)

    def _make_room(
        self, owner: Generation | Trunk, sequence: KvSequence, ids: Sequence[int]
    ) -> list[int] | None:
        """Slots that others give up: idle conversations, then replies that are over. None: a held
        reply was ended for a released one, which goes on in a later step, or nobody is left."""
        if isinstance(owner, Trunk):
            owner.target = list(sequence.ids)  # what it prepares is not worth others' state
            return None
        idle = sorted(self._trunks, key=lambda trunk: trunk.last_used)
        others = [partial(self._give_up, trunk) for trunk in idle if trunk.sequence.ids]
        others += [partial(Generation.forget, generation) for generation in self._ended]
        for give_up in others:
            give_up()
            try:
                return sequence.append(ids)
            except OutOfBlocks:
                continue
        full = ComponentError(
            f"language model: its cache of {self._pool.n_blocks} blocks is full: raise kv_tokens "
            "or serve fewer sessions"
        )
        held = [
            generation
            for generation, _ in self._generations
            if generation.priority > owner.priority and generation.sequence is not None
        ]
        (held[-1] if held else owner).fail(full)
        return None

    def _give_up(self, trunk: Trunk) -> None:
        """What an idle conversation has ready is computed again when it is needed."""
        trunk.replace(self._pool.new_sequence())
        trunk.target = []


def _fail(part: _Part, error: Exception) -> None:
    """Nothing was computed for the part."""
    owner = part.owner
    assert owner.sequence is not None
    owner.sequence.truncate(part.rows.position)
    if isinstance(owner, Generation):
        owner.fail(error)
    else:
        owner.error = error
