"""Caller and agent at once, from the sound: how soon a barge-in silences the agent, and whether a
backchannel leaves it alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from budgets.edges import Segment
from budgets.perceived import FIND_WITHIN_S, Sides
from budgets.recording import BACKCHANNEL, Line
from voicepipe import events as ev

STOPS_WITHIN_S = 3.0
"""An agent that speaks on for longer has not stopped."""

GOES_ON_WITHIN_S = 1.0
"""An agent that goes on after a backchannel is heard again within this time."""

CLEAR_OF_NEXT_S = 0.05
"""Keeps the onset of the next reply out of the search for the end of this one."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The agent, silenced. `stop_ms` is from the caller's first voiced sample to the last audible
    one of the agent's; nan when the sound does not show it. `false` when the caller did not want
    the floor: the agent went on later, or what was said is known to be a backchannel."""

    at_s: float
    stop_ms: float
    false: bool


@dataclass(frozen=True, slots=True)
class Overlaps:
    stops: Sequence[Stop]
    backchannels_ignored: int
    """Backchannels over which the agent went on."""
    backchannels_obeyed: int
    """Backchannels at which it fell silent: false stops as well."""


def overlaps(
    events: Sequence[ev.Event], sides: Sides | None, truth: Sequence[Line] = ()
) -> Overlaps:
    """What became of each barge-in and backchannel; without sound, only that it happened.
    `truth` is what the caller really said, where that is known."""
    stops: list[Stop] = []
    n_ignored = n_obeyed = 0
    barging: ev.BargeIn | None = None
    for index, event in enumerate(events):
        match event:
            case ev.BargeIn() if barging is None:  # the second one brings the words
                barging = event
                stop_ms = math.nan if sides is None else _stop_ms(sides, event, events[index + 1 :])
                stops.append(Stop(event.t_media_s, stop_ms, _is_backchannel(event, truth)))
            case ev.AgentResumed() if barging is not None:
                stops[-1] = Stop(stops[-1].at_s, stops[-1].stop_ms, false=True)
                barging = None
            case ev.EndOfTurn():
                barging = None
            case ev.Backchannel():
                if sides is None or _goes_on(sides, event, events):
                    n_ignored += 1
                else:
                    n_obeyed += 1
    return Overlaps(stops, n_ignored, n_obeyed)


def _is_backchannel(barge_in: ev.BargeIn, truth: Sequence[Line]) -> bool:
    return any(
        line.kind == BACKCHANNEL
        and line.speech_start_s - FIND_WITHIN_S <= barge_in.t_media_s <= line.speech_end_s
        for line in truth
    )


def _stop_ms(sides: Sides, barge_in: ev.BargeIn, later: Sequence[ev.Event]) -> float:
    spoke = _caller_segment(sides, barge_in.t_media_s)
    onset_s = None if spoke is None else sides.caller.loudness.onset(spoke.start_s)
    if onset_s is None:
        return math.nan
    bound_s = onset_s + STOPS_WITHIN_S
    for event in later:
        if isinstance(event, ev.AgentResumed | ev.FirstAudio) and event.t_media_s > onset_s:
            bound_s = min(bound_s, event.t_media_s - CLEAR_OF_NEXT_S)
            break
    heard = sides.agent.loudness.audible(onset_s, bound_s)
    return (heard[-1].end_s - onset_s) * 1000 if heard else math.nan


def _goes_on(sides: Sides, backchannel: ev.Backchannel, events: Sequence[ev.Event]) -> bool:
    """Heard after it - or had nothing more to say."""
    spoke = _caller_segment(sides, backchannel.t_media_s)
    from_s = backchannel.t_media_s if spoke is None else spoke.end_s
    until_s = from_s + GOES_ON_WITHIN_S
    if sides.agent.loudness.audible(from_s, until_s):
        return True
    return any(
        isinstance(event, ev.TurnFinished)
        and event.status == "completed"
        and event.t_media_s <= until_s
        and event.t_media_s >= from_s - GOES_ON_WITHIN_S
        for event in events
    )


def _caller_segment(sides: Sides, t_s: float) -> Segment | None:
    """What the caller said at that moment."""
    close = [s for s in sides.caller.segments if s.start_s - FIND_WITHIN_S <= t_s <= s.end_s]
    return min(close, key=lambda s: abs(s.start_s - t_s), default=None)
