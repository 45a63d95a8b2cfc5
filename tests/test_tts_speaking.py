"""Trimming, cutting frames, working ahead: what all voices share. All in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.tts.speaking import (
    NO_PAUSES,
    PAUSES,
    PIECES_AHEAD,
    QUIET,
    FrameCutter,
    Pauses,
    Speaker,
    Trim,
    speaking,
)
from stages.tts.voice import Float32, Mark, Piece
from voicepipe.clock import run_virtual
from voicepipe.errors import ComponentError, UsageError
from voicepipe.frames import AudioFrame
from voicepipe.protocols import Phrase

RATE_HZ = 16_000


async def phrases_of(texts: Iterable[str]) -> AsyncIterator[Phrase]:
    for text in texts:
        yield Phrase(text)


class ToneVoice:
    """Says 0.1 s of tone a word, a piece a word, each after `step_s`; counts what it made."""

    def __init__(self, step_s: float = 0.0, silence_s: float = 0.0) -> None:
        self.n_pieces = 0
        self.n_phrases = 0
        self._step_s = step_s
        self._silence = np.zeros(round(silence_s * RATE_HZ), np.float32)

    async def say(self, text: str) -> AsyncGenerator[Piece, None]:
        self.n_phrases += 1
        at, done = 0, len(self._silence)
        for n, word in enumerate(re.findall(r"\S*\w\S*", text)):
            at = text.index(word, at)
            await asyncio.sleep(self._step_s)
            self.n_pieces += 1
            tone = tone_of(RATE_HZ // 10)
            ends = (self._silence if n == 0 else self._silence[:0], tone, self._silence)
            yield Piece(np.concatenate(ends), (Mark(at, done),))
            at += len(word)
            done += len(tone) + len(self._silence)


def tone_of(n_samples: int) -> Float32:
    tone: Float32 = (0.5 * np.sin(np.arange(n_samples) * 0.3 + 1.0)).astype(np.float32)
    return tone


def spoken(voice: ToneVoice, texts: Iterable[str], pauses: Pauses = NO_PAUSES) -> list[AudioFrame]:
    async def main() -> list[AudioFrame]:
        speaker = Speaker(voice.say, RATE_HZ, RATE_HZ, pauses)
        async with speaking(phrases_of(texts), speaker) as frames:
            return [frame async for frame in frames]

    return run_virtual(main())


@given(
    lead=st.integers(0, 3000),
    sound=st.integers(1, 3000),
    gap=st.integers(0, 3000),
    tail=st.integers(0, 3000),
    cuts=st.lists(st.integers(0, 12_000), max_size=8),
)
def test_trimming_pieces_equals_trimming_the_whole(
    lead: int, sound: int, gap: int, tail: int, cuts: list[int]
) -> None:
    quiet = 0.5 * QUIET
    whole = np.concatenate(
        [np.full(n, a, np.float32) for n, a in ((lead, quiet), (sound, 0.5), (gap, quiet))]
        + [np.full(sound, 0.5, np.float32), np.full(tail, quiet, np.float32)]
    )
    once, pieces = Trim(RATE_HZ), Trim(RATE_HZ)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    parts = [pieces.feed(whole[a:b]) for a, b in itertools.pairwise(edges)]
    # the last piece alone knows less of the tail: what it holds back is quiet
    joined, expected = np.concatenate(parts), once.feed(whole)
    assert pieces.n_removed == once.n_removed == max(0, lead - 240)
    n_loud = min(lead, 240) + sound + gap + sound
    assert np.array_equal(joined[:n_loud], expected[:n_loud])
    assert n_loud <= len(joined) <= len(expected) <= n_loud + 480


def test_silence_only_is_no_sound() -> None:
    trim = Trim(RATE_HZ)
    assert len(trim.feed(np.zeros(5000, np.float32))) == 0
    assert len(trim.feed(np.zeros(5000, np.float32))) == 0


@given(
    rate_hz=st.sampled_from([8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000]),
    lengths=st.lists(st.integers(0, 5000), max_size=8),
    places=st.lists(st.integers(0, 30_000), max_size=8),
)
def test_frames_are_contiguous_short_and_labelled_where_the_text_begins(
    rate_hz: int, lengths: list[int], places: list[int]
) -> None:
    cutter = FrameCutter(rate_hz)
    for n, place in enumerate(sorted(places)):
        cutter.label(f"{n},", place)
    frames = [f for length in lengths for f in cutter.add(np.ones(length, np.int16))]
    frames += cutter.finish()
    assert "".join(f.text for f in frames) == "".join(f"{n}," for n in range(len(places)))
    assert [f.start_sample for f in frames] == [
        sum(g.n_samples for g in frames[:i]) for i in range(len(frames))
    ]
    assert sum(f.n_samples for f in frames) == sum(lengths)
    assert all(f.n_samples <= rate_hz // 50 for f in frames)
    for frame in frames[:-2]:
        for label in frame.text.split(",")[:-1]:
            assert frame.start_sample <= sorted(places)[int(label)] < frame.end_sample


def test_a_label_at_the_edge_of_a_frame_is_on_the_frame_that_begins_there() -> None:
    cutter = FrameCutter(RATE_HZ)
    cutter.label("first", 319)
    cutter.label("second", 320)
    frames = cutter.add(np.ones(640, np.int16))
    assert [(f.start_sample, f.text) for f in frames] == [(0, "first"), (320, "second")]


def test_a_label_stands_where_its_word_begins() -> None:
    frames = spoken(ToneVoice(), ["one two three four"])
    begins = {f.text: f.start_sample for f in frames if f.text}
    assert begins == {"one": 0, " two": 1600, " three": 3200, " four": 4800}


def test_the_silence_an_engine_adds_is_taken_off_and_the_labels_move_with_it() -> None:
    frames = spoken(ToneVoice(silence_s=0.2), ["one two"])
    begins = {f.text: f.start_s for f in frames if f.text}
    assert begins["one"] == 0.0
    assert begins[" two"] == pytest.approx(0.015 + 0.1 + 0.2, abs=0.02)
    assert frames[-1].end_s == pytest.approx(0.015 + 0.1 + 0.2 + 0.1 + 0.03, abs=1e-3)


@pytest.mark.parametrize(
    ("first", "pause_ms"),
    [
        ("One. ", 200),
        ("One! \U0001f600 ", 200),
        ('"One?"', 200),
        ("One, ", 90),
        ("One", 20),
        ("1. One", 20),
    ],
)
def test_the_pause_after_a_phrase_follows_its_end(first: str, pause_ms: int) -> None:
    frames = spoken(ToneVoice(), [first, "two"], PAUSES)
    first_s = 0.1 * len(re.findall(r"\w+", first))
    assert next(f.start_s for f in frames if "two" in f.text) == pytest.approx(
        first_s + pause_ms / 1000, abs=0.02
    )
    assert frames[-1].end_s == pytest.approx(first_s + 0.1 + pause_ms / 1000, abs=1e-3)


def test_text_without_sound_labels_the_next_frame_or_an_empty_one_at_the_end() -> None:
    frames = spoken(ToneVoice(), ["", " \U0001f600 ", "one ", "...", ""])
    assert frames[0].text == " \U0001f600 one "
    assert frames[-1].text == "..."
    assert frames[-1].n_samples == 0


def test_no_phrases_are_no_frames() -> None:
    assert spoken(ToneVoice(), []) == []


@pytest.mark.parametrize("rate_hz", [7_999, 48_001, 0])
def test_a_rate_out_of_range_is_refused(rate_hz: int) -> None:
    with pytest.raises(UsageError, match="8000 to 48000"):
        Speaker(ToneVoice().say, RATE_HZ, rate_hz, PAUSES)


def test_one_phrase_is_made_ahead_and_no_more() -> None:
    async def main() -> None:
        voice = ToneVoice()
        speaker = Speaker(voice.say, RATE_HZ, RATE_HZ, NO_PAUSES)
        async with speaking(phrases_of(["a", "b", "c", "d", "e"]), speaker) as frames:
            async for frame in frames:
                await asyncio.sleep(10)
                if frame.text:
                    assert voice.n_phrases == min("abcde".index(frame.text) + 2, 5)

    run_virtual(main())


def test_of_a_long_phrase_only_some_pieces_are_made_ahead() -> None:
    async def main() -> None:
        voice = ToneVoice()
        speaker = Speaker(voice.say, RATE_HZ, RATE_HZ, NO_PAUSES)
        async with speaking(phrases_of(["a " * 100]), speaker) as frames:
            await anext(frames)
            await asyncio.sleep(10)
            assert voice.n_pieces == PIECES_AHEAD + 2  # those waiting, one heard, one in the hand

    run_virtual(main())


def test_the_next_phrase_is_made_while_the_first_is_heard() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        speaker = Speaker(ToneVoice(step_s=0.1).say, RATE_HZ, RATE_HZ, NO_PAUSES)
        async with speaking(phrases_of(["a b c d", "e f g h"]), speaker) as frames:
            async for frame in frames:
                if "e" in frame.text:
                    return loop.time()
                await asyncio.sleep(frame.duration_s)
        raise AssertionError("the second phrase never came")

    assert run_virtual(main()) == pytest.approx(0.5, abs=0.03)  # 0.4 s of the first, 0.1 s to begin


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.25, 0.3, 1.0])
def test_leaving_early_leaves_nothing_running(after_s: float) -> None:
    async def main() -> None:
        voice = ToneVoice(step_s=0.1)
        speaker = Speaker(voice.say, RATE_HZ, RATE_HZ, NO_PAUSES)
        async with speaking(phrases_of(["a b", "c d", "e f"]), speaker) as frames:
            try:
                async with asyncio.timeout(after_s):
                    async for frame in frames:
                        await asyncio.sleep(frame.duration_s)
            except TimeoutError:
                pass
        assert asyncio.all_tasks() == {asyncio.current_task()}
        made = voice.n_pieces
        await asyncio.sleep(10)
        assert voice.n_pieces == made

    run_virtual(main())


def test_cancelling_the_reader_cancels_the_voice() -> None:
    async def main() -> None:
        voice = ToneVoice(step_s=0.1)

        async def read() -> None:
            speaker = Speaker(voice.say, RATE_HZ, RATE_HZ, NO_PAUSES)
            async with speaking(phrases_of(["a b c d e f"]), speaker) as frames:
                async for _ in frames:
                    pass

        async with asyncio.TaskGroup() as group:
            reader = group.create_task(read())
            await asyncio.sleep(0.25)
            reader.cancel()
        assert voice.n_pieces == 2
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


def _failing(when: int, error: Exception) -> Callable[[str], AsyncGenerator[Piece, None]]:
    async def say(text: str) -> AsyncGenerator[Piece, None]:
        for n in range(4):
            if n == when:
                raise error
            yield Piece(tone_of(1600))

    return say


@pytest.mark.parametrize("when", range(4))
def test_an_error_of_the_voice_comes_after_the_sound_before_it(when: int) -> None:
    error = ComponentError("the voice broke")

    async def main() -> int:
        n_samples = 0

        async def read() -> None:
            nonlocal n_samples
            speaker = Speaker(_failing(when, error), RATE_HZ, RATE_HZ, NO_PAUSES)
            async with speaking(phrases_of(["one"]), speaker) as frames:
                async for frame in frames:
                    n_samples += frame.n_samples

        with pytest.raises(ComponentError) as raised:
            await read()
        assert raised.value is error
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return n_samples

    assert run_virtual(main()) == when * 1600


def test_an_error_of_the_phrases_reaches_the_reader() -> None:
    async def broken() -> AsyncIterator[Phrase]:
        yield Phrase("one")
        raise ComponentError("the model broke")

    async def main() -> None:
        speaker = Speaker(ToneVoice().say, RATE_HZ, RATE_HZ, NO_PAUSES)
        async with speaking(broken(), speaker) as frames:
            async for _ in frames:
                pass

    with pytest.raises(ComponentError, match="the model broke"):
        run_virtual(main())


def test_an_error_of_the_reader_leaves_unchanged() -> None:
    error = KeyError("reader")

    async def main() -> None:
        speaker = Speaker(ToneVoice().say, RATE_HZ, RATE_HZ, NO_PAUSES)
        async with speaking(phrases_of(["one"]), speaker) as frames:
            await anext(frames)
            raise error

    with pytest.raises(KeyError) as raised:
        run_virtual(main())
    assert raised.value is error
