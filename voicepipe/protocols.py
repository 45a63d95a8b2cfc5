"""The Protocols between the core and everything that can be swapped.

Shared rules:

- A stage object holds loaded models, is complete after `__init__`, may be shared by many sessions,
  and keeps no state of any one of them. What belongs to one session or one reply lives in what
  `open` yields, and is gone when its context is left. There is no start, stop, reset or pause.
- Leaving a context cancels what still runs; a blocking model runs in a worker thread of its own,
  one step at a time, so that leaving waits for at most one step.
- Stages raise; they never swallow. Who opened the stage decides what the caller hears.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from voicepipe.errors import UsageError
from voicepipe.events import Backchannel, EndOfTurn, Event, SpeechPaused, SpeechStarted, Transcript
from voicepipe.frames import AudioFrame

Float32 = NDArray[np.float32]

SpeechInput = AudioFrame | SpeechStarted | SpeechPaused | EndOfTurn | Backchannel
"""What an STT stream is fed, in order: every caller frame exactly once, and between them the
decisions about them. A `SpeechStarted` may lie up to 500 ms before the frames around it (pre-roll),
a `SpeechPaused` asks for a final transcript now, an `EndOfTurn` or a `Backchannel` ends the turn's
text."""


class SpeechToText(Protocol):
    """Turns caller audio into transcripts."""

    def open(
        self, audio: AsyncIterator[SpeechInput]
    ) -> AbstractAsyncContextManager[AsyncIterator[Transcript]]:
        """One caller's stream. `audio` has 16 kHz frames. Each `SpeechPaused` is answered by
        exactly one `Transcript(final=True)` whose `end_s` equals its `t_media_s` — also when
        nothing was understood (empty text) — unless the caller's next words made it void."""
        ...


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """Token counts of one reply; see `events.TurnFinished`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    verify_steps: int = 0
    """Model steps that checked drafts."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a language model may call: what it is told of it. Raises UsageError when
    `parameters` is not the JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not self.name or self.parameters.get("type") != "object":
            raise UsageError(
                f"tool {self.name!r}: give it a name, and the JSON schema of an object for its "
                'parameters ({"type": "object", "properties": {}} for none)'
            )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A language model asks for a tool to be run."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    """What a remote endpoint knows the call by."""


class Reply(Protocol):
    """One reply being generated on a fork of its conversation.

    `async with reply as deltas` generates; leaving stops generating within one model step. After
    that exactly one of `adopt` and `drop` must be called.

    A reply that calls tools ends with its calls. Who reads the reply adopts it, then runs them, and
    gives their results to `Conversation.reply_to_results`.
    """

    async def __aenter__(self) -> AsyncIterator[str]:
        """Text deltas (never empty) whose concatenation is the reply's text: what is to be spoken,
        and nothing of a call."""
        ...

    async def __aexit__(self, *exc: object) -> None: ...

    @property
    def text(self) -> str:
        """All deltas so far, concatenated."""
        ...

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls read so far, each whole; all of them once the deltas are over."""
        ...

    @property
    def stats(self) -> ReplyStats: ...

    def release(self) -> None:
        """A reply asked for as `held` is certain to be wanted now: its steps come first."""
        ...

    def adopt(self) -> None:
        """The conversation now contains the user's turn and this reply: its `text` and `calls`. A
        reply to results goes into the turn of their calls, also when that is not the last any
        more, and nowhere when it was taken out."""
        ...

    def drop(self) -> None:
        """Leave no trace: neither the user's turn nor the reply enters the conversation. (The
        results that a reply was asked to stay: their tools have run.)"""
        ...


class Conversation(Protocol):
    """One conversation: what was said so far, and the KV cache of exactly that.

    At most one reply is adopted at a time; replies may overlap (one held while another is being
    closed). Nothing here blocks the loop: work is queued to the engine and happens in order.
    """

    def extend(self, text: str) -> None:
        """A hint: the user's current turn starts with `text` (stable words). Prefills them."""
        ...

    def reply(self, text: str, *, held: bool = False) -> Reply:
        """A reply to `text`, the whole user turn, on a fork of the conversation. `held`: it may
        never be heard, so that replies somebody waits for come first until `Reply.release`. To
        the model, calls that still have no results then have one that says so."""
        ...

    def reply_to_results(
        self, results: Sequence[str], *, held: bool = False, may_call: bool = True
    ) -> Reply:
        """A reply, in the same turn, to the `results` of the calls of the last adopted reply, one
        for each in order. The results enter the conversation now and for good, whatever becomes of
        the reply; when that is dropped, another one may be asked for. `may_call=False` makes the
        model speak: small ones may call the same tool for ever. Raises UsageError when the last
        reply made no calls, was replied to, or made another number of them."""
        ...

    def add_results(self, results: Sequence[str]) -> None:
        """Results that nobody is to reply to now, since the conversation has gone on: of the
        latest calls that have none. Raises UsageError as `reply_to_results`."""
        ...

    def truncate(self, heard_text: str) -> None:
        """Cut the last adopted reply to `heard_text`, an exact prefix of its text ("" removes the
        reply's words but keeps the user's turn). With replies to results its text is that of the
        turn's replies in a row. Calls and results stay: the tools have run. Raises ValueError
        when it is no prefix."""
        ...

    def add_user_text(self, text: str) -> None:
        """Append a user turn that got no reply (so that history holds what was said)."""
        ...

    def reopen(self) -> str:
        """Take the last user turn and its reply out again and return the user's text; used when
        the caller goes on after a cut-off and both texts become one turn. "" when there is none.
        Calls and results of the turn go with it: the model may make the calls once more, so a
        turn whose tools must not run twice is not to be reopened after they have."""
        ...


