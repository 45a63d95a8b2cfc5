from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from stages.llm.sampling import Sampling, candidates, choose, gumbel
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


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -1.0}, {"top_p": 0.0}, {"min_p": 2.0}, {"repetition_penalty": 0.0}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sampling(**settings)  # type: ignore[arg-type]
