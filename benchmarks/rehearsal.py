"""A call in simulated time: one caller's audio through a turn detector, with an STT, an
end-of-turn model and an agent of known speed around it. No loop, no threads: a frame is a step.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from turn_detection.endpointing import Decisions, State, TurnMachine
from turn_detection.voice import VoiceEdge
from voicepipe import events as ev
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame
from voicepipe.protocols import AgentState, Float32, ScoreRequest, TurnDetector
from voicepipe.wording import same_words


@dataclass(frozen=True, slots=True)
class Word:
    """What the caller says, and by when it has been said."""

    end_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Heard:
    """What an STT makes of some audio."""

    text: str
    confidence: float = math.nan


def spoken(words: Sequence[Word]) -> Callable[[float, float], Heard]:
    """An STT that understands every word of `words` as soon as it has been said."""
    return lambda from_s, to_s: Heard(
        " ".join(word.text for word in words if from_s < word.end_s <= to_s + 0.05)
    )


@dataclass(frozen=True, slots=True)
class Speeds:
    """How long the others take, and for how long the agent speaks."""

    stt_s: float = 0.2
    """From a pause (or an interim's moment) to its transcript; inf for an STT that is dead."""
    interim_s: float = 0.3
    """Between interim transcripts, in speech; inf for none."""
    score_s: float = 0.12
    """inf for a model that is dead."""
    reply_s: float = 0.4
    """From the text to the first audible sound."""
    speaking_s: float = 3.0
    """Length of a reply."""


@dataclass(slots=True)
class _Reply:
    text: str
    ready_s: float
    released: bool
    left_s: float
    sounding_since_s: float | None = None


@dataclass(slots=True)
class Rehearsal:
    """Feeds `detector` frame by frame, answers what it asks, and plays the agent."""

    detector: TurnDetector
    understood: Callable[[float, float], Heard] = lambda _from, _to: Heard("")
    """What the STT makes of the caller's audio between two moments."""
    score: Callable[[ScoreRequest], float] = lambda _: 0.9
    speeds: Speeds = field(default_factory=Speeds)

    events: list[ev.Event] = field(default_factory=list)
    sounds_s: list[tuple[float, float]] = field(default_factory=list)
    """Stretches in which the agent was audible, the last one once it is over."""

    _now_s: float = 0.0
    _text_from_s: float = -1.0
    _voiced_from_s: float | None = None
    _next_interim_s: float = 0.0
    _due: list[tuple[float, int, Callable[[], Sequence[ev.Event | ScoreRequest]]]] = field(
        default_factory=list
    )
    _n_due: int = 0
    _reply: _Reply | None = None
    _held: _Reply | None = None

    def hear(self, frame: AudioFrame) -> None:
        """One step: the frame, then whatever became due while it was spoken."""
        self._now_s = frame.end_s
        self._take(self.detector.hear(frame))
        while self._due and self._due[0][0] <= self._now_s:
            self._take(heapq.heappop(self._due)[2]())
        self._interim()
        self._speak()

    def hang_up(self) -> None:
        """The call is over."""
        self._end_reply()

    def begin_reply(self) -> None:
        """The agent speaks from here on, nobody having asked."""
        self._reply = _Reply("", self._now_s, released=True, left_s=self.speeds.speaking_s)

    def _later(self, wait_s: float, what: Callable[[], Sequence[ev.Event | ScoreRequest]]) -> None:
        if wait_s < 1e6:
            self._n_due += 1
            heapq.heappush(self._due, (self._now_s + wait_s, self._n_due, what))

    def _take(self, decisions: Sequence[ev.Event | ScoreRequest]) -> None:
        for decision in decisions:
            if isinstance(decision, ScoreRequest):
                self._ask(decision)
            else:
                event = replace(decision, t_loop_s=self._now_s)
                self.events.append(event)
                self._follow(event)

    def _ask(self, request: ScoreRequest) -> None:
        probability = self.score(request)
        self._later(self.speeds.score_s, lambda: self.detector.scored(request, probability))

    def _follow(self, event: ev.Event) -> None:
        match event:
            case ev.SpeechStarted():
                self._voiced_from_s = event.t_media_s
                self._next_interim_s = event.t_media_s + self.speeds.interim_s
            case ev.SpeechPaused():
                self._voiced_from_s = None
                self._transcribe(event.t_media_s, final=True)
            case ev.EagerEndOfTurn():
                self._end_reply()
                self._held = self._new_reply(event.text, released=False)
                self._take(self.detector.pipeline_ready(False))
            case ev.TurnResumed():
                self._held = None
            case ev.EndOfTurn():
                self._commit(event.text)
            case ev.TurnReopened():
                self._end_reply()
            case ev.AgentYielded() | ev.BargeIn(text=""):
                self._silence()
            case ev.BargeIn():
                self._end_reply()
            case ev.AgentResumed():
                self._resume()
            case ev.Backchannel():
                self._text_from_s = event.speech_end_s
                self._resume()

    # -- the STT -------------------------------------------------------------------------------

    def _transcribe(self, end_s: float, *, final: bool) -> None:
        heard = self.understood(self._text_from_s, end_s)
        transcript = ev.Transcript(
            t_media_s=end_s,
            text=heard.text,
            confidence=heard.confidence,
            final=final,
            start_s=max(0.0, self._text_from_s),
            end_s=end_s,
        )
        self._later(self.speeds.stt_s, lambda: self._transcribed(transcript))

    def _transcribed(self, transcript: ev.Transcript) -> Sequence[ev.Event | ScoreRequest]:
        self.events.append(replace(transcript, t_loop_s=self._now_s))
        return self.detector.transcribed(transcript)

    def _interim(self) -> None:
        if self._voiced_from_s is not None and self._now_s >= self._next_interim_s:
            self._next_interim_s += self.speeds.interim_s
            self._transcribe(self._now_s, final=False)

    # -- the agent -----------------------------------------------------------------------------

    def _new_reply(self, text: str, *, released: bool) -> _Reply:
        self._later(self.speeds.reply_s, lambda: self._ready(reply))
        reply = _Reply(text, self._now_s + self.speeds.reply_s, released, self.speeds.speaking_s)
        return reply

    def _ready(self, reply: _Reply) -> Sequence[ev.Event | ScoreRequest]:
        return self.detector.pipeline_ready(True) if reply is self._held else ()

    def _commit(self, text: str) -> None:
        self._end_reply()
        self._text_from_s = self._now_s
        held, self._held = self._held, None
        if held is None or not same_words(held.text, text):
            held = self._new_reply(text, released=True)
        held.released = True
        self._reply = held

    def _speak(self) -> None:
        reply = self._reply
        if reply is None or not reply.released or self._now_s < reply.ready_s:
            return
        if reply.sounding_since_s is None:
            reply.sounding_since_s = self._now_s
            self._take(self.detector.agent(AgentState(True, self._now_s)))
        elif self._now_s - reply.sounding_since_s >= reply.left_s:
            self._end_reply()

    def _silence(self) -> None:
        """Held: it may go on from here."""
        reply = self._reply
        if reply is not None and reply.sounding_since_s is not None:
            self.sounds_s.append((reply.sounding_since_s, self._now_s))
            reply.left_s -= self._now_s - reply.sounding_since_s
            reply.released, reply.sounding_since_s = False, None

    def _resume(self) -> None:
        if self._reply is not None:
            self._reply.released = True

    def _end_reply(self) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if reply.sounding_since_s is not None:
            self.sounds_s.append((reply.sounding_since_s, self._now_s))
        self._take(self.detector.agent(AgentState(False, self._now_s)))


class SilentDetector:
    """A turn machine whose voice begins and ends on cue, known 60 and 100 ms late: no audio."""

    def __init__(self, spans: Sequence[tuple[float, float]], *, with_model: bool = True) -> None:
        self._machine = TurnMachine(self._audio if with_model else None)
        self._now = 0
        self._edges = {
            round(at_s * 100) + known_frames: VoiceEdge(began, round(at_s * 16_000))
            for span in spans
            for at_s, began, known_frames in ((span[0], True, 6), (span[1], False, 10))
        }
        self.transcribed = self._machine.transcribed
        self.scored = self._machine.scored
        self.agent = self._machine.agent
        self.pipeline_ready = self._machine.pipeline_ready

    @property
    def state(self) -> State:
        return self._machine.state

    def hear(self, frame: AudioFrame) -> Decisions:
        self._now = frame.end_sample
        return self._machine.hear(self._now, self._edges.get(self._now // 160))

    def _audio(self, since: int) -> Float32:
        return np.zeros(min(self._now - since, 128_000), np.float32)


def silence(n_frames: int, start: int = 0) -> list[AudioFrame]:
    """10 ms frames of nothing, from frame number `start` on."""
    size = CALLER_RATE_HZ // 100
    return [
        AudioFrame(np.zeros(size, np.int16), CALLER_RATE_HZ, (start + n) * size)
        for n in range(n_frames)
    ]
