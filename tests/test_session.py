"""Whole conversations in virtual time."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm import ScriptedLLM
from stages.llm.scripted import Breakage
from stages.tts import ScriptedTTS
from stages.tts.scripted import Misbehaviour
from tests.conversation import REPLY, Call, converse, hesitates, says, scripted
from turn_detection import Endpointing, ScriptedEndOfTurn, ScriptedVAD
from voicepipe import SessionConfig
from voicepipe import events as ev
from voicepipe.frames import AudioFrame
from voicepipe.history import Message
from voicepipe.pipeline import StageLimits
from voicepipe.transports import Cue, MemoryTransport


def check_invariants(call: Call) -> None:
    """What holds of every conversation, however it went."""
    started = {e.turn: e for e in call.events if isinstance(e, ev.TurnStarted)}
    finished = {e.turn: e for e in call.finished}
    assert started.keys() == finished.keys()
    assert len(call.finished) == len(finished)
    live: set[int] = set()
    held: set[int] = set()
    for event in call.events:
        match event:
            case ev.TurnStarted(held=True):
                held.add(event.turn)
            case ev.TurnStarted():
                live.add(event.turn)
            case ev.TurnReleased():
                held.remove(event.turn)
                live.add(event.turn)
            case ev.FirstAudio():
                assert event.turn in live, "audible before its end of turn"
            case ev.TurnFinished():
                live.discard(event.turn)
                held.discard(event.turn)
                assert event.text.startswith(event.heard_text)
                assert event.status != "superseded" or not event.heard_text
    assert not live
    assert not held
    assert call.n_tasks_left == 0
    assert call.n_generators_left == 0


def agent_sound_s(call: Call) -> float:
    """Seconds of audible agent sound on the caller's track."""
    return float(np.count_nonzero(np.abs(call.transport.agent.samples()) > 100) / 24_000)


def test_a_turn_is_answered_once_and_remembered() -> None:
    call = converse([says(), says()], scripted(["What is the time?", "And where are we?"]))
    check_invariants(call)
    assert list(call.history) == [
        Message("user", "What is the time?"),
        Message("agent", REPLY),
        Message("user", "And where are we?"),
        Message("agent", REPLY),
    ]
    assert [e.status for e in call.finished if e.status != "superseded"] == ["completed"] * 2
    assert not call.faults


def test_the_reply_is_prepared_before_it_is_certain_and_released_when_it_is() -> None:
    call = converse([says()])
    (start,) = [e for e in call.events if isinstance(e, ev.TurnStarted)]
    (end,) = [e for e in call.events if isinstance(e, ev.EndOfTurn)]
    (ready,) = [e for e in call.events if isinstance(e, ev.AudioReady)]
    (audio,) = [e for e in call.events if isinstance(e, ev.FirstAudio)]
    assert start.held
    assert start.t_loop_s < ready.t_loop_s < end.t_loop_s
    assert audio.t_media_s == pytest.approx(end.t_loop_s, abs=0.02)


@pytest.mark.parametrize("gap_ms", range(50, 800, 50))
def test_a_hesitation_is_not_answered(gap_ms: int) -> None:
    turn = Endpointing(ScriptedEndOfTurn(lambda x: 0.5), vad=ScriptedVAD())
    stages = scripted([("I would like to", "book a table.")], turn=turn)
    call = converse([hesitates(1.0, gap_ms / 1000, 1.0)], stages)
    check_invariants(call)
    assert len([e for e in call.finished if e.status == "completed"]) == 1
    assert not call.of(ev.TurnReopened)


def test_discarded_speculation_leaves_no_trace() -> None:
    sure_at_once = Endpointing(ScriptedEndOfTurn([0.9]), vad=ScriptedVAD())
    stages = scripted([("One thing.", "And another.")], turn=sure_at_once)
    call = converse([hesitates(1.0, 0.4, 1.0)], stages)
    check_invariants(call)
    assert {m.role for m in call.history} == {"user", "agent"}
    assert len(call.history) == 2


SHORT_REPLY = "Well, let me think about that."
"""1.2 s of sound at 40 ms a character."""


