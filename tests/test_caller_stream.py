"""A remote caller's audio on one clock: jitter, gaps, drift, floods. All times are arguments."""

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voicepipe.frames import AudioFrame, Pcm
from voicepipe.transports.caller_stream import (
    MAX_BUFFERED_S,
    MAX_LAG_S,
    PATIENCE_S,
    SEEN_AHEAD_S,
    SILENT_LAG_S,
    CallerStream,
)

RATE = 16_000
T0 = 100.0  # loop time at which the client records its first sample


def counting(n: int, start: int = 0) -> Pcm:
    """Samples that say where they belong; loud, so that none counts as silence."""
    return ((np.arange(start, start + n) % 20_000) + 1_000).astype(np.int16)


def run(
    stream: CallerStream,
    arrivals: Iterable[tuple[float, Pcm]],
    until_s: float,
    open_s: float | None = None,
) -> list[tuple[float, AudioFrame]]:
    """Push each piece when it arrives and take each frame as soon as it is due, as the transport
    does: at every arrival and at every `wake_s`."""
    taken: list[tuple[float, AudioFrame]] = []
    arriving = sorted(arrivals, key=lambda arrival: arrival[0])
    now_s = open_s if open_s is not None else arriving[0][0]
    opened = False
    while now_s <= until_s:
        while arriving and arriving[0][0] <= now_s:
            when_s, samples = arriving.pop(0)
            stream.push(samples, when_s)
        if not opened:
            stream.open(now_s)
            opened = True
        while (frame := stream.take(now_s)) is not None:
            taken.append((now_s, frame))
        now_s = max(now_s + 1e-4, min([stream.wake_s(), *(when_s for when_s, _ in arriving[:1])]))
    return taken


def live(n_pieces: int, piece: int, *, rate_hz: int = RATE) -> list[tuple[float, Pcm]]:
    """A microphone without a network: each piece arrives when its last sample was recorded."""
    return [(T0 + (k + 1) * piece / rate_hz, counting(piece, k * piece)) for k in range(n_pieces)]


def joined(taken: list[tuple[float, AudioFrame]]) -> Pcm:
    return np.concatenate([frame.samples for _, frame in taken])


@pytest.mark.parametrize("piece", [80, 160, 320, 333, 1_600, 6_400, 16_000])
def test_a_live_client_is_heard_without_delay_and_unchanged(piece: int) -> None:
    stream = CallerStream(RATE)
    arrivals = live(48_000 // piece, piece)
    taken = run(stream, arrivals, until_s=arrivals[-1][0])
    assert np.array_equal(joined(taken), counting(len(joined(taken))))
    assert len(joined(taken)) > piece * len(arrivals) - 160
    assert stream.filled_s == stream.shed_s == 0.0
    for at_s, frame in taken:
        recorded_s = T0 + frame.end_s
        arrived_s = T0 + -(-frame.end_sample // piece) * piece / RATE
        assert recorded_s - 1e-6 <= at_s <= arrived_s + 1e-6
    assert stream.now_s(T0 + 2.5) == pytest.approx(2.5)


@pytest.mark.parametrize("rate_hz", [8_000, 44_100, 48_000])
def test_other_rates_are_resampled_onto_the_same_clock(rate_hz: int) -> None:
    stream = CallerStream(rate_hz)
    piece = rate_hz // 50
    t = np.arange(piece * 100) / rate_hz
    wave = (10_000 * np.sin(2 * np.pi * 500 * t)).astype(np.int16)
    arrivals = [(T0 + (k + 1) * 0.02, part) for k, part in enumerate(np.split(wave, 100))]
    heard = joined(run(stream, arrivals, until_s=T0 + 2.0))
    expected = 10_000 * np.sin(2 * np.pi * 500 * np.arange(len(heard)) / RATE)
    assert len(heard) >= 2.0 * RATE - 320
    assert np.abs(heard - expected)[200:].max() < 100
    assert stream.now_s(T0 + 2.0) == pytest.approx(2.0)
    assert stream.filled_s == 0.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 0.19), min_size=20, max_size=60))