class LanguageModel(Protocol):
    """Generates replies."""

    def open(
        self, system: str, tools: Sequence[ToolSpec] = ()
    ) -> AbstractAsyncContextManager[Conversation]:
        """A conversation with the system prompt already prefilled, in which the model may call
        `tools`. Entering raises UsageError when two have one name or a schema is wrong, and
        ComponentError when the model knows no tools."""
        ...


@dataclass(frozen=True, slots=True)
class Phrase:
    """A speakable piece of a reply: exact and contiguous, white space included."""

    text: str


class TextToSpeech(Protocol):
    """Speaks phrases."""

    def open(
        self, phrases: AsyncIterator[Phrase], *, sample_rate_hz: int
    ) -> AbstractAsyncContextManager[AsyncIterator[AudioFrame]]:
        """Frames of at most 20 ms at `sample_rate_hz`, contiguous from sample 0, each labelled
        with the text that begins in it. The labels concatenate to the phrases' text, also where
        a phrase has nothing to say: its text then labels the next frame, or a frame of no
        samples at the end."""
        ...


class VoiceActivityDetector(Protocol):
    """Says of each piece of audio whether somebody speaks. One object for each caller stream."""

    def hear(self, frame: AudioFrame) -> float:
        """Speech probability 0..1 after this 16 kHz frame. Cheap: runs on the event loop."""
        ...


class EndOfTurnModel(Protocol):
    """Says whether what was said sounds finished. Shared by all sessions; blocking."""

    def probability(self, samples: Float32) -> float:
        """P(the turn is over) 0..1, given the 16 kHz audio of the turn so far, shape [n], -1..1,
        ending in the silence after it. Runs in a worker thread."""
        ...


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Turn detection wants `EndOfTurnModel.probability(samples)`; answer with `scored`."""

    samples: Float32
    end_sample: int
    """Media time (16 kHz) one past the last of `samples`."""


@dataclass(frozen=True, slots=True)
class AgentState:
    """What turn detection must know of the agent."""

    speaking: bool
    """Sound of the agent is flowing (or held back only by a barge-in that is not confirmed)."""
    t_media_s: float
    """When this became so."""


class TurnDetector(Protocol):
    """Turn detection for one session: synchronous, events in, decisions out.

    Every method returns what follows from its input, in order: events for the session
    (`SpeechStarted` ... `AgentResumed`) and at most one `ScoreRequest`.
    """

    def hear(self, frame: AudioFrame) -> Sequence[Event | ScoreRequest]:
        """The next caller frame: 10 ms, 16 kHz, contiguous. It is the only clock there is."""
        ...

    def transcribed(self, transcript: Transcript) -> Sequence[Event | ScoreRequest]: ...

    def scored(self, request: ScoreRequest, probability: float) -> Sequence[Event | ScoreRequest]:
        """The answer to a request; one for audio that is no longer current is ignored."""
        ...

    def agent(self, state: AgentState) -> Sequence[Event | ScoreRequest]: ...

    def pipeline_ready(self, ready: bool) -> Sequence[Event | ScoreRequest]:
        """Whether the held reply has audible audio waiting: until it has, waiting costs nothing."""
        ...


class TurnDetection(Protocol):
    """Makes the turn detector of each session; holds the shared models."""

    @property
    def end_of_turn_model(self) -> EndOfTurnModel | None: ...

    def open(self) -> TurnDetector: ...


class Transport(Protocol):
    """Where the caller is. Frames in, frames out, on one clock.

    The clock: caller sample n (16 kHz) and agent sample m (`output_rate_hz`) happen at the same
    moment when n / 16000 == m / output_rate_hz; `now_s` is that moment now.
    """

    def now_s(self) -> float:
        """Media time now, in seconds since caller sample 0; follows the event loop's clock."""
        ...

    @property
    def output_rate_hz(self) -> int:
        """The rate at which agent frames must arrive."""
        ...

    @property
    def lead_s(self) -> float:
        """How far ahead of real time agent frames may be sent (device or network buffer)."""
        ...

    def open(self) -> AbstractAsyncContextManager[AsyncIterator[AudioFrame]]:
        """Caller frames: 10 ms, 16 kHz, contiguous from sample 0; a gap becomes silence. Ends when
        the caller is gone. While open it never stops yielding in step with real time."""
        ...

    async def play(self, frame: AudioFrame) -> None:
        """Accept a frame of the agent's; `start_sample` is when it is to be heard (agent clock)."""
        ...

    def clear(self, from_sample: int) -> int:
        """Drop what was accepted but not yet heard, from `from_sample` (agent clock) on, at once.
        Returns the sample (>= from_sample) at which the sound really stops."""
        ...

    def heard_until(self) -> int | None:
        """The agent sample up to which the far end reports to have played; None if it does not."""
        ...


class Observer(Protocol):
    """Watches a session. Must not block and must not raise for what it cannot use."""

    def __call__(self, event: Event, /) -> None: ...
