"""Whole conversations through the turn machine: a scripted voice, an STT, a model and an agent of
known speed, frame by frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pytest

from benchmarks.rehearsal import Rehearsal, SilentDetector, Speeds, Word, silence, spoken
from turn_detection import Endpointing, ScriptedEndOfTurn, ScriptedVAD, State
from voicepipe import events as ev
from voicepipe.protocols import AgentState, ScoreRequest

E = TypeVar("E", bound=ev.Event)

SURE = 0.98
QUESTION = (Word(1.4, "What is"), Word(2.0, "the time?"))


def call(
    *,
    spans: Sequence[tuple[float, float]],
    words: Sequence[Word] = QUESTION,
    score: float | Callable[[ScoreRequest], float] = SURE,
    speeds: Speeds | None = None,
    until_s: float = 8.0,
    with_model: bool = True,
) -> Rehearsal:
    """Run it to `until_s`; pauses are scored by `score`."""
    detector = SilentDetector(spans, with_model=with_model)
    ask = score if callable(score) else lambda _: score
    run = Rehearsal(detector, spoken(words), ask, speeds or Speeds())
    for frame in silence(round(until_s * 100)):
        run.hear(frame)
    return run


def only(run: Rehearsal, kind: type[E]) -> list[E]:
    return [event for event in run.events if isinstance(event, kind)]


def names(run: Rehearsal) -> list[str]:
    """Types of the events, transcripts left out."""
    return [type(event).__name__ for event in run.events if not isinstance(event, ev.Transcript)]


# -- one turn ----------------------------------------------------------------------------------


def test_a_question_is_prepared_early_and_answered_once() -> None:
    run = call(spans=[(1.0, 2.0)])
    assert names(run) == ["SpeechStarted", "SpeechPaused", "EagerEndOfTurn", "EndOfTurn"]
    started, paused, eager, end = (e for e in run.events if not isinstance(e, ev.Transcript))
    assert started.t_media_s == 1.0
    assert paused.t_media_s == 2.0
    assert isinstance(eager, ev.EagerEndOfTurn)
    assert isinstance(end, ev.EndOfTurn)
    assert eager.text == end.text == "What is the time?"
    assert eager.speech_end_s == end.speech_end_s == 2.0
    assert eager.t_media_s < 2.4
    assert end.reason == "score"
    assert len(run.sounds_s) == 1
    assert run.sounds_s[0][0] - 2.0 <= 0.8


def test_the_end_waits_for_the_replys_sound_while_waiting_is_free() -> None:
    """Silence is evidence: it is gathered as long as nothing could be heard anyway."""
    slow = call(spans=[(1.0, 2.0)], speeds=Speeds(reply_s=0.45))
    fast = call(spans=[(1.0, 2.0)], speeds=Speeds(reply_s=0.1))
    (late,), (early,) = only(slow, ev.EndOfTurn), only(fast, ev.EndOfTurn)
    assert early.t_media_s < late.t_media_s
    ready_s = only(slow, ev.EagerEndOfTurn)[0].t_media_s + 0.45
    assert late.t_media_s == pytest.approx(min(ready_s, 2.7), abs=0.011)
    assert late.decided_s == early.decided_s, "how long it waited for sound is no deciding"


def test_a_slow_reply_is_committed_to_without_its_sound() -> None:
    run = call(spans=[(1.0, 2.0)], speeds=Speeds(reply_s=2.0))
    (end,) = only(run, ev.EndOfTurn)
    assert end.t_media_s == pytest.approx(2.7, abs=0.02)


def test_the_decision_is_dated_before_a_late_transcript() -> None:
    run = call(spans=[(1.0, 2.0)], speeds=Speeds(stt_s=1.0, interim_s=math.inf))
    (end,) = only(run, ev.EndOfTurn)
    assert end.t_media_s >= 3.1
    assert end.decided_s < 3.1


def test_without_a_model_words_and_silence_decide() -> None:
    run = call(spans=[(1.0, 2.0)], with_model=False)
    (end,) = only(run, ev.EndOfTurn)
    assert end.t_media_s <= 3.5
    unfinished = call(spans=[(1.0, 2.0)], words=[Word(2.0, "I would like to")], with_model=False)
    assert only(unfinished, ev.EndOfTurn)[0].t_media_s == pytest.approx(5.0, abs=0.02)


def test_the_model_hears_this_turn_up_to_now() -> None:
    asked: list[ScoreRequest] = []

    def score(request: ScoreRequest) -> float:
        asked.append(request)
        return 0.01

    call(spans=[(1.0, 2.0)], words=[Word(2.0, "and then")], score=score)
    silences_s = [request.end_sample / 16_000 - 2.0 for request in asked]
    assert silences_s[0] == pytest.approx(0.1, abs=0.011)
    assert np.diff(silences_s) == pytest.approx([0.2] * (len(asked) - 1), abs=0.011)
    for request in asked:
        assert request.samples.dtype == np.float32
        assert len(request.samples) == request.end_sample - 16_000


def test_only_the_last_8_s_of_a_long_turn_are_scored() -> None:
    asked: list[ScoreRequest] = []

    def score(request: ScoreRequest) -> float:
        asked.append(request)
        return SURE

    call(spans=[(1.0, 12.0)], words=[Word(11.9, "A long story.")], score=score, until_s=16.0)
    assert {len(request.samples) for request in asked} == {128_000}


# -- hesitations -------------------------------------------------------------------------------

BOOKING = (Word(2.0, "I would like to book a"), Word(99.0, "table for two."))


@pytest.mark.parametrize("gap_ms", range(150, 1250, 50))
@pytest.mark.parametrize("p_audio", [0.2, 0.99])
def test_nothing_is_heard_in_a_hesitation_after_words_that_end_open(
    gap_ms: int, p_audio: float
) -> None:
    resumed_s = 2.0 + gap_ms / 1000
    words = [BOOKING[0], Word(resumed_s + 1.0, "table for two.")]
    run = call(spans=[(1.0, 2.0), (resumed_s, resumed_s + 1.0)], words=words, score=p_audio)
    (end,) = only(run, ev.EndOfTurn)
    assert end.text == "I would like to book a table for two."
    assert not only(run, ev.TurnReopened)
    assert all(start > resumed_s + 1.0 for start, _ in run.sounds_s)


@pytest.mark.parametrize(
    ("gap_ms", "p_audio"),
    [(gap_ms, 0.99 if gap_ms < 450 else 0.3) for gap_ms in range(150, 750, 50)],
)
def test_words_that_could_be_all_are_given_time_by_how_they_sound(
    gap_ms: int, p_audio: float
) -> None:
    resumed_s = 2.0 + gap_ms / 1000
    words = [Word(2.0, "A table for two."), Word(resumed_s + 1.0, "And for Friday.")]
    run = call(spans=[(1.0, 2.0), (resumed_s, resumed_s + 1.0)], words=words, score=p_audio)
    (end,) = only(run, ev.EndOfTurn)
    assert end.text == "A table for two. And for Friday."
    assert all(start > resumed_s for start, _ in run.sounds_s)
    assert names(run).count("EagerEndOfTurn") - names(run).count("TurnResumed") == 1


@pytest.mark.parametrize(
    ("text", "longest_s"),
    [
        ("My name is Bob.", 1.5),
        ("I live near", 3.0),
        ("So, um,", 3.0),
        ("It is five five five", 3.0),
        ("Because", 1.5),
    ],
)
def test_t_max_depends_on_how_the_words_end(text: str, longest_s: float) -> None:
    run = call(spans=[(1.0, 2.0)], words=[Word(2.0, text)], score=0.001)
    (end,) = only(run, ev.EndOfTurn)
    assert end.reason == "timeout"
    assert end.t_media_s - 2.0 == pytest.approx(longest_s, abs=0.02)


def test_eager_ends_are_tried_three_times_a_turn() -> None:
    spans = [(1.0 + n, 1.5 + n) for n in range(6)]
    words = [Word(1.5 + n, f"Number {n}.") for n in range(6)]
    run = call(spans=spans, words=words, score=0.8, speeds=Speeds(reply_s=5), until_s=14.0)
    eager, resumed = only(run, ev.EagerEndOfTurn), only(run, ev.TurnResumed)
    assert len(eager) == len(resumed) == 3
    (end,) = only(run, ev.EndOfTurn)
    assert end.text == "Number 0. Number 1. Number 2. Number 3. Number 4. Number 5."


def test_long_turns_are_not_prepared() -> None:
    run = call(spans=[(1.0, 12.5)], words=[Word(12.4, "A long story.")], until_s=18.0)
    assert names(run) == ["SpeechStarted", "SpeechPaused", "EndOfTurn"]


# -- transcripts -------------------------------------------------------------------------------


class Hand:
    """A detector fed by hand: silence and speech by frames, everything else by call."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        self.detector = Endpointing(ScriptedEndOfTurn(), vad=ScriptedVAD(spans)).open()
        self.now = 0

    def until(self, t_s: float) -> list[ev.Event]:
        found: list[ev.Event] = []
        for frame in silence(round(t_s * 100) - self.now, self.now):
            found += [d for d in self.detector.hear(frame) if isinstance(d, ev.Event)]
            self.now += 1
        return found

    def final(
        self, text: str, end_s: float, start_s: float = 0.0, *, sure: float = math.nan
    ) -> list[ev.Event]:
        return self.say(text, end_s, start_s, final=True, sure=sure)

    def say(
        self,
        text: str,
        end_s: float,
        start_s: float = 0.0,
        *,
        final: bool = False,
        sure: float = math.nan,
    ) -> list[ev.Event]:
        transcript = ev.Transcript(
            t_media_s=end_s,
            text=text,
            final=final,
            start_s=start_s,
            end_s=end_s,
            confidence=sure,
        )
        return [d for d in self.detector.transcribed(transcript) if isinstance(d, ev.Event)]

    def score(self, p: float) -> list[ev.Event]:
        request = ScoreRequest(np.zeros(0, np.float32), self.now * 160)
        return [d for d in self.detector.scored(request, p) if isinstance(d, ev.Event)]

    def agent(self, speaking: bool) -> list[ev.Event]:
        state = AgentState(speaking, self.now / 100)
        return [d for d in self.detector.agent(state) if isinstance(d, ev.Event)]