def test_jitter_within_patience_changes_nothing(delays_s: list[float]) -> None:
    arrivals = []
    latest_s = 0.0
    for (when_s, samples), delay_s in zip(live(len(delays_s), 320), delays_s, strict=True):
        latest_s = max(latest_s, when_s + delay_s)  # a stream keeps its order
        arrivals.append((latest_s, samples))
    stream = CallerStream(RATE)
    heard = joined(run(stream, arrivals, until_s=latest_s))
    assert np.array_equal(heard, counting(len(heard)))
    assert stream.filled_s == stream.shed_s == 0.0


def test_a_late_first_piece_does_not_shift_the_clock_for_good() -> None:
    arrivals = live(50, 320)
    arrivals[0] = (arrivals[0][0] + 0.06, arrivals[0][1])
    arrivals[1] = (arrivals[0][0], arrivals[1][1])
    arrivals[2] = (arrivals[0][0], arrivals[2][1])
    stream = CallerStream(RATE)
    run(stream, arrivals, until_s=T0 + 1.0)
    assert stream.now_s(T0 + 1.0) == pytest.approx(1.0)


def test_a_client_that_stops_sending_hears_time_go_on() -> None:
    arrivals = live(50, 320)
    stream = CallerStream(RATE)
    taken = run(stream, arrivals, until_s=T0 + 3.0)
    assert taken[-1][1].end_s == pytest.approx(3.0, abs=0.031)  # the length of a piece behind
    assert not joined(taken)[RATE:].any()
    in_step = [at_s - T0 - frame.end_s for at_s, frame in taken if at_s > T0 + 1.3]
    assert min(in_step) >= 0.0
    assert max(in_step) <= 0.031


def test_after_a_pause_in_sending_the_caller_is_where_time_is() -> None:
    late = [(when_s + 1.0, samples) for when_s, samples in live(50, 320)[25:]]
    stream = CallerStream(RATE)
    taken = run(stream, live(25, 320) + late, until_s=T0 + 2.0)
    heard = joined(taken)
    assert np.array_equal(heard[:8_000], counting(8_000))
    resumed = 8_000 + int(np.flatnonzero(heard[8_000:])[0])
    assert resumed == pytest.approx(1.5 * RATE, abs=2)
    assert stream.now_s(T0 + 2.0) == pytest.approx(2.0, abs=1e-3)


def test_before_any_audio_there_is_silence_and_the_first_words_are_in_place() -> None:
    stream = CallerStream(RATE)
    taken = run(stream, live(50, 1_600), until_s=T0 + 1.0, open_s=T0 - 0.5)
    heard = joined(taken)
    began = int(np.flatnonzero(heard)[0])
    assert began == pytest.approx(0.5 * RATE, abs=2)
    assert np.array_equal(heard[began:], counting(len(heard) - began))
    assert SILENT_LAG_S >= 0.1  # what made room for the 100 ms piece


def test_typed_only_client_has_a_running_clock() -> None:
    stream = CallerStream(RATE)
    taken = run(stream, [], until_s=T0 + 2.0, open_s=T0)
    assert taken[-1][1].end_s == pytest.approx(2.0 - SILENT_LAG_S, abs=0.011)


@pytest.mark.parametrize("ppm", [-100, 100])
def test_the_clock_follows_the_clients(ppm: int) -> None:
    """Ten minutes with a sound card that is 100 ppm off: without following, 60 ms of error."""
    stream = CallerStream(RATE)
    piece_s = 0.1 * (1 + ppm * 1e-6)
    samples = np.full(1_600, 1_000, np.int16)
    for k in range(6_000):
        stream.push(samples, T0 + (k + 1) * piece_s)
        while stream.take(T0 + (k + 1) * piece_s) is not None:
            pass
    assert stream.now_s(T0 + 6_000 * piece_s) == pytest.approx(600.0, abs=0.005)
    assert stream.filled_s == 0.0


