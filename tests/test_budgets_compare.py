"""Differences with intervals, and gates."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from budgets import run_report
from budgets.account import Account
from budgets.compare import Difference, compare, comparison_text
from budgets.gate import AT_LEAST, AT_MOST, check, parse_gates
from budgets.ledger import Ledger
from budgets.overlap import Overlaps
from budgets.perceived import Gap
from budgets.plan import BudgetPlan
from budgets.quality import Quality
from budgets.report import Report, build_report
from tests.budget_sessions import LOUDNESS, Exchange, compose
from voicepipe.errors import UsageError


def session(directory: Path, mean_ms: float, n: int = 14) -> Path:
    rng = np.random.default_rng(int(mean_ms))
    spread = rng.normal(mean_ms, 40, n).clip(60)
    quick = (Exchange(endpointing=float(ms), says_s=0.6, replies_s=0.6) for ms in spread)
    return compose(directory, list(quick))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    root = tmp_path_factory.mktemp("compared")
    made = {"fast": 200.0, "slow": 500.0}
    return {
        name: build_report([session(root / name, ms)], detectors=LOUDNESS)
        for name, ms in made.items()
    }


def named(differences: list[Difference], name: str) -> Difference:
    return next(d for d in differences if d.name == name)


def test_a_real_difference_is_shown_with_its_interval(reports: dict[str, Report]) -> None:
    found = named(compare(reports["fast"], reports["slow"]), "perceived p50")
    assert found.verdict == "better"
    assert found.low <= found.change <= found.high < 0
    assert found.change == pytest.approx(-300, abs=60)
    back = named(compare(reports["slow"], reports["fast"]), "perceived p50")
    assert back.verdict == "worse"


def test_the_same_turns_are_no_difference(reports: dict[str, Report]) -> None:
    for found in compare(reports["fast"], reports["fast"]):
        assert found.verdict in ("no difference shown", "no data"), found


def test_the_same_seed_gives_the_same_intervals(reports: dict[str, Report]) -> None:
    pair = reports["fast"], reports["slow"]
    assert repr(compare(*pair)) == repr(compare(*pair))
    assert repr(compare(*pair, seed=1)) != repr(compare(*pair))


def test_a_handful_of_turns_shows_nothing(tmp_path: Path, reports: dict[str, Report]) -> None:
    few = build_report([session(tmp_path / "few", 900, n=3)], detectors=LOUDNESS)
    found = named(compare(few, reports["fast"]), "perceived p50")
    assert found.verdict == "too few"
    assert found.change > 500
    assert math.isnan(found.low)


def test_nothing_compares_with_nothing(tmp_path: Path, reports: dict[str, Report]) -> None:
    (tmp_path / "events.jsonl").touch()
    empty = build_report([tmp_path], detectors=LOUDNESS)
    text = comparison_text(compare(empty, reports["fast"]))
    assert text.count("no data") == len(text.splitlines()) - 1
    assert "nan" not in text


def test_the_intervals_cover_as_often_as_they_say() -> None:
    """95 % intervals of a mean difference of 0, over many draws."""
    rng = np.random.default_rng(5)
    inside = 0
    for n in range(30):
        values = rng.normal(600, 100, (2, 30))
        one, two = (measured(row.tolist()) for row in values)
        found = named(compare(one, two, seed=n), "perceived mean")
        inside += found.low <= 0 <= found.high
    assert inside >= 25


def measured(perceived_ms: list[float]) -> Report:
    """A report of turns whose perceived latencies are given."""
    account = Account(
        name="s",
        target_ms=600,
        events=[],
        config={},
        ledgers=[ledger(turn).against(ms) for turn, ms in enumerate(perceived_ms)],
        gaps={turn: Gap(1.0, 1.0 + ms / 1000) for turn, ms in enumerate(perceived_ms)},
        discards=[],
        overlaps=Overlaps([], 0, 0),
        quality=Quality(),
        cut_off=frozenset(),
        missed=0,
        losses=[],
    )
    return Report((account,), BudgetPlan.default())


def ledger(turn: int) -> Ledger:
    return Ledger(
        turn=turn, status="completed", user_text="", text="", heard_text="",
        speech_end_s=1.0, first_audio_s=2.0, reason="score", eager=False,
    )  # fmt: skip


def test_gates_are_kept_or_missed(reports: dict[str, Report]) -> None:
    text, ok = check(reports["fast"], parse_gates(["p50=600", "cutoffs=0", "turns=14"]))
    assert ok
    assert text.count("kept") == 3
    text, ok = check(reports["slow"], parse_gates(["p50=600", "faults=0", "within_target=0.9"]))
    assert not ok
    assert [line.split()[0] for line in text.splitlines()] == ["MISSED", "kept", "MISSED"]


def test_a_gate_without_data_is_missed(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    empty = build_report([tmp_path], detectors=LOUDNESS)
    text, ok = check(empty, parse_gates(["p90=900"]))
    assert not ok
    assert "no data" in text


def test_every_gate_can_be_asked_for(reports: dict[str, Report]) -> None:
    gates = parse_gates([f"{name}=1" for name in (*AT_MOST, *AT_LEAST)])
    text, _ = check(reports["fast"], gates)
    assert len(text.splitlines()) == len(gates)


def test_an_unknown_gate_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"unknown gate 'p42'.*cutoffs.*p90.*within_target"):
        parse_gates(["p42=1"])


@pytest.mark.parametrize("text", ["p90", "p90=", "p90=fast", "p90=nan", "p90=inf"])
def test_a_gate_needs_a_limit(text: str) -> None:
    with pytest.raises(UsageError, match="give a limit, as in p90=900"):
        parse_gates([text])


def test_the_command_compares_and_gates(tmp_path: Path) -> None:
    this, other = session(tmp_path / "this", 200, 6), session(tmp_path / "other", 500, 6)
    text, ok = run_report(
        [this],
        detectors=LOUDNESS,
        compare=other,
        gates=["p50=500", "p90=100"],
        html=tmp_path / "r.html",
    )
    assert not ok
    assert "perceived p50" in text
    assert "better" in text
    assert "MISSED  p90" in text
    html = (tmp_path / "r.html").read_text()
    assert "Against the other sessions" in html
    assert "MISSED" in html


def test_a_bad_gate_is_refused_before_the_work_begins(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown gate"):
        run_report([tmp_path / "none"], detectors=LOUDNESS, gates=["speed=1"])
