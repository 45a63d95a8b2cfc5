"""One sentence for a slow turn that says why."""

from __future__ import annotations

import math
from collections.abc import Sequence

from budgets.critical_path import STAGES
from budgets.ledger import UNATTRIBUTED, Ledger
from budgets.plan import BudgetPlan
from voicepipe import events as ev

NOTABLE_MS = 30.0
"""A stage this little over its budget explains nothing."""

INSTRUMENT_MS = 50.0
"""A difference between sound and events beyond this is worth a word."""


def why_slow(
    ledger: Ledger, plan: BudgetPlan, mishaps: Sequence[ev.Fault | ev.Degraded] = ()
) -> str:
    """Why the turn took longer than the target, "" when it did not. Of the session's `mishaps`,
    those between the caller's last word and the reply are told."""
    over_ms = ledger.total_ms - plan.target_ms
    if math.isnan(over_ms) or over_ms <= 0:
        return ""
    rows = ledger.rows_ms
    excess_ms = {stage: rows.get(stage, 0.0) - plan.stage_ms[stage] for stage in STAGES}
    causes = sorted(excess_ms, key=lambda stage: -excess_ms[stage])
    told = [stage for stage in causes if excess_ms[stage] > NOTABLE_MS][:2] or causes[:1]
    reasons = [_reason(ledger, stage, plan.stage_ms[stage]) for stage in told]
    if abs(rows.get(UNATTRIBUTED, 0.0)) > INSTRUMENT_MS:
        ms = rows[UNATTRIBUTED]
        reasons.append(f"the sound shows {abs(ms):.0f} ms {'more' if ms > 0 else 'less'} than this")
    reasons += _told(ledger, mishaps)
    return f"{ledger.total_ms:,.0f} ms, {over_ms:,.0f} over the target: {'; '.join(reasons)}."


def _reason(ledger: Ledger, stage: str, budget_ms: float) -> str:
    row_ms = ledger.rows_ms[stage]
    spent = f"{stage} took {row_ms:,.0f} ms where {budget_ms:,.0f} are planned"
    work = ledger.work.get(stage)
    match stage:
        case "endpointing" if ledger.reason == "timeout":
            why = "the model was not sure that the caller was done, so the silence timed out"
        case "endpointing":
            why = "it was not certain any sooner that the caller was done"
        case "stt":
            why = "the decision waited for the final text"
        case "llm" | "tts" if not ledger.eager and ledger.n_dropped:
            why = "what was prepared answered other words and was dropped"
        case "llm" | "tts" if not ledger.eager:
            why = "nothing was prepared before the turn ended"
        case "llm" | "tts" if work is not None:
            what = "the first phrase" if stage == "llm" else "its sound"
            why = f"{what} took {work.took_ms:.0f} ms and began too late to be hidden"
        case _:
            why = "sound that was ready waited to be played"
    return f"{spent} ({why})"


def _told(ledger: Ledger, mishaps: Sequence[ev.Fault | ev.Degraded]) -> list[str]:
    told: list[str] = []
    for event in mishaps:
        if not ledger.speech_end_s <= event.t_loop_s <= ledger.first_audio_s:
            continue
        if isinstance(event, ev.Fault):
            told.append(f"fault {event.kind} on the way")
        else:
            told.append(f"{event.stage} gave up {event.what} to save {event.saved_ms:.0f} ms")
    return list(dict.fromkeys(told))
