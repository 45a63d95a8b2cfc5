"""The WebSocket protocol of voicepipe, without I/O.

`Wire` is one connection's side of the conversation about the conversation: give it each message
that arrives and it returns what the client wants, or a `Refused` to be sent back; ask it for each
message that leaves. It decides and remembers, and never waits. Everything it refuses can be
recovered from: the message is dropped, the connection lives.

Client to server: an optional first `start`, then binary mono PCM16 little-endian, and the text
messages `playback`, `text` and `end`. Server to client: binary PCM16 at the same rate, and the
text messages built by the functions at the end of this file. Unknown types are ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeGuard

import numpy as np

from voicepipe.events import Event
from voicepipe.frames import CALLER_RATE_HZ, Pcm

MIN_RATE_HZ = 8_000
MAX_RATE_HZ = 48_000

MAX_MESSAGE_BYTES = 192_000
"""Two seconds at 48 kHz, six at 16 kHz: no live client saves up more than that."""

MAX_TEXT_CHARS = 4_000
"""Of a typed turn: several minutes of speech, and less than any model's context."""

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
"""A session's name may become the name of a directory, so it may not be a path."""

Role = Literal["user", "agent"]
State = Literal["listening", "thinking", "speaking"]


@dataclass(frozen=True, slots=True)
class Start:
    """The client speaks, and wants to hear, at `sample_rate_hz`."""

    sample_rate_hz: int
    session: str = ""


@dataclass(frozen=True, slots=True)
class CallerAudio:
    """A piece of the caller's voice, shape [n], at the rate of the connection."""

    samples: Pcm


@dataclass(frozen=True, slots=True)
class Playback:
    """The client has played `n_samples` of agent audio since the connection began."""

    n_samples: int


@dataclass(frozen=True, slots=True)
class TypedText:
    """A user turn that was typed."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The client wants to end the session."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The message made no sense and was dropped; tell the client with `error`."""

    code: str
    message: str


Input = Start | CallerAudio | Playback | TypedText | End | Refused


class Wire:
    """One connection. Call `receive` for each message in order and `audio` for each frame sent.

    `sample_rate_hz` is final once `receive` has returned anything but `Refused` or None.
    """

    def __init__(self) -> None:
        self.sample_rate_hz = CALLER_RATE_HZ
        self.session = ""
        self._begun = False
        self._start_refused = False
        self._ended = False
        self._n_sent = 0
        self._n_played = 0

    def receive(self, message: str | bytes) -> Input | None:
        """What the client wants with `message`; None when there is nothing to do about it."""
        if self._ended:
            return None
        try:
            parsed = self._audio(message) if isinstance(message, bytes) else self._text(message)
        except _Refusal as refusal:
            return refusal.refused
        if parsed is not None:
            self._begun = True
        return parsed

    def audio(self, samples: Pcm) -> bytes:
        """The message that carries agent audio at the connection's rate."""
        self._n_sent += len(samples)
        return samples.astype("<i2", copy=False).tobytes()

    def _audio(self, message: bytes) -> CallerAudio:
        if self._start_refused:
            _refuse("not_started", "audio after a refused start: send a valid start first")
        if len(message) > MAX_MESSAGE_BYTES:
            _refuse(
                "too_large",
                f"a message of {len(message)} bytes: send at most {MAX_MESSAGE_BYTES} at once",
            )
        if len(message) % 2:
            _refuse(
                "odd_bytes",
                f"audio of {len(message)} bytes is no PCM16: the message was dropped, send whole "
                "samples of two bytes",
            )
        return CallerAudio(np.frombuffer(message, "<i2").astype(np.int16, copy=False))

    def _text(self, message: str) -> Input | None:
        if len(message) > MAX_MESSAGE_BYTES:
            _refuse("too_large", f"a text message of {len(message)} characters is too long")
        fields = _parsed(message)
        match fields.get("type"):
            case "start":
                return self._start(fields)
            case "playback":
                return self._playback(fields)
            case "text":
                return _typed(fields)
            case "end":
                self._ended = True
                return End()
            case str():
                return None
            case _:
                _refuse("bad_message", 'every text message needs a "type" that is a string')

    def _start(self, fields: Mapping[str, object]) -> Start:
        if self._begun:
            _refuse("late_start", "start must be the first message and cannot be repeated")
        self._start_refused = True
        rate = fields.get("sample_rate", CALLER_RATE_HZ)
        if not _is_int(rate) or not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
            _refuse(
                "bad_rate",
                f"sample_rate must be a whole number from {MIN_RATE_HZ} to {MAX_RATE_HZ}: "
                "send start again",
            )
        session = fields.get("session", "")
        if not isinstance(session, str) or (session and not _SESSION_ID.fullmatch(session)):
            _refuse(
                "bad_session",
                "session must be at most 64 letters, digits, dots, dashes and underscores, and "
                "begin with a letter or digit: send start again",
            )
        self._start_refused = False
        self.sample_rate_hz = rate
        self.session = session
        return Start(rate, session)

    def _playback(self, fields: Mapping[str, object]) -> Playback:
        n_samples = fields.get("played_samples")
        if not _is_int(n_samples) or n_samples < 0:
            _refuse("bad_playback", "played_samples must be a whole number, 0 or more")
        if n_samples > self._n_sent:
            _refuse(
                "bad_playback",
                f"played_samples is beyond the {self._n_sent} samples that were sent",
            )
        if n_samples < self._n_played:
            _refuse("bad_playback", "played_samples counts from the start and never falls")
        self._n_played = n_samples
        return Playback(n_samples)


