"""The invariants of turn taking, over random schedules: whatever comes in, in whatever order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.rehearsal import Rehearsal, SilentDetector, Speeds, Word, silence, spoken
from turn_detection import Endpointing, ScriptedEndOfTurn, State, TurnMachine
from turn_detection.endpointing import Decisions
from turn_detection.voice import VoiceEdge
from voicepipe import events as ev
from voicepipe.frames import AudioFrame
from voicepipe.protocols import AgentState, ScoreRequest
from voicepipe.wording import normalised, same_words

FRAME = 160
PATIENCE_S = 3.15
"""T_max of words that end open, and the 100 ms that noticing silence takes."""

OPEN = (State.USER, State.PAUSE, State.EAGER, State.OVERLAP)

TEXTS = (
    "",
    "Yes.",
    "Uh-huh.",
    "yeah okay",
    "What is the time?",
    "what is the time",
    "I would like to",
    "So, um,",
    "Five five five",
    "Stop.",
    "Wait, what about tomorrow?",
)


@dataclass
class Monitor:
    """Watches what a turn machine says and complains about what must never happen."""

    held: str | None = None
    """Text of the reply that is being prepared."""
    n_eager: int = 0
    speaking: bool = False
    in_overlap: bool = False
    stopped_without_words: bool = False
    answered: bool = False
    last_end_s: float = 0.0
    log: list[ev.Event | ScoreRequest] = field(default_factory=list)

    def take(self, decisions: Decisions, now_s: float, state: State) -> None:
        assert sum(isinstance(decision, ScoreRequest) for decision in decisions) <= 1
        for decision in decisions:
            self.log.append(decision)
            if isinstance(decision, ev.Event):
                assert decision.t_media_s <= now_s + 1e-9
                self._watch(decision)
        if state not in OPEN:  # the turn is over, with an end or, if it had no words, without
            self.n_eager = 0

    def _watch(self, event: ev.Event) -> None:
        match event:
            case ev.SpeechStarted():
                assert not self.speaking
                self.speaking = True
            case ev.SpeechPaused():
                assert self.speaking
                self.speaking = False
                self.last_end_s = event.t_media_s
            case ev.EagerEndOfTurn():
                assert self.held is None, "at most one held turn"
                assert not self.speaking
                assert event.text
                self.held = event.text
                self.n_eager += 1
                assert self.n_eager <= 3
            case ev.TurnResumed():
                assert self.held is not None, "resumed only after an eager end"
                self.held = None
            case ev.EndOfTurn():
                assert event.text
                assert not self.speaking
                assert self.held is None or same_words(self.held, event.text)
                assert event.speech_end_s <= event.decided_s <= event.t_media_s
                self.held, self.n_eager, self.answered = None, 0, True
                self.stopped_without_words = False
            case ev.TurnReopened():
                assert self.answered
                self.answered = False
            case ev.BargeIn():
                assert self.held is None
                self.stopped_without_words = not event.text
            case ev.AgentResumed():
                assert self.stopped_without_words
                self.stopped_without_words = False


@dataclass
class Bench:
    """A turn machine and its monitor on one clock."""

    monitor: Monitor = field(default_factory=Monitor)
    frame: int = 0
    voiced: bool = False
    silent_since: int = 0

    def __post_init__(self) -> None:
        self.machine = TurnMachine(lambda since: np.zeros(0, np.float32))

    @property
    def now_s(self) -> float:
        return self.frame / 100

    def take(self, decisions: Decisions) -> None:
        self.monitor.take(decisions, self.now_s, self.machine.state)

    def hear(self, edge: VoiceEdge | None = None) -> None:
        self.frame += 1
        self.take(self.machine.hear(self.frame * FRAME, edge))
        if not self.voiced and (self.frame - self.silent_since) / 100 > PATIENCE_S:
            assert self.machine.state not in OPEN, "every turn ends within T_max"

    def do(self, step: tuple[Any, ...]) -> None:
        what, *arguments = step
        getattr(self, what)(*arguments)

    def wait(self, n_frames: int) -> None:
        for _ in range(n_frames):
            self.hear()

    def speak(self, n_frames: int, late_frames: int) -> None:
        """The voice for `n_frames`, noticed late at both ends; n = 0 leaves it on."""
        began = max(self.silent_since, self.frame - late_frames)
        if not self.voiced:
            self.voiced = True
            self.hear(VoiceEdge(True, began * FRAME))
        self.wait(n_frames)
        if n_frames:
            ended = max(began + 1, self.frame - late_frames)
            self.voiced = False
            self.silent_since = ended
            self.hear(VoiceEdge(False, ended * FRAME))

    def transcribe(self, text: str, final: bool, back_frames: int) -> None:
        """Of the last pause (0) or of audio that far back."""
        last_pause_s = self.monitor.last_end_s
        end_s = last_pause_s if back_frames == 0 else max(0.0, self.now_s - back_frames / 100)
        self.silent_since = max(self.silent_since, math.ceil(end_s * 100))
        transcript = ev.Transcript(t_media_s=end_s, text=text, final=final, end_s=end_s)
        self.take(self.machine.transcribed(transcript))

    def score(self, p: float, back_frames: int) -> None:
        end = max(0, self.frame - back_frames) * FRAME
        request = ScoreRequest(np.zeros(0, np.float32), end)
        self.take(self.machine.scored(request, p))

    def agent(self, speaking: bool) -> None:
        self.take(self.machine.agent(AgentState(speaking, self.now_s)))

    def ready(self, ready: bool) -> None:
        self.take(self.machine.pipeline_ready(ready))


STEPS = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 60)),
    st.tuples(st.just("speak"), st.integers(0, 120), st.integers(0, 12)),
    st.tuples(st.just("transcribe"), st.sampled_from(TEXTS), st.booleans(), st.integers(0, 80)),
    st.tuples(st.just("transcribe"), st.sampled_from(TEXTS), st.just(True), st.just(0)),
    st.tuples(st.just("score"), st.sampled_from([0.0, 0.3, 0.8, 0.99, 1.0]), st.integers(0, 40)),
    st.tuples(st.just("agent"), st.booleans()),
    st.tuples(st.just("ready"), st.booleans()),
)


def play(steps: Sequence[tuple[Any, ...]]) -> Bench:
    bench = Bench()
    for step in steps:
        bench.do(step)
    return bench


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=60))
@example(
    [
        ("wait", 51),
        ("transcribe", "Uh-huh.", True, 0),
        ("transcribe", "Yes.", True, 0),
        ("transcribe", "Uh-huh.", True, 0),
        ("transcribe", "", True, 0),
        ("score", 1.0, 0),
        ("transcribe", "Yes.", False, 0),
    ]
)
def test_whatever_happens_no_invariant_breaks_and_every_turn_ends(
    steps: list[tuple[Any, ...]],
) -> None:
    bench = play(steps)
    if bench.voiced:
        bench.speak(1, 0)
    bench.wait(round(PATIENCE_S * 100) + 2)
    assert bench.machine.state not in OPEN


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_the_same_inputs_give_the_same_decisions(steps: list[tuple[Any, ...]]) -> None:
    def said(bench: Bench) -> list[object]:
        return [d.to_json() if isinstance(d, ev.Event) else d.end_sample for d in bench.monitor.log]

    assert said(play(steps)) == said(play(steps))


# -- whole calls -------------------------------------------------------------------------------

VOCABULARY = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")


@dataclass(frozen=True)
class Call:
    """A caller's stretches of speech, some words in each, and how fast everybody is."""

    spans_s: tuple[tuple[float, float], ...]
    words: tuple[Word, ...]
    speeds: Speeds
    scores: tuple[float, ...]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    at_s, spans, words = 0.5, [], []
    for n in range(draw(st.integers(1, 5))):
        length_s = draw(st.sampled_from([0.3, 0.5, 1.0, 1.7]))
        spans.append((at_s, at_s + length_s))
        n_words = draw(st.integers(1, 3))
        ending = draw(st.sampled_from([".", "?", "", " and"]))
        for k in range(n_words):
            text = f"{draw(st.sampled_from(VOCABULARY))}{n}{k}" + (
                ending if k + 1 == n_words else ""
            )
            words.append(Word(at_s + length_s * (k + 1) / n_words, text))
        at_s += length_s + draw(st.sampled_from([0.2, 0.35, 0.5, 0.7, 0.9, 1.4, 2.0, 3.5]))
    speeds = Speeds(
        stt_s=draw(st.sampled_from([0.05, 0.2, 0.6, 1.2])),
        interim_s=draw(st.sampled_from([0.3, math.inf])),
        score_s=draw(st.sampled_from([0.1, 0.5, math.inf])),
        reply_s=draw(st.sampled_from([0.0, 0.3, 0.8, 2.5])),
        speaking_s=draw(st.sampled_from([0.2, 1.0, 4.0])),
    )
    scores = draw(st.lists(st.sampled_from([0.02, 0.4, 0.9, 0.99]), min_size=1, max_size=6))
    return Call(tuple(spans), tuple(words), speeds, tuple(scores))


