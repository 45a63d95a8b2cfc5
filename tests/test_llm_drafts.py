from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.drafts import (
    NOTHING,
    BestDraft,
    Draft,
    EarlierReply,
    ModelDraft,
    Proposal,
    SuffixDraft,
    check_same_vocabulary,
)
from stages.llm.sampling import Sampling, choose
from stages.llm.speculation import Speculation
from stages.llm.suffix import SuffixMemory
from stages.llm.verify import Verifier
from voicepipe.errors import ComponentError

N_VOCABULARY = 12
SAMPLING = Sampling(temperature=1.0, seed=5)


def logits_after(ids: Sequence[int], sharpness: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hash(tuple(ids[-2:])) % 2**32)
    return torch.randn(N_VOCABULARY, generator=generator).double() * sharpness


class SmallModel:
    """A draft model of the same opinion that is less sure of it."""

    token_s = 0.001
    start_s = 0.0

    def __init__(self, prompt: Sequence[int]) -> None:
        self.ids = list(prompt)
        self.n_prompt = len(prompt)
        self.n_computed = 0

    def extend(self, ids: Sequence[int]) -> None:
        self.ids += ids

    def truncate(self, n: int) -> None:
        del self.ids[n:]

    def next_tokens(self, n: int) -> list[int]:
        for _ in range(n):
            reply = self.ids[self.n_prompt :]
            logits = logits_after(self.ids, sharpness=2.5)
            self.ids.append(choose(logits, SAMPLING, len(self.ids), reply))
        self.n_computed += n
        return self.ids[len(self.ids) - n :]


def generate(prompt: Sequence[int], n: int, draft: Draft | None, n_drafts: int = 4) -> list[int]:
    """A reply of `n` tokens or a few more, and how the engine uses a draft."""
    ids: list[int] = []
    verifier = Verifier(SAMPLING)
    while len(ids) < n:
        drafts = draft.propose(n_drafts).first(n_drafts).ids if draft else ()
        rows = [logits_after([*prompt, *ids, *drafts[:k]]) for k in range(len(drafts) + 1)]
        position = len(prompt) + len(ids)
        found = verifier.verify(torch.stack(rows), drafts, position=position, generated=ids)
        ids += found
        if draft:
            draft.observe(found)
    return ids


PROMPT = [3, 1, 4]
PLAIN = generate(PROMPT, 60, None)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.lists(st.integers(0, N_VOCABULARY - 1), max_size=20), st.data())
def test_no_draft_changes_the_reply(n_same: int, others: list[int], data: st.DataObject) -> None:
    memory = SuffixMemory()
    memory.add(PLAIN[:n_same] + others)
    sources: list[Draft] = [
        EarlierReply(PLAIN[:n_same] + others + PLAIN[n_same:]),
        SuffixDraft(memory.cursor()),
        ModelDraft(SmallModel(PROMPT), len(PROMPT), N_VOCABULARY),
    ]
    draft = data.draw(st.sampled_from(sources))
    best = BestDraft([draft, EarlierReply(others)], Speculation().expected_tokens)
    n_drafts = data.draw(st.integers(0, 7))
    assert generate(PROMPT, 50, best, n_drafts)[:50] == PLAIN[:50]


def test_an_earlier_reply_is_proposed_from_where_the_new_one_stands() -> None:
    draft = EarlierReply([1, 2, 3, 4, 5])
    assert draft.propose(2) == Proposal("earlier-reply", [1, 2])
    draft.observe([1, 2])
    assert draft.propose(9).ids == [3, 4, 5]
    draft.observe([3, 4, 5, 6])
    assert not draft.propose(9)


@pytest.mark.parametrize(
    ("change", "n_more"),
    [
        pytest.param([9], 0, id="a word instead"),
        pytest.param([9, 3], 0, id="a word more"),
        pytest.param([4], 1, id="a word less"),
    ],
)
def test_an_earlier_reply_is_followed_again_after_a_difference(
    change: list[int], n_more: int
) -> None:
    earlier = [1, 2, 3, 4, 5, 6, 7, 8]
    draft = EarlierReply(earlier)
    draft.observe([1, 2, *change])
    rest = [4, 5, 6, 7, 8][n_more:]
    draft.observe(rest[:2])
    assert draft.propose(9) == Proposal("earlier-reply", rest[2:], bucket=1)


def test_of_two_places_the_nearer_one_is_taken_up() -> None:
    draft = EarlierReply([8, 9, 1, 2, 3, 8, 9, 4, 5, 8, 9, 6])
    draft.observe([8, 9, 1, 2, 7, 8, 9])
    assert draft.propose(1).ids == [4]


