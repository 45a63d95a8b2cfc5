"""One session accounted for: events and sound brought together, turn by turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from budgets.edges import Segment
from budgets.ledger import Ledger, ledgers_of
from budgets.overlap import Overlaps, overlaps
from budgets.perceived import Detectors, Discard, Gap, Sides, measure_sides, perceived
from budgets.quality import ListenBack, Quality, quality
from budgets.recording import Line, Recording
from voicepipe import events as ev

UTTERANCE_GAP_S = 1.5
"""Speech with shorter pauses is one thing that the caller said."""

UTTERANCE_S = 0.3
"""Shorter sounds may be anything."""

NOTICE_WITHIN_S = 4.0
"""By then, longer than the longest time-out, a caller who was heard has been answered or an end of
turn was seen; a recording that ends earlier proves nothing."""

INSIDE_S = 0.1
"""A turn ended inside a line when it did so this clearly before the line's own end."""


@dataclass(frozen=True, slots=True)
class Account:
    """Everything the report needs of one session.

    `ledgers` has one ledger for each committed turn, in order of time; those with a gap sum to
    it. Each turn is in `gaps` or in `discards`.
    """

    name: str
    target_ms: float
    events: Sequence[ev.Event]
    config: Mapping[str, object]
    ledgers: Sequence[Ledger]
    gaps: Mapping[int, Gap]
    discards: Sequence[Discard]
    overlaps: Overlaps
    quality: Quality
    cut_off: frozenset[int]
    """Turns whose reply was heard although the caller was not done."""
    missed: int
    """Times the caller said something and nothing came of it."""
    losses: Sequence[str]


def account_for(
    recording: Recording, detectors: Detectors, listen_back: ListenBack | None = None
) -> Account:
    sides = None if recording.tape is None else measure_sides(recording.tape, detectors)
    by_time = sorted(ledgers_of(recording.events), key=lambda ledger: ledger.speech_end_s)
    gaps: dict[int, Gap] = {}
    if sides is None:
        discards = [Discard(ledger.turn, "there is no recording to measure") for ledger in by_time]
    else:
        gaps, discards = perceived(sides, by_time, _fillers_s(recording.events))
    ledgers = [
        ledger.against(gaps[ledger.turn].perceived_ms) if ledger.turn in gaps else ledger
        for ledger in by_time
    ]
    return Account(
        name=recording.name,
        target_ms=recording.target_ms,
        events=recording.events,
        config=recording.config,
        ledgers=ledgers,
        gaps=gaps,
        discards=discards,
        overlaps=overlaps(recording.events, sides, recording.truth),
        quality=quality(recording, ledgers, sides, listen_back),
        cut_off=frozenset(
            ledger.turn for ledger in ledgers if _is_cut_off(ledger, recording.truth)
        ),
        missed=0 if sides is None else _missed(sides, recording.events),
        losses=recording.losses,
    )


def _fillers_s(events: Sequence[ev.Event]) -> list[float]:
    return [e.t_media_s for e in events if isinstance(e, ev.Degraded) and e.what == "filler"]


def _is_cut_off(ledger: Ledger, truth: Sequence[Line]) -> bool:
    """Heard too early: the caller went on - or, where the truth is known, was not done."""
    if math.isnan(ledger.first_audio_s):
        return False
    return ledger.reopened or any(
        line.speech_start_s < ledger.speech_end_s < line.speech_end_s - INSIDE_S
        and ledger.first_audio_s < line.speech_end_s
        for line in truth
    )


def _missed(sides: Sides, events: Sequence[ev.Event]) -> int:
    """Utterances in the sound that no event took up."""
    noticed_s = [
        event.speech_end_s if isinstance(event, ev.EndOfTurn) else event.t_media_s
        for event in events
        if isinstance(event, ev.EndOfTurn | ev.Backchannel | ev.BargeIn)
    ]
    until_s = sides.caller.duration_s - NOTICE_WITHIN_S
    return sum(
        said.duration_s >= UTTERANCE_S
        and said.end_s < until_s
        and not any(said.start_s - 0.5 <= t <= said.end_s + 0.5 for t in noticed_s)
        for said in _utterances(sides.caller.segments)
    )


def _utterances(segments: Sequence[Segment]) -> list[Segment]:
    said: list[Segment] = []
    for segment in segments:
        if said and segment.start_s - said[-1].end_s < UTTERANCE_GAP_S:
            said[-1] = Segment(said[-1].start_s, segment.end_s)
        else:
            said.append(segment)
    return said
