"""The caller's recent audio and the window of it that is decoded: every sample counts once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.stt.audio import POSTROLL, PREROLL, Recording, TurnAudio
from voicepipe.errors import UsageError
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame

SECOND = CALLER_RATE_HZ


def noise(n: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-32768, 32767, n).astype(np.int16)


def recording(samples: np.ndarray, start: int = 0, size: int = 160) -> Recording:
    found = Recording()
    for at in range(0, len(samples), size):
        found.add(AudioFrame(samples[at : at + size], CALLER_RATE_HZ, start + at))
    return found


def as_pcm(samples: np.ndarray) -> list[int]:
    return [round(sample * 32768) for sample in samples.tolist()]


@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    start=st.integers(0, 10**6),
    forgotten=st.lists(st.integers(0, 10**5), max_size=60),
    pick=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_samples_in_are_samples_kept_until_they_are_forgotten(
    sizes: list[int], start: int, forgotten: list[int], pick: tuple[float, float]
) -> None:
    truth = noise(sum(sizes))
    kept = Recording()
    at, oldest = 0, start
    for i, size in enumerate(sizes):
        kept.add(AudioFrame(truth[at : at + size], CALLER_RATE_HZ, start + at))
        at += size
        if i < len(forgotten):
            oldest = max(oldest, start + min(forgotten[i], at))
            kept.forget(oldest)
    assert kept.end == start + len(truth)
    assert kept.start <= oldest
    first, last = sorted(round(p * len(truth)) for p in pick)
    first = max(first, oldest - start)
    expected = truth[first : max(first, last)].astype(int).tolist()
    assert as_pcm(kept.cut(start + first, start + last)) == expected


def test_memory_does_not_grow_with_the_call() -> None:
    kept = Recording()
    silence = np.zeros(160, np.int16)
    for i in range(6000):
        kept.add(AudioFrame(silence, CALLER_RATE_HZ, i * 160))
        kept.forget(i * 160 - SECOND)
    assert kept.end - kept.start < 3 * SECOND


def test_missing_samples_are_silence() -> None:
    kept = recording(noise(160))
    kept.add(AudioFrame(noise(160), CALLER_RATE_HZ, 480))
    assert as_pcm(kept.cut(0, 640)) == [*noise(160), *[0] * 320, *noise(160)]


@pytest.mark.parametrize("start", [159, 0, 160 + 31 * SECOND])
def test_audio_that_was_there_already_or_is_far_off_is_refused(start: int) -> None:
    kept = recording(noise(160))
    with pytest.raises(UsageError, match=f"begins at sample {start}, expected 160"):
        kept.add(AudioFrame(noise(160), CALLER_RATE_HZ, start))


def test_a_window_has_the_preroll_the_speech_and_its_fading() -> None:
    heard = recording(noise(4 * SECOND))
    audio = TurnAudio()
    audio.begin(SECOND)
    assert audio.parts(2 * SECOND) == [(SECOND - PREROLL, 2 * SECOND)]
    audio.pause(2 * SECOND)
    assert audio.parts(4 * SECOND) == [(SECOND - PREROLL, 2 * SECOND + POSTROLL)]
    samples = audio.samples(heard, 0, 4 * SECOND)
    assert as_pcm(samples) == noise(4 * SECOND)[SECOND - PREROLL : 2 * SECOND + POSTROLL].tolist()


def test_a_long_pause_inside_a_turn_is_not_decoded_and_a_short_one_is() -> None:
    audio = TurnAudio()
    audio.begin(SECOND)
    audio.pause(2 * SECOND)
    audio.begin(4 * SECOND)
    assert audio.parts(5 * SECOND)[1] == (4 * SECOND - PREROLL, 5 * SECOND)
    audio.pause(5 * SECOND)
    audio.begin(5 * SECOND + 800)
    [*_, before, after] = audio.parts(6 * SECOND)
    assert before[1] == after[0] == 5 * SECOND + POSTROLL


@given(
    spans=st.lists(
        st.tuples(st.integers(100, 3 * SECOND), st.integers(100, 3 * SECOND)),
        min_size=1,
        max_size=5,
    ),
    cut=st.floats(0, 1),
)
def test_trimming_keeps_exactly_what_lies_behind_the_cut(
    spans: list[tuple[int, int]], cut: float
) -> None:
    audio, at = TurnAudio(), 0
    for gap, length in spans:
        audio.begin(at + gap)
        at += gap + length
        audio.pause(at)
    heard = recording(noise(at + POSTROLL), size=4000)
    whole = audio.samples(heard, 0, at + POSTROLL)
    assert len(whole) == audio.n_samples(at + POSTROLL)
    offset = round(cut * len(whole))
    audio.trim(audio.position(offset, at + POSTROLL))
    rest = audio.samples(heard, 0, at + POSTROLL)
    assert rest.tolist() == whole[offset:].tolist()
    assert audio.samples(heard, at, at + POSTROLL).tolist() == rest[-POSTROLL:].tolist()


def test_nothing_trimmed_comes_back_as_preroll() -> None:
    audio = TurnAudio()
    audio.begin(SECOND)
    audio.pause(2 * SECOND)
    audio.trim(2 * SECOND + POSTROLL)
    assert audio.start is None
    audio.begin(2 * SECOND + POSTROLL + 100)
    assert audio.start == 2 * SECOND + POSTROLL