def test_an_earlier_reply_that_has_nothing_in_common_is_given_up() -> None:
    draft = EarlierReply([1, 2, 3, 4])
    draft.observe(range(10, 60))
    draft.observe([1, 2, 3])
    assert not draft.propose(4)


def test_a_suffix_known_for_longer_is_trusted_more() -> None:
    memory = SuffixMemory()
    memory.add(range(40))
    cursor = memory.cursor()
    draft = SuffixDraft(cursor)
    buckets = []
    for token in range(20):
        draft.observe([token])
        assert draft.propose(1).ids == [token + 1]
        buckets.append(draft.propose(1).bucket)
    assert buckets == [0, 1, 1, 2, 2, 2, 2, *[3] * 8, *[4] * 5]


def test_a_draft_model_computes_no_token_twice_and_draws_as_the_target_does() -> None:
    model = SmallModel(PROMPT)
    draft = ModelDraft(model, len(PROMPT), N_VOCABULARY)
    n_steps = 0

    class Counting(ModelDraft):
        def observe(self, ids: Sequence[int]) -> None:
            nonlocal n_steps
            n_steps += 1
            super().observe(ids)

    draft = Counting(model, len(PROMPT), N_VOCABULARY)
    ids = generate(PROMPT, 50, draft)
    assert model.ids == PROMPT + ids
    assert model.n_computed == 4 * (n_steps - 1), "none for the first token"
    assert len(ids) / n_steps > 2.5


def test_a_token_that_the_target_does_not_have_ends_a_draft() -> None:
    class Padded(SmallModel):
        def next_tokens(self, n: int) -> list[int]:
            self.ids += [1, 2, N_VOCABULARY + 3, 4][:n]
            return [1, 2, N_VOCABULARY + 3, 4][:n]

    model = Padded(PROMPT)
    draft = ModelDraft(model, len(PROMPT), N_VOCABULARY)
    draft.observe([6])
    assert draft.propose(4).first(4).ids == [1, 2]
    draft.observe([1, 2, 5])
    assert model.ids == [*PROMPT, 6, 1, 2, 5]


def test_a_draft_model_works_only_when_asked_for_its_tokens() -> None:
    model = SmallModel(PROMPT)
    draft = ModelDraft(model, len(PROMPT), N_VOCABULARY)
    draft.observe([6])
    proposal = draft.propose(5)
    assert len(proposal) == 5
    assert model.n_computed == 0


def test_nobodys_first_token_waits_for_the_guesses_of_a_draft_model() -> None:
    draft = ModelDraft(SmallModel(PROMPT), len(PROMPT), N_VOCABULARY)
    assert not draft.propose(5)
    draft.observe([6])
    assert draft.propose(5)


class Fixed:
    """A draft that says one thing."""

    def __init__(self, proposal: Proposal) -> None:
        self.source = proposal.source
        self.proposal = proposal
        self.observed: list[int] = []

    def propose(self, n: int) -> Proposal:
        return self.proposal

    def observe(self, ids: Sequence[int]) -> None:
        self.observed += ids


def test_the_most_promising_draft_is_proposed_and_a_model_only_without_another() -> None:
    short, long = Proposal("earlier-reply", [1, 2]), Proposal("suffix", [3] * 8, bucket=4)
    paid = Proposal("model", n_offered=9, token_s=0.1, draw=lambda n: [4] * n)
    drafts = [Fixed(p) for p in (short, long, paid)]
    expected = Speculation().expected_tokens
    assert BestDraft(drafts, expected).propose(8) == long
    assert BestDraft([drafts[0], drafts[2]], expected).propose(8) == short
    assert BestDraft([Fixed(NOTHING), drafts[2]], expected).propose(8) == paid
    assert not BestDraft([Fixed(NOTHING)], expected).propose(8)
    BestDraft(drafts, expected).observe([7])
    assert [draft.observed for draft in drafts] == [[7]] * 3


@pytest.mark.parametrize("padding", ["[PAD151665]", "<|extra_1|>", "<unused42>", ""])
def test_vocabularies_may_differ_in_padding(padding: str) -> None:
    check_same_vocabulary(["a", "b"], ["a", "b", padding])
    check_same_vocabulary(["a", "b", padding], ["a", "b"])


@pytest.mark.parametrize("other", [["a", "c"], ["a"], ["a", "b", "c"]])
def test_a_draft_model_with_other_tokens_is_refused(other: list[str]) -> None:
    with pytest.raises(ComponentError, match="same family"):
        check_same_vocabulary(["a", "b"], other)
