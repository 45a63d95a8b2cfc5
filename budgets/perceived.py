"""Perceived latency, read from the two tracks of a recorded call.

From the caller's last voiced sample to the first audible sample of the reply as heard. Events say
only *which* turn is meant; every number comes from the sound. Three instruments look at each edge:
the speech detector decides whether, energy decides where, and an independent referee must agree;
a turn on which they do not agree is discarded, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from budgets.edges import Detector, Segment, Voice, measure_voice, nearest
from budgets.ledger import Ledger
from budgets.tape import Tape

REPLY_WITHIN_S = 15.0
FIND_WITHIN_S = 0.5
"""How far an edge in the sound may be from where the events have it to be the same edge."""

REFEREE_EARLIER_S = 0.040
REFEREE_LATER_S = 0.250
"""Detectors hang over: the referee may be this much later than energy, but hardly earlier."""

CONTENT_S = 0.4
"""The shortest sound that says something."""

TAIL_S = 0.3
"""How long the agent's last words may outlive the caller's when it is being interrupted."""


@dataclass(frozen=True, slots=True)
class Detectors:
    """Makers of the two detectors: one that knows speech (Silero) and an independent referee
    (webrtcvad). Each call gives a fresh one, for one track."""

    speech: Detector
    referee: Detector


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of a call, measured."""

    caller: Voice
    agent: Voice


def measure_sides(tape: Tape, detectors: Detectors) -> Sides:
    return Sides(
        measure_voice(tape.caller, detectors.speech, detectors.referee),
        measure_voice(tape.agent, detectors.speech, detectors.referee),
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """One answer: the caller's last voiced sample, the first audible one of the reply, and the
    start of its first content (nan when all of it is shorter than 400 ms or filler)."""

    speech_end_s: float
    onset_s: float
    content_s: float = math.nan

    @property
    def perceived_ms(self) -> float:
        return (self.onset_s - self.speech_end_s) * 1000

    @property
    def content_ms(self) -> float:
        return (self.content_s - self.speech_end_s) * 1000


@dataclass(frozen=True, slots=True)
class Discard:
    """A turn that cannot be measured, and why."""

    turn: int
    reason: str


class _Unclear(Exception):
    """The instruments do not agree; the text is the reason."""


def perceived(
    sides: Sides, ledgers: Sequence[Ledger], fillers_s: Sequence[float] = ()
) -> tuple[dict[int, Gap], list[Discard]]:
    """The gap of each turn that can be measured, by turn, and the others with the reason.

    `ledgers` are the committed turns of the session; `fillers_s` the media times at which fillers
    were spoken, which are sound but no content.
    """
    gaps: dict[int, Gap] = {}
    discards: list[Discard] = []
    turns = sorted(ledgers, key=_ends_at)
    limits_s = [*(_ends_at(ledger) for ledger in turns), math.inf][1:]
    for ledger, limit_s in zip(turns, limits_s, strict=True):
        try:
            gaps[ledger.turn] = _measure(sides, ledger, limit_s, fillers_s)
        except _Unclear as reason:
            discards.append(Discard(ledger.turn, str(reason)))
    return gaps, discards


def _ends_at(ledger: Ledger) -> float:
    """A turn of which it is not known bounds no other."""
    return math.inf if math.isnan(ledger.speech_end_s) else ledger.speech_end_s


def find_gaps(sides: Sides) -> tuple[list[Gap], list[str]]:
    """Every answer in a recording of which nothing else is known, and why others are left out.

    An answer is the agent's first sound after the caller stopped and before it speaks again, so
    hesitations inside the caller's turns do not count.
    """
    gaps: list[Gap] = []
    reasons: list[str] = []
    segments = sides.caller.segments
    next_starts_s = [*(segment.start_s for segment in segments), math.inf][1:]
    for segment, next_s in zip(segments, next_starts_s, strict=True):
        if not any(segment.end_s < reply.start_s < next_s for reply in sides.agent.segments):
            continue
        try:
            gaps.append(_answer(sides, segment.end_s, next_s, ()))
        except _Unclear as reason:
            reasons.append(f"at {segment.end_s:.2f} s: {reason}")
    return gaps, reasons


def _measure(sides: Sides, ledger: Ledger, limit_s: float, fillers_s: Sequence[float]) -> Gap:
    if ledger.reason == "typed":
        raise _Unclear("typed: there is no speech to measure from")
    if ledger.reopened:
        raise _Unclear("the caller went on: a cut-off is no answer")
    if math.isnan(ledger.first_audio_s):
        raise _Unclear(f"no reply was heard: the turn was {ledger.status}")
    end_s = nearest(sides.caller.segments, "end_s", ledger.speech_end_s)
    if not abs(end_s - ledger.speech_end_s) <= FIND_WITHIN_S:
        raise _Unclear("no speech of the caller's ends near where the events have it")
    return _answer(sides, end_s, limit_s, fillers_s)


def _answer(sides: Sides, near_s: float, limit_s: float, fillers_s: Sequence[float]) -> Gap:
    """The reply to the speech whose end the detector sees at `near_s`; it begins by `limit_s`."""
    caller, agent = sides.caller, sides.agent
    speech_end_s = _edge(caller, "end_s", near_s, "the caller's end")
    for reply in agent.segments:
        if reply.start_s <= speech_end_s and reply.end_s > speech_end_s + TAIL_S:
            raise _Unclear("double-talk: the agent was speaking when the caller stopped")
    replies = [reply for reply in agent.segments if speech_end_s < reply.start_s < limit_s]
    if not replies or replies[0].start_s > speech_end_s + REPLY_WITHIN_S:
        next_turn = limit_s < speech_end_s + REPLY_WITHIN_S
        before = "the caller's next turn" if next_turn else f"{REPLY_WITHIN_S:.0f} s had passed"
        raise _Unclear(f"the agent's track has no reply before {before}")
    onset_s = _edge(agent, "start_s", replies[0].start_s, "the reply's onset")
    if onset_s <= speech_end_s:
        raise _Unclear("double-talk: the reply began before the caller stopped")
    if any(near_s < again.start_s < onset_s for again in caller.segments):
        raise _Unclear("double-talk: the caller spoke again before the reply")
    content = next((r for r in replies if _is_content(r, fillers_s)), None)
    if content is None:
        return Gap(speech_end_s, onset_s)
    found_s = agent.loudness.onset(content.start_s)
    return Gap(speech_end_s, onset_s, content.start_s if found_s is None else found_s)


def _is_content(reply: Segment, fillers_s: Sequence[float]) -> bool:
    is_filler = any(reply.start_s - FIND_WITHIN_S < t < reply.end_s for t in fillers_s)
    return reply.duration_s >= CONTENT_S and not is_filler


def _edge(voice: Voice, kind: Literal["start_s", "end_s"], near_s: float, what: str) -> float:
    """The edge as energy has it, if the referee agrees."""
    loudness = voice.loudness
    edge_s = loudness.onset(near_s) if kind == "start_s" else loudness.offset(near_s)
    if edge_s is None:
        raise _Unclear(f"{what}: no edge in energy within 128 ms of the speech detector's")
    later_s = nearest(voice.referee, kind, edge_s) - edge_s
    if math.isnan(later_s):
        raise _Unclear(f"{what}: the referee hears no speech")
    if later_s < -REFEREE_EARLIER_S:
        raise _Unclear(f"{what}: the referee has it {-later_s * 1000:.0f} ms earlier")
    if later_s > REFEREE_LATER_S:
        raise _Unclear(f"{what}: the referee has it {later_s * 1000:.0f} ms later")
    return edge_s
