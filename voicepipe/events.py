"""What happened in a session. Events are the only thing that leaves one.

Two times, both in seconds on one axis whose zero is the first sample of caller audio:

- `t_media_s` is the moment in the call that the event is *about* (the last voiced sample for
  `SpeechPaused`, the first audible sample for `FirstAudio`, ...);
- `t_loop_s` is when it was *emitted*, read from the event loop's clock. Plain objects that decide
  without a loop leave it `nan`; the session stamps it when it publishes the event.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    t_media_s: float
    t_loop_s: float = math.nan

    def to_json(self) -> dict[str, object]:
        """The event as a JSON-ready dict, first keys `t_media_s`, `t_loop_s`, `type`."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        times = {name: fields.pop(name) for name in ("t_media_s", "t_loop_s")}
        return {**times, "type": type(self).__name__, **fields}


def _plain(value: object) -> object:
    """JSON knows no nan: null stands for "not known"; microseconds are enough."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStarted(Event):
    """The caller began to speak; `t_media_s` is the first voiced sample.

    `overlap` is true when the agent was speaking: its voice is ducked until it is known whether
    this is a backchannel or a barge-in.
    """

    overlap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechPaused(Event):
    """The caller fell silent; `t_media_s` is the last voiced sample. STT finalises at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript(Event):
    """What the caller has said since the last `EndOfTurn`, as far as the STT knows.

    `text` is the whole turn so far; `stable_text` is the prefix of it that will not change any
    more (an interim never flickers back over it). `start_s`/`end_s` bound the audio it covers.
    `final` means: the finalisation asked for by the `SpeechPaused` at `end_s` has finished, and
    `text` covers all speech up to there. `t_media_s` equals `end_s`. `confidence` is
    exp(mean token log-probability) in 0..1, or nan when the engine gives none.
    """

    text: str
    final: bool
    stable_text: str = ""
    start_s: float = 0.0
    end_s: float = 0.0
    confidence: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerEndOfTurn(Event):
    """Weak evidence that the caller is done: a reply is prepared, inaudibly."""

    text: str
    speech_end_s: float
    probability: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResumed(Event):
    """The caller went on after an `EagerEndOfTurn`: the held reply is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfTurn(Event):
    """The caller is done: the reply may be heard.

    `speech_end_s` is the last voiced sample; `decided_s` is the media time at which the decision
    stood (the text may have come later: that wait is the ledger's `stt` row).
    """

    text: str
    speech_end_s: float
    decided_s: float
    reason: Literal["score", "timeout", "typed"] = "score"
    probability: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReopened(Event):
    """The caller went on after `EndOfTurn`: an audible cut-off; both texts become one turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(Event):
    """A reply is being made. `held` means: inaudible until the end of turn is certain."""

    turn: int
    text: str
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReleased(Event):
    """A held reply was released: its sound may flow."""

    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken(Event):
    """The language model produced the first token of the reply, in any channel."""

    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPhrase(Event):
    """The first speakable phrase of the reply is complete."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioReady(Event):
    """The first audible audio of the reply is made and could be played now."""

    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAudio(Event):
    """The first audible sample of the reply went out; `t_media_s` is when it is heard."""

    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentYielded(Event):
    """The caller speaks over the agent, who pauses to listen: a `Backchannel` lets it go on where
    it paused, a `BargeIn` takes the floor from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backchannel(Event):
    """The caller made a sound over the agent that asks for nothing ("uh-huh"): the agent goes on,
    and the STT forgets what was said up to `speech_end_s`, its last voiced sample."""

    text: str = ""
    speech_end_s: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class BargeIn(Event):
    """The caller took the floor from the agent; `t_media_s` is the caller's first voiced sample.

    The agent is silent from here on. Its reply is given up once the caller's words are known; if
    no words come, `AgentResumed` follows.
    """

    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResumed(Event):
    """A barge-in without words: the agent goes on from the last sample that was heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded(Event):
    """The budget controller gave something up to save time."""

    stage: str
    what: str
    why: str
    saved_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Event):
    """Something broke and the session went on. `kind` is a short stable word, e.g. `tts_error`."""

    kind: str
    detail: str


TurnStatus = Literal["completed", "interrupted", "superseded", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished(Event):
    """A reply is over, whatever its fate; exactly one for each `TurnStarted`.

    `heard_text` is the exact prefix of `text` (all that was generated) whose sound was played.
    Token counts are the language model's own: `prompt_tokens` of which `cached_tokens` needed no
    computing; `drafted_tokens` of which `accepted_tokens` were right (speculation), as
    `verify_steps` model steps found.
    `stop_ms` is, for an interrupted turn, from the caller's first voiced sample to the last
    sample of the agent's that was heard; otherwise nan.
    """

    turn: int
    status: TurnStatus
    user_text: str
    text: str
    heard_text: str
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verify_steps: int = 0
    stop_ms: float = math.nan


_TYPES: dict[str, type[Event]] = {cls.__name__: cls for cls in Event.__subclasses__()}


def from_json(row: dict[str, object]) -> Event:
    """The inverse of `Event.to_json`. Raises `ValueError` for an unknown type or field."""
    fields = dict(row)
    name = str(fields.pop("type", ""))
    if name not in _TYPES:
        raise ValueError(f"unknown event type {name!r}; known: {', '.join(sorted(_TYPES))}")
    try:
        return _TYPES[name](**{k: math.nan if v is None else v for k, v in fields.items()})  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"event {name}: {error}") from error
