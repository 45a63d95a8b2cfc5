from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from stages.llm.kv_blocks import chained_key, root_key
from stages.llm.kv_pool import BLOCK_TOKENS, Block, BlockPool, OutOfBlocks, Sequence
from voicepipe.errors import UsageError

State = tuple[int, int]
"""A token, and a number that stands for the tenant and for all tokens up to this one."""


def states_of(ids: Iterable[int], tenant: bytes = b"") -> list[State]:
    states, link = [], hash(tenant)
    for token in ids:
        link = hash((link, token))
        states.append((token, link))
    return states


class Slots:
    """Attention state that says of each slot which tokens it was computed from."""

    def __init__(self) -> None:
        self.held: dict[int, State] = {}

    def copy(self, source: int, target: int, n_tokens: int) -> None:
        for n in range(n_tokens):
            self.held[target + n] = self.held[source + n]

    def write(self, slots: list[int], ids: list[int], tenant: bytes = b"") -> None:
        """The state of the last tokens of `ids`, as many as there are slots."""
        if slots:
            self.held.update(zip(slots, states_of(ids, tenant)[-len(slots) :], strict=True))

    def read(self, sequence: Sequence) -> list[State | None]:
        return [self.held.get(slot) for slot in slots_of(sequence)]

    def ids_of(self, block: Block) -> tuple[int, ...]:
        return tuple(self.held[block.first_slot + n][0] for n in range(BLOCK_TOKENS))


def slots_of(sequence: Sequence) -> list[int]:
    return [first + n for first, n_tokens in sequence.runs() for n in range(n_tokens)]


@dataclass
class Cache:
    """A pool with its slots, and steps that always succeed."""

    n_blocks: int
    slots: Slots = field(default_factory=Slots)
    on_evict: Callable[[Block], None] | None = None

    def __post_init__(self) -> None:
        self.pool = BlockPool(
            self.n_blocks, salt=b"model", copy=self.slots.copy, on_evict=self.on_evict
        )
        self.open: list[Sequence] = []

    def compute(self, sequence: Sequence, ids: Iterable[int]) -> None:
        slots = sequence.append(list(ids))
        self.slots.write(slots, sequence.ids)
        sequence.commit()
        self.pool.check()

    def computed(self, ids: Iterable[int]) -> Sequence:
        sequence = self.pool.new_sequence()
        self.open.append(sequence)
        self.compute(sequence, ids)
        return sequence

    def holds(self, sequence: Sequence) -> bool:
        return self.slots.read(sequence) == states_of(sequence.ids)


# -- sharing -----------------------------------------------------------------------------------


def test_a_fork_takes_no_space_and_the_first_to_go_on_copies_nothing() -> None:
    cache = Cache(8)
    one = cache.computed(range(20))
    other = one.fork()
    assert cache.pool.n_referenced == 2
    cache.compute(other, [100])
    assert (cache.pool.n_referenced, cache.pool.counters.n_copies) == (2, 0)
    assert other.runs() == [(0, 21)]


def test_the_second_of_a_fork_to_go_on_copies_the_tail_and_neither_sees_the_other() -> None:
    cache = Cache(8)
    one = cache.computed(range(20))
    other = one.fork()
    cache.compute(other, [100])
    cache.compute(one, [200])
    assert (cache.pool.counters.n_copies, cache.pool.counters.copied_tokens) == (1, 4)
    assert cache.holds(one)
    assert cache.holds(other)


def test_what_others_see_of_a_tail_is_not_overwritten_after_a_truncation() -> None:
    cache = Cache(8)
    one = cache.computed(range(8))
    other = one.fork()
    other.truncate(5)
    cache.compute(other, [100])
    assert cache.holds(one)
    assert cache.holds(other)


def test_the_one_that_goes_on_in_a_shared_tail_may_take_back_its_own_tokens() -> None:
    cache = Cache(8)
    one = cache.computed(range(8))
    other = one.fork()
    cache.compute(other, [100, 101, 102])
    other.truncate(9)
    cache.compute(other, [103])
    assert cache.pool.counters.n_copies == 0
    assert cache.holds(one)
    assert cache.holds(other)