@pytest.mark.parametrize("at_ms", range(0, 1300, 10))
def test_barge_in_at_every_moment_of_a_reply(at_ms: int) -> None:
    soon = Cue("agent_silence", 100)
    turns = [says(0.4, soon), says(0.8, Cue("agent_speech", at_ms)), says(0.4, soon)]
    lines = ["Tell me a story.", "Wait, stop, tell me another one.", "Thank you."]
    stages = scripted(lines, llm=ScriptedLLM([SHORT_REPLY]), tts=ScriptedTTS(ms_per_char=40))
    call = converse(turns, stages)
    check_invariants(call)
    said = [m.text for m in call.history if m.role == "user"]
    assert said[-1] == "Thank you."
    assert " ".join(said[:-1]) == " ".join(lines[:2])  # one turn when it was a cut-off
    heard = [e for e in call.finished if e.status in ("completed", "interrupted")]
    assert (heard[-1].user_text, heard[-1].heard_text) == ("Thank you.", SHORT_REPLY)
    if heard[0].status == "interrupted" and not call.of(ev.TurnReopened):
        assert heard[0].stop_ms <= 300
        assert call.history[1] == Message("agent", heard[0].heard_text)
        cut_s = next(e.t_loop_s for e in call.events if isinstance(e, ev.AgentYielded | ev.BargeIn))
        next_s = [e.t_media_s for e in call.events if isinstance(e, ev.FirstAudio)][1]
        track = call.transport.agent.samples()[round(cut_s * 24_000) + 1 : round(next_s * 24_000)]
        assert not track.any()  # nothing of the old reply


def assert_only_paused(call: Call, at: int) -> None:
    """The agent fell silent at its sample `at`, soon went on, and not a sample was lost."""
    track = call.transport.agent.samples()
    again = at + int(np.flatnonzero(track[at:])[0])
    assert 0 < again - at < 24_000 * 0.8
    undisturbed = converse([says()], scripted(["Tell me a story."])).transport.agent.samples()
    n_sounding = len(track) - np.flatnonzero(track)[0] - (again - at)
    assert n_sounding == len(undisturbed) - np.flatnonzero(undisturbed)[0]


def test_a_backchannel_does_not_stop_the_agent() -> None:
    turns = [says(), says(0.4, Cue("agent_speech", 1500), expects_reply=False)]
    call = converse(turns, scripted(["Tell me a story.", "Mm-hmm."]))
    check_invariants(call)
    assert [e.status for e in call.finished] == ["completed"]
    assert call.of(ev.Backchannel)
    assert not call.of(ev.BargeIn)
    assert call.finished[0].heard_text == REPLY
    (yielded,) = call.of(ev.AgentYielded)
    (began,) = [e for e in call.events if isinstance(e, ev.SpeechStarted) and e.overlap]
    assert yielded.t_loop_s - began.t_media_s <= 0.25
    assert_only_paused(call, round(yielded.t_loop_s * 24_000))
    assert [m.text for m in call.history] == ["Tell me a story.", REPLY]


def test_a_backchannel_is_no_part_of_the_next_turn() -> None:
    turns = [
        says(),
        says(0.4, Cue("agent_speech", 1500), expects_reply=False),
        says(1.0, Cue("agent_silence", 500)),
    ]
    call = converse(turns, scripted(["Tell me a story.", "Mm-hmm.", "What is next?"]))
    check_invariants(call)
    assert [m.text for m in call.history if m.role == "user"] == [
        "Tell me a story.",
        "What is next?",
    ]


def test_a_barge_in_without_words_is_taken_back() -> None:
    turns = [says(), says(1.2, Cue("agent_speech", 1500), expects_reply=False)]
    call = converse(turns, scripted(["Tell me a story.", ""]))
    check_invariants(call)
    assert [e.status for e in call.finished] == ["completed"]
    assert call.finished[0].heard_text == REPLY


@pytest.mark.parametrize("breakage", ["raise", "raise_midway", "hang", "hang_midway", "nothing"])
@pytest.mark.parametrize("apology", ["Sorry about that.", ""])
def test_a_language_model_that_breaks(breakage: Breakage, apology: str) -> None:
    llm = ScriptedLLM([REPLY], broken={0: breakage})
    config = SessionConfig(apology=apology, limits=StageLimits(llm_s=3.0))
    call = converse([says(), says(), says()], scripted(["One?", "Two?", "Three?"], llm=llm), config)
    check_invariants(call)
    assert call.faults
    assert all(kind.startswith("llm_") for kind in call.faults)
    assert [e.user_text for e in call.finished if e.status == "completed"] == ["Two?", "Three?"]
    assert [m.text for m in call.history if m.role == "user"] == ["One?", "Two?", "Three?"]


