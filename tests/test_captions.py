"""What a client is told of its session."""

import json

import pytest

from voicepipe import events as ev
from voicepipe.captions import Captions


class Told:
    """The messages, without the `event` ones unless asked for."""

    def __init__(self) -> None:
        self.all: list[dict[str, object]] = []

    def __call__(self, message: str) -> None:
        self.all.append(json.loads(message))

    def take(self) -> list[tuple[object, ...]]:
        short: list[tuple[object, ...]] = []
        for message in self.all:
            match message["type"]:
                case "transcript":
                    short.append((message["role"], message["text"], message["final"]))
                case "state":
                    short.append((message["state"],))
                case "turn":
                    short.append(("turn", message["ledger"]))
        self.all.clear()
        return short


def finished(turn: int, status: ev.TurnStatus, text: str, heard: str) -> ev.TurnFinished:
    return ev.TurnFinished(
        t_media_s=0.0, turn=turn, status=status, user_text="u", text=text, heard_text=heard
    )


def reply_begins(captions: Captions, turn: int, phrase: str) -> None:
    captions(ev.TurnStarted(t_media_s=0.0, turn=turn, text="u", held=False))
    captions(ev.FirstPhrase(t_media_s=0.0, turn=turn, text=phrase))
    captions(ev.FirstAudio(t_media_s=0.0, turn=turn))


def end_of_turn(text: str) -> ev.EndOfTurn:
    return ev.EndOfTurn(t_media_s=0.0, text=text, speech_end_s=0.0, decided_s=0.0)


def test_a_turn_as_the_client_sees_it() -> None:
    told = Told()
    captions = Captions(told)
    captions.opened()
    captions(ev.Transcript(t_media_s=0.0, text=" What", final=False))
    captions(ev.Transcript(t_media_s=0.0, text=" What", final=True))  # nothing new
    captions(ev.Transcript(t_media_s=0.0, text=" What now?", final=True))
    captions(end_of_turn(" What now?"))
    reply_begins(captions, 1, "Wait. ")
    captions(finished(1, "completed", "Wait. And see.", "Wait. And see."))
    assert told.take() == [
        ("listening",),
        ("user", "What", False),
        ("user", "What now?", False),
        ("user", "What now?", True),
        ("thinking",),
        ("speaking",),
        ("agent", "Wait.", False),
        ("agent", "Wait. And see.", True),
        ("listening",),
    ]


def test_every_event_is_passed_on_as_it_is() -> None:
    told = Told()
    happened = ev.SpeechStarted(t_media_s=1.0, t_loop_s=1.1, overlap=True)
    Captions(told)(happened)
    assert told.all == [{"type": "event", "event": happened.to_json()}]


def test_an_interrupted_reply_ends_with_what_was_heard() -> None:
    told = Told()
    captions = Captions(told)
    reply_begins(captions, 1, "One two three four.")
    told.take()
    captions(ev.BargeIn(t_media_s=0.0, text="stop"))
    captions(finished(1, "interrupted", "One two three four. Five.", "One two"))
    assert told.take() == [("listening",), ("agent", "One two", True)]


def test_an_interim_that_was_never_heard_is_taken_back() -> None:
    told = Told()
    captions = Captions(told)
    reply_begins(captions, 1, "One two.")
    told.take()
    captions(finished(1, "interrupted", "One two.", ""))
    assert told.take() == [("agent", "", True), ("listening",)]


def test_a_false_interruption_speaks_on() -> None:
    told = Told()
    captions = Captions(told)
    reply_begins(captions, 1, "One.")
    told.take()
    captions(ev.BargeIn(t_media_s=0.0))
    captions(ev.AgentResumed(t_media_s=0.0))
    assert told.take() == [("listening",), ("speaking",)]


def test_a_held_reply_is_not_shown() -> None:
    told = Told()
    captions = Captions(told)
    captions.opened()
    captions(ev.EagerEndOfTurn(t_media_s=0.0, text="What", speech_end_s=0.0))
    captions(ev.TurnStarted(t_media_s=0.0, turn=1, text="What", held=True))
    captions(ev.FirstPhrase(t_media_s=0.0, turn=1, text="Secret."))
    captions(finished(1, "superseded", "Secret.", ""))
    assert told.take() == [("listening",)]


def test_a_held_reply_to_other_words_does_not_end_the_thinking() -> None:
    told = Told()
    captions = Captions(told)
    captions(end_of_turn("What now?"))
    captions(finished(1, "superseded", "Secret.", ""))
    assert told.take() == [("user", "What now?", True), ("thinking",)]


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_silent_end_is_the_callers_turn_again(status: ev.TurnStatus) -> None:
    told = Told()
    captions = Captions(told)
    captions(end_of_turn("What now?"))
    captions(finished(1, status, "", ""))
    assert told.take()[-1] == ("listening",)


def test_an_empty_turn_is_no_turn() -> None:
    told = Told()
    captions = Captions(told)
    captions.opened()
    captions(end_of_turn("  "))
    assert told.take() == [("listening",)]


def test_a_ledger_is_sent_when_there_is_one() -> None:
    class Counting:
        def __init__(self) -> None:
            self.n_events = 0

        def feed(self, event: ev.Event) -> dict[str, object] | None:
            self.n_events += 1
            return {"events": self.n_events} if isinstance(event, ev.TurnFinished) else None

    told = Told()
    captions = Captions(told, Counting())
    captions(end_of_turn("x"))
    captions(finished(1, "completed", "y", "y"))
    assert told.take()[-1] == ("turn", {"events": 2})