def kinds(found: Sequence[ev.Event]) -> list[str]:
    return [type(event).__name__ for event in found]


def test_formatting_alone_does_not_waste_what_was_prepared() -> None:
    hand = Hand([(1.0, 2.0)])
    hand.until(2.15)
    hand.say("what is the time", 2.0)
    hand.score(SURE)
    assert "EagerEndOfTurn" in kinds(hand.until(2.5))
    assert hand.final("What is the time?", 2.0) == []
    assert kinds(hand.until(3.5)) == ["EndOfTurn"]


def test_other_words_do_and_the_new_ones_are_prepared() -> None:
    hand = Hand([(1.0, 2.0)])
    hand.until(2.15)
    hand.say("What is the dime?", 2.0)
    hand.score(SURE)
    hand.until(2.4)
    found = hand.final("What is the time?", 2.0)
    assert kinds(found) == ["TurnResumed", "EagerEndOfTurn"]
    (end,) = hand.until(3.5)
    assert isinstance(end, ev.EndOfTurn)
    assert end.text == "What is the time?"


def test_an_interim_that_lacks_the_last_words_is_not_prepared_for() -> None:
    hand = Hand([(1.0, 2.0)])
    hand.until(2.15)
    hand.say("What is the", 1.7)
    hand.score(SURE)
    assert hand.until(2.9) == []
    (end,) = hand.final("What is the time?", 2.0)
    assert isinstance(end, ev.EndOfTurn)
    assert end.text == "What is the time?"