def test_a_fork_in_the_middle_of_a_step_has_the_computed_tokens_and_leaves_the_step_alone() -> None:
    cache = Cache(8)
    one = cache.computed(range(8))
    slots = one.append([100, 101])
    other = one.fork()
    assert other.ids == list(range(8))
    cache.compute(other, [200])
    cache.slots.write(slots, one.ids)
    one.commit()
    assert cache.holds(one)
    assert cache.holds(other)


def test_two_that_computed_the_same_share_it_from_then_on() -> None:
    cache = Cache(8)
    one, other = cache.computed(range(40)), cache.computed(range(40))
    assert one.table[:2] == other.table[:2]
    assert cache.pool.n_referenced == 4
    assert cache.holds(other)


# -- finding by content --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_held", "n_asked", "n_found"),
    [
        (40, 60, 40),  # two blocks and a tail of 8
        (40, 40, 39),  # one token is left to compute
        (32, 32, 31),
        (33, 40, 32),  # a tail of 1 is not worth a copy
        (36, 40, 36),
        (40, 35, 32),
        (40, 37, 36),
        (16, 1, 0),
        (16, 0, 0),
    ],
)
def test_what_was_released_is_found_again_as_far_as_it_is_worth_it(
    n_held: int, n_asked: int, n_found: int
) -> None:
    cache = Cache(8)
    cache.computed(range(n_held)).release()
    assert cache.pool.n_referenced == 0
    found = cache.pool.match(range(n_asked))
    assert found.ids == list(range(n_found))
    assert cache.holds(found)
    cache.pool.check()
    counters = cache.pool.counters
    assert (counters.queried_tokens, counters.hit_tokens) == (n_asked, n_found)


def test_the_part_of_a_block_that_is_the_same_is_found() -> None:
    cache = Cache(8)
    cache.computed(range(40))
    asked = [*range(26), *range(100, 110)]
    found = cache.pool.match(asked)
    assert found.ids == asked[:26]
    cache.compute(found, asked[26:])
    assert cache.holds(found)
    assert cache.pool.counters.copied_tokens == 10


def test_a_conversation_that_comes_back_goes_on_where_it_was_without_a_copy() -> None:
    cache = Cache(12)
    ids: list[int] = []
    for turn in range(9):
        sequence = cache.pool.match([*ids, 1000])
        assert sequence.ids == ids
        more = range(turn * 100, turn * 100 + 20)
        cache.compute(sequence, more)
        ids += more
        sequence.release()
    assert cache.pool.counters.n_copies == 0
    assert cache.pool.n_cached == 12


def test_conversations_that_come_back_in_turns_find_all_of_theirs() -> None:
    """The system prompt ends within a block, so each goes on from a part of the other's."""
    cache = Cache(12)
    said = [list(range(22)), list(range(22))]
    for turn in range(4):
        for n in (0, 1):
            sequence = cache.pool.match([*said[n], 1000])
            if turn:
                assert sequence.ids == said[n]
            said[n] += range(1000 * n + 100 * turn, 1000 * n + 100 * turn + 10)
            cache.compute(sequence, said[n][len(sequence.ids) :])
            assert cache.holds(sequence)
            sequence.release()


def test_nothing_is_found_under_another_salt_or_tenant() -> None:
    pool = BlockPool(8, salt=b"a", copy=Slots().copy)
    one = pool.new_sequence(tenant=b"bc")
    one.append(range(40))
    one.commit()
    assert pool.match(range(40)).ids == []
    assert pool.match(range(40), tenant=b"b").ids == []
    assert len(pool.match(range(40), tenant=b"bc").ids) == 32
    other = BlockPool(8, salt=b"ab", copy=Slots().copy).new_sequence(tenant=b"c")
    other.append(range(40))
    other.commit()
    assert one.known_blocks()[0].key != other.known_blocks()[0].key


def test_a_key_depends_on_everything_before_and_is_the_same_in_every_process() -> None:
    ids = tuple(range(16))
    root = root_key(b"salt")
    assert root.hex() == "d7bee2b584bba027c1937f8a98c33e5e"
    assert chained_key(root, ids).hex() == "3d2f10c81f5402bc6dd3c08c2166c647"
    assert chained_key(chained_key(root, ids), ids) != chained_key(root, ids)