def rehearse(call: Call) -> Rehearsal:
    detector = SilentDetector(call.spans_s)
    model = ScriptedEndOfTurn(call.scores)
    run = Rehearsal(
        detector, spoken(call.words), lambda r: model.probability(r.samples), call.speeds
    )
    for frame in silence(round((call.spans_s[-1][1] + 12.0) * 100)):
        run.hear(frame)
    return run


LATE_SECOND_WORD = Call(
    spans_s=((0.5, 0.8), (2.2, 2.5), (2.7, 4.4)),
    words=(Word(0.8, "alpha00."), Word(2.5, "alpha10."), Word(4.4, "alpha20.")),
    speeds=Speeds(stt_s=0.6, score_s=0.1, reply_s=0.0, speaking_s=1.0),
    scores=(0.9,),
)
"""Over the agent one word only is known when two seconds have passed."""

NO_WORD_IN_TIME = Call(
    spans_s=((0.5, 0.8), (4.3, 6.0), (6.2, 6.5)),
    words=(Word(0.8, "alpha00."), Word(6.0, "alpha10."), Word(6.5, "alpha20.")),
    speeds=Speeds(stt_s=1.2, score_s=0.1, reply_s=0.0, speaking_s=4.0),
    scores=(0.02,),
)
"""Over the agent the first word is known after more than two seconds."""