def test_a_final_of_an_older_pause_does_not_end_the_turn() -> None:
    hand = Hand([(1.0, 2.0), (2.3, 3.0)])
    assert kinds(hand.until(3.12)) == [
        "SpeechStarted",
        "SpeechPaused",
        "SpeechStarted",
        "SpeechPaused",
    ]
    hand.score(SURE)
    hand.final("What is", 2.0)
    assert hand.until(4.0) == []
    (end,) = hand.final("What is the time?", 3.0)
    assert isinstance(end, ev.EndOfTurn)
    assert end.text == "What is the time?"


def test_a_late_transcript_of_an_answered_turn_is_no_new_turn() -> None:
    hand = Hand([(1.0, 2.0)])
    hand.until(2.2)
    hand.score(SURE)
    hand.final("What is the time?", 2.0)
    assert kinds(hand.until(3.0))[-1] == "EndOfTurn"
    assert hand.final("What is the time? Please.", 2.0) == []
    hand.agent(True)
    hand.until(4.0)
    hand.agent(False)
    assert hand.final("What is the time? Please.", 2.0) == []
    assert hand.until(9.0) == []


def test_an_interim_of_the_last_turn_does_not_join_the_next() -> None:
    hand = Hand([(1.0, 2.0), (3.5, 4.0)])
    hand.until(2.2)
    hand.score(SURE)
    hand.final("What is the time?", 2.0, start_s=1.0)
    hand.until(3.6)
    hand.say("What is the time? Thank", 2.6, start_s=1.0)
    hand.until(4.2)
    hand.final("And the day?", 4.0, start_s=3.5)
    ends = [e for e in hand.until(8.0) if isinstance(e, ev.EndOfTurn)]
    assert [end.text for end in ends] == ["What is the time? And the day?"], "reopened, see below"