def test_keys_of_a_sequence_are_those_of_its_next_blocks() -> None:
    cache = Cache(8)
    one = cache.computed(range(16))
    key = one.next_key(range(16, 32))
    cache.compute(one, range(16, 32))
    assert one.known_blocks()[1].key == key


# -- what is not computed ------------------------------------------------------------------------


def test_rejected_drafts_are_known_nowhere() -> None:
    cache = Cache(8)
    one = cache.computed(range(14))
    slots = one.append([14, 15, 16, 17])
    cache.slots.write(slots, one.ids)
    one.truncate(15)
    one.commit()
    cache.compute(one, [100, 101])
    cache.pool.check()
    assert cache.pool.match([*range(18)]).ids == list(range(15))
    assert cache.holds(one)


def test_tokens_whose_step_did_not_run_are_forgotten_by_a_release() -> None:
    cache = Cache(8)
    one = cache.computed(range(10))
    one.append(range(10, 40))
    one.release()
    cache.pool.check()
    assert cache.pool.match(range(40)).ids == list(range(10))
    assert cache.pool.n_cached + cache.pool.n_referenced == 1


# -- truncation ----------------------------------------------------------------------------------


def test_a_conversation_that_is_cut_goes_on_in_place() -> None:
    cache = Cache(8)
    one = cache.computed(range(92))
    one.truncate(20)
    assert cache.pool.n_cached == 3
    cache.compute(one, range(100, 130))
    assert cache.pool.counters.n_copies == 0
    assert one.runs() == [(0, 50)]
    assert cache.holds(one)


def test_what_another_computed_is_copied_and_stays_known_when_a_conversation_is_cut() -> None:
    cache = Cache(8)
    cache.computed(range(60)).release()
    one = cache.pool.match(range(60))
    one.truncate(20)
    cache.compute(one, [100])
    assert cache.pool.counters.copied_tokens == 4
    one.release()
    assert len(cache.pool.match(range(60)).ids) == 59


def test_the_last_block_of_all_is_overwritten_rather_than_copied() -> None:
    cache = Cache(1)
    cache.computed(range(16)).release()
    one = cache.pool.match([*range(10), 100, 101])
    cache.compute(one, [100])
    assert cache.holds(one)
    assert cache.pool.counters.n_copies == 0


@pytest.mark.parametrize("n", [-1, 11])
def test_a_sequence_cannot_be_cut_to_what_it_does_not_have(n: int) -> None:
    with pytest.raises(ValueError, match="10 are held"):
        Cache(1).computed(range(10)).truncate(n)


# -- space ---------------------------------------------------------------------------------------


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(UsageError, match="0 blocks"):
        Cache(0)


def test_without_room_nothing_changes() -> None:
    cache = Cache(3)
    cache.computed(range(1000, 1016)).release()
    one = cache.computed(range(20))
    with pytest.raises(OutOfBlocks, match="2 blocks of 16 tokens are wanted, 1 of 3"):
        one.append(range(20, 60))
    cache.pool.check()
    assert one.ids == list(range(20))
    assert (cache.pool.n_free, cache.pool.n_cached, cache.pool.n_evicted) == (0, 1, 0)
    assert cache.holds(one)


def test_the_longest_unused_goes_first_from_its_end() -> None:
    evicted: list[int] = []
    cache = Cache(6, on_evict=lambda block: evicted.append(cache.slots.ids_of(block)[0]))
    for first in (0, 100, 200):
        cache.computed(range(first, first + 32)).release()
    cache.pool.match(range(33)).release()
    for first in range(300, 700, 100):
        cache.computed(range(first, first + 16))
    assert evicted == [116, 100, 216, 200]
    assert len(cache.pool.match(range(33)).ids) == 32
    assert cache.pool.n_evicted == 4


def test_what_is_evicted_in_part_is_found_in_part() -> None:
    cache = Cache(4)
    cache.computed(range(64)).release()
    cache.computed(range(100, 120))
    assert cache.pool.match(range(64)).ids == list(range(32))