@settings(max_examples=60, deadline=None)
@given(calls())
@example(LATE_SECOND_WORD)
@example(NO_WORD_IN_TIME)
def test_in_any_call_every_word_is_answered_once_and_in_order(call: Call) -> None:
    run = rehearse(call)
    answered: list[str] = []
    for event in run.events:
        if isinstance(event, ev.TurnReopened):
            answered.pop()
        if isinstance(event, ev.EndOfTurn):
            answered.append(event.text)
    assert normalised(" ".join(answered)) == normalised(" ".join(w.text for w in call.words))
    assert not [e for e in run.events if isinstance(e, ev.Fault)]


@settings(max_examples=60, deadline=None)
@given(calls())
def test_in_any_call_nothing_is_heard_but_what_was_committed(call: Call) -> None:
    """No sound before the end of its turn, none while the caller is known to speak on."""
    run = rehearse(call)
    ends = [event.t_media_s for event in run.events if isinstance(event, ev.EndOfTurn)]
    resumed = [event for event in run.events if isinstance(event, ev.AgentResumed)]
    assert len(run.sounds_s) <= len(ends) + len(resumed)
    for start_s, _ in run.sounds_s:
        assert any(end_s <= start_s for end_s in ends)
    assert all(one[1] <= other[0] for one, other in pairwise(run.sounds_s))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 100)), max_size=4))
def test_every_frame_reaches_the_vad_once_and_in_order(spans: list[tuple[int, int]]) -> None:
    heard: list[int] = []

    class Counting:
        def open(self) -> Counting:
            return self

        def hear(self, frame: AudioFrame) -> float:
            heard.append(frame.start_sample)
            return float(any(a <= frame.start_sample // FRAME < a + n for a, n in spans))

    detector = Endpointing(None, vad=Counting()).open()
    for frame in silence(500):
        detector.hear(frame)
    assert heard == [n * FRAME for n in range(500)]