def test_an_interim_that_still_begins_with_the_last_turn_does_not_join_the_next() -> None:
    """The STT was at work on audio that reaches into the next turn when it was told of the end."""
    hand = Hand([(1.0, 2.0), (6.0, 6.5)])
    hand.until(2.2)
    hand.score(SURE)
    hand.final("What is the time?", 2.0, start_s=1.0)
    hand.until(3.0)
    hand.agent(True)
    hand.until(5.0)
    hand.agent(False)
    hand.until(6.4)
    hand.say("What is the time? And", 6.2, start_s=1.0)
    assert kinds(hand.until(12.0)) == ["SpeechPaused", "Fault"], "no words of this turn are known"


def test_an_older_transcript_does_not_take_words_back() -> None:
    hand = Hand([(1.0, 2.0)])
    hand.until(1.95)
    hand.say("What is the time", 1.9, start_s=1.0)
    hand.say("What is", 1.5, start_s=1.0)
    (*_, end) = hand.until(8.0)
    assert isinstance(end, ev.EndOfTurn)
    assert end.text == "What is the time"


def test_a_score_of_older_audio_is_void() -> None:
    hand = Hand([(1.0, 2.0)])
    hand.until(2.3)
    old = ScoreRequest(np.zeros(0, np.float32), 2 * 16_000 - 160)
    older = ScoreRequest(np.zeros(0, np.float32), hand.now * 160 - 800)
    hand.final("What is the time?", 2.0)
    assert hand.detector.scored(old, 1.0) == []
    hand.score(0.01)
    assert hand.detector.scored(older, 1.0) == []
    assert hand.until(3.3) == []


def test_speech_that_only_the_stt_hears_is_a_turn() -> None:
    hand = Hand([])
    hand.until(3.0)
    found = hand.say("Hello there.", 2.9, start_s=2.2)
    assert kinds(found) == ["SpeechStarted", "SpeechPaused"]
    assert [event.t_media_s for event in found] == [2.2, 2.9]
    hand.final("Hello there.", 2.9, start_s=2.2)
    (*_, end) = hand.until(6.0)
    assert isinstance(end, ev.EndOfTurn)
    assert end.text == "Hello there."
    assert end.speech_end_s == 2.9


def test_noise_without_words_is_no_turn() -> None:
    run = call(spans=[(1.0, 1.4)], words=[])
    assert names(run) == ["SpeechStarted", "SpeechPaused"]
    assert run.detector.hear(silence(1, 800)[0]) == []


# -- when something dies -----------------------------------------------------------------------


def test_a_dead_stt_is_a_fault_within_two_seconds_and_the_words_known_are_answered() -> None:
    run = call(spans=[(1.0, 2.0)], speeds=Speeds(stt_s=math.inf))
    assert names(run) == ["SpeechStarted", "SpeechPaused", "Fault"]
    (fault,) = only(run, ev.Fault)
    assert fault.kind == "stt_silent"
    assert fault.t_media_s - 2.0 <= 2.2

    hand = Hand([(1.0, 2.0)])
    hand.until(1.9)
    hand.say("What is the", 1.7)
    found = hand.until(6.0)
    assert kinds(found) == ["SpeechPaused", "Fault", "EndOfTurn"] or "EagerEndOfTurn" in kinds(
        found
    )
    assert isinstance(found[-1], ev.EndOfTurn)
    assert found[-1].text == "What is the"
    assert found[-1].t_media_s - 2.0 <= 3.1


