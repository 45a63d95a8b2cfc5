"""What the far end is playing, told from what was sent, cleared and reported."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ws_client import VirtualSpeaker
from voicepipe.transports.remote_speaker import RemoteSpeaker

RATE = 16_000


def test_sound_is_heard_from_when_it_was_sent() -> None:
    speaker = RemoteSpeaker(RATE)
    assert speaker.heard(5.0) == 0
    speaker.sent(32_000, 1_600, 5.0)
    assert speaker.heard(5.0) == 32_000
    assert speaker.heard(5.05) == 32_800
    assert speaker.heard(6.0) == 33_600  # all of it
    assert speaker.heard_until(5.05) is None  # never reported


def test_frames_sent_ahead_are_heard_one_after_the_other() -> None:
    speaker = RemoteSpeaker(RATE)
    for k in range(10):
        speaker.sent(k * 320, 320, 5.0 + 0.001 * k)
    assert speaker.backlog_s(5.0) == pytest.approx(0.2)
    assert speaker.heard(5.1) == 1_600
    assert speaker.next_sample == 3_200


def test_clear_stops_what_is_heard_now() -> None:
    speaker = RemoteSpeaker(RATE)
    speaker.sent(0, 3_200, 5.0)
    assert speaker.clear(800, 5.1) == 1_600
    assert speaker.heard(9.0) == 1_600
    assert speaker.backlog_s(5.1) == 0.0
    assert speaker.clear(160_000, 9.0) == 160_000  # nothing to stop


@pytest.mark.parametrize("pause_s", [0.0, 3.0])
def test_after_a_clear_the_count_goes_on_from_where_the_client_stopped(pause_s: float) -> None:
    speaker = RemoteSpeaker(RATE)
    speaker.sent(0, 3_200, 5.0)
    stop = speaker.clear(0, 5.1)
    speaker.reported(1_520, 5.1)  # 5 ms less far than the clock said
    again_s = 5.1 + pause_s
    speaker.sent(stop, 3_200, again_s)
    speaker.reported(1_520 + 800, again_s + 0.05)
    assert speaker.heard_until(again_s + 0.05) == stop + 800


def test_after_a_clear_without_a_report_the_clock_says_where_the_client_stopped() -> None:
    speaker = RemoteSpeaker(RATE)
    speaker.sent(0, 3_200, 5.0)
    speaker.clear(0, 5.1)
    speaker.sent(48_000, 3_200, 8.0)
    speaker.reported(1_600 + 640, 8.05)  # 10 ms late
    assert speaker.heard_until(8.05) == 48_640


def test_a_player_with_a_buffer_of_its_own_is_believed() -> None:
    speaker = RemoteSpeaker(RATE)
    speaker.sent(0, 16_000, 5.0)
    speaker.reported(0, 5.06)
    assert speaker.heard_until(5.06) == 0
    speaker.reported(1_600, 5.18)  # 80 ms behind
    assert speaker.heard_until(5.18) == 1_600
    assert speaker.heard_until(5.28) == 3_200
    assert speaker.clear(0, 5.28) == 3_200


def test_a_player_that_has_played_all_tells_no_delay() -> None:
    speaker = RemoteSpeaker(RATE)
    speaker.sent(0, 1_600, 5.0)
    speaker.reported(1_600, 9.0)
    speaker.sent(80_000, 1_600, 10.0)
    assert speaker.heard_until(10.05) == 80_800


def test_a_report_from_long_ago_is_no_news() -> None:
    speaker = RemoteSpeaker(RATE)
    for k in range(10):
        speaker.sent(k * 160_000, 1_600, 10.0 * k)
    speaker.reported(10, 95.0)
    assert speaker.heard_until(95.0) == 9 * 160_000 + 1_600


@settings(max_examples=150, deadline=None)
@given(
    delay_ms=st.integers(0, 120),
    script=st.lists(
        st.tuples(
            st.sampled_from(["sound", "sound", "sound", "pause", "clear", "report"]),
            st.integers(1, 400),
        ),
        max_size=60,
    ),
)
def test_heard_is_what_a_client_really_plays(delay_ms: int, script: list[tuple[str, int]]) -> None:
    """Against an independent player that starts `delay_ms` late, reports now and then and always
    when it has cleared: after a report the position is right to within rounding."""
    rate = 1_000  # one sample a millisecond, so that every time is exact
    speaker, player = RemoteSpeaker(rate), VirtualSpeaker()
    now = 0
    played_of: list[int] = []  # agent sample of each sample that the player got and kept
    for action, amount in script:
        n_played = player.played(now - delay_ms)
        if action == "sound":
            start = max(now, speaker.next_sample)
            speaker.sent(start, amount, now / rate)
            player.play(np.ones(amount, np.int16), now)
            played_of += range(start, start + amount)
        elif action == "pause":
            now += amount
        elif action == "clear":
            speaker.clear(0, now / rate)
            player.clear(now - delay_ms)
            del played_of[n_played:]
            speaker.reported(n_played, now / rate)
            assert speaker.backlog_s(now / rate) == 0.0
        else:
            speaker.reported(n_played, now / rate)
            heard = speaker.heard_until(now / rate)
            around = {
                *(played_of[n_played - 1] + d for d in (0, 1, 2) if n_played),
                *(played_of[n_played] + d for d in (-1, 0, 1) if n_played < len(played_of)),
            }
            assert heard in around or not played_of
