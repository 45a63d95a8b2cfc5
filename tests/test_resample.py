"""Streaming resampling: the same signal, unshifted, soon, and however it is cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicepipe.frames import Pcm
from voicepipe.resample import Resampler

RATES = [8_000, 11_025, 22_050, 24_000, 44_100, 48_000]


def tone(rate_hz: int, hz: float, seconds: float = 0.5) -> Pcm:
    t = np.arange(round(rate_hz * seconds)) / rate_hz
    return (16_000 * np.sin(2 * np.pi * hz * t)).astype(np.int16)


@pytest.mark.parametrize("rate_hz", [*RATES, 8_001, 47_999])
@pytest.mark.parametrize("hz", [200.0, 1_000.0, 3_300.0])
def test_the_signal_is_kept_and_not_shifted(rate_hz: int, hz: float) -> None:
    out = Resampler(rate_hz, 16_000).feed(tone(rate_hz, hz))
    error = (out - tone(16_000, hz)[: len(out)].astype(float))[100:]
    assert np.sqrt(np.mean(error**2)) < 16_000 * 10 ** (-58 / 20)


@pytest.mark.parametrize("hz", [9_000.0, 12_000.0, 20_000.0])
def test_what_the_lower_rate_cannot_hold_is_removed(hz: float) -> None:
    out = Resampler(48_000, 16_000).feed(tone(48_000, hz))
    assert np.abs(out[100:-100]).max() < 16_000 * 10 ** (-60 / 20)


@pytest.mark.parametrize("rate_hz", RATES)
def test_all_but_the_last_moment_comes_out_at_once(rate_hz: int) -> None:
    resampler = Resampler(rate_hz, 16_000)
    samples = tone(rate_hz, 440.0)
    n_out = len(resampler.feed(samples))
    held_back_s = len(samples) / rate_hz - n_out / 16_000
    assert resampler.delay_s <= 0.004
    assert 0.0 <= held_back_s <= resampler.delay_s + 1 / 16_000 + 1 / rate_hz


def test_the_same_rate_passes_through() -> None:
    resampler = Resampler(16_000, 16_000)
    assert resampler.delay_s == 0.0
    assert resampler.feed(tone(16_000, 440.0)).tolist() == tone(16_000, 440.0).tolist()


def test_full_scale_is_clipped_and_does_not_wrap() -> None:
    square = np.where(np.arange(4_000) // 20 % 2, 32_767, -32_768).astype(np.int16)
    out = Resampler(8_000, 16_000).feed(square)
    assert out[1_000:7_000].max() == 32_767
    middle = out[100 * 40 + 15 : 100 * 40 + 25]  # well inside one half-wave
    assert len(set(np.sign(middle))) == 1


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([*RATES, 8_001]),
    st.lists(st.integers(0, 700), min_size=1, max_size=20),
    st.integers(0, 2**32 - 1),
)
def test_pieces_give_what_the_whole_gives(rate_hz: int, cuts: list[int], seed: int) -> None:
    samples = np.random.default_rng(seed).integers(-32_768, 32_768, sum(cuts)).astype(np.int16)
    streaming = Resampler(rate_hz, 16_000)
    pieces = [streaming.feed(piece) for piece in np.split(samples, np.cumsum(cuts)[:-1])]
    whole = Resampler(rate_hz, 16_000).feed(samples)
    difference = np.concatenate(pieces).astype(int) - whole
    assert np.abs(difference).max(initial=0) <= 1  # sums of floats, rounded
