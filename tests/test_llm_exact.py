"""The exact bar: on a small model in float64 a reply is, token by token, what the model says when
everything is computed anew for each token. However it was guessed, cut into chunks, put together
with others, and whatever the cache held."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest
import torch

from stages.llm import scheduler as scheduling
from stages.llm.draft_model import DraftEngine, ReplyDrafter
from stages.llm.drafts import BestDraft, Draft, EarlierReply, ModelDraft, Proposal, SuffixDraft
from stages.llm.generation import Generation, Priority, Trunk
from stages.llm.kv_pool import BlockPool
from stages.llm.opening import OpenedModel, open_model
from stages.llm.reply_text import ReplyLength, ReplyText
from stages.llm.sampling import Sampling, choose
from stages.llm.scheduler import Scheduler
from stages.llm.speculation import Speculation
from stages.llm.step_plan import Rows
from stages.llm.suffix import SuffixMemory
from stages.llm.transformer import Model, load_model
from stages.llm.verify import Verifier
from tests import llm_tiny
from tests.llm_fake import FakeCosts

N_REPLY = 16
PROMPT = [n % 200 + 3 for n in range(0, 350, 7)]
OTHERS = [[n % 90 + 5 for n in range(start, start + 30)] for start in (0, 31, 62)]
SAMPLING = Sampling(temperature=0.8, repetition_penalty=1.1, seed=3)

Source = Literal["none", "right", "wrong", "half right", "suffix", "model"]
CacheState = Literal["cold", "known", "shared in part", "nearly full"]


class Thirds:
    """A grammar: token n of a reply is n modulo 3."""

    def __init__(self) -> None:
        self.n = 0

    def constrain(self, logits: torch.Tensor) -> None:
        logits[torch.arange(len(logits)) % 3 != self.n % 3] = -torch.inf

    def accept(self, token: int) -> bool:
        allowed = token % 3 == self.n % 3
        self.n += allowed
        return allowed

    def rollback(self, n: int) -> None:
        self.n -= n

    def forced(self, n: int) -> list[int]:
        return []

    @property
    def is_over(self) -> bool:
        return False


@functools.cache
def opened() -> OpenedModel:
    return open_model(llm_tiny.model_file())


@functools.cache
def model() -> Model:
    return load_model(opened().weights, n_positions=128, precision="float64", n_threads=1)


@functools.cache
def by_definition(prompt: tuple[int, ...], *, with_grammar: bool) -> list[int]:
    """The reply, each of its tokens from nothing."""
    grammar = Thirds() if with_grammar else None
    said: list[int] = []
    while len(said) < N_REPLY:
        ids = [*prompt, *said]
        rows = Rows(ids, 0, range(len(ids)), [(0, len(ids))], 1)
        logits = model().step(model().new_store(len(ids)), [rows])[0].clone()
        if grammar:
            grammar.constrain(logits)
        token = choose(logits, SAMPLING, len(ids), said)
        if token in opened().tokenizer.control_ids:
            break
        if grammar:
            grammar.accept(token)
        said.append(token)
    return said


@dataclass
class Capped:
    """At most so many tokens of a draft."""

    draft: Draft
    n_most: int
    source: str = "capped"

    def propose(self, n: int) -> Proposal:
        return self.draft.propose(min(n, self.n_most))

    def observe(self, ids: Sequence[int]) -> None:
        self.draft.observe(ids)


class Bench:
    """A scheduler over the model, with a cache in some state."""

    def __init__(self, state: CacheState) -> None:
        n_blocks = 22 if state == "nearly full" else 64
        store = model().new_store(16 * n_blocks)
        self.pool = BlockPool(n_blocks, copy=store.copy)
        costs: Callable[[], FakeCosts] = lambda: FakeCosts(per_row=0.001)  # noqa: E731
        self.scheduler = Scheduler(partial(model().step, store), costs, self.pool)
        self.speculation = Speculation()
        known = {"known": PROMPT, "shared in part": [*PROMPT[:27], 9, 9, 9]}
        if state in known:
            self.say([self.generation(known[state])])
        elif state == "nearly full":
            self.say([self.generation([start, *PROMPT]) for start in range(3, 7)])

    def generation(
        self, prompt: Sequence[int], draft: Draft | None = None, *, with_grammar: bool = False
    ) -> Generation:
        tokenizer = opened().tokenizer
        return Generation(
            prompt,
            text=ReplyText(tokenizer, ReplyLength(N_REPLY, N_REPLY)),
            verifier=Verifier(SAMPLING, Thirds() if with_grammar else None, tokenizer.control_ids),
            draft=draft,
            speculation=self.speculation,
            priority=Priority.RELEASED,
        )

    def say(self, generations: Sequence[Generation]) -> None:
        trunks = [Trunk(self.pool.new_sequence()) for _ in generations]
        for trunk, generation in zip(trunks, generations, strict=True):
            self.scheduler.add_trunk(trunk)
            self.scheduler.submit(generation, trunk)
        while not all(generation.over for generation in generations):
            self.scheduler.step()
        self.pool.check()
        for trunk, generation in zip(trunks, generations, strict=True):
            self.scheduler.close(generation)
            self.scheduler.remove_trunk(trunk)

    def draft(self, source: Source, expected: Sequence[int]) -> Draft | None:
        wrong = [(token + 1) % 250 for token in expected]
        mixed = [(wrong if n % 5 == 4 else expected)[n] for n in range(len(expected))]
        memory = SuffixMemory()
        memory.add([*PROMPT[-8:], *mixed])
        cursor = memory.cursor()
        cursor.follow(PROMPT[-8:])
        engine = DraftEngine(model(), 128)
        drafter = ReplyDrafter(engine, engine.conversation(), PROMPT, SAMPLING)
        drafts: dict[Source, Draft] = {
            "right": EarlierReply(expected),
            "wrong": EarlierReply(wrong),
            "half right": EarlierReply(mixed),
            "suffix": SuffixDraft(cursor),
            "model": ModelDraft(drafter, len(PROMPT), len(opened().tokenizer)),
        }
        return drafts.get(source)


@pytest.mark.parametrize("state", ["cold", "known", "shared in part", "nearly full"])
@pytest.mark.parametrize("source", ["none", "right", "wrong", "half right", "suffix", "model"])
def test_a_reply_is_what_the_model_says_token_by_token(
    source: Source, state: CacheState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DraftEngine, "token_s", 1e-9)  # it is as slow as its target
    monkeypatch.setattr(DraftEngine, "start_s", lambda *_: 0.0)
    n_drafted = 0
    for n_most, chunk, n_others, with_grammar in itertools.product(
        (1, 8) if source != "none" else (0,), (4, 64), (0, 3), (False, True)
    ):
        monkeypatch.setattr(scheduling, "CHUNKS", (chunk, 4))
        expected = by_definition(tuple(PROMPT), with_grammar=with_grammar)
        bench = Bench(state)
        draft = bench.draft(source, expected)
        best = BestDraft([Capped(draft, n_most)], lambda _: 1.0) if draft else None
        reply = bench.generation(PROMPT, best, with_grammar=with_grammar)
        others = [bench.generation(other) for other in OTHERS[:n_others]]
        bench.say([*others, reply])
        assert reply.text.ids == expected, (n_most, chunk, n_others, with_grammar)
        for other, prompt in zip(others, OTHERS, strict=False):
            assert other.text.ids == by_definition(tuple(prompt), with_grammar=False)
        n_drafted += reply.stats.drafted_tokens
    assert (n_drafted > 0) == (source != "none")


def test_the_replies_of_the_matrix_are_long_enough_to_show_something() -> None:
    for with_grammar in (False, True):
        assert len(by_definition(tuple(PROMPT), with_grammar=with_grammar)) > 8
