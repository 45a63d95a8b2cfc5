from __future__ import annotations

import pytest
import torch

from stages.llm import kernels
from stages.llm.costs import StepCosts, ThreadCosts, measure
from stages.llm.kernels import Kernel, choose_kernel, chosen, measured_kernels
from stages.llm.native_build import native_library

INT8 = Kernel("int8", 0.02, 1e-4, 2e-4)
FLOAT = Kernel("float32", 0.0, 4e-4, 5e-4)


def test_a_compiled_kernel_is_for_models_that_fit_it() -> None:
    has_one = native_library() is not None
    assert (choose_kernel().kernel.kind == "compiled") is has_one
    assert choose_kernel(compiled=False).kernel.kind != "compiled"


def test_the_fastest_right_kernel_is_chosen() -> None:
    assert chosen((FLOAT, INT8)).kernel is INT8
    broken = Kernel("int8", 0.7, 1e-5, 1e-5)
    assert chosen((FLOAT, broken)).kernel is FLOAT
    slow = Kernel("int8", 0.02, 1e-3, 1e-3)
    assert chosen((slow, FLOAT)).kernel is FLOAT


def test_the_compiled_kernel_is_chosen_wherever_it_is_right() -> None:
    compiled = Kernel("compiled", 0.01, 2e-4, 4e-4)
    assert chosen((FLOAT, INT8, compiled)).kernel is compiled
    broken = Kernel("compiled", 0.5, 1e-5, 1e-5)
    assert chosen((FLOAT, INT8, broken)).kernel is INT8


def test_this_machine_has_a_kernel_and_says_how_good_it_is() -> None:
    choice = choose_kernel()
    assert choice.kernel.error <= kernels.LARGEST_ERROR
    assert choice.kernel.kind in str(choice)
    assert "us a row" in str(choice)


def test_a_machine_without_int8_computes_in_floats_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "int8_engine", lambda: None)
    monkeypatch.setattr(kernels, "native_library", lambda: None)
    measured_kernels.cache_clear()
    try:
        assert choose_kernel().kernel.kind == "float32"
        assert choose_kernel().kernel.kind == "float32"
        assert len(caplog.records) == 1
    finally:
        measured_kernels.cache_clear()


def test_costs_are_interpolated_and_never_fall_with_more_rows() -> None:
    costs = StepCosts({1: 1.0, 2: 1.5, 4: 1.4, 8: 3.0})
    assert [costs.of(n) for n in (1, 2, 3, 4, 6, 8)] == [1.0, 1.5, 1.5, 1.5, 2.25, 3.0]
    assert costs.of(16) == pytest.approx(6.0)


def test_costs_follow_what_steps_take() -> None:
    costs = ThreadCosts({1: StepCosts({1: 1.0, 2: 2.0, 8: 5.0})})
    for _ in range(200):
        costs.learn(1, costs.choose(1, 1), 2.0)
    assert costs.of(1) == pytest.approx(2.0, rel=0.01)
    assert costs.of(8) == 5.0
    costs.learn(8, costs.choose(8, 1), 1000.0)
    assert costs.of(8) < 6.0, "a pause of the system is no step"
    for _ in range(200):
        costs.learn(32, costs.choose(32, 1), 40.0)
    assert costs.of(32) == pytest.approx(40.0, rel=0.1)


def test_steps_are_measured_up_to_the_largest_that_fits() -> None:
    seen: list[int] = []
    costs = measure(seen.append, 5)
    assert sorted(set(seen)) == [1, 2, 4]
    assert all(seconds > 0 for seconds in costs.table.values())


@pytest.mark.parametrize("seconds", [{}, {0: 1.0}, {1: 0.0}])
def test_impossible_costs_are_refused(seconds: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="no costs"):
        StepCosts(seconds)


def test_choosing_a_kernel_leaves_the_threads_alone() -> None:
    before = torch.get_num_threads()
    measured_kernels.cache_clear()
    choose_kernel()
    assert torch.get_num_threads() == before


def steps(costs: ThreadCosts, seconds: dict[int, float], n: int) -> list[int]:
    """The threads of `n` steps of 8 rows that take `seconds` by number of threads."""
    used = []
    for _ in range(n):
        n_threads = costs.choose(8, 2)
        costs.learn(8, n_threads, seconds[n_threads])
        used.append(n_threads)
    return used


def test_as_many_threads_are_used_as_are_fastest_now() -> None:
    costs = ThreadCosts({1: StepCosts({1: 1.0, 8: 2.0}), 2: StepCosts({1: 1.1, 8: 1.2})})
    assert costs.choose(1, 2) == 1
    assert costs.choose(8, 1) == 1
    assert costs.of(8) == 1.2
    idle, busy = {1: 2.0, 2: 1.2}, {1: 2.4, 2: 6.0}
    assert steps(costs, idle, 300).count(1) <= 8
    assert steps(costs, busy, 8)[-2:] == [1, 1]
    assert steps(costs, busy, 300)[-100:].count(2) <= 3
    assert costs.of(8) == pytest.approx(2.4, rel=0.1)
    assert steps(costs, idle, 600)[-100:].count(1) <= 3


def test_a_long_context_is_no_reason_for_fewer_threads() -> None:
    costs = ThreadCosts({1: StepCosts({1: 1.0, 8: 2.0}), 2: StepCosts({1: 1.1, 8: 1.2})})
    assert steps(costs, {1: 8.0, 2: 4.8}, 300).count(1) <= 8
