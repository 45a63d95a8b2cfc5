"""The scripted voice keeps its promises: lengths, latencies, misbehaviour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from stages.tts import ScriptedTTS
from voicepipe.clock import run_virtual
from voicepipe.errors import ComponentError, UsageError
from voicepipe.frames import AudioFrame
from voicepipe.protocols import Phrase

RATE_HZ = 24_000


async def phrases_of(*texts: str) -> AsyncIterator[Phrase]:
    for text in texts:
        yield Phrase(text)


def heard(voice: ScriptedTTS, *texts: str) -> list[tuple[float, AudioFrame]]:
    """All frames, each with the loop time at which it came."""

    async def main() -> list[tuple[float, AudioFrame]]:
        now = asyncio.get_running_loop().time
        async with voice.open(phrases_of(*texts), sample_rate_hz=RATE_HZ) as frames:
            return [(now(), frame) async for frame in frames]

    return run_virtual(main())


@pytest.mark.parametrize("text", ["Yes.", "Hello there, how are you?", " padded "])
def test_a_phrase_lasts_as_long_as_its_characters_say(text: str) -> None:
    frames = [frame for _, frame in heard(ScriptedTTS(ms_per_char=50), text)]
    assert frames[-1].end_s == pytest.approx(0.05 * len(text.strip()), abs=1e-3)
    assert all(np.abs(frame.samples).max() > 5000 for frame in frames)


def test_the_words_begin_in_proportion() -> None:
    frames = [frame for _, frame in heard(ScriptedTTS(ms_per_char=100), "one two")]
    assert [(f.text, f.start_s) for f in frames if f.text] == [("one", 0.0), (" two", 0.4)]


def test_no_latency_unless_asked_for() -> None:
    assert {t for t, _ in heard(ScriptedTTS(), "Hello there, how are you?")} == {0.0}


def test_latencies_are_kept_on_the_loops_clock() -> None:
    voice = ScriptedTTS(ms_per_char=100, first_audio_ms=150, real_time_factor=0.5)
    times = [t for t, _ in heard(voice, "one two")]
    assert times[0] == pytest.approx(0.15)
    assert times[-1] == pytest.approx(0.15 + 3 * 0.1)  # 0.7 s in pieces of 0.2 s


def test_jitter_follows_the_seed_and_the_text() -> None:
    def first_s(seed: int, text: str) -> float:
        return heard(ScriptedTTS(first_audio_ms=100, jitter=0.5, seed=seed), text)[0][0]

    assert first_s(1, "one") == first_s(1, "one")
    assert len({first_s(seed, text) for seed in (1, 2) for text in ("one", "two")}) == 4
    assert all(0.05 <= first_s(seed, "one") <= 0.15 for seed in range(20))


def test_it_raises_at_the_phrase_it_was_told_to() -> None:
    voice = ScriptedTTS(misbehave={1: "raise"})
    with pytest.raises(ComponentError, match="told to fail at 'two'"):
        heard(voice, "one", "...", "two", "three")
    assert "".join(frame.text for _, frame in heard(voice, "four")) == "four"


def test_it_says_nothing_at_the_phrase_it_was_told_to() -> None:
    frames = [f for _, f in heard(ScriptedTTS(misbehave={0: "nothing"}), "one ", "two ")]
    assert frames[0].text == "one two "
    assert frames[-1].end_s == pytest.approx(0.18, abs=1e-3)


def test_it_hangs_at_the_phrase_it_was_told_to_and_can_be_left() -> None:
    n_frames = 0

    async def listen() -> None:
        nonlocal n_frames
        voice = ScriptedTTS(misbehave={1: "hang"})
        async with (
            asyncio.timeout(60),
            voice.open(phrases_of("one", "two"), sample_rate_hz=RATE_HZ) as frames,
        ):
            async for _ in frames:
                n_frames += 1

    async def main() -> float:
        with pytest.raises(TimeoutError):
            await listen()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 60
    assert n_frames == 9


@pytest.mark.parametrize(
    "wrong", [{"ms_per_char": 0}, {"first_audio_ms": -1}, {"jitter": 1.5}, {"real_time_factor": -1}]
)
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="ScriptedTTS"):
        ScriptedTTS(**wrong)  # type: ignore[arg-type]
