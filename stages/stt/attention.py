"""What one STT stream should decode next, decided without a model and without waiting."""

from __future__ import annotations

from dataclasses import dataclass, field

from stages.stt.agreement import GrowingText
from stages.stt.audio import LATE, POSTROLL, PREROLL, Recording, TurnAudio
from stages.stt.hearing import sample_of
from stages.stt.schedule import InterimSchedule
from voicepipe.events import Backchannel, EndOfTurn, SpeechPaused, SpeechStarted, Transcript
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame
from voicepipe.protocols import Float32, SpeechInput

MAX_WINDOW = 20 * CALLER_RATE_HZ
"""Decoded at most at once, if the decoder is that far behind (Whisper hears 30 s)."""


@dataclass(eq=False, slots=True)
class Turn:
    """One turn of the caller's. Positions are samples."""

    start: int
    audio: TurnAudio = field(default_factory=TurnAudio)
    text: GrowingText = field(default_factory=GrowingText)
    guess: list[int] = field(default_factory=list)
    """Tokens that the next hypothesis probably has after the stable ones."""
    heard_to: int = 0
    """Up to where `text` covers the audio."""
    answered_to: int = 0
    """Up to where a final was given."""
    pauses: list[SpeechPaused] = field(default_factory=list)
    """That want a final."""
    shown: tuple[str, str] = ("", "")
    """Text and stable text of the last interim."""

    @property
    def last_pause(self) -> int:
        """The last of `pauses`; 0 when there is none."""
        return max((sample_of(pause.t_media_s) for pause in self.pauses), default=0)

    def covers(self, at: int) -> bool:
        return self.heard_to >= at or self.audio.n_samples(at) == 0

    def transcript(self, end_s: float, *, final: bool) -> Transcript:
        return Transcript(
            t_media_s=end_s,
            text=self.text.text,
            final=final,
            stable_text=self.text.stable_text,
            start_s=self.start / CALLER_RATE_HZ,
            end_s=end_s,
            confidence=self.text.confidence,
        )


@dataclass(frozen=True, slots=True)
class Window:
    """What is decoded together: the audio of a turn up to sample `end`."""

    turn: Turn
    samples: Float32
    end: int
    complete: bool
    """It was not too long."""

    @property
    def duration_s(self) -> float:
        return len(self.samples) / CALLER_RATE_HZ


class Attention:
    """One stream: who speaks, which turn it is, which finals are owed."""

    def __init__(self) -> None:
        self._recording = Recording()
        self._schedule = InterimSchedule()
        self._turn: Turn | None = None
        self._speech_start: int | None = None
        """First voiced sample of what the caller is saying now."""
        self._owed: list[Turn] = []
        """Turns that are over and still want a final."""

    @property
    def urgent(self) -> bool:
        """Somebody waits for a final."""
        return bool(self._owed or (self._turn and self._turn.pauses))

    def hear(self, item: SpeechInput) -> bool:
        """Take in the next item; whether there may be something new to do."""
        match item:
            case AudioFrame():
                return self._listen(item)
            case SpeechStarted():
                self._start(sample_of(item.t_media_s))
            case SpeechPaused():
                self._pause(item)
            case EndOfTurn() | Backchannel():
                self._end_turn(sample_of(item.speech_end_s))
        return True

    def finals(self) -> list[Transcript]:
        """The answers to all pauses that the text covers by now; each is given once."""
        found = []
        for turn in [*self._owed, *([self._turn] if self._turn else [])]:
            while turn.pauses and turn.covers(sample_of(turn.pauses[0].t_media_s)):
                pause = turn.pauses.pop(0)
                turn.answered_to = sample_of(pause.t_media_s)
                found.append(turn.transcript(pause.t_media_s, final=True))
        self._owed = [turn for turn in self._owed if turn.pauses]
        return found

    def interim(self, turn: Turn) -> Transcript | None:
        """What is new in the present turn, if that is it and no final is about to come."""
        if turn is not self._turn or turn.pauses:
            return None
        interim = turn.transcript(turn.heard_to / CALLER_RATE_HZ, final=False)
        if (interim.text, interim.stable_text) == turn.shown:
            return None
        turn.shown = (interim.text, interim.stable_text)
        return interim

    def window(self) -> Window | None:
        """What is worth decoding now."""
        turn = self._owed[0] if self._owed else self._turn
        if turn is None:
            return None
        if turn.pauses:
            end = turn.last_pause + POSTROLL
        elif self._speech_start is not None and self._schedule.due > turn.heard_to:
            end = self._schedule.due
        else:
            return None
        limit = turn.audio.position(MAX_WINDOW, end)
        samples = turn.audio.samples(self._recording, 0, limit)
        return Window(turn, samples, limit, complete=limit == end)

    def is_obsolete(self, window: Window, *, keep: bool) -> bool:
        """Whether something else is more urgent than to go on with `window`. `keep`: not just
        because speech seems to have paused since."""
        turn = window.turn
        if turn not in self._owed and turn is not self._turn:
            return True
        if not window.complete:
            return False
        if turn.pauses:
            return window.end < turn.last_pause
        return not keep and self._schedule.dip > window.end

    def unanswered(self, window: Window) -> Float32:
        """The samples of `window` that no final has covered."""
        return window.turn.audio.samples(self._recording, window.turn.answered_to, window.end)

    def _listen(self, frame: AudioFrame) -> bool:
        self._recording.add(frame)
        turns = [*self._owed, *([self._turn] if self._turn else [])]
        starts = [turn.audio.start for turn in turns]
        oldest = frame.end_sample - LATE - PREROLL
        self._recording.forget(min([oldest, *(start for start in starts if start is not None)]))
        if self._turn is None or self._speech_start is None:
            return False
        due = self._schedule.due
        self._schedule.hear(self._recording, self._turn.audio.n_samples(frame.end_sample))
        return self._schedule.due != due

    def _start(self, at: int) -> None:
        """The caller speaks: a final of the same turn that has not come yet is void."""
        if self._speech_start is not None:
            return
        self._turn = self._turn or Turn(at)
        self._turn.pauses.clear()
        self._turn.audio.begin(at)
        self._speech_start = at
        self._schedule.start(at)

    def _pause(self, pause: SpeechPaused) -> None:
        at = sample_of(pause.t_media_s)
        self._turn = self._turn or Turn(at)
        self._turn.audio.pause(at)
        self._turn.pauses.append(pause)
        self._speech_start = None
        self._schedule.stop()

    def _end_turn(self, speech_end: int) -> None:
        """Finals that were asked for still come. Who speaks already began the next turn."""
        turn, speech_start = self._turn, self._speech_start
        self._turn = self._speech_start = None
        self._schedule.stop()
        if turn is not None and turn.pauses:
            self._owed.append(turn)
        if speech_start is not None and speech_start > speech_end:
            self._start(speech_start)
