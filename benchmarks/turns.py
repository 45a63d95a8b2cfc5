"""Taking turns: how often callers are cut off, at what wait; and what happens when they speak over
the agent. `voicepipe bench turns`.

First eot-bench's protocol (benchmarks/eot_bench.py) for a silence timer, Smart Turn alone and our
score of sound, words and silence: settings chosen on one half of the turns, figures from the other.
Then the whole machine as configured, real voice detection and model included, each recorded turn
in simulated time around an STT and a reply of the speeds below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks import eot_bench
from benchmarks.document import Row, publish, row
from benchmarks.eot_bench import Detector, Outcome, Setting
from benchmarks.rehearsal import Heard, Rehearsal, Speeds
from benchmarks.turn_corpus import Clip, Ears, Pause, by_clip, clips, frames
from turn_detection import Endpointing, EndScore, PauseConfig
from turn_detection.caller_turn import without_prefix
from turn_detection.log_mel import log_mel
from turn_detection.wording import ending
from voicepipe import events as ev
from voicepipe.clock import process_time_s
from voicepipe.frames import CALLER_RATE_HZ, Pcm

BUDGETS_S = (0.3, 0.6)
RATES = (0.05, 0.10)

TURN_KINDS = ("question", "request", "short", "pause", "human")
SPEEDS = Speeds(stt_s=0.2, interim_s=math.inf, score_s=0.12, reply_s=0.35, speaking_s=4.0)
"""Of a 2-core machine: an STT's tail, a score, and a reply from its text to its first sound."""

TIMER = "silence timer"
OURS = "voicepipe"

N_SCORES = 20

OVER_AGENT_S = 1.5
"""How far into a reply the caller speaks over it."""

LONG_REPLY_S = 8.0
INTERIM_S = 0.1
"""From the moment of an interim transcript until it is there."""

INTERIMS_S = (0.3, 0.2)


def run(json_file: Path | None = None) -> str:
    """Measure, write `json_file` when one is given, return the table."""
    ears = Ears.load()
    recorded = clips()
    answered = [clip for clip in recorded if clip.kind in TURN_KINDS]
    turns = [pause for clip in answered for pause in ears.pauses(clip)]
    rows, ratios = _protocol(turns)
    rows += _whole_turns(ears, by_clip(turns))
    for interim_s in INTERIMS_S:
        rows += _over_agent(ears, recorded, interim_s)
    rows += _compute(ears, recorded[0])
    config = {"speeds": asdict(SPEEDS) | {"interim_s": None}, "turn_kinds": TURN_KINDS}
    table = publish("turns", config, rows, ratios, json_file)
    return f"{table}\n\n{_notes(rows)}"


# -- eot-bench -----------------------------------------------------------------------------------


def _detectors() -> tuple[Detector, ...]:
    weigh = EndScore()

    def p_audio(pause: Pause, silence_s: float) -> float:
        nth = round(silence_s / 0.1) - 1
        return pause.p_audio[min(nth, len(pause.p_audio) - 1)]

    def q(pause: Pause, silence_s: float) -> float:
        return weigh.probability(p_audio(pause, silence_s), silence_s, ending(pause.text))

    pause = PauseConfig()
    configured = Setting(pause.commit_from, pause.first_score_s, pause.longest_unfinished_s)
    sweep = eot_bench.settings()
    return (
        eot_bench.timer(TIMER),
        Detector("smart turn", p_audio, sweep),
        Detector(OURS, q, sweep),
        Detector(f"{OURS} as configured", q, (configured,)),
    )


