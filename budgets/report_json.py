"""report.json: schema `voicepipe.report/1`. Keys are only ever added."""

from __future__ import annotations

import json
import math

from budgets.figures import Distribution, share, tenths
from budgets.report import Report, StageRow

SCHEMA = "voicepipe.report/1"


def to_json(report: Report) -> dict[str, object]:
    """JSON-ready; times in ms, null where there is nothing to measure."""
    return {
        "schema": SCHEMA,
        "target_ms": report.target_ms,
        "sessions": len(report.accounts),
        "n_turns": len(report.turns),
        "perceived": _latency(report.perceived, report.target_ms),
        "content": _latency(report.content, report.target_ms),
        "reported": _latency(report.reported, report.target_ms),
        "instrument_gap": report.instrument_gap.to_json(),
        "stages": [_stage(row) for row in report.stages],
        "work": [
            {
                "stage": row.stage,
                "n": row.took.n,
                "p50": tenths(row.took.percentile(50)),
                "hidden_p50": tenths(row.hidden.percentile(50)),
            }
            for row in report.work
        ],
        "turn_taking": {
            "turns": len(report.turns),
            "audible_cutoffs": report.audible_cutoffs,
            "silent_false_eagers": report.silent_false_eagers,
            "missed": report.missed,
            "reopened": report.reopened,
        },
        "speculation": _speculation(report),
        "tokens": report.tokens.to_json(),
        "barge_in": {
            "n": report.stops.n,
            "stop_p50": tenths(report.stops.percentile(50)),
            "stop_p95": tenths(report.stops.percentile(95)),
            "false_stops": report.false_stops,
            "backchannels_ignored": report.backchannels_ignored,
        },
        "quality": _quality(report),
        "degradations": [
            {
                "stage": given_up.stage,
                "what": given_up.what,
                "n": given_up.n,
                "saved_p50": tenths(given_up.saved.percentile(50)),
            }
            for given_up in report.degradations
        ],
        "faults": [{"kind": kind, "n": n} for kind, n in sorted(report.faults.items())],
        "discards": [
            {"session": account.name, "turn": discard.turn, "reason": discard.reason}
            for account in report.accounts
            for discard in account.discards
        ],
        "losses": report.losses,
        "turns": [row.to_json() for row in report.turns],
        "config": report.config,
    }


def dumps(report: Report) -> str:
    """The file's text."""
    return json.dumps(_finite(to_json(report)), indent=2, default=str) + "\n"


def _finite(value: object) -> object:
    """JSON knows no nan, but a configuration that was read may hold some."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _latency(figures: Distribution, target_ms: float) -> dict[str, object]:
    return {
        **figures.to_json(),
        "mean": tenths(figures.mean),
        "within_target": share(1.0 - figures.share(above=target_ms)),
    }


def _stage(row: StageRow) -> dict[str, object]:
    budget_ms = tenths(row.budget_ms)
    return {
        "stage": row.stage,
        "budget": budget_ms,
        **row.spent.to_json(),
        "over": None if budget_ms is None else share(row.over),
    }


def _speculation(report: Report) -> dict[str, object]:
    found = report.speculation
    return {
        "eager_turns": found.eager_turns,
        "hit_rate": share(found.hit_rate),
        "saved_p50": tenths(found.saved.percentile(50)),
        "wasted_token_ratio": share(report.tokens.wasted_ratio),
        "draft_acceptance_length": share(report.tokens.acceptance_length),
        "prefix_hit_rate": share(report.tokens.prefix_hit_rate),
    }


def _quality(report: Report) -> dict[str, object]:
    found = report.quality
    return {
        "wer": share(found.stt.rate),
        "low_confidence_turns": found.low_confidence_turns,
        "words_generated": found.words_generated,
        "words_heard": found.words_heard,
        "tts_wer": share(found.tts.rate),
    }
