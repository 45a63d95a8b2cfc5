"""Whole schedules on a model that notices any mistake of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.drafts import BestDraft, Draft, EarlierReply, Proposal, SuffixDraft
from stages.llm.generation import Generation, Priority, Trunk
from stages.llm.kv_pool import BlockPool
from stages.llm.reply_text import ReplyLength, ReplyText
from stages.llm.sampling import Sampling
from stages.llm.scheduler import MAX_STEP_S, Scheduler
from stages.llm.speculation import Speculation
from stages.llm.suffix import SuffixMemory
from stages.llm.verify import Verifier
from tests.llm_fake import END, FakeModel, continued, tokenizer
from voicepipe.errors import ComponentError

N_REPLY = 12
TOKENIZER = tokenizer()


@dataclass
class Bench:
    """A scheduler on a fake model, and generations made for it."""

    n_blocks: int = 64
    per_row: float = 0.1
    n_reply: int = N_REPLY
    memory: SuffixMemory = field(default_factory=SuffixMemory)

    def __post_init__(self) -> None:
        self.model = FakeModel(16 * self.n_blocks, self.per_row)
        self.pool = BlockPool(self.n_blocks, copy=self.model.copy)
        self.scheduler = Scheduler(self.model.step, self.model.costs, self.pool)
        self.speculation = Speculation()

    def trunk(self) -> Trunk:
        trunk = Trunk(self.pool.new_sequence())
        self.scheduler.add_trunk(trunk)
        return trunk

    def generation(
        self,
        prompt: list[int],
        priority: Priority = Priority.RELEASED,
        draft: Draft | None = None,
    ) -> Generation:
        return Generation(
            prompt,
            text=ReplyText(TOKENIZER, ReplyLength(self.n_reply, self.n_reply)),
            verifier=Verifier(Sampling(0.0, repetition_penalty=1.0), end_ids=[END]),
            draft=draft,
            speculation=self.speculation,
            priority=priority,
        )

    def suffix_draft(self, prompt: list[int]) -> Draft:
        cursor = self.memory.cursor()
        cursor.follow(prompt)
        return BestDraft([SuffixDraft(cursor)], self.speculation.expected_tokens)

    def finish(self, *generations: Generation) -> None:
        for _ in range(2000):
            if all(generation.over for generation in generations):
                return
            self.scheduler.step()
            self.pool.check()
        raise AssertionError("it never ends")

    def settle(self, *trunks: Trunk) -> None:
        for _ in range(2000):
            if all(trunk.is_ready for trunk in trunks):
                return
            self.scheduler.step()
        raise AssertionError("it is never ready")


def test_a_reply_is_what_the_model_says_and_its_state_stays_with_the_conversation() -> None:
    bench = Bench()
    trunk, prompt = bench.trunk(), [*range(1, 30)]
    generation = bench.generation(prompt)
    bench.scheduler.submit(generation, trunk)
    bench.finish(generation)
    assert generation.text.ids == continued(prompt, N_REPLY)
    bench.scheduler.close(generation)
    assert trunk.sequence.ids[: len(prompt)] == prompt
    assert trunk.sequence.ids == (prompt + generation.text.ids)[: len(trunk.sequence.ids)]


def test_a_fork_computes_only_what_its_trunk_lacks() -> None:
    bench = Bench()
    trunk = bench.trunk()
    trunk.aim([*range(1, 25)])
    bench.settle(trunk)
    generation = bench.generation([*range(1, 25), 30, 31])
    bench.scheduler.submit(generation, trunk)
    bench.finish(generation)
    assert generation.stats.cached_tokens == 24


def test_conversations_share_what_they_have_in_common() -> None:
    bench = Bench()
    system = [3, 5, 7, 9] * 20
    first = bench.trunk()
    first.aim(system)
    bench.settle(first)
    alone = bench.pool.n_referenced
    others = [bench.trunk() for _ in range(15)]
    replies = [bench.generation([*system, 10 + n]) for n in range(15)]
    for trunk, reply in zip(others, replies, strict=True):
        bench.scheduler.submit(reply, trunk)
    bench.finish(*replies)
    assert all(reply.stats.cached_tokens >= 80 - 16 for reply in replies)
    assert bench.pool.n_referenced <= alone + 15 * 2


def test_a_cancelled_reply_frees_its_blocks_before_the_next_step_also_in_its_prompt() -> None:
    bench = Bench(per_row=4.0)
    trunk = bench.trunk()
    generation = bench.generation([*range(1, 39)] * 4)
    bench.scheduler.submit(generation, trunk)
    bench.scheduler.step()
    assert not generation.is_decoding
    n_steps = len(bench.model.steps)
    bench.scheduler.close(generation)
    bench.scheduler.step()
    assert len(bench.model.steps) == n_steps
    bench.scheduler.remove_trunk(trunk)
    assert bench.pool.n_referenced == 0


def test_a_long_prompt_never_makes_a_running_reply_wait_longer_than_promised() -> None:
    bench = Bench(n_blocks=512, per_row=0.2, n_reply=200)
    running, other = bench.trunk(), bench.trunk()
    reply = bench.generation([1, 2, 3])
    bench.scheduler.submit(reply, running)
    bench.scheduler.step()
    newcomer = bench.generation([*range(1, 39)] * 100)
    bench.scheduler.submit(newcomer, other)
    n_before = reply.stats.generated_tokens
    while not newcomer.is_decoding and not reply.over:
        n_said = reply.stats.generated_tokens
        bench.scheduler.step()
        assert reply.stats.generated_tokens > n_said or reply.over, "it advances in every step"
        n_rows = sum(len(rows.ids) for rows in bench.model.steps[-1])
        assert bench.model.costs().of(n_rows) <= MAX_STEP_S
    assert reply.stats.generated_tokens > n_before + 10


@pytest.mark.parametrize("later", [Priority.RELEASED, Priority.HELD])
def test_the_most_urgent_prompt_has_a_step_to_itself(later: Priority) -> None:
    bench = Bench(per_row=4.0)
    ahead, held, wanted = bench.trunk(), bench.trunk(), bench.trunk()
    ahead.aim([*range(1, 39)])
    eager = bench.generation([*range(2, 39)] * 2, Priority.HELD)
    reply = bench.generation([*range(3, 39)] * 2, Priority.RELEASED)
    bench.scheduler.submit(eager, held)
    bench.scheduler.submit(reply, wanted)
    eager.priority = later
    bench.scheduler.step()
    (rows,) = bench.model.steps[-1]
    expected = 2 if later == Priority.RELEASED else 3  # equals go in order
    assert rows.ids[0] == expected


def test_a_failing_model_fails_the_replies_of_that_step_and_nothing_else() -> None:
    bench = Bench()
    trunk = bench.trunk()
    generation = bench.generation([*range(1, 20)])
    bench.scheduler.submit(generation, trunk)
    bench.model.error = RuntimeError("out of luck")
    bench.finish(generation)
    assert isinstance(generation.error, RuntimeError)
    bench.scheduler.close(generation)
    again = bench.generation([*range(1, 20)])
    bench.scheduler.submit(again, trunk)
    bench.finish(again)
    assert again.text.ids == continued([*range(1, 20)], N_REPLY)


class BrokenDraft:
    source = "broken"

    def propose(self, n: int) -> Proposal:
        raise ComponentError("the draft model's cache is full")

    def observe(self, ids: Sequence[int]) -> None:
        """Nothing is learned."""


def test_a_draft_that_fails_costs_no_reply_anything() -> None:
    bench = Bench()
    prompts = [*range(1, 20)], [*range(2, 30)]
    plain, drafted = bench.generation(prompts[0]), bench.generation(prompts[1], draft=BrokenDraft())
    for generation in (plain, drafted):
        bench.scheduler.submit(generation, bench.trunk())
    bench.finish(plain, drafted)
    for generation, prompt in zip((plain, drafted), prompts, strict=True):
        assert generation.text.ids == continued(prompt, N_REPLY)


def test_a_reply_that_outlives_its_conversation_leaves_nothing_in_use() -> None:
    bench = Bench()
    trunk, reply = bench.trunk(), bench.generation([*range(1, 20)])
    bench.scheduler.submit(reply, trunk)
    bench.scheduler.step()
    bench.scheduler.remove_trunk(trunk)
    bench.finish(reply)
    bench.scheduler.close(reply)
    assert reply.text.ids == continued([*range(1, 20)], N_REPLY)
    assert bench.pool.n_referenced == 0


def test_a_new_conversation_does_not_count_as_the_one_idle_longest() -> None:
    bench = Bench(n_blocks=8)
    old = bench.trunk()
    for prompt in ([*range(1, 20)], [*range(1, 30)]):
        reply = bench.generation(prompt)
        bench.scheduler.submit(reply, old)
        bench.finish(reply)
        bench.scheduler.close(reply)
    new = bench.trunk()
    new.aim([*range(2, 37)])
    bench.settle(new)
    third = bench.generation([*range(3, 39)])
    bench.scheduler.submit(third, bench.trunk())
    bench.finish(third)
    assert old.sequence.ids == []
    assert len(new.sequence.ids) == 35


def test_when_space_is_short_the_conversation_idle_longest_gives_up_its_state() -> None:
    bench = Bench(n_blocks=8)
    old, new = bench.trunk(), bench.trunk()
    for trunk, start in ((old, 1), (new, 2)):
        trunk.aim([*range(start, start + 35)])
        bench.settle(trunk)
    new.last_used = 1
    third = bench.trunk()
    reply = bench.generation([*range(3, 39)])
    bench.scheduler.submit(reply, third)
    bench.finish(reply)
    assert reply.text.ids == continued([*range(3, 39)], N_REPLY)
    assert old.sequence.ids == []
    assert len(new.sequence.ids) == 35


def test_a_reply_somebody_waits_for_gets_the_space_of_one_that_may_never_be_heard() -> None:
    for n_ahead in (1, 4, 100):  # the held reply is in its prompt, running, over
        bench = Bench(n_blocks=4)
        held = bench.generation([*range(1, 36)], Priority.HELD)
        reply = bench.generation([*range(2, 37)])
        bench.scheduler.submit(held, bench.trunk())
        for _ in range(n_ahead):
            bench.scheduler.step()
        bench.scheduler.submit(reply, bench.trunk())
        bench.finish(held, reply)
        assert reply.text.ids == continued([*range(2, 37)], N_REPLY)
        for generation in (held, reply):
            bench.scheduler.close(generation)
        bench.pool.check()


def test_drafts_are_left_out_where_there_is_no_space_for_them() -> None:
    bench = Bench(n_blocks=2, n_reply=40)
    prompt = [*range(1, 31)]
    assert len(continued(prompt, 40)) <= 2, "the reply must fit, and not its draft"
    idle = bench.trunk()
    reply = bench.generation(prompt, draft=EarlierReply([5] * 30))
    bench.scheduler.submit(reply, idle)
    bench.finish(reply)
    assert reply.error is None
    assert reply.text.ids == continued(prompt, 40)


def test_a_reply_whose_tokens_cannot_be_taken_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a token of no text")

    bench = Bench()
    broken, whole = bench.generation([*range(1, 20)]), bench.generation([*range(2, 20)])
    monkeypatch.setattr(broken, "take", fail)
    for generation in (broken, whole):
        bench.scheduler.submit(generation, bench.trunk())
    bench.finish(broken, whole)
    assert isinstance(broken.error, ValueError)
    assert whole.text.ids == continued([*range(2, 20)], N_REPLY)


def test_a_prompt_that_never_fits_is_one_clear_line() -> None:
    bench = Bench(n_blocks=2)
    reply = bench.generation([*range(1, 39)])
    bench.scheduler.submit(reply, bench.trunk())
    bench.finish(reply)
    assert isinstance(reply.error, ComponentError)
    assert "raise kv_tokens" in str(reply.error)
    bench.pool.check()


def test_right_drafts_take_fewer_steps_and_change_nothing() -> None:
    prompt = [*range(1, 12)]
    plain, drafted = Bench(n_reply=40), Bench(n_reply=40)
    said = continued(prompt, 40)
    one = plain.generation(prompt)
    two = drafted.generation(prompt, draft=EarlierReply(said))
    for bench, generation in ((plain, one), (drafted, two)):
        bench.scheduler.submit(generation, bench.trunk())
        bench.finish(generation)
    assert one.text.ids == two.text.ids == said
    assert len(drafted.model.steps) < len(plain.model.steps) / 2
    assert two.stats.accepted_tokens > 0
    assert two.stats.verify_steps > 0


conversation = st.tuples(
    st.integers(0, 3),  # which
    st.lists(st.integers(1, 39), min_size=1, max_size=40),  # what is said
    st.sampled_from(list(Priority)[:2]),
    st.sampled_from(["adopt", "drop", "cancel", "truncate"]),
    st.integers(0, 12),
    st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(conversation, max_size=10),
    st.sampled_from([24, 64]),
    st.sampled_from([0.02, 0.3, 3.0]),
)
def test_any_interleaving_says_what_each_conversation_alone_would_say(
    talk: list[tuple[int, list[int], Priority, str, int, bool]], n_blocks: int, per_row: float
) -> None:
    bench = Bench(n_blocks=n_blocks, per_row=per_row)
    trunks = [bench.trunk() for _ in range(4)]
    histories: list[list[int]] = [[1, 2, 3] for _ in trunks]
    running: list[tuple[int, list[int], Generation]] = []
    for which, words, priority, end, n_steps, drafts in talk:
        prompt = histories[which][-60:] + words
        draft = bench.suffix_draft(prompt) if drafts else None
        generation = bench.generation(prompt, priority, draft)
        bench.scheduler.submit(generation, trunks[which])
        running.append((which, prompt, generation))
        for _ in range(n_steps):
            bench.scheduler.step()
            bench.pool.check()
        if end == "cancel":
            bench.scheduler.close(generation)
            n_said = len(generation.text.ids)
            bench.scheduler.step()
            assert len(generation.text.ids) == n_said
            continue
        bench.finish(*(each for _, _, each in running))
        for owner, asked, each in running:
            if each.error is None and asked:
                expected = continued(asked, N_REPLY)
                assert each.text.ids == expected[: len(each.text.ids)]
                assert end == "cancel" or each.text.ids == expected or each.sequence is None
            bench.scheduler.close(each)
            if end == "adopt":
                histories[owner] = asked + each.text.ids
                bench.memory.add(asked + each.text.ids)
            elif end == "truncate":
                histories[owner] = asked + each.text.ids[:3]
            trunks[owner].aim(histories[owner])
        running = []
        bench.settle(*trunks)
    for _, _, each in running:
        bench.scheduler.close(each)
    for trunk in trunks:
        bench.scheduler.remove_trunk(trunk)
    bench.pool.check()
    assert bench.pool.n_referenced == 0
