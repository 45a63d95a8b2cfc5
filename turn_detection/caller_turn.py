"""What is known of the caller's present turn: when it sounded, what was said, how it scored."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from turn_detection.wording import Ending, ending
from voicepipe.events import Transcript
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.wording import normalised, same_words

_SAME_MOMENT = CALLER_RATE_HZ // 50
"""20 ms: transcripts name times in seconds, and the STT may count in frames."""


def sample_of(t_s: float) -> int:
    """The 16 kHz sample at media time `t_s`."""
    return round(t_s * CALLER_RATE_HZ)


def seconds(n_samples: int) -> float:
    return n_samples / CALLER_RATE_HZ


@dataclass(slots=True)
class CallerTurn:
    """One turn of the caller's, from its first voiced sample on. All positions are 16 kHz samples.

    `speaking` alternates with pauses; `last_voiced`, `paused_at`, `final`, `probability` and
    `decided_at` belong to the latest pause.
    """

    first_voiced: int
    before: str = ""
    """Text of the turn that this one goes on with (reopened)."""
    audio_from: int = -1
    """Where the audio of the whole turn begins; `first_voiced` unless reopened."""

    speaking: bool = True
    last_voiced: int = 0
    paused_at: int = 0
    """When the pause became known."""
    final: bool = False
    """The transcript of everything up to the pause has come."""

    heard: str = ""
    """Text of this turn by the STT, without what was discarded before."""
    confidence: float = math.nan
    """Of the STT in that; nan when it gives none."""
    heard_to: int = 0
    """Up to where `heard` covers the audio."""
    heard_at: int = 0
    """When its words last changed."""

    probability: float = math.nan
    """By the end-of-turn model, of the newest audio it has judged in this pause."""
    judged_to: int = 0
    """Up to where that audio went."""
    next_score_at: int = 0
    decided_at: int | None = None
    """Since when the end of the turn stands, if only the text (or the reply's sound) is awaited."""

    eager_text: str = ""
    n_eager: int = 0

    _ending_of: tuple[str, Ending] = field(default=("", Ending.OPEN))

    def __post_init__(self) -> None:
        if self.audio_from < 0:
            self.audio_from = self.first_voiced
        self.last_voiced = self.first_voiced

    @property
    def text(self) -> str:
        """All words of the turn."""
        return f"{self.before} {self.heard}".strip()

    @property
    def ending(self) -> Ending:
        """How `text` ends."""
        if self._ending_of[0] != self.text:
            self._ending_of = (self.text, ending(self.text))
        return self._ending_of[1]

    def silence(self, now: int) -> int:
        """Samples since the last voiced one; 0 while the caller speaks."""
        return 0 if self.speaking else now - self.last_voiced

    def pause(self, last_voiced: int, now: int, first_score_after: int) -> None:
        """The voice has ended."""
        self.speaking = False
        self.last_voiced = max(last_voiced, self.first_voiced)
        self.paused_at = now
        self.final = False
        self.probability = math.nan
        self.judged_to = self.last_voiced
        self.decided_at = None
        self.next_score_at = self.last_voiced + first_score_after

    def go_on_with(self, text: str, audio_from: int) -> None:
        """This turn continues one that was taken for finished."""
        self.before = text
        self.audio_from = audio_from

    def resume(self) -> None:
        """The voice is back."""
        self.speaking = True
        self.final = False
        self.decided_at = None
        self.eager_text = ""

    def hear(self, transcript: Transcript, text: str, now: int) -> None:
        """Take in a transcript; `text` is what of it belongs to this turn. One that says less than
        is known already - late, of an older pause - changes nothing."""
        end = sample_of(transcript.end_s)
        answers_pause = (
            transcript.final and not self.speaking and abs(end - self.last_voiced) <= _SAME_MOMENT
        )
        if not answers_pause and (end < self.heard_to or (self.final and end <= self.paused_at)):
            return
        if not same_words(text, self.heard):
            self.heard_at = now
        self.heard, self.heard_to, self.confidence = text, end, transcript.confidence
        self.final = self.final or answers_pause

    def covers_pause(self) -> bool:
        """Whether the text reaches the end of what was said."""
        return self.final or self.heard_to >= self.last_voiced - _SAME_MOMENT


def without_prefix(text: str, prefix: str) -> str:
    """`text` without the words of `prefix` it begins with; whole if it does not begin so."""
    words = normalised(prefix).split()
    if normalised(text).split()[: len(words)] != words:
        return text
    n_left = len(words)
    pieces = text.split()
    while pieces and n_left > 0:
        n_left -= len(normalised(pieces.pop(0)).split())
    return " ".join(pieces)
