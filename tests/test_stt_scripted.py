"""The scripted STT: its words, its clock and what may go wrong with it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.stt import ScriptedSTT
from tests.stt_streams import Clip, check, fed, finals, items, transcribe
from voicepipe.clock import Deadlock, run_virtual
from voicepipe.errors import ComponentError, UsageError
from voicepipe.events import SpeechPaused
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame
from voicepipe.protocols import SpeechInput

TENTH = CALLER_RATE_HZ // 10


def spoken(*tenths: int) -> Clip:
    """A turn of speech and pauses by turns, in tenths of a second, 0.3 s of silence before it. The
    audio itself does not matter."""
    at, speech = 3 * TENTH, []
    for i, n in enumerate(tenths):
        if i % 2 == 0:
            speech.append((at, at + n * TENTH))
        at += n * TENTH
    return Clip(np.zeros(at, np.int16), tuple(speech))


def call(*turns: Clip) -> list[SpeechInput]:
    given: list[SpeechInput] = []
    for turn in turns:
        start = max((i.end_sample for i in given if isinstance(i, AudioFrame)), default=0)
        given += items(turn, start=start)
    return given


def latencies(stt: ScriptedSTT, given: list[SpeechInput]) -> list[float]:
    """Milliseconds from each pause to its final."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        asked: list[float] = []

        async def noted() -> object:
            async for item in fed(given):
                if isinstance(item, SpeechPaused):
                    asked.append(loop.time())
                yield item

        found: list[float] = []
        async with stt.open(noted()) as transcripts:  # type: ignore[arg-type]
            async for transcript in transcripts:
                if transcript.final:
                    found.append((loop.time() - asked[len(found)]) * 1000)
        return found

    return run_virtual(main())


def test_words_become_known_as_they_are_spoken() -> None:
    transcripts = transcribe(ScriptedSTT(["one two three four"], words_per_s=2), call(spoken(15)))
    interims = [(t.text, t.stable_text, round(t.end_s - 0.3, 2)) for t in transcripts[:-1]]
    assert interims == [
        ("one", "", 0.5),
        ("one two", "one", 1.0),
        ("one two three", "one two", 1.5),
    ]
    assert transcripts[-1].text == transcripts[-1].stable_text == "one two three four"


def test_lines_go_round_and_a_function_may_make_them() -> None:
    turns = [spoken(5), spoken(5), spoken(5)]
    assert finals(transcribe(ScriptedSTT(["a", "b"]), call(*turns))) == ["a", "b", "a"]
    made = ScriptedSTT(lambda turn: f"turn {turn}")
    assert finals(transcribe(made, call(*turns))) == ["turn 0", "turn 1", "turn 2"]
    assert finals(transcribe(ScriptedSTT([]), call(spoken(5)))) == [""]


def test_pieces_are_said_one_after_the_other() -> None:
    line = ("I would like", "a table", "for two")
    texts = finals(transcribe(ScriptedSTT([line]), call(spoken(5, 7, 5, 7, 5, 7, 5))))
    assert texts == ["I would like", "I would like a table", " ".join(line), " ".join(line)]


def test_a_final_takes_as_long_as_it_is_told() -> None:
    given = call(spoken(5, 6, 5), spoken(5))
    assert latencies(ScriptedSTT(["a"], final_ms=120), given) == pytest.approx([120] * 3)
    assert latencies(ScriptedSTT(["a"], final_ms=0), given) == [0, 0, 0]


def test_latencies_come_from_the_seed() -> None:
    given = call(*[spoken(5)] * 8)
    first, again, other = (
        latencies(ScriptedSTT(["a"], final_ms=100, jitter=0.5, seed=seed), given)
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert all(50 <= ms <= 150 for ms in first)
    assert max(first) - min(first) > 10


def test_a_final_may_fail() -> None:
    stt = ScriptedSTT(["a", "b", "c"], broken={1: "nothing", 3: "raise"})
    assert finals(transcribe(stt, call(spoken(5), spoken(5), spoken(5)))) == ["a", "", "c"]
    with pytest.raises(ComponentError, match="told to fail"):
        transcribe(stt, call(spoken(5)))
    assert finals(transcribe(stt, call(spoken(5)))) == ["a"]


def test_a_final_that_hangs_never_comes() -> None:
    with pytest.raises(Deadlock):
        transcribe(ScriptedSTT(["a"], broken={0: "hang"}), call(spoken(5)))


@pytest.mark.parametrize(
    "settings_", [{"words_per_s": 0}, {"final_ms": -1}, {"jitter": 2}, {"lines": "one text"}]
)
def test_senseless_settings_are_refused(settings_: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="ScriptedSTT"):
        ScriptedSTT(**{"lines": ["a"], **settings_})  # type: ignore[arg-type]


@given(
    turns=st.lists(
        st.lists(st.integers(1, 12), min_size=1, max_size=3).filter(lambda t: len(t) % 2 == 1),
        min_size=1,
        max_size=3,
    ),
    final_ms=st.floats(0, 90),
    frame_ms=st.lists(st.floats(5, 40), min_size=1, max_size=5),
)
@settings(max_examples=30, deadline=None)
def test_it_keeps_the_contract_whatever_is_said(
    turns: list[list[int]], final_ms: float, frame_ms: list[float]
) -> None:
    """Pauses are longer than a final takes, so that none is void."""
    clips = [spoken(*(n + 2 * (i % 2) for i, n in enumerate(turn))) for turn in turns]
    given: list[SpeechInput] = []
    for clip in clips:
        start = max((i.end_sample for i in given if isinstance(i, AudioFrame)), default=0)
        given += items(clip, frame_ms=frame_ms, start=start)
    check(given, transcribe(ScriptedSTT(lambda k: f"turn {k} it is", final_ms=final_ms), given))
