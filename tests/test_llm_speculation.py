from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.llm.drafts import NOTHING, Proposal
from stages.llm.speculation import (
    LAST_PROBE,
    MAX_DRAFT,
    MAX_LOSS,
    MOST_STEPS,
    START_STEPS,
    Speculation,
)


@dataclass(frozen=True)
class Linear:
    """A step of n tokens takes base + slope * n seconds."""

    base_s: float = 0.010
    slope_s: float = 0.001

    def of(self, n_rows: int) -> float:
        return self.base_s + self.slope_s * n_rows


def suffix(n: int = MAX_DRAFT, bucket: int = 2, token_s: float = 0.0) -> Proposal:
    return Proposal("suffix", [0] * n, bucket, token_s=token_s)


@dataclass
class Run:
    """Simulated time of a reply, and what plain decoding would have taken."""

    spent_s: float = 0.0
    plain_s: float = 0.0
    lengths: tuple[int, ...] = ()

    @property
    def speed(self) -> float:
        return self.plain_s / self.spent_s


def run(
    policy: Speculation,
    costs: Linear,
    n_steps: int,
    accepted: Callable[[int], int],
    proposal: Proposal | None = None,
) -> Run:
    """`n_steps` steps; `accepted(n)` of n drafts are right."""
    result, proposal = Run(), proposal or suffix()
    for _ in range(n_steps):
        n = policy.length(proposal, costs, 0)
        n_right = accepted(n) if n else 0
        if n:
            policy.learn(proposal, n, n_right)
        result.spent_s += costs.of(1 + n) + n * proposal.token_s
        result.plain_s += (1 + n_right) * costs.of(1)
        result.lengths += (n,)
    return result


def luck(probability: float, seed: int = 1) -> Callable[[int], int]:
    """Each draft is right with this probability if those before are."""
    rng = random.Random(seed)
    return lambda n: next((i for i in range(n) if rng.random() >= probability), n)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Linear,
        base_s=st.sampled_from([0.0, 0.01, 0.1]),
        slope_s=st.sampled_from([0.0001, 0.003, 0.01]),
    ),
    st.sampled_from([0.0, 0.0005]),
    st.lists(
        st.tuples(
            st.sampled_from(["earlier-reply", "suffix", "model"]),
            st.integers(0, 4),
            st.sampled_from([0.0, 0.0, 0.5, 1.0]),
            st.integers(1, 30),
        ),
        max_size=40,
    ),
)
@example(Linear(0.01, 0.003), 0.0, [("suffix", n, 0.0, 3) for n in range(5)] * 2)
@example(Linear(0.01, 0.003), 0.0, [("suffix", 4, 1.0, 30), ("suffix", 4, 0.0, 30)])
def test_no_acceptance_whatever_makes_decoding_more_than_5_percent_slower(
    costs: Linear, token_s: float, phases: Sequence[tuple[str, int, float, int]]
) -> None:
    """Over the whole, nor over any part of it: the adversary knows the length."""
    policy, plain_step_s, lost_s, least_s = Speculation(), costs.of(1), 0.0, 0.0
    for source, bucket, share, n_steps in phases:
        proposal = Proposal(source, [0] * MAX_DRAFT, bucket, token_s=token_s)
        for _ in range(n_steps):
            n = policy.length(proposal, costs, 0)
            n_right = round(share * n)
            if n:
                policy.learn(proposal, n, n_right)
            lost_s += costs.of(1 + n) + n * token_s - (1 + MAX_LOSS) * (1 + n_right) * plain_step_s
            least_s = min(lost_s, least_s)
            assert lost_s <= START_STEPS * plain_step_s + 1e-9
            assert lost_s - least_s <= MOST_STEPS * plain_step_s + 1e-9


def test_drafts_that_are_always_wrong_soon_cost_nearly_nothing() -> None:
    policy = Speculation()
    run(policy, Linear(), 200, luck(0.0))
    later = run(policy, Linear(), 2000, luck(0.0))
    assert later.speed > 0.999
    assert sum(map(bool, later.lengths)) < 10


def test_probes_become_exponentially_rarer() -> None:
    lengths = run(Speculation(), Linear(), 4000, luck(0.0)).lengths
    probes = [step for step, n in enumerate(lengths) if n]
    gaps = [b - a for a, b in itertools.pairwise(probes)][-4:]
    assert gaps == sorted(gaps)
    assert gaps[-1] > LAST_PROBE


@pytest.mark.parametrize(("probability", "speed"), [(0.95, 4.0), (0.8, 2.2), (0.5, 1.2)])
def test_right_drafts_make_decoding_faster(probability: float, speed: float) -> None:
    assert run(Speculation(), Linear(0.012, 0.0005), 300, luck(probability)).speed > speed


