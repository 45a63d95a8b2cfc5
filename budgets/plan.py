"""The plan: how a latency target is split over the stages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from budgets.critical_path import STAGES
from voicepipe.budget import Budget
from voicepipe.errors import UsageError

DEFAULT_SHARES = {
    "endpointing": 0.55,
    "stt": 0.05,
    "llm": 0.20,
    "tts": 0.12,
    "playout": 0.08,
}
"""For a machine that was not calibrated. Of 600 ms, 330 ms for deciding that the caller is done,
during which the reply is already being made: what remains of text, first phrase (its prefill and
some ten tokens) and first sound on a two-core machine fits in the rest."""

BISECTIONS = 40
"""Halvings of the quantile: 1e-12 of it is left."""


@dataclass(frozen=True, slots=True)
class BudgetPlan:
    """Milliseconds for each of STAGES, which sum to the target.

    `quantile` is the one that the plan was made for (see `calibrated`), nan for the default plan.
    """

    target_ms: float
    stage_ms: Mapping[str, float]
    quantile: float = math.nan

    @classmethod
    def default(cls, budget: Budget | None = None) -> BudgetPlan:
        """The plan of a machine that nothing is known about."""
        target_ms = (budget or Budget()).target_ms
        return cls(target_ms, {stage: target_ms * DEFAULT_SHARES[stage] for stage in STAGES})

    @classmethod
    def calibrated(cls, measured_ms: Mapping[str, Sequence[float]], budget: Budget) -> BudgetPlan:
        """The plan for stages that take `measured_ms` (ledger rows of many turns, by stage).

        With Q_s the quantile function of stage s (linear between its sorted values), the plan is
        b_s = Q_s(q) for the q in 0..1 at which the b_s sum to the target: every stage gets what
        lets the same share q of its turns through, so one that varies gets more room than one
        that does not. Were all stages slow in the same turns, q of all turns would meet the
        target; stages that are slow independently of each other do better. When even Q_s(1) sum
        to less, what is left is shared in proportion to it (q = 1); when Q_s(0) sum to more, the
        target cannot be met: everything is scaled down to it (q = 0).

        Raises UsageError when a stage has no finite value.
        """
        values = {stage: _finite(measured_ms.get(stage, ())) for stage in STAGES}
        empty = [stage for stage in STAGES if not len(values[stage])]
        if empty:
            raise UsageError(f"budget plan: no measurements of {', '.join(empty)}: run some turns")

        def at(q: float) -> dict[str, float]:
            return {stage: float(np.quantile(values[stage], q)) for stage in STAGES}

        low, high = 0.0, 1.0
        if sum(at(1.0).values()) <= budget.target_ms:
            low = 1.0
        elif sum(at(0.0).values()) >= budget.target_ms:
            high = 0.0
        for _ in range(BISECTIONS if low < high else 0):
            middle = (low + high) / 2
            if sum(at(middle).values()) <= budget.target_ms:
                low = middle
            else:
                high = middle
        quantile = min(low, high)
        return cls(budget.target_ms, _scaled(at(quantile), budget.target_ms), quantile)

    @classmethod
    def of_config(cls, config: Mapping[str, object], target_ms: float) -> BudgetPlan:
        """The plan a session ran with (`plan` in its configuration), else the default one."""
        given = config.get("plan")
        stage_ms: dict[str, float] = {}
        for stage, ms in given.items() if isinstance(given, Mapping) else ():
            if stage in STAGES and isinstance(ms, int | float) and ms >= 0:
                stage_ms[stage] = float(ms)
        if len(stage_ms) == len(STAGES):
            return cls(target_ms, stage_ms)
        return cls.default(Budget(target_ms))


def _finite(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rows are never negative; a damaged one is taken for 0."""
    array = np.array([value for value in values if math.isfinite(value)], np.float64)
    return np.maximum(array, 0.0)


def _scaled(stage_ms: Mapping[str, float], target_ms: float) -> dict[str, float]:
    """In proportion, so that the sum is the target; when all are 0, the default shares."""
    total_ms = sum(stage_ms.values())
    if total_ms <= 0:
        return {stage: target_ms * DEFAULT_SHARES[stage] for stage in STAGES}
    return {stage: ms * target_ms / total_ms for stage, ms in stage_ms.items()}