def test_a_file_sent_at_once_is_heard_in_real_time() -> None:
    stream = CallerStream(RATE)
    arrivals = [(T0, counting(320, k * 320)) for k in range(250)]
    taken = run(stream, arrivals, until_s=T0 + 6.0)
    heard = joined(taken)
    assert np.array_equal(heard[:80_000], counting(80_000))
    for at_s, frame in taken:
        assert at_s - T0 >= frame.end_s - 0.13  # the first piece and what counts as early
    assert stream.shed_s == 0.0


def test_a_flood_is_bounded() -> None:
    stream = CallerStream(RATE)
    pushed = [stream.push(counting(16_000), T0) for _ in range(60)]
    assert 30 <= sum(pushed) <= MAX_BUFFERED_S + 1
    assert not pushed[-1]
    stream.open(T0)
    for k in range(200):
        stream.take(T0 + k / 100)
    assert stream.push(counting(160), T0 + 2.0)  # room again


@pytest.mark.parametrize("stall_s", [0.3, 2.0])
def test_after_a_stall_a_live_caller_catches_up_in_the_pauses(stall_s: float) -> None:
    """A network outage; everything said meanwhile comes at once and is all heard."""
    words = np.concatenate([counting(8_000), np.zeros(12_000, np.int16)])
    track = np.resize(words, 20 * RATE)
    arrivals = []
    for k in range(20 * 50):
        recorded_s = T0 + (k + 1) * 0.02
        stalled = 4.0 < recorded_s - T0 <= 4.0 + stall_s
        arrivals.append((T0 + 4.0 + stall_s if stalled else recorded_s, track[k * 320 :][:320]))
    stream = CallerStream(RATE)
    taken = run(stream, arrivals, until_s=T0 + 20.0)
    heard = joined(taken)
    assert stream.filled_s == pytest.approx(stall_s, abs=0.05)
    assert stream.shed_s == pytest.approx(stall_s, abs=0.03)
    assert np.count_nonzero(heard) == np.count_nonzero(track)  # no speech lost
    last_heard, last_said = (
        int(np.flatnonzero(np.diff((each != 0).astype(int)) > 0)[-1]) for each in (heard, track)
    )
    clock_s = stream.now_s(T0 + 20.0) - 20.0
    assert clock_s == pytest.approx(0.0, abs=0.003)  # the clock did not run after the backlog
    assert (last_heard - last_said) / RATE == pytest.approx(clock_s, abs=0.011)


def test_a_pause_inside_a_file_is_shortened_and_not_removed() -> None:
    stream = CallerStream(RATE)
    clip = np.concatenate([counting(8_000), np.zeros(16_000, np.int16), counting(8_000)])
    taken = run(stream, [(T0, piece) for piece in np.split(clip, 100)], until_s=T0 + 4.0)
    loud = np.flatnonzero(joined(taken))
    assert len(loud) == 16_000
    assert np.diff(loud).max() == pytest.approx(0.2 * RATE + SEEN_AHEAD_S * RATE, abs=320)


@settings(max_examples=25, deadline=None)
@given(
    rate_hz=st.sampled_from([8_000, 16_000, 44_100]),
    script=st.lists(st.tuples(st.floats(0, 1.5), st.integers(0, 20_000)), min_size=1, max_size=12),
    open_after_s=st.floats(0, 2),
)
def test_whatever_comes_the_stream_is_contiguous_and_in_step(
    rate_hz: int, script: list[tuple[float, int]], open_after_s: float
) -> None:
    arrivals = []
    when_s = T0
    for pause_s, n in script:
        when_s += pause_s
        arrivals.append((when_s, counting(n)))
    stream = CallerStream(rate_hz)
    taken = run(stream, arrivals, until_s=when_s + 2.0, open_s=T0 + open_after_s)
    for index, (at_s, frame) in enumerate(taken):
        assert frame.start_sample == index * 160
        assert frame.n_samples == 160
        assert frame.end_s <= stream.now_s(at_s) + MAX_LAG_S
    behind_s = stream.now_s(when_s + 2.0) - taken[-1][1].end_s
    assert behind_s <= MAX_LAG_S + PATIENCE_S + 0.02
