"""Metrics of a language model from the times of its tokens."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.energy import EnergyMeter
from stages.llm.metrics import (
    MAX_TIMED_STEPS,
    N_REPLIES,
    LlmMetrics,
    ReplyTimer,
    ReplyTimes,
    Summary,
    Targets,
)
from voicepipe.protocols import ReplyStats


def reply(
    *token_s: float,
    asked_s: float = 0.0,
    phrase_s: float = math.nan,
    stats: ReplyStats | None = None,
    heard: bool = True,
) -> ReplyTimes:
    """One whose tokens came one by one."""
    timer = ReplyTimer(asked_s)
    for now_s in token_s:
        timer.tokens(now_s)
    timer.phrase(phrase_s)
    return timer.result(stats or ReplyStats(), heard=heard)


def summary(*replies: ReplyTimes, targets: Targets | None = None) -> Summary:
    metrics = LlmMetrics(targets or Targets())
    for one in replies:
        metrics.add(one)
    return metrics.summary()


def test_times_run_from_when_the_reply_was_asked_for() -> None:
    one = reply(10.2, 10.3, 10.7, asked_s=10.0, phrase_s=10.5)
    assert one.ttft_s == pytest.approx(0.2)
    assert one.ttfp_s == pytest.approx(0.5)
    assert one.e2e_s == pytest.approx(0.7)
    assert one.tpot_s == pytest.approx((0.7 - 0.2) / 2)
    assert one.itl_s == pytest.approx((0.1, 0.4))


def test_the_tokens_of_a_step_come_at_once() -> None:
    timer = ReplyTimer(0.0)
    timer.tokens(1.0)
    timer.tokens(1.6, 4)
    one = timer.result(ReplyStats(), heard=True)
    assert one.n_tokens == 5
    assert one.itl_s == pytest.approx((0.6,))
    assert one.tpot_s == pytest.approx(0.6 / 4)


def test_an_event_without_a_token_stops_no_clock() -> None:
    timer = ReplyTimer(0.0)
    timer.tokens(0.1, 0)
    timer.tokens(0.5, 1)
    timer.tokens(0.9, 0)
    one = timer.result(ReplyStats(), heard=True)
    assert (one.ttft_s, one.e2e_s, one.itl_s) == (0.5, 0.5, ())


def test_only_the_first_phrase_counts() -> None:
    timer = ReplyTimer(1.0)
    timer.phrase(1.5)
    timer.phrase(3.0)
    assert timer.result(ReplyStats(), heard=True).ttfp_s == 0.5


def test_what_never_happened_has_no_time_and_spoils_no_figure() -> None:
    nothing = reply()
    assert math.isnan(nothing.ttft_s)
    assert math.isnan(nothing.ttfp_s)
    assert math.isnan(nothing.tpot_s)
    found = summary(nothing, reply(0.25))
    assert (found.n_replies, found.ttft_s.n, found.ttft_s.p50) == (2, 1, 0.25)
    assert math.isnan(found.tpot_s.p50)


@given(st.lists(st.floats(0.0, 10.0), min_size=2, max_size=50).map(sorted))
@settings(max_examples=60)
def test_the_gaps_sum_up_to_the_time_after_the_first_token(times: list[float]) -> None:
    one = reply(*times)
    assert sum(one.itl_s) == pytest.approx(one.e2e_s - one.ttft_s)
    assert one.tpot_s == pytest.approx(sum(one.itl_s) / len(one.itl_s))


def test_counts_are_ratios_of_sums() -> None:
    found = summary(
        reply(stats=ReplyStats(100, 80, 30, 20, 12, verify_steps=6)),
        reply(stats=ReplyStats(50, 10, 10), heard=False),
    )
    assert found.acceptance_length == pytest.approx(1 + 12 / 6)
    assert found.prefix_hit_rate == pytest.approx(90 / 150)
    assert found.wasted_ratio == pytest.approx(10 / 40)


def test_there_is_no_rate_of_nothing() -> None:
    found = summary()
    assert found.n_replies == 0
    for rate in (
        found.acceptance_length,
        found.prefix_hit_rate,
        found.wasted_ratio,
        found.goodput_per_s,
        found.itl_s.p99,
    ):
        assert math.isnan(rate)
    assert found.tokens_per_joule is None


def test_goodput_counts_replies_that_were_heard_and_met_every_target() -> None:
    targets = Targets(ttft_s=0.2, ttfp_s=0.4, tpot_s=0.1)
    good = reply(0.1, 0.2, phrase_s=0.3)
    found = summary(
        good,
        reply(0.1, phrase_s=0.3),
        reply(0.3, 0.4, phrase_s=0.4),
        reply(0.1, 0.2, phrase_s=0.5),
        reply(0.1, 0.3, phrase_s=0.3),
        reply(0.1, 0.2),
        reply(0.1, 0.2, phrase_s=0.3, heard=False),
        reply(3.5, 4.0, asked_s=3.0, phrase_s=3.1),
        targets=targets,
    )
    assert targets.met_by(good)
    assert found.goodput_per_s == pytest.approx(2 / 4.0)


def test_memory_is_bounded() -> None:
    metrics = LlmMetrics()
    for n in range(N_REPLIES + 10):
        metrics.add(reply(n + 1.0, asked_s=n, stats=ReplyStats(generated_tokens=1)))
    assert metrics.summary().ttft_s.n == N_REPLIES
    assert metrics.summary().n_replies == N_REPLIES + 10
    timer = ReplyTimer(0.0)
    for n in range(MAX_TIMED_STEPS + 10):
        timer.tokens(float(n))
    one = timer.result(ReplyStats(), heard=True)
    assert (len(one.itl_s), one.n_tokens) == (MAX_TIMED_STEPS, MAX_TIMED_STEPS + 10)
    assert one.tpot_s == pytest.approx(1.0), "what is not kept counts"


def test_one_thread_may_add_while_another_sums_up() -> None:
    metrics = LlmMetrics()
    one = reply(1.0, stats=ReplyStats(10, 5, 4, 2, 1, verify_steps=1))
    over = threading.Event()

    def add() -> None:
        while not over.is_set():
            metrics.add(one)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        seen = [metrics.summary() for _ in range(50)]
    finally:
        over.set()
        thread.join()
    assert {found.prefix_hit_rate for found in seen if found.n_replies} <= {0.5}
    assert [found.n_replies for found in seen] == sorted(found.n_replies for found in seen)


def powercap(root: Path, *zones: tuple[str, str, int]) -> Path:
    for zone, name, microjoules in zones:
        folder = root / zone
        folder.mkdir(exist_ok=True)
        (folder / "name").write_text(name + "\n")
        (folder / "energy_uj").write_text(f"{microjoules}\n")
        (folder / "max_energy_range_uj").write_text("9999999\n")
    return root


def test_energy_is_that_of_the_packages_also_when_their_counters_wrap(tmp_path: Path) -> None:
    cores = ("intel-rapl:0:0", "core", 0)
    powercap(tmp_path, ("intel-rapl:0", "package-0", 9_000_000), cores)
    powercap(tmp_path, ("intel-rapl:1", "package-1", 0), ("intel-rapl:2", "psys", 0))
    meter = EnergyMeter.of_this_machine(tmp_path)
    assert meter is not None
    assert meter.joules() == 0.0
    powercap(tmp_path, ("intel-rapl:0", "package-0", 1_000_000), ("intel-rapl:2", "psys", 5))
    powercap(tmp_path, ("intel-rapl:1", "package-1", 500_000), ("intel-rapl:0:0", "core", 7))
    assert meter.joules() == pytest.approx(2.5)
    assert meter.joules() == pytest.approx(2.5)
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert meter.joules() == pytest.approx(2.5)
    metrics = LlmMetrics(energy=meter)
    metrics.add(reply(1.0, stats=ReplyStats(generated_tokens=10)))
    assert metrics.summary().tokens_per_joule == pytest.approx(10 / 2.5)


def test_without_a_counter_that_may_be_read_there_is_no_meter(tmp_path: Path) -> None:
    assert EnergyMeter.of_this_machine(tmp_path / "absent") is None
    assert EnergyMeter.of_this_machine(powercap(tmp_path, ("intel-rapl:0", "psys", 1))) is None
    root = powercap(tmp_path, ("intel-rapl:1", "package-0", 1))
    (root / "intel-rapl:1" / "energy_uj").write_text("what")
    assert EnergyMeter.of_this_machine(root) is None