@pytest.mark.parametrize("misbehaviour", ["raise", "hang", "nothing"])
def test_a_voice_that_breaks(misbehaviour: Misbehaviour) -> None:
    tts = ScriptedTTS(misbehave={1: misbehaviour, 2: misbehaviour})  # 0 is the apology
    config = SessionConfig(limits=StageLimits(tts_s=2.0))
    call = converse([says(), says(), says()], scripted(["One?", "Two?", "Three?"], tts=tts), config)
    check_invariants(call)
    assert call.faults
    assert all(kind.startswith("tts_") for kind in call.faults)
    assert [e.user_text for e in call.finished if e.status == "completed"][-1] == "Three?"


def test_the_apology_is_heard_and_is_no_part_of_the_reply() -> None:
    llm = ScriptedLLM([REPLY], broken={0: "raise"})
    with_apology = converse([says()], scripted(llm=llm), SessionConfig(apology="I am sorry."))
    without = converse([says()], scripted(llm=ScriptedLLM([REPLY], broken={0: "raise"})),
                       SessionConfig(apology=""))  # fmt: skip
    assert agent_sound_s(with_apology) > 0.4
    assert agent_sound_s(without) == 0
    assert with_apology.finished[-1].heard_text == ""
    assert list(with_apology.history) == [Message("user", "What is the time?")]


def test_an_end_of_turn_model_that_raises_costs_time_and_no_turn() -> None:
    def broken(_: object) -> float:
        raise RuntimeError("model file vanished")

    stages = scripted(turn=Endpointing(ScriptedEndOfTurn(broken), vad=ScriptedVAD()))
    call = converse([says()], stages)
    check_invariants(call)
    assert set(call.faults) == {"turn_error"}
    assert [e.status for e in call.finished if e.status != "superseded"] == ["completed"]


def test_a_typed_turn_is_answered_at_once() -> None:
    call = converse([], during=lambda session: session.type_text("What is typed?"))
    check_invariants(call)
    assert list(call.history) == [Message("user", "What is typed?"), Message("agent", REPLY)]


def test_a_caller_who_hangs_up_mid_reply_leaves_nothing_running() -> None:
    class HangsUp(MemoryTransport):
        """A caller who is gone half a second into the first reply."""

        @asynccontextmanager
        async def open(self) -> AsyncIterator[AsyncIterator[AudioFrame]]:
            async with super().open() as frames, aclosing(self._until_gone(frames)) as heard:
                yield heard

        async def _until_gone(
            self, frames: AsyncIterator[AudioFrame]
        ) -> AsyncGenerator[AudioFrame, None]:
            async for frame in frames:
                yield frame
                if self.agent.last_sound_s > 0.5:
                    return

    call = converse([says()], transport=HangsUp([says()]))
    check_invariants(call)
    (finished,) = call.finished
    assert finished.status == "interrupted"
    assert REPLY.startswith(finished.heard_text)
    assert list(call.history)[-1] == Message("agent", finished.heard_text)


def test_the_same_call_gives_the_same_events() -> None:
    turns = [says(), says(1.2, Cue("agent_speech", 900)), says()]
    lines = ["One?", "No wait, two?", "Three?"]
    one, two = (converse(turns, scripted(lines)) for _ in range(2))
    assert [e.to_json() for e in one.events] == [e.to_json() for e in two.events]


CUES: list[Literal["agent_silence", "agent_speech"]] = ["agent_silence", "agent_speech"]
BREAKAGES: list[Breakage] = ["raise", "raise_midway", "nothing"]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_conversation_keeps_the_invariants(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 3))
    turns = []
    for _ in range(n):
        cue = data.draw(st.builds(Cue, st.sampled_from(CUES), st.integers(0, 3000)))
        turns.append(says(data.draw(st.floats(0.05, 2.0)), cue))
    words = ["", "Yes.", "Mm-hmm.", "Stop it now, please.", "I would like to", "What is the time?"]
    lines = data.draw(st.lists(st.sampled_from(words), min_size=n, max_size=n))
    llm = ScriptedLLM(
        [REPLY],
        jitter=0.9,
        seed=data.draw(st.integers(0, 100)),
        broken=data.draw(st.dictionaries(st.integers(0, 4), st.sampled_from(BREAKAGES))),
    )
    turn = Endpointing(
        ScriptedEndOfTurn(data.draw(st.lists(st.floats(0, 1), min_size=1))), vad=ScriptedVAD()
    )
    stages = dataclasses.replace(scripted(lines, llm=llm), turn=turn)
    check_invariants(converse(turns, stages))
