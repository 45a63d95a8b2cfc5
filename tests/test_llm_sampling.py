from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from stages.llm.sampling import Sampling, candidates, choose, gumbel, penalize, shortlists_on_device
from voicepipe.errors import UsageError

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, -3.0])


def test_zero_temperature_takes_the_likeliest() -> None:
    assert choose(LOGITS.clone(), Sampling(temperature=0.0), 5) == 0


def test_draws_have_the_models_distribution() -> None:
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
    n = 6000
    drawn = [choose(LOGITS.clone(), sampling, position) for position in range(n)]
    expected = torch.softmax(LOGITS.double(), -1).numpy() * n
    assert stats.chisquare(np.bincount(drawn, minlength=6), expected).pvalue > 0.001


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    first = [choose(LOGITS.clone(), sampling, position) for position in range(50)]
    again = [choose(LOGITS.clone(), sampling, position) for position in reversed(range(50))]
    other = [choose(LOGITS.clone(), Sampling(temperature=1.0, seed=4), n) for n in range(50)]
    assert first == again[::-1]
    assert first != other


def test_the_noise_of_a_token_does_not_depend_on_the_others() -> None:
    alone = gumbel(1, 2, np.array([5]))
    among = gumbel(1, 2, np.array([9, 5, 1]))
    assert alone[0] == among[1]


def test_top_k_top_p_and_min_p_keep_the_likeliest() -> None:
    wide = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    assert list(candidates(LOGITS, replace(wide, top_k=3))[1]) == [0, 4, 1]
    # probabilities: 0.450, 0.273, 0.165, 0.061, 0.022, 0.003
    assert list(candidates(LOGITS, replace(wide, top_p=0.7))[1]) == [0, 4]
    assert list(candidates(LOGITS, replace(wide, min_p=0.3))[1]) == [0, 4, 1]
    assert len(candidates(LOGITS, wide)[1]) == 6


def test_repetition_penalty_makes_what_was_said_less_likely() -> None:
    sampling = Sampling(temperature=0.0, repetition_penalty=2.0)
    assert choose(LOGITS.clone(), sampling, 0, [0]) == 4
    negative = torch.tensor([-1.0, -1.5])
    assert choose(negative, sampling, 0, [0]) == 1


def penalized(sampling: Sampling, recent_ids: list[int]) -> list[float]:
    rows = LOGITS.clone()[None]
    penalize(rows, sampling, recent_ids)
    return (rows[0] - LOGITS).tolist()


def test_presence_counts_once_and_frequency_each_time() -> None:
    none = Sampling(repetition_penalty=1.0)
    assert penalized(replace(none, presence_penalty=0.5), [0, 3, 3]) == [-0.5, 0, 0, -0.5, 0, 0]
    assert penalized(replace(none, frequency_penalty=0.5), [0, 3, 3]) == [-0.5, 0, 0, -1, 0, 0]


def test_penalties_look_at_the_window_alone() -> None:
    sampling = Sampling(repetition_penalty=1.0, presence_penalty=1.0, penalty_window=2)
    assert penalized(sampling, [0, 1, 2]) == [0, -1, -1, 0, 0, 0]
    assert penalized(replace(sampling, penalty_window=0), [0, 1, 2]) == [0] * 6


def test_a_row_is_penalized_for_the_drafts_in_front_of_it() -> None:
    rows = LOGITS.repeat(3, 1)
    sampling = Sampling(repetition_penalty=1.0, presence_penalty=1.0, penalty_window=2)
    penalize(rows, sampling, [4, 5], [0, 1])
    changed = [row.nonzero().flatten().tolist() for row in rows - LOGITS]
    assert changed == [[4, 5], [0, 5], [0, 1]]


def test_equal_scores_are_kept_or_left_out_by_id() -> None:
    sampling = Sampling(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0)
    assert list(candidates(torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0]), sampling)[1]) == [1, 3]


@pytest.mark.parametrize(
    "sampling", [Sampling(0.7), Sampling(1.3, 5, 1.0, 0.0), Sampling(1.0, 0, 0.9, 0.0)]
)
def test_candidates_are_the_same_wherever_the_logits_are(sampling: Sampling) -> None:
    rows = torch.randint(-3, 4, (4, 300)).float()
    rows[:, ::7] = -torch.inf
    for (scores, ids), row in zip(shortlists_on_device(rows, sampling), rows, strict=True):
        expected = candidates(row, sampling)
        assert list(ids) == list(expected[1])
        np.testing.assert_allclose(scores, expected[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", float("nan")),
        ("penalty_window", -1),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value}"):
        Sampling(**{name: value})  # type: ignore[arg-type]
