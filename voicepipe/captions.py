"""What a client is told of its session: events in, protocol messages out. Synchronous.

One final `transcript` for each turn of either side: the caller's when its turn has ended, the
agent's when its reply is over, holding exactly what was heard. Interims replace one another: the
caller's as the STT understands more, the agent's first phrase when it begins to be heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from voicepipe import events as ev
from voicepipe import wire


class TurnLedger(Protocol):
    """Follows a session and accounts for its turns."""

    def feed(self, event: ev.Event) -> Mapping[str, object] | None:
        """Given every event in order; returns a turn's ledger, JSON-ready, once it is complete."""
        ...


class Captions:
    """An `Observer` that puts what a client should know to `send`, one text message at a time."""

    def __init__(self, send: Callable[[str], None], ledger: TurnLedger | None = None) -> None:
        self._send = send
        self._ledger = ledger
        self._state: wire.State | None = None
        self._interim = ""  # of the caller's
        self._phrases: dict[int, str] = {}  # first phrase of each turn that is not over
        self._speaking: int | None = None  # the turn whose sound is flowing

    def opened(self) -> None:
        """The session hears the caller from now on."""
        self._be("listening")

    def __call__(self, event: ev.Event) -> None:
        self._send(wire.event(event))
        match event:
            case ev.Transcript():
                self._understood(event.text)
            case ev.EndOfTurn():
                self._caller_done(event.text)
            case ev.FirstPhrase():
                self._phrases[event.turn] = event.text.strip()
            case ev.FirstAudio():
                self._begin_to_speak(event.turn)
            case ev.BargeIn() | ev.TurnReopened():
                self._be("listening")
            case ev.AgentResumed():
                self._be("speaking")
            case ev.TurnFinished():
                self._reply_over(event)
        if self._ledger is not None and (ledger := self._ledger.feed(event)) is not None:
            self._send(wire.turn(ledger))

    def _understood(self, text: str) -> None:
        text = text.strip()
        if text and text != self._interim:
            self._interim = text
            self._send(wire.transcript("user", text, final=False))

    def _caller_done(self, text: str) -> None:
        self._interim = ""
        if text.strip():  # an empty turn gets no reply
            self._send(wire.transcript("user", text.strip(), final=True))
            self._be("thinking")

    def _begin_to_speak(self, turn: int) -> None:
        self._speaking = turn
        self._be("speaking")
        if phrase := self._phrases.get(turn):
            self._send(wire.transcript("agent", phrase, final=False))

    def _reply_over(self, event: ev.TurnFinished) -> None:
        phrase = self._phrases.pop(event.turn, "")
        was_speaking = self._speaking == event.turn
        heard = event.heard_text.strip()
        if heard or (was_speaking and phrase):  # an interim that was not heard is taken back
            self._send(wire.transcript("agent", heard, final=True))
        if was_speaking:
            self._speaking = None
        if was_speaking or event.status != "superseded":
            self._be("listening")

    def _be(self, state: wire.State) -> None:
        if state != self._state:
            self._state = state
            self._send(wire.state(state))
