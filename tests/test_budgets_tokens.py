"""Tokens of a session: what was wasted, and what drafts were worth."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets.recording import load
from budgets.tokens import Tokens
from voicepipe import events as ev
from voicepipe.protocols import ReplyStats

counts = st.integers(0, 10_000)


def finished(
    stats: ReplyStats, heard: str = "hi", status: ev.TurnStatus = "completed"
) -> ev.TurnFinished:
    return ev.TurnFinished(
        t_media_s=1.0,
        turn=0,
        status=status,
        user_text="u",
        text="hi there",
        heard_text=heard,
        **asdict(stats),
    )


@pytest.mark.parametrize("status", ["completed", "interrupted", "superseded", "failed"])
def test_only_replies_of_which_nothing_was_heard_are_wasted(status: ev.TurnStatus) -> None:
    heard = finished(ReplyStats(generated_tokens=30), "hi", status)
    unheard = finished(ReplyStats(generated_tokens=10), "", status)
    assert Tokens.of([heard]).wasted == 0
    assert Tokens.of([unheard]).wasted == 10
    assert Tokens.of([heard, unheard]).wasted_ratio == 0.25


def test_a_checking_step_makes_what_was_right_and_one_token_more() -> None:
    told = finished(ReplyStats(0, 0, 100, drafted_tokens=40, accepted_tokens=30, verify_steps=10))
    assert Tokens.of([told]).acceptance_length == 4.0
    plain = finished(ReplyStats(generated_tokens=100))
    assert Tokens.of([told, plain]).acceptance_length == 4.0, "steps without drafts do not count"
    untold = finished(ReplyStats(0, 0, 40, drafted_tokens=40, accepted_tokens=30))
    assert Tokens.of([untold]).acceptance_length == 4.0


def test_there_is_no_rate_of_nothing() -> None:
    nothing = Tokens.of([])
    assert nothing == Tokens()
    assert math.isnan(nothing.acceptance_length)
    assert math.isnan(nothing.prefix_hit_rate)
    assert math.isnan(nothing.wasted_ratio)


@given(st.lists(st.builds(Tokens, *[counts] * 7), max_size=5), st.builds(Tokens, *[counts] * 7))
def test_tokens_add_up_field_by_field(some: list[Tokens], one: Tokens) -> None:
    total = sum(some, one)
    assert total.prompt == one.prompt + sum(tokens.prompt for tokens in some)
    assert total.verify_steps == one.verify_steps + sum(tokens.verify_steps for tokens in some)
    assert sum(reversed(some), one) == total


def test_what_a_model_counts_is_recorded_and_read_and_may_be_missing(tmp_path: Path) -> None:
    event = finished(ReplyStats(9, 8, 7, 6, 5, verify_steps=4))
    old = event.to_json()
    del old["verify_steps"]
    lines = [json.dumps(row) + "\n" for row in (event.to_json(), old)]
    (tmp_path / "events.jsonl").write_text("".join(lines), encoding="utf-8")
    new, before = (Tokens.of([e]) for e in load(tmp_path).events if isinstance(e, ev.TurnFinished))
    assert new == Tokens(9, 8, 7, 0, 6, 5, 4)
    assert before.verify_steps == 7 - 5