def test_sequences_that_grow_at_once_stay_few_runs() -> None:
    cache = Cache(512)
    system = cache.computed(range(100))
    sequences = [system.fork() for _ in range(8)]
    for turn in range(20):
        for n, sequence in enumerate(sequences):
            cache.compute(sequence, range(1000 * n + 20 * turn, 1000 * n + 20 * turn + 20))
    assert max(len(sequence.runs()) for sequence in sequences) <= 3


def test_a_conversation_whose_replies_are_forks_stays_one_run() -> None:
    cache = Cache(512)
    trunk = cache.computed(range(100))
    for turn in range(30):
        dropped = trunk.fork()
        cache.compute(dropped, range(10_000 + 100 * turn, 10_000 + 100 * turn + 30))
        dropped.release()
        cache.compute(trunk, range(1000 * turn, 1000 * turn + 7))
        reply = trunk.fork()
        cache.compute(reply, range(20_000 + 100 * turn, 20_000 + 100 * turn + 30))
        trunk.release()
        trunk = reply
        trunk.truncate(len(trunk.ids) - 5)
    assert len(trunk.runs()) == 1
    assert cache.holds(trunk)


def test_thousands_of_turns_leave_nothing_behind() -> None:
    cache = Cache(64)
    for turn in range(1000):
        sequence = cache.pool.match(range(turn, turn + 70))
        sequence.append(range(turn + len(sequence.ids), turn + 70))
        sequence.commit()
        sequence.fork().release()
        sequence.release()
    cache.pool.check()
    assert cache.pool.n_referenced == 0
    assert cache.pool.n_free + cache.pool.n_cached == 64


# -- anything in any order -------------------------------------------------------------------------

TENANTS = (b"", b"", b"other")
MAX_ALIVE = 4

PICKS = st.integers(0, MAX_ALIVE - 1)
STORIES = st.integers(0, 2)
LENGTHS = st.sampled_from([0, 1, 1, 2, 3, 6, 11, 16, 23, 40])


def told(story: int, first: int, n: int) -> list[int]:
    """Tokens of one of a few stories, which begin alike more often than chance would."""
    return [story if at % 16 == 13 else at % 5 for at in range(first, first + n)]


@dataclass(eq=False)
class Known:
    """What the test knows of a sequence."""

    sequence: Sequence
    tenant: bytes
    ids: list[int]
    pending: list[int] = field(default_factory=list)

    @property
    def n_computed(self) -> int:
        return len(self.ids) - len(self.pending)


