"""The quality ledger: a fast answer to words that were not said is no good answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from budgets.digits import digits_apart
from budgets.ledger import Ledger
from budgets.perceived import Sides
from budgets.recording import BACKCHANNEL, Line, Recording
from voicepipe import events as ev
from voicepipe.frames import CALLER_RATE_HZ, Pcm
from voicepipe.wording import normalised

LOW_CONFIDENCE = 0.5
"""Geometric mean token probability below which a transcript is likely to hold a wrong word."""

ROUND_REPLY_S = 0.1
"""Silence left around a reply that is transcribed back."""

ListenBack = Callable[[Pcm], str]
"""Transcribes 16 kHz audio of the agent."""


@dataclass(frozen=True, slots=True)
class WordErrors:
    """Edits that make one text the other, and words of the true one."""

    n_edits: int = 0
    n_words: int = 0

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(self.n_edits + other.n_edits, self.n_words + other.n_words)

    @property
    def rate(self) -> float:
        return self.n_edits / self.n_words if self.n_words else math.nan


@dataclass(frozen=True, slots=True)
class Quality:
    """Sums over sessions, so that they can be added."""

    stt: WordErrors = WordErrors()
    tts: WordErrors = WordErrors()
    low_confidence_turns: int = 0
    words_generated: int = 0
    words_heard: int = 0

    def __add__(self, other: Quality) -> Quality:
        return Quality(
            self.stt + other.stt,
            self.tts + other.tts,
            self.low_confidence_turns + other.low_confidence_turns,
            self.words_generated + other.words_generated,
            self.words_heard + other.words_heard,
        )


def quality(
    recording: Recording,
    ledgers: Sequence[Ledger],
    sides: Sides | None = None,
    listen_back: ListenBack | None = None,
) -> Quality:
    """`listen_back` is asked for each reply that was heard; without it there is no TTS figure."""
    stt = WordErrors()
    if truth := recording.truth:
        stt = understood(truth, ledgers)
    tts = WordErrors()
    if sides is not None and listen_back is not None and recording.tape is not None:
        tts = intelligible(recording.tape.agent.heard_at_16khz(), ledgers, sides, listen_back)
    return Quality(
        stt=stt,
        tts=tts,
        low_confidence_turns=_low_confidence_turns(recording.events),
        words_generated=sum(len(ledger.text.split()) for ledger in ledgers),
        words_heard=sum(len(ledger.heard_text.split()) for ledger in ledgers),
    )


def word_errors(truth: str, found: str) -> WordErrors:
    """Levenshtein distance in words; case, punctuation and the writing of numbers aside. Each
    digit is a word."""
    true_words, found_words = (digits_apart(normalised(t).split()) for t in (truth, found))
    return WordErrors(_edits(true_words, found_words), len(true_words))


def understood(truth: Sequence[Line], ledgers: Iterable[Ledger]) -> WordErrors:
    """All that the caller said against all that the turns were committed to, in order of time: so
    it does not matter whether a line was cut into the same turns. Backchannels get no turn; a turn
    that was taken back lives on in the next one."""
    turns = sorted(ledgers, key=lambda ledger: ledger.speech_end_s)
    found = " ".join(t.user_text for t in turns if not t.reopened and t.reason != "typed")
    said = " ".join(line.text for line in truth if line.kind != BACKCHANNEL)
    return word_errors(said, found)


def intelligible(
    agent: Pcm, ledgers: Sequence[Ledger], sides: Sides, listen_back: ListenBack
) -> WordErrors:
    """The replies transcribed back against what playout says was heard. `agent` is at 16 kHz."""
    errors = WordErrors()
    heard = sorted(
        (ledger for ledger in ledgers if math.isfinite(ledger.first_audio_s)),
        key=lambda ledger: ledger.first_audio_s,
    )
    limits_s = [*(ledger.first_audio_s for ledger in heard), math.inf][1:]
    for ledger, limit_s in zip(heard, limits_s, strict=True):
        sound = sides.agent.loudness.audible(ledger.first_audio_s - ROUND_REPLY_S, limit_s)
        if not ledger.heard_text.strip() or not sound:
            continue
        start = max(0, round((sound[0].start_s - ROUND_REPLY_S) * CALLER_RATE_HZ))
        end = round(min(sound[-1].end_s + ROUND_REPLY_S, limit_s) * CALLER_RATE_HZ)
        errors += word_errors(ledger.heard_text, listen_back(agent[start:end]))
    return errors


def _low_confidence_turns(events: Iterable[ev.Event]) -> int:
    n_turns, confidence = 0, math.nan
    for event in events:
        match event:
            case ev.Transcript(final=True):
                confidence = event.confidence
            case ev.EndOfTurn():
                n_turns += confidence < LOW_CONFIDENCE
                confidence = math.nan
    return n_turns


def _edits(truth: Sequence[str], found: Sequence[str]) -> int:
    """Wagner and Fischer (1974), a row at a time: the running minimum carries insertions along."""
    columns = np.arange(len(found) + 1)
    row = columns.copy()
    words = np.array(found, dtype=object)
    for index, word in enumerate(truth):
        step = np.minimum(row[1:] + 1, row[:-1] + (words != word))
        step = np.concatenate(([index + 1], step))
        row = np.minimum.accumulate(step - columns) + columns
    return int(row[-1])