def test_the_length_is_about_the_best_constant_one() -> None:
    for probability in (0.3, 0.6, 0.8, 0.9):
        for slope_s in (0.0002, 0.001, 0.003):
            costs = Linear(0.010, slope_s)
            policy = Speculation()
            run(policy, costs, 300, luck(probability))
            ours = run(policy, costs, 1000, luck(probability, seed=2)).speed
            best = max(
                sum(probability**i for i in range(n + 1)) * costs.of(1) / costs.of(1 + n)
                for n in range(MAX_DRAFT + 1)
            )
            assert ours > 0.93 * best


def test_speculation_resumes_when_drafts_become_right() -> None:
    policy = Speculation()
    run(policy, Linear(), 300, luck(0.0))
    run(policy, Linear(), 280, luck(1.0))
    assert run(policy, Linear(), 50, luck(1.0)).speed > 4


def test_a_probe_is_one_token() -> None:
    policy = Speculation()
    run(policy, Linear(), 200, luck(0.0))
    assert {n for n in run(policy, Linear(), 1000, luck(0.0)).lengths if n} == {1}


def test_no_more_is_checked_than_is_proposed() -> None:
    policy = Speculation()
    assert policy.length(NOTHING, Linear(), 0) == 0
    assert policy.length(suffix(3, bucket=4), Linear(0.1, 0.0), 0) == 3


def test_sources_and_buckets_are_judged_apart() -> None:
    policy = Speculation()
    run(policy, Linear(), 200, luck(0.0), suffix(bucket=0))
    assert policy.length(suffix(bucket=0), Linear(), 0) == 0
    assert policy.length(suffix(bucket=4), Linear(), 0) > 0
    assert policy.length(Proposal("earlier-reply", [1] * 9), Linear(), 0) > 0


def test_drafts_are_left_out_when_they_would_slow_other_replies_down() -> None:
    slow, fast = Linear(0.001, 0.010), Linear(0.1, 0.0001)
    proposal = suffix(bucket=4)
    assert Speculation().length(proposal, fast, 15) > 0
    assert Speculation().length(proposal, slow, 15) == 0


def test_tokens_that_cost_drafting_time_are_fewer() -> None:
    policy = Speculation()
    run(policy, Linear(), 300, luck(0.8))
    free, paid = (policy.length(suffix(token_s=s), Linear(), 0) for s in (0.0, 0.002))
    assert free > paid > 0
    assert policy.length(suffix(token_s=0.1), Linear(), 0) == 0


def test_a_source_that_has_to_catch_up_pays_for_that_too() -> None:
    def length(start_s: float) -> int:
        proposal = Proposal("model", n_offered=4, token_s=0.0001, start_s=start_s)
        return Speculation().length(proposal, Linear(0.1, 0.001), 0)

    assert length(0.0) == 4
    assert length(0.1) > 0, "over a reply it is worth a step of plain decoding"
    assert length(10.0) == 0, "it could never be earned back"


def test_a_source_that_is_behind_is_probed_too() -> None:
    policy, costs, n_probes = Speculation(), Linear(0.1, 0.001), 0
    for _ in range(100):
        proposal = Proposal("model", n_offered=4, token_s=0.055, start_s=0.2)
        if n := policy.length(proposal, costs, 0):
            policy.learn(proposal, n, 0)
            n_probes += 1
    assert n_probes > 0


def test_no_catching_up_makes_decoding_more_than_5_percent_slower() -> None:
    policy, costs, lost_s = Speculation(), Linear(), 0.0
    for _ in range(3000):
        proposal = Proposal("model", n_offered=4, token_s=0.0001, start_s=costs.of(1))
        n = policy.length(proposal, costs, 0)
        if n:
            policy.learn(proposal, n, 0)
            lost_s += costs.of(1 + n) - costs.of(1) + n * proposal.token_s + proposal.start_s
    assert lost_s <= (START_STEPS + 3000 * MAX_LOSS) * costs.of(1)
    assert lost_s > 0, "nothing was tried"


class Lazy:
    """A draft whose tokens are made on demand."""

    source = "model"

    def __init__(self) -> None:
        self.n_drawn = 0

    def propose(self, n: int) -> Proposal:
        return Proposal("model", n_offered=n, token_s=0.0001, draw=self.draw)

    def draw(self, n: int) -> list[int]:
        self.n_drawn += n
        return list(range(n))

    def observe(self, ids: Sequence[int]) -> None: ...


def test_what_is_not_worth_checking_is_not_drawn() -> None:
    draft, policy = Lazy(), Speculation()
    proposal = policy.propose(draft, Linear(0.1, 0.001), 0, 5)
    assert proposal.ids == [*range(draft.n_drawn)]
    assert 0 < draft.n_drawn <= 5
    draft = Lazy()
    assert not Speculation().propose(draft, Linear(0.0, 0.1), 0)
    assert draft.n_drawn == 0