class PoolMachine(RuleBasedStateMachine):
    @initialize(n_blocks=st.sampled_from([1, 3, 6, 8, 12, 16]))
    def start(self, n_blocks: int) -> None:
        self.slots = Slots()
        self.pool = BlockPool(n_blocks, salt=b"model", copy=self.slots.copy, on_evict=self.on_evict)
        self.known: list[Known] = []
        self.new(b"")
        self.say(0, 0, min(20, 16 * n_blocks))

    def on_evict(self, block: Block) -> None:
        assert self.slots.ids_of(block) == block.ids

    def pick(self, n: int) -> Known:
        return self.known[n % len(self.known)]

    def know(self, known: Known) -> None:
        """Few are alive at a time: they have more to do with each other."""
        self.known.append(known)
        if len(self.known) > MAX_ALIVE:
            self.release(0)

    @precondition(lambda self: not self.known)
    @rule(tenant=st.sampled_from(TENANTS))
    def new(self, tenant: bytes) -> None:
        self.know(Known(self.pool.new_sequence(tenant=tenant), tenant, []))

    @precondition(lambda self: self.known)
    @rule(n=PICKS, story=STORIES, n_more=LENGTHS)
    def say(self, n: int, story: int, n_more: int) -> None:
        self.append(n, story, n_more)
        self.compute(n, 0)

    @precondition(lambda self: self.known)
    @rule(n=PICKS, story=STORIES, n_more=LENGTHS)
    def append(self, n: int, story: int, n_more: int) -> None:
        known = self.pick(n)
        more = told(story, len(known.ids), n_more)
        before = (self.pool.n_free, self.pool.n_cached, known.sequence.runs())
        try:
            slots = known.sequence.append(more)
        except OutOfBlocks:
            assert before == (self.pool.n_free, self.pool.n_cached, known.sequence.runs())
            n_wanted = -(-(len(known.ids) + n_more) // BLOCK_TOKENS) - len(known.sequence.table)
            assert n_wanted + 1 > self.pool.n_free + self.pool.n_cached
            return
        known.ids += more
        known.pending += slots

    @precondition(lambda self: self.known)
    @rule(n=PICKS, n_rejected=st.integers(0, 20))
    def compute(self, n: int, n_rejected: int) -> None:
        known = self.pick(n)
        self.slots.write(known.pending, known.ids, known.tenant)
        n_left = len(known.ids) - min(n_rejected, len(known.pending))
        known.sequence.truncate(n_left)
        del known.ids[n_left:]
        known.pending = []
        known.sequence.commit()

    @precondition(lambda self: self.known)
    @rule(n=PICKS)
    def fork(self, n: int) -> None:
        known = self.pick(n)
        ids = known.ids[: known.n_computed]
        self.know(Known(known.sequence.fork(), known.tenant, ids))

    @precondition(lambda self: self.known)
    @rule(n=PICKS, n_less=st.sampled_from([0, 1, 2, 3, 5, 9, 17, 40]))
    def truncate(self, n: int, n_less: int) -> None:
        known = self.pick(n)
        n_left = max(0, len(known.ids) - n_less)
        n_computed = known.n_computed
        known.sequence.truncate(n_left)
        del known.ids[n_left:]
        known.pending = known.pending[: max(0, n_left - n_computed)]

    @precondition(lambda self: len(self.known) == MAX_ALIVE)
    @rule(n=PICKS)
    def release(self, n: int) -> None:
        known = self.pick(n)
        self.known.remove(known)
        known.sequence.release()
        assert known.sequence.ids == []

    @precondition(lambda self: len(self.known) == MAX_ALIVE)
    @rule()
    def release_all(self) -> None:
        while self.known:
            self.release(0)
        assert self.pool.n_referenced == 0

    @rule(tenant=st.sampled_from(TENANTS), story=STORIES, n=st.integers(1, 80))
    def match(self, tenant: bytes, story: int, n: int) -> None:
        self.find(told(story, 0, n), tenant)

    @precondition(lambda self: self.known)
    @rule(n=PICKS, story=STORIES, n_more=LENGTHS)
    def match_what_goes_on_differently(self, n: int, story: int, n_more: int) -> None:
        known = self.pick(n)
        self.find([*known.ids, *told(story, len(known.ids), n_more)], known.tenant)

    def find(self, ids: list[int], tenant: bytes) -> None:
        found = self.pool.match(ids, tenant=tenant)
        n = len(found.ids)
        assert n < max(1, len(ids))
        assert found.ids == ids[:n]
        for known in self.known:
            if known.tenant == tenant:
                alike = zip(known.ids[: known.n_computed], ids[:-1], strict=False)
                n_alike = next(
                    (at for at, (a, b) in enumerate(alike) if a != b),
                    min(known.n_computed, max(0, len(ids) - 1)),
                )
                assert n >= n_alike // BLOCK_TOKENS * BLOCK_TOKENS
        self.know(Known(found, tenant, ids[:n]))

    @invariant()
    def all_is_accounted_for(self) -> None:
        self.pool.check()
        assert self.pool.n_free + self.pool.n_cached + self.pool.n_referenced == self.pool.n_blocks

    @invariant()
    def every_sequence_reads_exactly_its_tokens(self) -> None:
        for known in self.known:
            assert known.sequence.ids == known.ids
            slots = slots_of(known.sequence)
            assert len(set(slots)) == len(slots) == len(known.ids)
            assert slots[known.n_computed :] == known.pending
            computed = states_of(known.ids[: known.n_computed], known.tenant)
            assert self.slots.read(known.sequence)[: known.n_computed] == computed
            runs = known.sequence.runs()
            assert all(a + n != b for (a, n), (b, _) in pairwise(runs))

    @invariant()
    def no_two_have_the_same_slot_reserved(self) -> None:
        reserved = [slot for known in self.known for slot in known.pending]
        assert len(set(reserved)) == len(reserved)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=50)
