"""Perceived latency: the calibration of the instrument, and what it refuses to measure."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np
import pytest

from budgets.ledger import Ledger, ledgers_of
from budgets.perceived import Detectors, Sides, find_gaps, measure_sides, perceived
from budgets.tape import Tape, Track
from tests.budget_sessions import (
    LOUDNESS,
    Composer,
    Exchange,
    LoudnessDetector,
    Studio,
    burst,
    faded,
    speech,
)
from turn_detection.vad import SileroVAD, WebRtcVAD
from voicepipe.models import path_of

GAPS_S = (0.18, 0.35, 0.6, 0.95, 1.4, 0.25)


@functools.cache
def real_detectors() -> Detectors:
    path = path_of("silero-vad")
    model = next(path.glob("*.onnx")) if path.is_dir() else path
    return Detectors(SileroVAD(model).open, WebRtcVAD().open)


def tape_of(studio: Studio, **how: float) -> Tape:
    caller, agent = (Track(studio.track(s, **how), studio.rate_hz) for s in ("caller", "agent"))
    return Tape(caller, agent)


def sides_of(composer: Composer, detectors: Detectors = LOUDNESS) -> Sides:
    composer.studio.seconds += 1.0
    return measure_sides(tape_of(composer.studio), detectors)


@pytest.mark.models
@pytest.mark.parametrize(
    ("rate_hz", "how", "gain", "fade_s"),
    [
        pytest.param(16_000, {}, 1.0, 0.0, id="clean at 16 kHz"),
        pytest.param(48_000, {}, 1.0, 0.0, id="clean at 48 kHz"),
        pytest.param(24_000, {"noise_dbfs": -66.0}, 1.0, 0.0, id="room"),
        pytest.param(24_000, {"noise_dbfs": -55.0, "dc": 0.02}, 1.0, 0.0, id="noisy with dc"),
        pytest.param(24_000, {"noise_dbfs": -66.0}, 0.25, 0.0, id="ducked by 12 dB"),
        pytest.param(24_000, {}, 1.0, 0.03, id="faded"),
    ],
)
def test_known_gaps_are_measured_to_ten_milliseconds(
    rate_hz: int, how: dict[str, float], gain: float, fade_s: float
) -> None:
    """Real speech, cut so that it begins and ends loud, and the real detectors. Such cuts may
    puzzle the speech detector: then the answer is discarded, never measured wrongly."""
    studio, at_s, truth_ms = Studio(rate_hz), 1.0, dict[float, float]()
    for n, gap_s in enumerate(GAPS_S):
        said = speech(1.0 + 0.13 * n, rate_hz, clip=n)
        reply = speech(1.2, rate_hz, clip=n + 1)
        if fade_s:
            said, reply = faded(said, rate_hz, fade_s), faded(reply, rate_hz, fade_s)
        end_s = studio.say("caller", at_s, gain * said)
        at_s = studio.say("agent", end_s + gap_s + 0.0037 * n, gain * reply) + 1.1
        truth_ms[end_s] = (gap_s + 0.0037 * n) * 1000
    gaps, reasons = find_gaps(measure_sides(tape_of(studio, **how), real_detectors()))
    assert len(gaps) + len(reasons) == len(GAPS_S)
    assert len(gaps) >= len(GAPS_S) - 1, reasons
    for gap in gaps:
        end_s = min(truth_ms, key=lambda at: abs(at - gap.speech_end_s))
        assert gap.speech_end_s == pytest.approx(end_s, abs=0.010)
        assert gap.perceived_ms == pytest.approx(truth_ms[end_s], abs=10)
        assert gap.content_ms == gap.perceived_ms


def test_the_gap_is_that_of_the_sound_and_not_that_of_the_events() -> None:
    composer = Composer()
    for shift_ms in (0.0, 40.0, 110.0):
        composer.exchange(Exchange(shift_ms=shift_ms))
    ledgers = ledgers_of(composer.events)
    gaps, discards = perceived(sides_of(composer), ledgers)
    assert discards == []
    assert [gaps[turn].perceived_ms for turn in range(3)] == pytest.approx([535, 575, 645], abs=5)


def test_a_short_filler_is_onset_and_no_content() -> None:
    studio = Studio()
    end_s = studio.say("caller", 1.0, burst(1.0, 16_000))
    studio.say("agent", end_s + 0.4, burst(0.25, 16_000))
    studio.say("agent", end_s + 1.0, burst(1.0, 16_000))
    (gap,), reasons = find_gaps(measure_sides(tape_of(studio), LOUDNESS))
    assert reasons == []
    assert gap.perceived_ms == pytest.approx(400, abs=5)
    assert gap.content_ms == pytest.approx(1000, abs=5)


def test_a_long_filler_is_known_by_its_event() -> None:
    composer = Composer()
    composer.exchange(Exchange(replies_s=0.8))
    filler_s = 2.0 + 0.535
    composer.studio.say("agent", filler_s + 1.2, burst(1.0, 16_000))
    ledgers = ledgers_of(composer.events)
    sides = sides_of(composer)
    assert perceived(sides, ledgers)[0][0].content_ms == pytest.approx(535, abs=5)
    gap = perceived(sides, ledgers, [filler_s])[0][0]
    assert gap.perceived_ms == pytest.approx(535, abs=5)
    assert gap.content_ms == pytest.approx(535 + 1200, abs=5)


def test_a_reply_without_content_has_no_content_figure() -> None:
    composer = Composer()
    composer.exchange(Exchange(replies_s=0.3))
    gaps, _ = perceived(sides_of(composer), ledgers_of(composer.events))
    assert math.isnan(gaps[0].content_ms)


def test_hesitations_inside_a_turn_are_no_gaps() -> None:
    studio = Studio()
    studio.say("caller", 1.0, burst(0.6, 16_000))
    end_s = studio.say("caller", 2.3, burst(0.8, 16_000))
    studio.say("agent", end_s + 0.5, burst(1.0, 16_000))
    gaps, _ = find_gaps(measure_sides(tape_of(studio), LOUDNESS))
    assert [gap.perceived_ms for gap in gaps] == pytest.approx([500], abs=5)


def reason(
    composer: Composer,
    change: dict[str, object] | None = None,
    detectors: Detectors = LOUDNESS,
) -> str:
    """Why the only turn is discarded, after a change to its ledger."""
    (ledger,) = ledgers_of(composer.events)
    ledger = replace(ledger, **(change or {}))  # type: ignore[arg-type]
    gaps, (discard,) = perceived(sides_of(composer, detectors), [ledger])
    assert gaps == {}
    assert discard.turn == 0
    return discard.reason


def one_exchange() -> Composer:
    composer = Composer()
    composer.exchange(Exchange())
    return composer


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reason": "typed"}, "typed"),
        ({"reopened": True}, "cut-off"),
        ({"first_audio_s": math.nan, "status": "failed"}, "the turn was failed"),
        ({"speech_end_s": 4.9}, "no speech of the caller's ends near"),
        ({"speech_end_s": math.nan}, "no speech of the caller's ends near"),
    ],
)
def test_turns_that_cannot_be_measured_say_why(change: dict[str, object], why: str) -> None:
    assert why in reason(one_exchange(), change)


def test_a_caller_who_speaks_again_before_the_reply_is_double_talk() -> None:
    composer = one_exchange()
    composer.studio.say("caller", 2.2, burst(0.2, 16_000))
    assert reason(composer, {"speech_end_s": 2.0}).startswith("double-talk: the caller")


def test_an_agent_that_speaks_over_the_callers_end_is_double_talk() -> None:
    composer = one_exchange()
    composer.studio.say("agent", 1.5, burst(0.9, 16_000))
    assert reason(composer).startswith("double-talk: the agent")


def test_the_end_of_an_interrupted_reply_is_no_double_talk() -> None:
    """Somebody says "stop": the agent falls silent 150 ms later and then answers."""
    composer = one_exchange()
    composer.studio.say("agent", 0.5, burst(1.65, 16_000))
    gaps, discards = perceived(sides_of(composer), ledgers_of(composer.events))
    assert discards == []
    assert gaps[0].perceived_ms == pytest.approx(535, abs=5)


def test_a_reply_that_is_not_on_the_tape() -> None:
    composer = one_exchange()
    composer.studio._sounds["agent"].clear()  # noqa: SLF001 - the test's own studio
    composer.studio.seconds = 20.0
    assert "no reply before 15 s had passed" in reason(composer)


def test_another_turns_reply_is_not_taken_for_ones_own() -> None:
    composer = one_exchange()
    composer.studio._sounds["agent"].clear()  # noqa: SLF001 - the test's own studio
    composer.exchange(Exchange())
    gaps, (discard,) = perceived(sides_of(composer), ledgers_of(composer.events))
    assert list(gaps) == [1]
    assert "before the caller's next turn" in discard.reason


class Deaf:
    """A referee that hears nothing."""

    def hear(self, _: object) -> float:
        return 0.0


def test_a_referee_that_does_not_agree_discards_the_turn() -> None:
    deaf = Detectors(LoudnessDetector, Deaf)
    assert reason(one_exchange(), detectors=deaf) == "the caller's end: the referee hears no speech"
    slow = Detectors(LoudnessDetector, lambda: LoudnessDetector(40))
    assert "the caller's end: the referee has it" in reason(one_exchange(), detectors=slow)
    assert "ms later" in reason(one_exchange(), detectors=slow)


def test_a_sound_that_swells_out_of_reach_has_no_edge() -> None:
    """A reply faded in over a second: the detector hears it long after energy does."""
    composer = one_exchange()
    composer.studio._sounds["agent"].clear()  # noqa: SLF001 - the test's own studio
    swelling = faded(burst(2.5, 16_000), 16_000, 1.2) * 0.2
    composer.studio.say("agent", 2.535, swelling)
    assert "the reply's onset: no edge in energy" in reason(composer)


def test_each_turn_is_measured_or_discarded() -> None:
    composer = Composer()
    rng = np.random.default_rng(3)
    for n in range(12):
        composer.exchange(Exchange(endpointing=float(rng.uniform(100, 900))), recorded=bool(n % 3))
    ledgers: list[Ledger] = ledgers_of(composer.events)
    gaps, discards = perceived(sides_of(composer), ledgers)
    assert sorted([*gaps, *(d.turn for d in discards)]) == list(range(12))
    assert len(gaps) == 8