def test_words_that_come_after_all_are_answered() -> None:
    hand = Hand([(1.0, 2.0)])
    assert kinds(hand.until(6.0)) == ["SpeechStarted", "SpeechPaused", "Fault"]
    found = hand.final("What is the time?", 2.0, start_s=1.0)
    assert kinds(found) == ["SpeechStarted", "SpeechPaused", "EndOfTurn"]


def test_a_dead_model_costs_time_and_no_turn() -> None:
    run = call(spans=[(1.0, 2.0)], speeds=Speeds(score_s=math.inf))
    (end,) = only(run, ev.EndOfTurn)
    assert end.t_media_s - 2.0 <= 1.52


# -- going on ----------------------------------------------------------------------------------


def test_a_caller_who_goes_on_before_the_reply_is_heard_reopens_the_turn() -> None:
    words = [Word(2.0, "Book a table."), Word(4.0, "For two.")]
    run = call(
        spans=[(1.0, 2.0), (3.0, 4.0)], words=words, speeds=Speeds(reply_s=3.0), until_s=14.0
    )
    first, second = only(run, ev.EndOfTurn)
    (reopened,) = only(run, ev.TurnReopened)
    assert first.t_media_s < reopened.t_media_s == 3.0 < second.t_media_s
    assert second.text == "Book a table. For two."
    assert len(run.sounds_s) == 1


def test_a_caller_who_was_cut_off_reopens_the_turn() -> None:
    words = [Word(2.0, "Book a table."), Word(4.0, "For two people.")]
    run = call(spans=[(1.0, 2.0), (2.9, 4.0)], words=words, until_s=10.0)
    (cut_off_s, silent_s), _ = run.sounds_s
    assert cut_off_s < 2.9
    assert silent_s - 2.9 < 1.0
    assert names(run).count("TurnReopened") == 1
    assert not only(run, ev.BargeIn)
    assert only(run, ev.EndOfTurn)[-1].text == "Book a table. For two people."


def test_who_speaks_after_a_short_reply_is_not_cut_off_but_answers() -> None:
    words = [Word(2.0, "Is it open?"), Word(4.0, "Good, thank you very much.")]
    run = call(spans=[(1.0, 2.0), (3.2, 4.0)], words=words, speeds=Speeds(speaking_s=0.25))
    assert run.sounds_s[0][1] < 3.2 < run.sounds_s[0][0] + 0.6
    assert not only(run, ev.TurnReopened)
    assert [end.text for end in only(run, ev.EndOfTurn)] == [word.text for word in words]


def test_a_noise_before_the_reply_does_not_kill_it() -> None:
    run = call(spans=[(1.0, 2.0), (2.75, 2.85)], speeds=Speeds(reply_s=1.2))
    assert len(only(run, ev.EndOfTurn)) == 1
    assert not only(run, ev.TurnReopened)
    ((start, end),) = run.sounds_s
    assert end - start == pytest.approx(3.0, abs=0.02)


# -- over the agent ----------------------------------------------------------------------------

REPLYING = Speeds(speaking_s=5.0)


def over_agent(
    start_s: float, length_s: float, text: str, *, speeds: Speeds = REPLYING, until_s: float = 16.0
) -> Rehearsal:
    """The caller asks, and `start_s` after the reply began says `text` over it; its words are
    evenly spread, but the first one can be told after 250 ms."""
    begun_s = call(spans=[(1.0, 2.0)], speeds=speeds).events[-1].t_media_s
    at_s = begun_s + start_s
    said = text.split()
    ends_s = [at_s + length_s * (n + 1) / len(said) for n in range(len(said))]
    ends_s[:1] = [min(at_s + 0.25, end_s) for end_s in ends_s[:1]]
    words = [*QUESTION, *(Word(end_s, word) for end_s, word in zip(ends_s, said, strict=True))]
    return call(
        spans=[(1.0, 2.0), (at_s, at_s + length_s)], words=words, speeds=speeds, until_s=until_s
    )


