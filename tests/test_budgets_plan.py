"""The plan: how a target is split."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.critical_path import STAGES
from budgets.plan import DEFAULT_SHARES, BudgetPlan
from voicepipe.budget import Budget
from voicepipe.errors import UsageError

MS = st.lists(st.floats(0, 5_000), min_size=1, max_size=20)


def test_the_default_plan_sums_to_the_target() -> None:
    assert tuple(DEFAULT_SHARES) == STAGES
    for target_ms in (600.0, 900.0):
        plan = BudgetPlan.default(Budget(target_ms))
        assert sum(plan.stage_ms.values()) == pytest.approx(target_ms)
        assert math.isnan(plan.quantile)


@given(st.fixed_dictionaries(dict.fromkeys(STAGES, MS)), st.floats(1, 10_000))
@settings(max_examples=50, deadline=None)
def test_a_calibrated_plan_sums_to_the_target_at_one_quantile(
    measured: dict[str, list[float]], target_ms: float
) -> None:
    plan = BudgetPlan.calibrated(measured, Budget(target_ms))
    assert sum(plan.stage_ms.values()) == pytest.approx(target_ms)
    assert min(plan.stage_ms.values()) >= 0
    assert 0 <= plan.quantile <= 1
    if 0 < plan.quantile < 1:
        for stage in STAGES:
            expected = np.quantile(measured[stage], plan.quantile)
            assert plan.stage_ms[stage] == pytest.approx(expected, rel=1e-3, abs=0.1)


def test_a_stage_that_varies_gets_more_room_than_one_that_does_not() -> None:
    steady, wild = [100.0] * 50, list(np.linspace(0, 200, 50))
    measured = {"endpointing": steady, "stt": wild, "llm": [0.0], "tts": [0.0], "playout": [0.0]}
    plan = BudgetPlan.calibrated(measured, Budget(280))
    assert plan.stage_ms["endpointing"] == pytest.approx(100, abs=0.1)
    assert plan.stage_ms["stt"] == pytest.approx(180, abs=0.1)
    assert plan.quantile == pytest.approx(0.9, abs=0.01)


def test_slack_and_shortage_are_shared_in_proportion() -> None:
    measured = {stage: [10.0, 20.0] for stage in STAGES}
    roomy = BudgetPlan.calibrated(measured, Budget(1_000))
    assert roomy.quantile == 1
    assert roomy.stage_ms["llm"] == pytest.approx(200)
    tight = BudgetPlan.calibrated(measured, Budget(25))
    assert tight.quantile == 0
    assert tight.stage_ms["llm"] == pytest.approx(5)


def test_a_stage_without_measurements_is_named() -> None:
    measured = {stage: [1.0] for stage in STAGES} | {"tts": [math.nan], "llm": []}
    with pytest.raises(UsageError, match="no measurements of llm, tts"):
        BudgetPlan.calibrated(measured, Budget())


def test_the_plan_a_session_ran_with_is_used_if_it_is_one() -> None:
    own = dict.fromkeys(STAGES, 100)
    assert BudgetPlan.of_config({"plan": own}, 500).stage_ms == own
    broken: list[object] = [None, {}, {**own, "llm": "x"}, {**own, "llm": -1}, [1], math.nan]
    for plan in broken:
        assert BudgetPlan.of_config({"plan": plan}, 600) == BudgetPlan.of_config({}, 600)


@pytest.mark.parametrize("target_ms", [0, -1, math.nan, math.inf, 1e9])
def test_a_target_that_makes_no_sense_is_refused(target_ms: float) -> None:
    with pytest.raises(UsageError, match="makes no sense"):
        Budget(target_ms)
