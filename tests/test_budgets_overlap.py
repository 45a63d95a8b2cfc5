"""Caller and agent at once: stop times and backchannels, from the sound."""

from __future__ import annotations

import math

import pytest

from budgets.overlap import Overlaps, overlaps
from budgets.perceived import Sides, measure_sides
from budgets.recording import Line
from budgets.tape import Tape, Track
from tests.budget_sessions import LOUDNESS, Studio, burst
from voicepipe import events as ev

RATE_HZ = 16_000


def scene(
    *, agent: list[tuple[float, float]], caller: list[tuple[float, float]], seconds: float = 8.0
) -> Sides:
    """Sounds as (start, length) in seconds."""
    studio = Studio(RATE_HZ, seconds=seconds)
    for start_s, length_s in caller:
        studio.say("caller", start_s, burst(length_s, RATE_HZ))
    for start_s, length_s in agent:
        studio.say("agent", start_s, burst(length_s, RATE_HZ))
    caller_side, agent_side = (Track(studio.track(s), RATE_HZ) for s in ("caller", "agent"))
    return measure_sides(Tape(caller_side, agent_side), LOUDNESS)


def barge_in(at_s: float, text: str = "stop") -> ev.BargeIn:
    return ev.BargeIn(t_media_s=at_s, t_loop_s=at_s + 0.3, text=text)


def ended(at_s: float) -> ev.EndOfTurn:
    return ev.EndOfTurn(t_media_s=at_s, text="stop", speech_end_s=at_s, decided_s=at_s + 0.3)


def test_a_stop_is_timed_from_the_first_to_the_last_sample() -> None:
    sides = scene(agent=[(1.0, 2.257)], caller=[(3.0, 1.0)])
    (stop,) = overlaps([barge_in(3.02), ended(4.0)], sides).stops
    assert stop.stop_ms == pytest.approx(257, abs=10)
    assert not stop.false


def test_a_pause_in_the_agents_speech_is_no_stop() -> None:
    sides = scene(agent=[(1.0, 2.1), (3.25, 0.15)], caller=[(3.0, 1.0)])
    (stop,) = overlaps([barge_in(3.0), ended(4.0)], sides).stops
    assert stop.stop_ms == pytest.approx(400, abs=10)


def test_the_next_reply_is_not_the_end_of_this_one() -> None:
    sides = scene(agent=[(1.0, 2.2), (4.1, 1.0)], caller=[(3.0, 0.6)])
    events = [barge_in(3.0), ended(3.6), ev.FirstAudio(t_media_s=4.1, turn=2)]
    (stop,) = overlaps(events, sides).stops
    assert stop.stop_ms == pytest.approx(200, abs=10)


def test_an_agent_that_never_stops_is_as_slow_as_can_be_told() -> None:
    sides = scene(agent=[(1.0, 6.0)], caller=[(3.0, 1.0)])
    (stop,) = overlaps([barge_in(3.0), ended(4.0)], sides).stops
    assert stop.stop_ms == pytest.approx(3000, abs=10)


def test_a_silent_stop_and_the_words_that_confirm_it_are_one_barge_in() -> None:
    sides = scene(agent=[(1.0, 2.2)], caller=[(3.0, 1.0)])
    events = [barge_in(3.0, ""), barge_in(3.0, "stop please"), ended(4.0)]
    assert len(overlaps(events, sides).stops) == 1
    again = [*events, barge_in(5.0), ended(6.0)]
    assert len(overlaps(again, sides).stops) == 2


def test_an_agent_that_goes_on_later_was_stopped_for_nothing() -> None:
    sides = scene(agent=[(1.0, 2.2), (5.0, 1.0)], caller=[(3.0, 0.5)])
    events = [barge_in(3.0, ""), ev.AgentResumed(t_media_s=5.0), barge_in(6.0), ended(6.5)]
    first, second = overlaps(events, sides).stops
    assert first.false
    assert first.stop_ms == pytest.approx(200, abs=10)
    assert not second.false


def test_a_stop_at_what_is_known_to_be_a_backchannel_was_for_nothing() -> None:
    sides = scene(agent=[(1.0, 2.2)], caller=[(3.0, 0.5)])
    events = [barge_in(3.0), ended(3.5)]
    for kind, false in (("backchannel", True), ("bargein", False)):
        truth = [Line("hm", "backchannel", 0.5, 0.9), Line("mm-hmm", kind, 3.0, 3.5)]
        (stop,) = overlaps(events, sides, truth).stops
        assert stop.false is false
    assert not overlaps(events, sides, [Line("mm-hmm", "backchannel")]).stops[0].false


def test_a_barge_in_that_cannot_be_heard_has_no_stop_time() -> None:
    sides = scene(agent=[(1.0, 2.2)], caller=[(6.0, 1.0)])
    (stop,) = overlaps([barge_in(3.0)], sides).stops
    assert math.isnan(stop.stop_ms)
    (stop,) = overlaps([barge_in(3.0)], None).stops
    assert math.isnan(stop.stop_ms)


BACKCHANNEL = ev.Backchannel(t_media_s=3.3, text="uh-huh")


@pytest.mark.parametrize(
    ("agent", "ignored"),
    [
        ([(1.0, 4.0)], True),
        ([(1.0, 2.2), (3.8, 1.0)], True),
        ([(1.0, 2.1)], False),
    ],
    ids=["goes on", "pauses", "falls silent"],
)
def test_a_backchannel_is_ignored_when_the_agent_goes_on(
    agent: list[tuple[float, float]], ignored: bool
) -> None:
    found = overlaps([BACKCHANNEL], scene(agent=agent, caller=[(3.0, 0.3)]))
    assert (found.backchannels_ignored, found.backchannels_obeyed) == (ignored, not ignored)


def test_an_agent_that_was_done_anyway_obeys_nobody() -> None:
    done = ev.TurnFinished(
        t_media_s=3.2, turn=0, status="completed", user_text="", text="", heard_text=""
    )
    found = overlaps([BACKCHANNEL, done], scene(agent=[(1.0, 2.1)], caller=[(3.0, 0.3)]))
    assert found == Overlaps([], 1, 0)


def test_without_sound_a_backchannel_counts_as_ignored() -> None:
    assert overlaps([BACKCHANNEL], None).backchannels_ignored == 1