class _Refusal(Exception):
    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.code)
        self.refused = refused


def _refuse(code: str, message: str) -> NoReturn:
    raise _Refusal(Refused(code, message))


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parsed(message: str) -> Mapping[str, object]:
    try:
        fields = json.loads(message, parse_constant=_reject_constant)
    except (ValueError, RecursionError):  # nesting deeper than the parser's stack
        _refuse("bad_json", "a text message must be one JSON object")
    if not isinstance(fields, dict):
        _refuse("bad_json", "a text message must be one JSON object")
    return fields


def _typed(fields: Mapping[str, object]) -> TypedText:
    text = fields.get("text")
    if not isinstance(text, str) or not text.strip():
        _refuse("bad_text", "text must be a string with something in it")
    if len(text) > MAX_TEXT_CHARS:
        _refuse("bad_text", f"text is longer than {MAX_TEXT_CHARS} characters")
    if any("\ud800" <= char <= "\udfff" for char in text):  # half of a pair: JSON lets it through
        _refuse("bad_text", "text holds a lone surrogate, which is no character")
    return TypedText(text.strip())


def ready() -> str:
    """There is a place for this client. The rate is the one used unless `start` names another."""
    return _encode("ready", {"sample_rate": CALLER_RATE_HZ, "max_message_bytes": MAX_MESSAGE_BYTES})


def transcript(role: Role, text: str, *, final: bool) -> str:
    """What was said: one `final` for each turn of either side, interims replace one another."""
    return _encode("transcript", {"role": role, "text": text, "final": final})


def clear() -> str:
    """Drop all agent audio that was received and not yet played."""
    return _encode("clear", {})


def state(name: State) -> str:
    return _encode("state", {"state": name})


def event(happened: Event) -> str:
    """A core event under `event`, as in events.jsonl."""
    return _encode("event", {"event": happened.to_json()})


def turn(ledger: Mapping[str, object]) -> str:
    """The ledger of the turn that just ended, under `ledger`."""
    return _encode("turn", {"ledger": ledger})


def error(code: str, message: str, *, fatal: bool = False) -> str:
    """Something was refused; `fatal` means that the server closes the connection now."""
    return _encode("error", {"code": code, "message": message, "fatal": fatal})


def _encode(kind: str, fields: Mapping[str, object]) -> str:
    return json.dumps({"type": kind, **{k: _strict(v) for k, v in fields.items()}}, allow_nan=False)


def _strict(value: object) -> object:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value