def _protocol(pauses: Sequence[Pause]) -> tuple[list[Row], dict[str, float | None]]:
    names = sorted({pause.clip.name for pause in pauses})
    tuning = [pause for pause in pauses if names.index(pause.clip.name) % 2 == 0]
    held_out = [pause for pause in pauses if names.index(pause.clip.name) % 2 == 1]
    rows: list[Row] = []
    cut_off: dict[str, float] = {}
    for detector in _detectors():
        tuned, tested = (eot_bench.judge(detector, half) for half in (tuning, held_out))
        for what, setting in _chosen(detector, tuned):
            cut_off[what] = float(tested.cut_off_rate[setting])
            rows.append(_protocol_row(what, tested, setting))
    ratios = {
        f"cutoffs_{budget_s * 1000:.0f}_vs_timer": _ratio(
            cut_off.get(_within(OURS, budget_s)), cut_off.get(_within(TIMER, budget_s))
        )
        for budget_s in BUDGETS_S
    }
    return rows, ratios


def _chosen(detector: Detector, tuned: Outcome) -> Iterator[tuple[str, int]]:
    """Settings to report, with what they were chosen for."""
    if len(detector.settings) == 1:
        yield detector.name, 0
        return
    for budget_s in BUDGETS_S:
        setting = eot_bench.best_within(tuned, budget_s)
        if setting is not None:
            yield _within(detector.name, budget_s), setting
    for rate in RATES:
        setting = eot_bench.fastest_within(tuned, rate)
        if setting is not None:
            yield f"{detector.name}, <= {rate:.0%} of pauses cut off", setting


def _within(name: str, budget_s: float) -> str:
    return f"{name}, <= {budget_s * 1000:.0f} ms mean wait"


def _protocol_row(what: str, outcome: Outcome, setting: int) -> Row:
    low, high = eot_bench.interval(outcome, setting)
    return row(f"{what}, ms", list(outcome.wait_s[setting] * 1000)) | {
        "mean": round(float(outcome.wait_s[setting].mean()) * 1000),
        "p99": round(float(np.percentile(outcome.wait_s[setting], 99)) * 1000),
        "cut_off_per_pause": round(float(outcome.cut_off_rate[setting]), 3),
        "cut_off_95": [round(low, 3), round(high, 3)],
        "cut_off_per_turn": round(outcome.per_turn(setting), 3),
    }


# -- the whole machine ---------------------------------------------------------------------------


def _rehearse(samples: Pcm, rehearsal: Rehearsal) -> Rehearsal:
    """The call, to its end."""
    for frame in frames(samples):
        rehearsal.hear(frame)
    rehearsal.hang_up()
    return rehearsal


def _whole_turns(ears: Ears, turns: dict[str, list[Pause]]) -> list[Row]:
    perceived_ms: list[float] = []
    lead_ms: list[float] = []
    n_cut_off = n_resumed = n_eager = 0
    for pauses in turns.values():
        clip = pauses[0].clip
        call = _rehearse(clip.samples, _answering(ears, pauses))
        starts_s = [start_s for start_s, _ in call.sounds_s]
        n_cut_off += sum(start_s < clip.speech_end_s for start_s in starts_s)
        perceived_ms += [(s - clip.speech_end_s) * 1000 for s in starts_s[-1:]]
        eager = [e for e in call.events if isinstance(e, ev.EagerEndOfTurn)]
        n_eager += len(eager)
        n_resumed += sum(isinstance(e, ev.TurnResumed) for e in call.events)
        ends = [e for e in call.events if isinstance(e, ev.EndOfTurn)]
        lead_ms += [(e.t_media_s - eager[-1].t_media_s) * 1000 for e in ends[-1:] if eager]
    return [
        row("whole machine, perceived, ms", perceived_ms)
        | {
            "audible_cut_offs_per_turn": round(n_cut_off / len(turns), 3),
            "silent_false_eagers_per_turn": round(n_resumed / len(turns), 3),
            "eager_hit_rate": round(1 - n_resumed / max(1, n_eager), 3),
        },
        row("whole machine, eager lead, ms", lead_ms),
    ]


def _answering(ears: Ears, pauses: Sequence[Pause]) -> Rehearsal:
    """One recorded turn, to be answered when it is over."""

    def understood(from_s: float, to_s: float) -> Heard:
        def upto(t_s: float) -> str:
            known = [pause.text for pause in pauses if pause.start_s <= t_s + 0.05]
            return known[-1] if known else ""

        return Heard(without_prefix(upto(to_s), upto(from_s)))

    detector = Endpointing(ears.smart_turn, vad=ears.vad).open()
    score = ears.smart_turn.probability
    return Rehearsal(detector, understood, lambda r: score(r.samples), SPEEDS)


