"""What is decoded next, and what is said about it: decided on marks and samples alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.stt.attention import MAX_WINDOW, Attention, Window
from stages.stt.audio import POSTROLL, PREROLL, Recording
from stages.stt.schedule import BLOCK, DIP, INTERVAL, InterimSchedule
from stages.stt.words import Word
from voicepipe.events import EndOfTurn, SpeechPaused, SpeechStarted
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame, Pcm

SECOND = CALLER_RATE_HZ
VOICE = np.random.default_rng(4).normal(0, 4000, 40 * SECOND).clip(-32768, 32767).astype(np.int16)
QUIET = np.zeros(40 * SECOND, np.int16)


def seconds(n_samples: int) -> float:
    return n_samples / CALLER_RATE_HZ


def word(text: str) -> Word:
    return Word(f" {text}", (1,), (-0.1,))


@dataclass
class Call:
    """An attention and the clock of its stream."""

    attention: Attention = field(default_factory=Attention)
    now: int = 0

    def hear(self, samples: Pcm, n: int) -> bool:
        """The next n samples, in frames of 10 ms; whether there is something new to do."""
        news = False
        for at in range(0, n, BLOCK):
            frame = AudioFrame(samples[at : min(n, at + BLOCK)], CALLER_RATE_HZ, self.now)
            news |= self.attention.hear(frame)
            self.now += frame.n_samples
        return news

    def start(self, at: int | None = None) -> None:
        self.attention.hear(SpeechStarted(t_media_s=seconds(self.now if at is None else at)))

    def pause(self, at: int | None = None) -> None:
        self.attention.hear(SpeechPaused(t_media_s=seconds(self.now if at is None else at)))

    def end_turn(self, at: int | None = None) -> None:
        end_s = seconds(self.now if at is None else at)
        end = EndOfTurn(t_media_s=end_s, text="", speech_end_s=end_s, decided_s=end_s)
        self.attention.hear(end)

    def decode(self, text: str = "words") -> Window:
        """What is due is decoded and says `text` after what is stable."""
        window = self.attention.window()
        assert window is not None
        window.turn.text.take([word(w) for w in text.split()], window.end)
        window.turn.heard_to = window.end
        return window

    def finals_until_idle(self, pauses: list[float]) -> None:
        """Everything that is still due is decoded: exactly these pauses are answered."""
        answers = self.attention.finals()
        while self.attention.window() is not None:
            self.decode()
            answers += self.attention.finals()
        assert [answer.end_s for answer in answers] == pauses
        assert not self.attention.urgent

    def finals(self) -> list[str]:
        return [final.text for final in self.attention.finals()]


def speaking(seconds_so_far: float = 1.0) -> Call:
    call = Call()
    call.hear(QUIET, SECOND)
    call.start()
    call.hear(VOICE, round(seconds_so_far * SECOND))
    return call


def test_nothing_is_decoded_before_anybody_speaks() -> None:
    call = Call()
    assert not call.hear(VOICE, SECOND)
    assert call.attention.window() is None


def test_a_window_is_due_every_300_ms_of_new_speech() -> None:
    call = speaking(0.0)
    ends = [call.decode().end for _ in range(100) if call.hear(VOICE, BLOCK)]
    assert ends == [SECOND + INTERVAL * (i + 1) for i in range(3)]


def test_long_windows_are_decoded_less_often() -> None:
    call = speaking(10.0)
    call.decode()
    n_due = sum(call.hear(VOICE, BLOCK) for _ in range(300))
    assert n_due == pytest.approx(3.0 / (0.08 * 11.5), abs=1)


def test_a_dip_of_the_voice_is_decoded_at_once_and_only_once() -> None:
    call = speaking(0.5)
    assert call.decode().end == SECOND + INTERVAL
    due = [call.hear(QUIET, BLOCK) for _ in range(50)]
    assert due.index(True) == DIP // BLOCK - 1
    assert sum(due) == 1
    assert call.decode().end == call.now - 50 * BLOCK + DIP


def test_a_pause_that_such_a_window_covers_needs_no_more_decoding() -> None:
    call = speaking(0.5)
    call.hear(QUIET, DIP)
    call.decode("all of it")
    call.hear(QUIET, DIP)
    call.pause(call.now - 2 * DIP)
    assert call.finals() == ["all of it"]
    assert call.attention.window() is None
    assert not call.attention.urgent


def test_a_pause_that_is_not_covered_is_decoded_up_to_its_fading_and_no_further() -> None:
    call = speaking(0.4)
    call.hear(QUIET, 2 * DIP)
    call.pause(call.now - 2 * DIP)
    assert call.attention.urgent
    assert call.finals() == []
    window = call.decode("yes")
    assert window.end == call.now - 2 * DIP + POSTROLL
    assert len(window.samples) == PREROLL + round(0.4 * SECOND) + POSTROLL
    assert call.finals() == ["yes"]


def test_what_is_being_decoded_is_given_up_for_a_pause_it_does_not_cover() -> None:
    call = speaking(0.4)
    window = call.attention.window()
    assert window is not None
    assert not call.attention.is_obsolete(window, keep=False)
    call.pause()
    assert call.attention.is_obsolete(window, keep=True)


def test_and_for_a_dip_but_not_twice_in_a_row() -> None:
    call = speaking(0.4)
    window = call.attention.window()
    assert window is not None
    call.hear(QUIET, DIP)
    assert call.attention.is_obsolete(window, keep=False)
    assert not call.attention.is_obsolete(window, keep=True)


def test_what_is_being_decoded_for_a_pause_goes_on_as_an_interim_when_speech_does() -> None:
    call = speaking(0.4)
    call.pause()
    window = call.attention.window()
    assert window is not None
    call.start()
    assert not call.attention.is_obsolete(window, keep=False)
    assert call.finals() == []
    window.turn.text.take([word("so")], window.end)
    window.turn.heard_to = window.end
    interim = call.attention.interim(window.turn)
    assert interim is not None
    assert (interim.text, interim.final) == ("so", False)
    assert call.attention.interim(window.turn) is None


def test_a_turn_that_ends_before_its_final_has_come_still_gets_it() -> None:
    call = speaking(0.4)
    call.pause()
    call.end_turn()
    call.hear(QUIET, SECOND)
    call.start()
    call.hear(VOICE, SECOND)
    old = call.decode("first")
    assert call.finals() == ["first"]
    new = call.decode("second")
    assert new.turn is not old.turn
    assert call.attention.is_obsolete(old, keep=True)
    call.pause()
    assert call.attention.urgent


def test_who_speaks_already_when_a_turn_ends_has_begun_the_next() -> None:
    call = speaking(0.5)
    call.pause()
    ended = call.now
    call.decode("first")
    call.hear(QUIET, SECOND)
    call.start()
    call.hear(VOICE, SECOND // 2)
    call.end_turn(at=ended)
    call.hear(VOICE, SECOND // 2)
    call.pause()
    window = call.decode("second")
    assert len(window.samples) == PREROLL + SECOND
    assert call.finals() == ["second"]


def test_a_backlog_is_decoded_piece_by_piece() -> None:
    call = speaking(30.0)
    window = call.attention.window()
    assert window is not None
    assert not window.complete
    assert len(window.samples) == MAX_WINDOW
    assert not call.attention.is_obsolete(window, keep=False)


def test_speech_that_was_noticed_late_is_decoded_from_its_beginning() -> None:
    call = Call()
    call.hear(QUIET, SECOND)
    call.hear(VOICE, SECOND // 2)
    call.start(at=SECOND)
    call.hear(VOICE[SECOND // 2 :], SECOND // 10)
    window = call.decode()
    expected = np.concatenate([QUIET[:PREROLL], VOICE[: window.end - SECOND]])
    assert [round(x * 32768) for x in window.samples.tolist()] == expected.tolist()


@given(st.lists(st.integers(40, 3 * BLOCK), min_size=1, max_size=200))
@settings(max_examples=30, deadline=None)
def test_the_plan_does_not_depend_on_the_frames(sizes: list[int]) -> None:
    level = np.repeat([4000, 0, 4000, 0, 4000], [9000, 1500, 6000, 400, 20000])
    samples = (VOICE[: len(level)] * (level / 4000)).astype(np.int16)

    def plan(sizes: list[int]) -> set[int]:
        recording, schedule, due = Recording(), InterimSchedule(), set[int]()
        schedule.start(0)
        at, i = 0, 0
        while at < len(samples):
            frame = AudioFrame(samples[at : at + sizes[i % len(sizes)]], CALLER_RATE_HZ, at)
            recording.add(frame)
            schedule.hear(recording, frame.end_sample)
            due.add(schedule.due)
            at, i = frame.end_sample, i + 1
        return due

    fine = plan([BLOCK])
    assert plan(sizes) <= fine
    if max(sizes) <= BLOCK:
        assert plan(sizes) == fine


ACTION = st.sampled_from(["speak", "rest", "start", "pause", "end", "decode", "finals"])


@given(st.lists(st.tuples(ACTION, st.integers(1, 8000)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_every_pause_is_answered_once_in_order_unless_speech_went_on(
    actions: list[tuple[str, int]],
) -> None:
    call = Call()
    ended: list[float] = []
    """Unanswered pauses of turns that are over,"""
    present: list[float] = []
    """and of the present one."""
    for action, amount in actions:
        match action:
            case "speak":
                call.hear(VOICE, amount)
            case "rest":
                call.hear(QUIET, amount)
            case "start":
                call.start()
                present.clear()
            case "pause":
                call.pause()
                present.append(seconds(call.now))
            case "end":
                call.end_turn()
                ended, present = ended + present, []
            case "decode" if call.attention.window() is not None:
                call.decode(f"w{amount}")
            case "finals":
                for final in call.attention.finals():
                    owed = ended or present
                    assert final.end_s == owed.pop(0)
    call.finals_until_idle(ended + present)


def test_a_stream_of_ten_minutes_keeps_no_more_than_a_turn_needs() -> None:
    call = Call()
    for _ in range(60):
        call.hear(QUIET, 9 * SECOND)
        call.start()
        call.hear(VOICE, SECOND)
        call.pause()
        window = call.decode()
        assert len(window.samples) == PREROLL + SECOND
        assert len(call.finals()) == 1
        call.end_turn()
