"""The turn-by-turn part of report.html: a waterfall, what was said, and why it was slow."""

from __future__ import annotations

from html import escape

from budgets import charts
from budgets.critical_path import STAGES
from budgets.ledger import UNATTRIBUTED
from budgets.report import Report, TurnRow
from budgets.text import ms, plain

MAX_TURNS = 300
"""More would make a page that no browser likes; the slowest are shown."""


def turns_section(report: Report) -> str:
    """Every turn that has a ledger, in order - of a long call, the slowest."""
    if not report.turns:
        return ""
    shown = report.turns
    note = ""
    if len(shown) > MAX_TURNS:
        slowest = sorted(shown, key=lambda row: -(row.ledger.total_us))[:MAX_TURNS]
        chosen = {id(row) for row in slowest}
        shown = [row for row in shown if id(row) in chosen]
        note = f" These are the {MAX_TURNS} slowest of {len(report.turns)} turns."
    scale = charts.waterfall_scale((row.ledger for row in shown), report.target_ms)
    reasons = {
        (account.name, discard.turn): discard.reason
        for account in report.accounts
        for discard in account.discards
    }
    items, session = [], report.accounts[0].name if len(report.accounts) == 1 else ""
    for row in shown:
        if row.session != session:
            session = row.session
            items.append(f'<li class="session">{_words(session)}</li>')
        reason = reasons.get((row.session, row.ledger.turn), "")
        items.append(_turn(row, report.target_ms, scale, reason))
    swatches = "".join(
        f'<span class="{stage}"><i class="swatch"></i>{stage}</span>'
        for stage in (*STAGES, UNATTRIBUTED)
    )
    return (
        "<section><h2>Turn by turn</h2>"
        '<p class="note">Zero is the caller&#8217;s last voiced sample, the blue line the target. '
        "The thin bars show when STT, language model and TTS really worked, hidden or not."
        f'{note}</p><div class="legend">{swatches}</div>'
        f'<ol class="turns">{"".join(items)}<li class="axis-row">{charts.axis(scale)}</li></ol>'
        "</section>"
    )


def _turn(row: TurnRow, target_ms: float, scale: charts.Scale, reason: str) -> str:
    ledger = row.ledger
    drawing = charts.waterfall(ledger, target_ms, scale) if ledger.rows_us else ""
    why = f'<p class="why">{_words(row.why_slow)}</p>' if row.why_slow else ""
    if reason:
        why += f'<p class="why">Not measured: {_words(reason)}.</p>'
    heard = _words(ledger.heard_text.strip())
    reply = f'<p class="reply">{heard}</p>' if heard else ""
    measured = "" if row.gap is not None else ' class="unmeasured"'
    return (
        f'<li{measured}><div class="number">turn {ledger.turn}</div>'
        f'<div class="body"><p class="said"><q>{_words(ledger.user_text.strip())}</q>'
        f"{_tags(row)}</p>{drawing}{reply}{why}</div>{_total(row, target_ms)}</li>"
    )


def _total(row: TurnRow, target_ms: float) -> str:
    """The measured figure, or the one of the events, marked as such."""
    if row.gap is not None:
        value, unit = row.gap.perceived_ms, "ms"
    elif row.ledger.rows_us:
        value, unit = row.ledger.total_ms, "ms by&nbsp;events"
    else:
        return '<div class="total"><small>not heard</small></div>'
    over = " over" if value > target_ms else ""
    return f'<div class="total{over}">{ms(value)} <small>{unit}</small></div>'


def _tags(row: TurnRow) -> str:
    tags = []
    if row.cut_off:
        tags.append('<span class="tag bad">cut-off</span>')
    if row.ledger.status in ("failed", "interrupted", "superseded"):
        bad = " bad" if row.ledger.status == "failed" else ""
        tags.append(f'<span class="tag{bad}">{row.ledger.status}</span>')
    if row.ledger.eager:
        tags.append(f'<span class="tag">prepared early, saved {ms(row.ledger.saved_ms)} ms</span>')
    return "".join(tags)


def _words(text: str) -> str:
    return escape(plain(text))
