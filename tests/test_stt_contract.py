"""What every STT promises, held by all of them: the scripted one and the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from stages.stt import ScriptedSTT
from tests.stt_streams import (
    Clip,
    check,
    fed,
    finals,
    items,
    loaded,
    recorded,
    transcribe,
    transcribed,
)
from voicepipe.clock import run_virtual
from voicepipe.errors import UsageError
from voicepipe.events import EndOfTurn, SpeechPaused, SpeechStarted
from voicepipe.frames import AudioFrame
from voicepipe.protocols import SpeechInput, SpeechToText
from voicepipe.wording import same_words

QUESTION, HESITATION = "02-question.flac", "11-pause.flac"
HESITANT = ("Can you help me with", "my homework tonight?")
ASKED = "What is the capital of France?"
SHORT = "05-short.flac"
"""The caller says "Yes."."""


@pytest.fixture(
    params=[
        "scripted",
        pytest.param("whisper-tiny.en", marks=pytest.mark.models),
    ]
)
def named(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def stt_for(named: str, lines: Sequence[str | Sequence[str]]) -> SpeechToText:
    """The STT of that name, which will hear `lines` if it has to be told."""
    return ScriptedSTT(lines) if named == "scripted" else loaded(named)


def call(*clips: Clip, frame_ms: Sequence[float] = (10,)) -> list[SpeechInput]:
    """One turn after the other on one clock."""
    given: list[SpeechInput] = []
    start = 0
    for clip in clips:
        given += items(clip, frame_ms=frame_ms, start=start)
        start = max(item.end_sample for item in given if isinstance(item, AudioFrame))
    return given


def pause_of(given: Sequence[SpeechInput]) -> tuple[int, SpeechPaused]:
    """The first pause, and where it is."""
    return next((i, item) for i, item in enumerate(given) if isinstance(item, SpeechPaused))


def test_a_turn_is_understood_while_it_is_spoken_and_at_its_pause(named: str) -> None:
    given = call(recorded(QUESTION))
    transcripts = transcribe(stt_for(named, [ASKED]), given)
    check(given, transcripts)
    [text] = finals(transcripts)
    assert same_words(text, ASKED)
    interims = [t for t in transcripts if not t.final]
    assert len(interims) >= 3
    assert interims[-1].stable_text.startswith("What is the")


def test_pauses_inside_a_turn_give_its_whole_text_so_far(named: str) -> None:
    given = call(recorded(HESITATION))
    transcripts = transcribe(stt_for(named, [HESITANT]), given)
    check(given, transcripts)
    first, second = finals(transcripts)
    assert same_words(first, HESITANT[0])
    assert same_words(second, " ".join(HESITANT))


def test_the_end_of_a_turn_ends_its_text(named: str) -> None:
    given = call(recorded(QUESTION), recorded(SHORT), recorded(QUESTION))
    transcripts = transcribe(stt_for(named, [ASKED, "Yes.", ASKED]), given)
    check(given, transcripts)
    texts = finals(transcripts)
    assert all(same_words(a, b) for a, b in zip(texts, [ASKED, "Yes.", ASKED], strict=True))


@pytest.mark.parametrize("frame_ms", [(20,), (10, 13.7, 0.1, 31)])
def test_the_size_of_the_frames_changes_nothing(named: str, frame_ms: Sequence[float]) -> None:
    clip = recorded(HESITATION)
    by_10_ms = transcribe(stt_for(named, [HESITANT]), call(clip))
    otherwise = transcribe(stt_for(named, [HESITANT]), call(clip, frame_ms=frame_ms))
    assert finals(otherwise) == finals(by_10_ms)


def test_audio_given_all_at_once_is_understood_too(named: str) -> None:
    given = call(recorded(QUESTION))
    assert same_words(finals(transcribe(stt_for(named, [ASKED]), given, paced=False))[0], ASKED)


def test_a_pause_without_speech_is_answered_with_no_words(named: str) -> None:
    frames = [item for item in call(recorded(SHORT)) if isinstance(item, AudioFrame)]
    given: list[SpeechInput] = [*frames[:20], SpeechPaused(t_media_s=0.2), *frames[20:]]
    [answer] = transcribe(stt_for(named, ["never said"]), given)
    assert (answer.text, answer.final, answer.end_s) == ("", True, 0.2)


def test_speech_that_goes_on_voids_a_final_that_has_not_come(named: str) -> None:
    given = call(recorded(QUESTION))
    at, pause = pause_of(given)
    again_s = pause.t_media_s + 0.01
    ended_s = again_s + 0.05
    given[at + 1 : at + 1] = [SpeechStarted(t_media_s=again_s), SpeechPaused(t_media_s=ended_s)]
    answers = [t for t in transcribe(stt_for(named, [(ASKED, "")]), given) if t.final]
    assert answers[-1].end_s == ended_s
    assert same_words(answers[-1].text, ASKED)
    assert len(answers) <= 2


def test_a_final_that_is_late_still_comes_and_has_the_words_of_its_turn(named: str) -> None:
    given = call(recorded(QUESTION), recorded(SHORT))
    at, _ = pause_of(given)
    end = next(i for i, item in enumerate(given) if isinstance(item, EndOfTurn))
    given.insert(at + 1, given.pop(end))
    texts = finals(transcribe(stt_for(named, [ASKED, "Yes."]), given))
    assert len(texts) == 2
    assert same_words(texts[0], ASKED)
    assert same_words(texts[1], "Yes.")


def test_leaving_ends_everything_at_once(named: str) -> None:
    stt = stt_for(named, [ASKED] * 9)
    given = call(recorded(QUESTION))
    n_words = next(i for i, item in enumerate(given) if isinstance(item, SpeechStarted)) + 60

    async def main() -> None:
        for n_given in range(n_words, n_words + 40, 5):
            endless = fed_then_silence(given[:n_given])
            async with stt.open(endless) as transcripts:
                await asyncio.wait_for(anext(transcripts), 60)
            assert len(asyncio.all_tasks()) == 1
        texts = finals(await transcribed(stt, given))
        assert same_words(texts[0], ASKED)

    run_virtual(main())


async def fed_then_silence(given: Sequence[SpeechInput]) -> AsyncIterator[SpeechInput]:
    async for item in fed(given):
        yield item
    await asyncio.get_running_loop().create_future()


def test_many_streams_share_one_object_and_do_not_mix(named: str) -> None:
    lines = {QUESTION: ASKED, SHORT: "Yes."}

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            running = {
                name: group.create_task(transcribed(stt_for(named, [text]), call(recorded(name))))
                for name, text in lines.items()
            }
        for name, task in running.items():
            assert same_words(finals(task.result())[-1], lines[name])

    run_virtual(main())


@pytest.mark.parametrize("rate_hz", [8_000, 48_000])
def test_another_rate_is_refused_in_one_line(named: str, rate_hz: int) -> None:
    frame = AudioFrame(recorded(SHORT).samples[:160], rate_hz, 0)
    with pytest.raises(UsageError, match=f"{rate_hz} Hz.*resample") as raised:
        transcribe(stt_for(named, []), [frame])
    assert "\n" not in str(raised.value)


def test_an_error_of_the_audio_reaches_the_reader_as_it_is(named: str) -> None:
    async def broken() -> AsyncIterator[SpeechInput]:
        yield call(recorded(SHORT))[0]
        raise ConnectionResetError("the caller is gone")

    async def main() -> None:
        async with stt_for(named, []).open(broken()) as transcripts:
            async for _ in transcripts:
                pass

    with pytest.raises(ConnectionResetError, match="the caller is gone"):
        run_virtual(main())
