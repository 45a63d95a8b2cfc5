"""Where sound begins and ends: energy alone, on tapes whose edges are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from budgets.edges import REACH_S, Loudness, Segment, nearest, speech_segments
from budgets.tape import Track
from tests.budget_sessions import LoudnessDetector, Studio, burst, faded

RATES = (8_000, 16_000, 24_000, 44_100, 48_000)


def measured(
    rate_hz: int,
    sounds: list[tuple[float, float]],
    *,
    gain: float = 1.0,
    noise_dbfs: float = -math.inf,
    dc: float = 0.0,
    fade_s: float = 0.002,
) -> Loudness:
    """A track with bursts of (start, length) in seconds."""
    studio = Studio(rate_hz, seconds=sounds[-1][0] + sounds[-1][1] + 1.0)
    for start_s, length_s in sounds:
        studio.say("caller", start_s, gain * faded(burst(length_s, rate_hz), rate_hz, fade_s))
    track = Track(studio.track("caller", noise_dbfs=noise_dbfs, dc=dc), rate_hz)
    return Loudness(track, speech_segments(track, LoudnessDetector))


@pytest.mark.parametrize("rate_hz", RATES)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"noise_dbfs": -66.0},
        {"noise_dbfs": -50.0},
        {"noise_dbfs": -66.0, "dc": 0.03},
        {"gain": 0.25},
        {"gain": 0.25, "noise_dbfs": -66.0},
        {"fade_s": 0.03},
    ],
    ids=str,
)
def test_edges_are_found_to_a_few_milliseconds(rate_hz: int, how: dict[str, float]) -> None:
    """To ten where the sound fades in and out, to four where it does not."""
    loudness = measured(rate_hz, [(0.703, 0.9), (2.1117, 0.6)], **how)
    exact = 0.010 if "fade_s" in how else 0.004
    for start_s, end_s in ((0.703, 1.603), (2.1117, 2.7117)):
        assert loudness.onset(start_s + 0.05) == pytest.approx(start_s, abs=exact)
        assert loudness.offset(end_s + 0.05) == pytest.approx(end_s, abs=exact)


def test_a_wandering_offset_is_no_sound() -> None:
    rate_hz = 16_000
    studio = Studio(rate_hz)
    studio.say("caller", 1.0, burst(1.0, rate_hz))
    wander = 0.05 * np.sin(2 * np.pi * 0.7 * np.arange(3 * rate_hz) / rate_hz)
    studio.say("caller", 0.0, wander)
    track = Track(studio.track("caller"), rate_hz)
    loudness = Loudness(track, [Segment(1.0, 2.0)])
    assert loudness.onset(1.0) == pytest.approx(1.0, abs=0.004)
    assert loudness.offset(2.0) == pytest.approx(2.0, abs=0.004)


def test_a_click_is_no_sound() -> None:
    rate_hz = 16_000
    studio = Studio(rate_hz, seconds=3.0)
    studio.say("caller", 1.0, burst(0.5, rate_hz))
    studio.say("caller", 0.95, np.full(16, 0.5))
    studio.say("caller", 1.56, np.full(16, 0.5))
    track = Track(studio.track("caller"), rate_hz)
    loudness = Loudness(track, [Segment(1.0, 1.5)])
    assert loudness.onset(1.0) == pytest.approx(1.0, abs=0.010)
    assert loudness.offset(1.5) == pytest.approx(1.5, abs=0.010)


def test_an_edge_out_of_reach_is_no_edge() -> None:
    loudness = measured(16_000, [(1.0, 1.0)])
    assert loudness.onset(1.0 + REACH_S + 0.02) is None
    assert loudness.offset(1.5) is None


def test_noise_of_a_clip_in_digital_silence_is_no_sound() -> None:
    """A clip with 100 ms of its own noise around the speech, in a track of nothing."""
    rate_hz = 16_000
    studio = Studio(rate_hz)
    clip = np.random.default_rng(0).standard_normal(round(1.2 * rate_hz)) * 10 ** (-66 / 20)
    clip[round(0.1 * rate_hz) : -round(0.1 * rate_hz)] += burst(1.0, rate_hz)
    for at_s in (1.0, 4.0, 7.0):
        studio.say("caller", at_s, clip)
    track = Track(studio.track("caller"), rate_hz)
    loudness = Loudness(track, speech_segments(track, LoudnessDetector))
    assert loudness.onset(4.1) == pytest.approx(4.1, abs=0.010)
    assert loudness.offset(5.1) == pytest.approx(5.1, abs=0.010)


def test_speech_that_the_detector_missed_does_not_raise_the_floor_to_its_own_level() -> None:
    studio = Studio(16_000)
    studio.say("caller", 1.0, burst(1.0, 16_000))
    studio.say("caller", 3.0, burst(1.0, 16_000))
    track = Track(studio.track("caller"), 16_000)
    loudness = Loudness(track, [Segment(1.0, 2.0)])
    assert loudness.floor_dbfs < -45
    assert loudness.onset(1.0) == pytest.approx(1.0, abs=0.010)


def test_silence_and_nothing_have_no_sound() -> None:
    for n in (0, 1, 50, 16_000):
        track = Track(np.zeros(n, np.int16), 16_000)
        loudness = Loudness(track, [])
        assert loudness.runs == []
        assert loudness.onset(0.0) is None
        assert speech_segments(track, LoudnessDetector) == []


def test_audible_stretches_are_cut_to_the_span_that_is_asked_for() -> None:
    loudness = measured(16_000, [(1.0, 1.0)])
    (piece,) = loudness.audible(1.5, 3.0)
    assert piece.start_s == 1.5
    assert piece.end_s == pytest.approx(2.0, abs=0.010)
    assert loudness.audible(2.2, 3.0) == []


def test_segments_close_short_gaps_and_take_the_detectors_lag_away() -> None:
    rate_hz = 16_000
    studio = Studio(rate_hz)
    studio.say("caller", 1.0, burst(0.5, rate_hz))
    studio.say("caller", 1.58, burst(0.5, rate_hz))
    studio.say("caller", 3.0, burst(0.5, rate_hz))
    track = Track(studio.track("caller"), rate_hz)
    late = speech_segments(track, LoudnessDetector)
    assert [round(s.start_s, 1) for s in late] == [1.0, 3.0]
    early = speech_segments(track, LoudnessDetector, lag_s=0.045)
    assert early[0].end_s == pytest.approx(late[0].end_s - 0.045)


def test_an_offset_of_the_track_does_not_reach_the_detector() -> None:
    track = Track(np.full(16_000, 8_000, np.int16), 16_000)
    heard: list[int] = []

    class Listener:
        def hear(self, frame: object) -> float:
            heard.append(int(np.abs(frame.samples).max()))  # type: ignore[attr-defined]
            return 0.0

    speech_segments(track, Listener)
    assert max(heard) == 0


def test_nearest_of_none_is_not_known() -> None:
    assert math.isnan(nearest([], "end_s", 1.0))
    assert nearest([Segment(0, 1), Segment(2, 3)], "end_s", 2.4) == 3
