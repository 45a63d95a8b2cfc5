from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stages.llm.grammar import Grammar
from stages.llm.sampling import Sampling, choose
from stages.llm.verify import Verifier

N_VOCABULARY = 24
END = 5
FAIR = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)


class Alternating:
    """A grammar: tokens of even and odd id take turns."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def constrain(self, logits: torch.Tensor) -> None:
        logits[1 - len(self.ids) % 2 :: 2] = -torch.inf

    def accept(self, token: int) -> bool:
        allowed = token % 2 == len(self.ids) % 2
        if allowed:
            self.ids.append(token)
        return allowed

    def rollback(self, n: int) -> None:
        del self.ids[len(self.ids) - n :]

    def forced(self, n: int) -> list[int]:
        return []

    @property
    def is_over(self) -> bool:
        return False


def model(ids: Sequence[int]) -> torch.Tensor:
    """Logits that depend on the last two tokens."""
    key = hash(tuple(ids[-2:])) % 2**32
    return torch.tensor(np.random.default_rng(key).normal(size=N_VOCABULARY) * 2)


def token_by_token(
    n: int, sampling: Sampling, grammar: Grammar | None, end_ids: Sequence[int]
) -> list[int]:
    """The definition."""
    ids: list[int] = []
    while len(ids) < n and not (ids and ids[-1] in end_ids):
        logits = model(ids)
        if grammar:
            grammar.constrain(logits)
        ids.append(choose(logits, sampling, len(ids), ids))
        if grammar and ids[-1] not in end_ids:
            grammar.accept(ids[-1])
    return ids


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 3, 12]),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    penalty_window=st.sampled_from([0, 1, 4, 64]),
    seed=st.integers(0, 9),
)


@settings(max_examples=60, deadline=None)
@given(st.data(), samplings, st.booleans(), st.sampled_from([(), (END,)]))
def test_verified_drafts_are_what_sampling_token_by_token_gives(
    data: st.DataObject, sampling: Sampling, with_grammar: bool, end_ids: tuple[int, ...]
) -> None:
    expected = token_by_token(16, sampling, Alternating() if with_grammar else None, end_ids)
    grammar = Alternating() if with_grammar else None
    verifier, ids = Verifier(sampling, grammar, end_ids), list[int]()
    while len(ids) < len(expected):
        right = expected[len(ids) : len(ids) + data.draw(st.integers(0, 6))]
        wrong = data.draw(st.lists(st.integers(0, N_VOCABULARY - 1), max_size=2))
        drafts = right + wrong
        logits = torch.stack([model(ids + drafts[:n]) for n in range(len(drafts) + 1)])
        found = verifier.verify(logits, drafts, position=len(ids), generated=ids)
        assert len(found) > len(right) or found == expected[len(ids) :]
        ids += found
        if grammar:
            assert grammar.ids == [token for token in ids if token not in end_ids]
    assert ids[: len(expected)] == expected
    assert not set(ids[:-1]) & set(end_ids)


def test_verified_tokens_have_the_models_distribution() -> None:
    logits, draft, n = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, -3.0]).double(), 1, 4000
    counts, second = np.zeros(6), np.zeros(6)
    for seed in range(n):
        rows = logits.repeat(2, 1)
        verifier = Verifier(replace(FAIR, seed=seed))
        found = verifier.verify(rows, [draft], position=3, generated=())
        counts[found[0]] += 1
        if len(found) == 2:
            second[found[1]] += 1
    expected = torch.softmax(logits, -1).numpy()
    assert stats.chisquare(counts, expected * n).pvalue > 0.001
    assert stats.chisquare(second, expected * second.sum()).pvalue > 0.001


def test_a_draft_that_the_grammar_forbids_is_wrong_and_leaves_no_trace() -> None:
    grammar = Alternating()
    logits = torch.zeros(3, N_VOCABULARY)
    logits[0, 3] = logits[0, 4] = 1.0
    verifier = Verifier(Sampling(temperature=0.0), grammar)
    assert verifier.verify(logits, [3, 4], position=0, generated=()) == [4]
    assert grammar.ids == [4]


@pytest.mark.parametrize(
    "sampling",
    [replace(FAIR, temperature=0.0), replace(FAIR, top_k=7), replace(FAIR, top_k=7, min_p=0.9)],
)
def test_equal_logits_are_decided_alike_alone_and_in_a_batch(sampling: Sampling) -> None:
    rows = torch.randint(0, 4, (5, 4000)).float()
    alone = [choose(row, sampling, n) for n, row in enumerate(rows)]
    found = Verifier(sampling).verify(rows, alone[:4], position=0, generated=())
    assert found == alone
