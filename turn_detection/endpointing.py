"""When the caller's turn is over, and when the caller takes the floor: one synchronous machine.

Its clock is the sample index of the caller's audio. It does no I/O, starts nothing and waits for
nothing: the same inputs give the same events.

    IDLE -> USER <-> PAUSE <-> EAGER -> COMMITTED -> AGENT -> OVERLAP -> USER or AGENT

Transcripts and scores come when they come; they join the turn, and the pause, that they belong to
by audio time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from turn_detection.agent_voice import AgentVoice
from turn_detection.barge_in import BargeInConfig, Overlap, Verdict, demands_floor, has_words
from turn_detection.caller_turn import CallerTurn, sample_of, seconds, without_prefix
from turn_detection.score import PauseConfig, PauseRules, Reason
from turn_detection.voice import VoiceConfig, VoiceEdge
from voicepipe import events as ev
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.protocols import AgentState, Float32, ScoreRequest
from voicepipe.wording import same_words

Decisions = Sequence[ev.Event | ScoreRequest]


@dataclass(frozen=True, slots=True)
class EndpointingConfig:
    """Everything that can be tuned about taking turns."""

    voice: VoiceConfig = field(default_factory=VoiceConfig)
    pause: PauseConfig = field(default_factory=PauseConfig)
    barge_in: BargeInConfig = field(default_factory=BargeInConfig)


class State(Enum):
    """Who has the floor."""

    IDLE = "idle"
    USER = "user"
    PAUSE = "pause"
    EAGER = "eager"
    COMMITTED = "committed"
    AGENT = "agent"
    OVERLAP = "overlap"


class TurnMachine:
    """The turns of one caller. Every input returns the decisions that follow from it, in order:
    events, and at most one `ScoreRequest`."""

    def __init__(
        self,
        audio_since: Callable[[int], Float32] | None = None,
        config: EndpointingConfig | None = None,
    ) -> None:
        """`audio_since(sample)` gives the caller's audio from there up to now; without it the
        end-of-turn model is never asked."""
        config = config or EndpointingConfig()
        self._audio_since = audio_since
        self._rules = PauseRules(config.pause)
        self._barge_in = config.barge_in
        self._state = State.IDLE
        self._now = 0
        self._turn: CallerTurn | None = None
        self._overlap: Overlap | None = None
        self._agent = AgentVoice()
        self._sound_ready = True
        self._discarded = ""
        """What the STT may still repeat although it was no part of a turn,"""
        self._discarded_to = 0
        """in a transcript of audio from before this sample."""
        self._out: list[ev.Event | ScoreRequest] = []

    @property
    def state(self) -> State:
        return self._state

    # -- inputs --------------------------------------------------------------------------------

    def hear(self, now: int, edge: VoiceEdge | None) -> Decisions:
        """Time is now sample `now` (one past the newest); the voice began or ended, or neither."""
        self._now = now
        if edge is not None and edge.began:
            self._voice_began(edge.at)
        elif edge is not None:
            self._voice_ended(edge.at)
        return self._settle()

    def transcribed(self, transcript: ev.Transcript) -> Decisions:
        """The STT has understood something. It belongs to the present turn unless its audio is
        that of a turn which is over."""
        turn = self._turn
        text = transcript.text.strip()
        if sample_of(transcript.start_s) < self._discarded_to:
            text = without_prefix(text, self._discarded)
        if self._agent.answers is not None and self._agent.answers.contains(transcript):
            return self._settle()
        if turn is None and self._state is State.IDLE and text:
            turn = self._unheard(transcript)
        if turn is not None:
            turn.hear(transcript, text, self._now)
        return self._settle()

    def scored(self, request: ScoreRequest, probability: float) -> Decisions:
        """The end-of-turn model's answer; void when the caller has spoken since."""
        turn = self._turn
        if turn is not None and not turn.speaking and request.end_sample > turn.judged_to:
            turn.judged_to = request.end_sample
            turn.probability = probability
        return self._settle()

    def agent(self, state: AgentState) -> Decisions:
        """The agent's sound began or ceased to flow."""
        if state.speaking == self._agent.speaking:
            return self._settle()
        if state.speaking:
            self._agent.begin(sample_of(state.t_media_s))
            if self._turn is None:
                self._state = State.AGENT
            elif self._state is State.USER:  # a reply to typed text begins while the caller speaks
                self._overlap = Overlap(reopens=False)
                self._state = State.OVERLAP
        else:  # what the caller says over its last words is a turn like any other
            self._agent.end()
            self._overlap = None
            if self._turn is not None and self._state is State.OVERLAP:
                self._state = State.USER if self._turn.speaking else State.PAUSE
            elif self._state is State.AGENT:
                self._state = State.IDLE
        return self._settle()

    def pipeline_ready(self, ready: bool) -> Decisions:
        """Whether the held reply has sound waiting."""
        self._sound_ready = ready
        return self._settle()

    # -- the caller's voice --------------------------------------------------------------------

    def _voice_began(self, at: int) -> None:
        over_agent = self._agent.audible
        if self._turn is None:
            reopens = self._agent.was_too_early(at, self._barge_in)
            self._turn = CallerTurn(at)
            if over_agent or reopens:
                self._overlap = Overlap(reopens, words_only=self._agent.false_stops > 0)
        else:
            self._turn.resume()
        if self._state is State.EAGER:
            self._unprepare(at)
        self._emit(ev.SpeechStarted(t_media_s=seconds(at), overlap=over_agent))
        self._state = State.OVERLAP if self._overlap else State.USER

    def _voice_ended(self, at: int) -> None:
        if self._turn is None:
            return
        self._turn.pause(at, self._now, self._rules.first_score)
        self._emit(ev.SpeechPaused(t_media_s=seconds(self._turn.last_voiced)))
        if self._state is State.USER:
            self._state = State.PAUSE

    def _unheard(self, transcript: ev.Transcript) -> CallerTurn:
        """The STT understood what the VAD did not notice: a turn all the same."""
        self._turn = CallerTurn(sample_of(transcript.start_s))
        self._emit(ev.SpeechStarted(t_media_s=transcript.start_s))
        self._state = State.USER
        self._voice_ended(sample_of(transcript.end_s))
        return self._turn

    # -- what follows --------------------------------------------------------------------------

    def _settle(self) -> Decisions:
        """Follow up until nothing changes any more; returns what was decided."""
        before = None
        while self._turn is not None and before is not self._state:
            before = self._state
            self._follow_up(self._turn)
        out, self._out = self._out, []
        return out

    def _follow_up(self, turn: CallerTurn) -> None:
        if self._rules.stt_overdue(turn, self._now):
            turn.final = True
            patience_s = self._rules.config.stt_patience_s
            self._fault("stt_silent", f"no transcript within {patience_s:g} s after a pause")
        if self._overlap is not None:
            self._follow_overlap(turn, self._overlap)
        elif self._agent.silenced_at is not None:
            self._follow_silence(turn, self._agent.silenced_at)
        elif not turn.speaking:
            self._follow_pause(turn)

    def _follow_overlap(self, turn: CallerTurn, overlap: Overlap) -> None:
        if overlap.yields(turn, self._now, self._barge_in):
            overlap.yielded = True
            self._emit(ev.AgentYielded(t_media_s=seconds(self._now)))
        verdict = overlap.verdict(turn, self._now, self._barge_in)
        if verdict is Verdict.BACKCHANNEL:
            self._emit(
                ev.Backchannel(
                    t_media_s=seconds(turn.first_voiced),
                    text=turn.heard,
                    speech_end_s=seconds(turn.last_voiced),
                )
            )
            self._forget(turn)
        elif verdict is not None:
            self._overlap = None
            self._state = State.USER if turn.speaking else State.PAUSE
            if overlap.reopens and self._agent.answers is not None:
                turn.go_on_with(self._agent.answers.text, self._agent.answers.audio_from)
                self._emit(ev.TurnReopened(t_media_s=seconds(turn.first_voiced)))
            elif verdict is Verdict.SILENCE:
                self._agent.silenced_at = self._now
                self._emit(ev.BargeIn(t_media_s=seconds(turn.first_voiced)))
            else:
                self._interrupt(turn)

    def _interrupt(self, turn: CallerTurn) -> None:
        self._agent.silenced_at = None
        self._emit(ev.BargeIn(t_media_s=seconds(turn.first_voiced), text=turn.heard))

    def _follow_silence(self, turn: CallerTurn, since: int) -> None:
        """The agent is silenced: words confirm that, their absence takes it back."""
        overdue = self._now - since >= self._barge_in.no_words_s * CALLER_RATE_HZ
        if demands_floor(turn, self._barge_in) or (overdue and has_words(turn, self._barge_in)):
            self._interrupt(turn)
        elif turn.final or overdue:
            self._agent.resume()
            self._emit(ev.AgentResumed(t_media_s=seconds(self._now)))
            if turn.final:
                self._forget(turn)
            else:  # noise that goes on, or a slow STT: from here only words stop the agent
                self._overlap = Overlap(reopens=False, words_only=True)
                self._state = State.OVERLAP

    def _follow_pause(self, turn: CallerTurn) -> None:
        now = self._now
        if self._state is State.EAGER and not same_words(turn.text, turn.eager_text):
            self._unprepare(now)
            self._state = State.PAUSE
        to_prepare = self._state is State.PAUSE and self._rules.may_prepare(turn, now)
        sound_ready = self._sound_ready and not to_prepare
        reason = self._rules.ended(turn, now, sound_ready=sound_ready)
        if reason is not None and turn.final:
            self._commit(turn, reason)
        elif to_prepare:
            self._prepare(turn)
        elif self._audio_since is not None and self._rules.score_due(turn, now):
            self._emit(ScoreRequest(self._audio_since(turn.audio_from), now))

    def _prepare(self, turn: CallerTurn) -> None:
        turn.eager_text = turn.text
        turn.n_eager += 1
        self._sound_ready = False
        self._state = State.EAGER
        self._emit(
            ev.EagerEndOfTurn(
                t_media_s=seconds(self._now),
                text=turn.text,
                speech_end_s=seconds(turn.last_voiced),
                probability=self._rules.over(turn, self._now),
            )
        )

    def _unprepare(self, at: int) -> None:
        self._sound_ready = True
        self._emit(ev.TurnResumed(t_media_s=seconds(at)))

    def _commit(self, turn: CallerTurn, reason: Reason) -> None:
        if not turn.text:
            self._forget(turn)
            return
        decided_at = self._now if turn.decided_at is None else turn.decided_at
        self._emit(
            ev.EndOfTurn(
                t_media_s=seconds(self._now),
                text=turn.text,
                speech_end_s=seconds(turn.last_voiced),
                decided_s=seconds(decided_at),
                reason=reason,
                probability=self._rules.over(turn, self._now),
            )
        )
        self._agent.commit(turn, self._now)
        self._sound_ready = True
        self._discarded = ""
        self._turn = None
        self._state = State.COMMITTED

    def _forget(self, turn: CallerTurn) -> None:
        """That was no turn. An STT that repeats its words with the next has them cut off there."""
        self._discarded = f"{self._discarded} {turn.heard}".strip()
        self._discarded_to = turn.last_voiced
        self._turn = self._overlap = None
        awaited = self._agent.answers is not None and self._agent.answers.reply_at is None
        if self._agent.speaking:
            self._state = State.AGENT
        else:
            self._state = State.COMMITTED if awaited else State.IDLE

    def _fault(self, kind: str, detail: str) -> None:
        self._emit(ev.Fault(t_media_s=seconds(self._now), kind=kind, detail=detail))

    def _emit(self, decision: ev.Event | ScoreRequest) -> None:
        self._out.append(decision)