@pytest.mark.parametrize(
    ("text", "length_s"),
    [
        *(
            (text, length_s)
            for text in ("Uh-huh.", "Okay.", "Yeah, right.")
            for length_s in (0.2, 0.8)
        ),
        ("", 0.2),
        ("", 0.5),
    ],
)
def test_a_backchannel_does_not_stop_the_agent(text: str, length_s: float) -> None:
    run = over_agent(1.5, length_s, text)
    (started, again) = only(run, ev.SpeechStarted)
    assert not started.overlap
    assert again.overlap
    (backchannel,) = only(run, ev.Backchannel)
    assert backchannel.text == text
    assert not only(run, ev.BargeIn)
    assert sum(end - start for start, end in run.sounds_s) == pytest.approx(5.0, abs=0.05)
    assert len(only(run, ev.EndOfTurn)) == 1


@pytest.mark.parametrize("text", ["Stop.", "No, wait a moment.", "What about tomorrow?"])
@pytest.mark.parametrize("length_s", [0.3, 1.2])
def test_words_stop_the_agent_and_are_answered(text: str, length_s: float) -> None:
    run = over_agent(1.5, length_s, text)
    barge = only(run, ev.BargeIn)
    assert barge[-1].text
    assert text.startswith(barge[-1].text)
    assert only(run, ev.EndOfTurn)[-1].text == text
    assert len(run.sounds_s) == 2
    assert not only(run, ev.Backchannel)
    assert not only(run, ev.AgentResumed)


def test_the_agent_yields_to_sound_and_is_silenced_by_the_first_word() -> None:
    run = over_agent(1.5, 1.2, "Wait, stop talking.")
    (yielded,) = only(run, ev.AgentYielded)
    (silenced, interrupted) = only(run, ev.BargeIn)
    began_s = only(run, ev.SpeechStarted)[1].t_media_s
    assert yielded.t_media_s - began_s == pytest.approx(0.2, abs=0.011)
    assert run.sounds_s[0][1] == yielded.t_media_s
    assert silenced.text == ""
    first_word = next(e for e in only(run, ev.Transcript) if e.text == "Wait,")
    known = run.events.index(first_word)
    assert run.events[known + 1] is silenced
    assert known < run.events.index(interrupted)


def test_a_short_noise_does_not_even_make_the_agent_yield() -> None:
    run = over_agent(1.5, 0.1, "")
    assert only(run, ev.SpeechStarted)[1].overlap
    assert not only(run, ev.AgentYielded)
    assert len(run.sounds_s) == 1


def test_a_first_word_misheard_is_taken_back() -> None:
    """Of the beginning of "uh-huh" Whisper makes "I said"."""
    hand = Hand([(1.0, 1.6)])
    hand.agent(True)
    hand.until(1.4)
    (silenced,) = hand.say("I said", 1.3, start_s=1.0)
    assert isinstance(silenced, ev.BargeIn)
    assert silenced.text == ""
    hand.until(1.8)
    assert kinds(hand.final("Uh-huh.", 1.6, start_s=1.0)) == ["AgentResumed"]
    assert hand.detector.state is State.AGENT


@pytest.mark.parametrize(("sure", "what"), [(0.2, "Backchannel"), (0.6, "BargeIn")])
def test_short_words_that_the_stt_doubts_are_a_hum(sure: float, what: str) -> None:
    hand = Hand([(1.0, 1.45)])
    hand.agent(True)
    hand.until(1.57)
    assert kinds(hand.final("I tell.", 1.45, start_s=1.0, sure=sure))[0] == what


def test_longer_words_stop_the_agent_however_doubtful() -> None:
    hand = Hand([(1.0, 2.2)])
    hand.agent(True)
    hand.until(2.35)
    barge_in, *_ = hand.final("Mumble about foxes.", 2.2, start_s=1.0, sure=0.2)
    assert isinstance(barge_in, ev.BargeIn)
    assert barge_in.text


def test_the_beginning_of_a_backchannel_is_waited_for() -> None:
    hand = Hand([(1.0, 1.5)])
    hand.agent(True)
    hand.until(1.4)
    assert hand.say("I", 1.3, start_s=1.0) == []
    hand.until(1.7)
    (backchannel,) = hand.final("I see.", 1.5, start_s=1.0)
    assert isinstance(backchannel, ev.Backchannel)