def _over_agent(ears: Ears, recorded: Sequence[Clip], interim_s: float) -> list[Row]:
    """Barge-ins and backchannels over a reply, with interim transcripts that often."""
    silent_ms: list[float] = []
    given_up_ms: list[float] = []
    paused_ms: list[float] = []
    n_resumed = n_interrupted = 0
    for clip in recorded:
        if clip.kind not in ("backchannel", "bargein"):
            continue
        call = _talked_over(ears, clip, interim_s)
        began_s = clip.speech_start_s + OVER_AGENT_S
        barged_s = [e.t_loop_s for e in call.events if isinstance(e, ev.BargeIn) and e.text]
        if clip.kind == "bargein":
            silent_ms.append((call.sounds_s[0][1] - began_s) * 1000)
            given_up_ms += [(barge_s - began_s) * 1000 for barge_s in barged_s]
        else:
            gaps = [again - end for (_, end), (again, _) in pairwise(call.sounds_s)]
            paused_ms.append(sum(gaps) * 1000)
            n_interrupted += bool(barged_s)
            n_resumed += any(isinstance(e, ev.AgentResumed) for e in call.events)
    every = f"interims every {interim_s * 1000:.0f} ms"
    return [
        row(f"barge-in to silence, {every}", silent_ms),
        row(f"barge-in to giving up, {every}", given_up_ms),
        row(f"pause for a backchannel, {every}", paused_ms)
        | {"interrupted": n_interrupted, "taken_for_barge_in_first": n_resumed},
    ]


def _talked_over(ears: Ears, clip: Clip, interim_s: float) -> Rehearsal:
    before = np.zeros(round(OVER_AGENT_S * CALLER_RATE_HZ), np.int16)
    samples = np.concatenate([before, clip.samples])
    heard = samples.astype(np.float32) / np.float32(32768)

    def understood(from_s: float, to_s: float) -> Heard:
        start = max(len(before), round(from_s * CALLER_RATE_HZ))
        return ears.hear(heard[start : round(to_s * CALLER_RATE_HZ)])

    speeds = replace(SPEEDS, interim_s=interim_s, stt_s=INTERIM_S, speaking_s=LONG_REPLY_S)
    detector = Endpointing(None, vad=ears.vad).open()
    call = Rehearsal(detector, understood, speeds=speeds)
    call.begin_reply()
    return _rehearse(samples, call)


def _compute(ears: Ears, clip: Clip) -> list[Row]:
    """What one frame costs, all voice detectors together, and one score."""
    detector = Endpointing(None, vad=ears.vad).open()
    hear_ms = [_timed_ms(partial(detector.hear, frame)) for frame in frames(clip.samples)]
    samples = clip.samples.astype(np.float32) / np.float32(32768)
    score_ms = [_timed_ms(partial(ears.smart_turn.probability, samples)) for _ in range(N_SCORES)]
    features_ms = [_timed_ms(partial(log_mel, samples)) for _ in range(N_SCORES)]
    return [
        row("a 10 ms frame, ms", hear_ms),
        row("features of 8 s, ms", features_ms),
        row("a score, ms", score_ms),
    ]


def _timed_ms(work: Callable[[], object]) -> float:
    start_s = process_time_s()
    work()
    return (process_time_s() - start_s) * 1000


# -- what comes out ------------------------------------------------------------------------------


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else round(ours / theirs, 3)


def _notes(rows: Sequence[Row]) -> str:
    """What a row has beside its percentiles."""
    usual = {"what", "n", "p50", "p90", "p95"}
    lines = []
    for line in rows:
        rest = ", ".join(f"{name} {value}" for name, value in line.items() if name not in usual)
        lines += [f"{line['what']}: {rest}"] if rest else []
    return "\n".join(lines)
