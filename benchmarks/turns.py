"""Taking turns: how often callers are cut off, at what wait; and what happens when they speak over
the agent. `voicepipe bench turns`.

First eot-bench's protocol (benchmarks/eot_bench.py) for a silence timer, Smart Turn alone and our
score of sound, words and silence: settings chosen on one half of the turns, figures from the other.
Then the whole machine as configured, real voice detection and model included, each recorded turn
in simulated time around an STT and a reply of the speeds below.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import eot_bench
from benchmarks.eot_bench import Detector, Floats, Outcome
from benchmarks.rehearsal import Rehearsal, Speeds
from benchmarks.turn_corpus import Clip, Ears, Pause, by_clip, clips, frames
from turn_detection import Endpointing, EndScore
from turn_detection.caller_turn import without_prefix
from turn_detection.log_mel import log_mel
from turn_detection.wording import ending
from voicepipe import events as ev
from voicepipe.clock import process_time_s
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.provenance import provenance

MODELS = ("silero-vad", "smart-turn-v3.2-cpu", "whisper-tiny.en")
BUDGETS_S = (0.3, 0.6)
RATES = (0.05, 0.10)

TURN_KINDS = ("question", "request", "short", "pause", "human")
SPEEDS = Speeds(stt_s=0.2, interim_s=math.inf, score_s=0.12, reply_s=0.35, speaking_s=4.0)
"""Of a 2-core machine: an STT's tail, a score, and a reply from its text to its first sound."""

N_SCORES = 20

OVER_AGENT_S = 1.5
"""How far into a reply the caller speaks over it."""

Row = dict[str, object]


def run(json_file: Path | None = None) -> str:
    """Measure, write `json_file` when one is given, return the table."""
    ears = Ears.load()
    recorded = clips()
    pauses = [pause for clip in recorded for pause in ears.pauses(clip)]
    turns = [pause for pause in pauses if pause.clip.kind in TURN_KINDS]
    rows, ratios = _protocol(turns)
    rows += _whole_turns(ears, by_clip(turns))
    rows += _over_agent(ears, by_clip(pauses))
    rows += _compute(ears, recorded[0])
    if json_file is not None:
        document = json.dumps(_document(rows, ratios), indent=1)
        json_file.write_text(document + "\n", encoding="utf-8")
    return _table(rows, ratios)


# -- eot-bench -----------------------------------------------------------------------------------


def _detectors() -> tuple[Detector, ...]:
    weigh = EndScore()

    def p_audio(pause: Pause, silence_s: float) -> float:
        nth = round(silence_s / 0.1) - 1
        return pause.p_audio[min(nth, len(pause.p_audio) - 1)]

    def q(pause: Pause, silence_s: float) -> float:
        return weigh.probability(p_audio(pause, silence_s), silence_s, ending(pause.text))

    sweep = eot_bench.settings()
    return (
        eot_bench.timer(),
        Detector("smart turn", p_audio, sweep),
        Detector("voicepipe", q, sweep),
    )


def _protocol(pauses: Sequence[Pause]) -> tuple[list[Row], dict[str, float | None]]:
    names = sorted({pause.clip.name for pause in pauses})
    tuning = [pause for pause in pauses if names.index(pause.clip.name) % 2 == 0]
    held_out = [pause for pause in pauses if names.index(pause.clip.name) % 2 == 1]
    rows: list[Row] = []
    cut_off: dict[tuple[str, float], float] = {}
    for detector in _detectors():
        tuned, tested = (eot_bench.judge(detector, half) for half in (tuning, held_out))
        for budget_s in BUDGETS_S:
            setting = eot_bench.best_within(tuned, budget_s)
            if setting is not None:
                cut_off[detector.name, budget_s] = float(tested.cut_off_rate[setting])
                what = f"{detector.name}, <= {budget_s * 1000:.0f} ms mean wait"
                rows.append(_protocol_row(what, tested, setting))
        for rate in RATES:
            setting = eot_bench.fastest_within(tuned, rate)
            if setting is not None:
                what = f"{detector.name}, <= {rate:.0%} of pauses cut off"
                rows.append(_protocol_row(what, tested, setting))
    ratios = {
        f"cutoffs_{budget_s * 1000:.0f}_vs_timer": _ratio(
            cut_off.get(("voicepipe", budget_s)), cut_off.get(("silence timer", budget_s))
        )
        for budget_s in BUDGETS_S
    }
    return rows, ratios


def _protocol_row(what: str, outcome: Outcome, setting: int) -> Row:
    low, high = eot_bench.interval(outcome, setting)
    return {
        "what": what,
        **_percentiles(outcome.wait_s[setting] * 1000),
        "mean": round(float(outcome.wait_s[setting].mean()) * 1000),
        "cut_off_per_pause": round(float(outcome.cut_off_rate[setting]), 3),
        "cut_off_95": [round(low, 3), round(high, 3)],
        "cut_off_per_turn": round(outcome.per_turn(setting), 3),
    }


# -- the whole machine ---------------------------------------------------------------------------


def _rehearse(ears: Ears, clip: Clip, texts: Sequence[Pause], *, over_agent: bool) -> Rehearsal:
    """One recorded turn; over the agent, it begins when the agent has spoken for a while."""
    shift_s = OVER_AGENT_S if over_agent else 0.0

    def understood(from_s: float, to_s: float) -> str:
        def upto(t_s: float) -> str:
            known = [p.text for p in texts if p.start_s + shift_s <= t_s + 0.05]
            return known[-1] if known else ""

        return without_prefix(upto(to_s), upto(from_s))

    detector = Endpointing(ears.smart_turn, vad=ears.vad).open()
    score = ears.smart_turn.probability
    rehearsal = Rehearsal(detector, understood, lambda r: score(r.samples), SPEEDS)
    if over_agent:
        rehearsal.begin_reply()
    before = np.zeros(round(shift_s * CALLER_RATE_HZ), np.int16)
    for frame in frames(np.concatenate([before, clip.samples])):
        rehearsal.hear(frame)
    return rehearsal