def test_a_backchannel_is_no_part_of_the_next_turn() -> None:
    """Neither with an STT that forgets it, nor with one that does not and repeats it."""
    spans = [(1.0, 1.5), (4.0, 4.5)]
    for text, start_s in (("Okay. And tomorrow?", 1.0), ("And tomorrow?", 4.0)):
        hand = Hand(spans)
        hand.agent(True)
        hand.until(1.7)
        assert kinds(hand.final("Okay.", 1.5, start_s=1.0)) == ["Backchannel"]
        hand.until(3.0)
        hand.agent(False)
        hand.until(4.7)
        hand.final(text, 4.5, start_s=start_s)
        (end,) = [e for e in hand.until(9.0) if isinstance(e, ev.EndOfTurn)]
        assert end.text == "And tomorrow?"


def test_who_says_the_same_again_after_a_backchannel_means_it() -> None:
    hand = Hand([(1.0, 1.5), (4.0, 4.5)])
    hand.agent(True)
    hand.until(1.7)
    hand.final("Okay.", 1.5, start_s=1.0)
    hand.until(3.0)
    hand.agent(False)
    hand.until(4.7)
    hand.final("Okay. And tomorrow?", 4.5, start_s=4.0)
    (end,) = [e for e in hand.until(9.0) if isinstance(e, ev.EndOfTurn)]
    assert end.text == "Okay. And tomorrow?"


def test_what_was_once_a_backchannel_may_begin_a_later_turn() -> None:
    """At the end of a turn the STT begins anew: from there its words are the caller's."""
    spans = [(1.0, 2.0), (4.0, 4.4), (7.5, 8.5), (14.0, 15.0)]
    words = [
        *QUESTION,
        Word(4.2, "Okay."),
        Word(8.5, "And then?"),
        Word(14.5, "Okay."),
        Word(15, "Bye!"),
    ]
    run = call(spans=spans, words=words, until_s=18.0)
    assert [e.text for e in only(run, ev.Backchannel)] == ["Okay."]
    assert [e.text for e in only(run, ev.EndOfTurn)][1:] == ["And then?", "Okay. Bye!"]


def test_sound_without_words_gives_the_floor_back() -> None:
    run = over_agent(1.5, 1.6, "")
    (barge,) = only(run, ev.BargeIn)
    assert barge.text == ""
    assert len(only(run, ev.AgentResumed)) == 1
    (first, last), (again, end) = run.sounds_s
    assert last - first + end - again == pytest.approx(5.0, abs=0.05), "nothing of it is lost"
    assert again - last <= 2.1
    assert len(only(run, ev.EndOfTurn)) == 1


def test_noise_that_goes_on_stops_the_agent_once() -> None:
    run = over_agent(1.0, 12.0, "", until_s=20.0)
    assert len(only(run, ev.BargeIn)) == 1
    assert len(only(run, ev.AgentResumed)) == 1


def test_noise_that_comes_again_stops_the_agent_once() -> None:
    begun_s = call(spans=[(1.0, 2.0)]).events[-1].t_media_s
    spans = [(1.0, 2.0), *((begun_s + 1 + 2 * n, begun_s + 2.2 + 2 * n) for n in range(5))]
    run = call(spans=spans, speeds=Speeds(speaking_s=15.0), until_s=25.0)
    assert len(only(run, ev.BargeIn)) == 1


def test_an_answer_over_the_agents_last_words_is_a_turn() -> None:
    run = over_agent(4.9, 0.4, "Yes.")
    assert [end.text for end in only(run, ev.EndOfTurn)] == ["What is the time?", "Yes."]
    assert not only(run, ev.Backchannel)
    assert not only(run, ev.BargeIn)


@pytest.mark.parametrize("at_ms", range(0, 2500, 10))
def test_a_barge_in_at_any_moment_ends_in_one_answer_to_it(at_ms: int) -> None:
    """From the commit on: before the reply sounds, while it does, and around its end."""
    speeds = Speeds(speaking_s=1.5)
    run = over_agent(at_ms / 1000, 0.8, "Tell me about foxes.", speeds=speeds, until_s=10.0)
    ends = only(run, ev.EndOfTurn)
    assert ends[-1].text.endswith("Tell me about foxes.")
    reopened = len(only(run, ev.TurnReopened))
    assert len(ends) == 2
    assert (ends[-1].text == "What is the time? Tell me about foxes.") == bool(reopened)
    spoke_s = ends[-1].speech_end_s
    *before, (answer_s, _) = run.sounds_s
    assert answer_s >= spoke_s
    assert all(end <= spoke_s for _, end in before)
    assert run.detector.state is State.IDLE  # type: ignore[attr-defined]
