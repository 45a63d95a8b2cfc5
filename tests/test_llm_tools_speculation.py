"""Drafts change nothing of a reply that calls tools, whatever they are and however many."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stages.llm import speculation
from stages.llm.call_text import CallingText
from stages.llm.drafts import BestDraft, Draft, EarlierReply, ForcedDraft, Proposal, SuffixDraft
from stages.llm.generation import Generation, Priority, Trunk
from stages.llm.grammar import Grammar, GrammarTokens, ToolCallGrammar
from stages.llm.kv_pool import BlockPool
from stages.llm.reply_text import ReplyLength
from stages.llm.sampling import Sampling
from stages.llm.scheduler import Scheduler
from stages.llm.speculation import Speculation
from stages.llm.suffix import SuffixMemory
from stages.llm.verify import Verifier
from tests.llm_bytes import END, TOOL, small
from tests.llm_fake import FakeCosts, FakeModel
from tests.llm_tools import TOOLS
from voicepipe.protocols import ToolCall

PROMPTS = [[*range(n, n + 40)] for n in (43, 50, 99, 169)]
SAMPLING = Sampling(1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=5)
FAVOURED = {TOOL: 5.5, ord('"'): 7.0, END: 4.0}


@functools.cache
def grammar() -> ToolCallGrammar:
    tokens = GrammarTokens(small(), visible=("<tool_call>", "</tool_call>"))
    schemas: dict[str, dict[str, Any]] = {tool.name: dict(tool.parameters) for tool in TOOLS}
    return ToolCallGrammar(tokens, schemas)


Drafts = Callable[[Grammar, Sequence[int]], list[Draft]]


class Call:
    """A call of several turns on a model that notices any mistake of the cache."""

    def __init__(self, drafts: Drafts, per_row: float = 0.1) -> None:
        self.model = FakeModel(4096, per_row, n_vocabulary=len(small()), favoured=FAVOURED)
        self.pool = BlockPool(256, copy=self.model.copy)
        self.scheduler = Scheduler(self.model.step, self.model.costs, self.pool)
        self.speculation = Speculation()
        self.drafts = drafts

    def reply(self, prompt: Sequence[int]) -> Generation:
        allowed = grammar().copy()
        generation = Generation(
            prompt,
            text=CallingText(small(), ReplyLength(20, 20)),
            verifier=Verifier(SAMPLING, allowed, [END]),
            draft=BestDraft(self.drafts(allowed, prompt), self.speculation.expected_tokens),
            speculation=self.speculation,
            priority=Priority.RELEASED,
        )
        trunk = Trunk(self.pool.new_sequence())
        self.scheduler.add_trunk(trunk)
        self.scheduler.submit(generation, trunk)
        while not generation.over:
            self.scheduler.step()
            self.pool.check()
        assert generation.error is None
        self.scheduler.close(generation)
        self.scheduler.remove_trunk(trunk)
        return generation


@functools.cache
def plain() -> list[Generation]:
    call = Call(lambda allowed, prompt: [])
    return [call.reply(prompt) for prompt in PROMPTS]


def calls_of(reply: Generation) -> list[ToolCall]:
    return [delta for delta in reply.deltas if isinstance(delta, ToolCall)]


def told(allowed: Grammar, prompt: Sequence[int]) -> list[Draft]:
    """What the model will say, but for every ninth token, and for digits: those might come too."""
    said = plain()[PROMPTS.index(list(prompt))].text.ids
    wrong = {ord("1"): ord("2"), ord("3"): ord("4")}
    drafts = [ord("x") if n % 9 == 8 else wrong.get(token, token) for n, token in enumerate(said)]
    return [EarlierReply(drafts)]


def remembered(allowed: Grammar, prompt: Sequence[int]) -> list[Draft]:
    memory = SuffixMemory()
    for reply in plain():
        memory.add([*reply.prompt_ids, *reply.text.ids, END])
    cursor = memory.cursor()
    cursor.follow(prompt)
    return [SuffixDraft(cursor)]


def forced(allowed: Grammar, prompt: Sequence[int]) -> list[Draft]:
    return [ForcedDraft(allowed)]


def all_of_them(allowed: Grammar, prompt: Sequence[int]) -> list[Draft]:
    return [draft for kind in (forced, told, remembered) for draft in kind(allowed, prompt)]


def test_the_plain_replies_are_worth_comparing() -> None:
    assert {call.name for reply in plain() for call in calls_of(reply)} == {"book_table", "hang_up"}
    assert any(reply.text.text for reply in plain())
    assert any(len(calls_of(reply)) > 1 for reply in plain())


@pytest.mark.parametrize(
    ("drafts", "most"), [*itertools.product((told, remembered, forced, all_of_them), (1, 3, 32))]
)
def test_drafts_change_nothing_but_the_number_of_steps(
    drafts: Drafts, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation, "MAX_DRAFT", most)
    call = Call(drafts)
    for prompt, expected in zip(PROMPTS, plain(), strict=True):
        reply = call.reply(prompt)
        assert reply.text.ids == expected.text.ids
        assert reply.text.text == expected.text.text
        assert calls_of(reply) == calls_of(expected)
    n_plain = sum(reply.stats.generated_tokens for reply in plain())
    assert len(call.model.steps) < n_plain


def test_what_is_forced_is_checked_at_any_price_and_never_wrong() -> None:
    call = Call(forced, per_row=0.98)  # a token more costs what a step would
    replies = [call.reply(prompt) for prompt in PROMPTS]
    stats = [reply.stats for reply in replies]
    assert [reply.text.ids for reply in replies] == [reply.text.ids for reply in plain()]
    assert sum(each.drafted_tokens for each in stats) > 200
    assert all(each.accepted_tokens == each.drafted_tokens for each in stats)


class Fixed:
    """A draft that always proposes the same."""

    def __init__(self, *ids: int, source: str = "suffix", n_certain: int = 0) -> None:
        self.source = source
        self._proposal = Proposal(source, ids, bucket=4, n_certain=n_certain)

    def propose(self, n: int) -> Proposal:
        return self._proposal.first(n)

    def observe(self, ids: Sequence[int]) -> None:
        """Nothing is learned."""


def best(*drafts: Draft) -> Proposal:
    return BestDraft(drafts, Speculation().expected_tokens).propose(32)


def test_what_contradicts_the_certain_is_left_out_and_what_goes_on_behind_it_wins() -> None:
    certain = Fixed(1, 2, 3, source="forced", n_certain=3)
    assert best(certain, Fixed(1, 2, 9, 4, 5, 6, 7, 8)).source == "forced"
    assert best(certain, Fixed(1, 2)).source == "forced"
    longer = best(certain, Fixed(1, 2, 3, 4, 5))
    assert (longer.source, longer.n_certain) == ("suffix", 3)
    assert best(Fixed(9, 4), Fixed(1, 2)).n_certain == 0


def test_the_certain_part_of_a_draft_is_checked_even_where_the_rest_does_not_pay() -> None:
    dear = FakeCosts(per_row=5.0)
    proposal = Proposal("suffix", range(10), n_certain=4)
    assert Speculation().length(proposal, dear, 0) == 4
    assert Speculation().length(Proposal("suffix", range(10)), dear, 0) == 0