def _whole_turns(ears: Ears, turns: dict[str, list[Pause]]) -> list[Row]:
    perceived_ms: list[float] = []
    lead_ms: list[float] = []
    n_cut_off = n_false_eager = n_eager = 0
    for pauses in turns.values():
        clip = pauses[0].clip
        rehearsal = _rehearse(ears, clip, pauses, over_agent=False)
        starts_s = [start for start, _ in rehearsal.sounds_s]
        n_cut_off += sum(start_s < clip.speech_end_s for start_s in starts_s)
        perceived_ms += [(s - clip.speech_end_s) * 1000 for s in starts_s if s > clip.speech_end_s][
            :1
        ]
        eager = [e for e in rehearsal.events if isinstance(e, ev.EagerEndOfTurn)]
        n_eager += len(eager)
        n_false_eager += sum(isinstance(e, ev.TurnResumed) for e in rehearsal.events)
        ends = [e for e in rehearsal.events if isinstance(e, ev.EndOfTurn)]
        if eager and ends:
            lead_ms.append((ends[-1].t_media_s - eager[-1].t_media_s) * 1000)
    n_turns = len(turns)
    return [
        {
            "what": "whole machine, perceived",
            **_percentiles(perceived_ms),
            "audible_cut_offs_per_turn": round(n_cut_off / n_turns, 3),
            "silent_false_eagers_per_turn": round(n_false_eager / n_turns, 3),
            "eager_hit_rate": round(1 - n_false_eager / max(1, n_eager), 3),
        },
        {"what": "whole machine, eager lead", **_percentiles(lead_ms)},
    ]


def _over_agent(ears: Ears, turns: dict[str, list[Pause]]) -> list[Row]:
    stops_ms: list[float] = []
    n_backchannels = n_stopped = n_missed = 0
    for pauses in turns.values():
        clip = pauses[0].clip
        if clip.kind not in ("backchannel", "bargein"):
            continue
        rehearsal = _rehearse(ears, clip, pauses, over_agent=True)
        began_s = clip.speech_start_s + OVER_AGENT_S
        _, stopped_s = rehearsal.sounds_s[0]
        stopped = stopped_s < SPEEDS.speaking_s
        if clip.kind == "backchannel":
            n_backchannels += 1
            n_stopped += stopped
        elif stopped:
            stops_ms.append((stopped_s - began_s) * 1000)
        else:
            n_missed += 1
    if not stops_ms:
        return []
    return [
        {
            "what": "barge-in, first voiced sample to stop",
            **_percentiles(stops_ms),
            "missed": n_missed,
        },
        {"what": "backchannels that stopped the agent", "n": n_backchannels, "stopped": n_stopped},
    ]


def _compute(ears: Ears, clip: Clip) -> list[Row]:
    """What one frame costs, all voice detectors together, and one score."""
    detector = Endpointing(None, vad=ears.vad).open()
    hear_ms = [_timed_ms(partial(detector.hear, frame)) for frame in frames(clip.samples)]
    samples = clip.samples.astype(np.float32) / np.float32(32768)
    score_ms = [_timed_ms(partial(ears.smart_turn.probability, samples)) for _ in range(N_SCORES)]
    features_ms = [_timed_ms(partial(log_mel, samples)) for _ in range(N_SCORES)]
    return [
        {"what": "a 10 ms frame", **_percentiles(hear_ms, digits=3)},
        {"what": "features of 8 s", **_percentiles(features_ms, digits=1)},
        {"what": "a score", **_percentiles(score_ms, digits=1)},
    ]


def _timed_ms(work: Callable[[], object]) -> float:
    start_s = process_time_s()
    work()
    return (process_time_s() - start_s) * 1000


# -- what comes out ------------------------------------------------------------------------------


def _percentiles(values_ms: Sequence[float] | Floats, *, digits: int = 0) -> Row:
    points = np.percentile(np.asarray(values_ms, np.float64), [50, 90, 95, 99])
    names = ("p50", "p90", "p95", "p99")
    figures = {name: round(float(x), digits) for name, x in zip(names, points, strict=True)}
    return {"n": len(values_ms), **figures}


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else round(ours / theirs, 3)


def _document(rows: list[Row], ratios: dict[str, float | None]) -> Row:
    return {
        "schema": "voicepipe.bench/1",
        "bench": "turns",
        "machine": provenance(MODELS, {"turn": 1, "stt": 1}),
        "config": {"speeds": asdict(SPEEDS) | {"interim_s": None}, "turn_kinds": TURN_KINDS},
        "rows": rows,
        "ratios": ratios,
    }


def _table(rows: list[Row], ratios: dict[str, float | None]) -> str:
    figures = ("n", "mean", "p50", "p90", "p95", "p99")
    lines = [f"{'ms':44}" + "".join(f"{name:>8}" for name in figures)]
    for row in rows:
        rest = {k: v for k, v in row.items() if k != "what" and k not in figures}
        notes = "  ".join(f"{name} {value}" for name, value in rest.items())
        lines.append(
            f"{row['what']:44}"
            + "".join(f"{row.get(name, ''):>8}" for name in figures)
            + "  "
            + notes
        )
    return "\n".join([*lines, *(f"{name:44}{ratio}" for name, ratio in ratios.items())])
