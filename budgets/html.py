"""report.html: one file that needs nothing else, no script, light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from budgets import charts
from budgets.compare import Difference, comparison_rows
from budgets.figures import PERCENTILES, Distribution
from budgets.html_cards import cards
from budgets.html_turns import turns_section
from budgets.report import Report
from budgets.text import count, ms, percent, plain

STOP_LIMIT_MS = 300.0
"""A caller who takes the floor should hear the agent stop within this time."""

INSTRUMENT_LIMIT_MS = 15.0
"""Events and sound agree when they are no further apart than this."""


def to_html(report: Report, comparison: Sequence[Difference] = (), gates: str = "") -> str:
    """The page. Everything a caller or a model said is escaped."""
    style = resources.files("budgets").joinpath("report.css").read_text(encoding="utf-8")
    sections = [
        _header(report),
        _losses(report),
        _gates(gates),
        _tiles(report),
        _distribution(report),
        _comparison(comparison),
        _stages(report),
        turns_section(report),
        cards(report),
        _trouble(report),
        _config(report),
    ]
    title = f"{_headline(report)} Budget report"
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n"
        f"<body><main>{''.join(sections)}"
        "<footer>Perceived latency is read from the two tracks of the recording: from the "
        "caller&#8217;s last voiced sample to the first audible sample of the reply. Percentiles "
        "interpolate linearly; with n turns, p99 says little below n = 100.</footer>"
        "</main></body></html>\n"
    )


def words(text: str) -> str:
    """Text from outside, for the page."""
    return escape(plain(text))


def rows_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """`rows` hold HTML; the first column is text, the others numbers."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        '<div class="scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _headline(report: Report) -> str:
    if not report.turns:
        return "No turn was completed."
    if not report.perceived.n:
        return "No turn could be measured."
    p50, p90 = report.perceived.percentile(50), report.perceived.percentile(90)
    return f"Half of the replies began within {ms(p50)} ms, nine of ten within {ms(p90)} ms."


def _header(report: Report) -> str:
    names = ", ".join(words(account.name) for account in report.accounts[:4])
    more = len(report.accounts) - 4
    names += f" and {more} more" if more > 0 else ""
    return (
        '<header><p class="eyebrow">voicepipe budget report</p>'
        f"<h1>{escape(_headline(report))}</h1>"
        f'<p class="soft">{count(report.audible_cutoffs, "audible cut-off")} in '
        f"{count(len(report.turns), 'turn')} of {count(len(report.accounts), 'session')}. "
        f"Target {ms(report.target_ms)} ms.<br>{names}</p></header>"
    )


def _losses(report: Report) -> str:
    if not report.losses:
        return ""
    items = "".join(f"<li>{words(loss)}</li>" for loss in report.losses)
    return (
        '<section class="warning"><h2>Not everything could be read</h2>'
        f'<ul class="plain">{items}</ul></section>'
    )


def _gates(text: str) -> str:
    if not text:
        return ""
    warning = ' class="warning"' if "MISSED" in text else ""
    return f"<section{warning}><h2>Gates</h2><pre>{words(text)}</pre></section>"


def _tiles(report: Report) -> str:
    found, target = report.perceived, report.target_ms
    stops, gap = report.stops, report.instrument_gap
    within = 1.0 - found.share(above=target)
    tiles = [
        *(_ms_tile(f"perceived p{p}", found.percentile(p), target) for p in (50, 90, 95)),
        _tile("within the target", percent(within), ""),
        _tile(
            "audible cut-offs",
            f"{report.audible_cutoffs} <small>of {len(report.turns)}</small>",
            "over" if report.audible_cutoffs else "kept",
        ),
        _ms_tile("barge-in stop p95", stops.percentile(95), STOP_LIMIT_MS),
        _ms_tile("events against sound p95", gap.percentile(95), INSTRUMENT_LIMIT_MS),
        _tile("faults", str(report.faults.total()), "over" if report.faults else "kept"),
    ]
    return f'<section class="tiles">{"".join(tiles)}</section>'


def _ms_tile(name: str, value: float, limit: float) -> str:
    if math.isnan(value):
        return _tile(name, "&ndash;", "")
    return _tile(name, f"{ms(value)} <small>ms</small>", "over" if value > limit else "kept")


def _tile(name: str, value: str, state: str) -> str:
    return f'<div class="tile {state}"><b>{value}</b><span>{name}</span></div>'


def _distribution(report: Report) -> str:
    chart = charts.histogram(report.perceived, report.target_ms) if report.perceived.n else ""
    cutoffs = f"{report.audible_cutoffs} of {len(report.turns)}"

    def row(name: str, figures: Distribution, counted: str = cutoffs) -> list[str]:
        within = percent(1.0 - figures.share(above=report.target_ms)) if counted else ""
        return [name, *_numbers(figures), ms(figures.mean), within, counted]

    table = rows_table(
        ["ms", "n", *(f"p{p}" for p in PERCENTILES), "mean", "in target", "cut-offs"],
        [
            row("onset", report.perceived),
            row("content", report.content),
            row("by events only", report.reported),
            row("events against sound", report.instrument_gap, ""),
        ],
    )
    return (
        "<section><h2>How long callers waited</h2>"
        '<p class="note">From the last voiced sample of the caller to the first audible one of '
        "the reply, read from the sound. <em>Onset</em> is any sound, <em>content</em> the first "
        f"that lasts 400 ms and is no filler.</p>{chart}{table}</section>"
    )


def _numbers(figures: Distribution) -> list[str]:
    return [str(figures.n), *(ms(figures.percentile(p)) for p in PERCENTILES)]


def _comparison(differences: Sequence[Difference]) -> str:
    if not differences:
        return ""
    heads, *rows = comparison_rows(differences)
    return (
        "<section><h2>Against the other sessions</h2>"
        '<p class="note">Change is this less other. Intervals are bootstraps over turns.</p>'
        f"{rows_table(heads, rows)}</section>"
    )


def _stages(report: Report) -> str:
    rows = report.stages
    scale = charts.stages_scale([r.spent for r in rows], [r.budget_ms for r in rows])
    work = {row.stage: row for row in report.work}
    body = []
    for row in rows:
        done = work.get(row.stage)
        budgeted = not math.isnan(row.budget_ms)
        cells = [
            ms(row.budget_ms) if budgeted else "",
            *_numbers(row.spent)[1:],
            percent(row.over) if budgeted else "",
            ms(done.took.percentile(50)) if done else "",
            ms(done.hidden.percentile(50)) if done else "",
        ]
        body.append(
            f'<tr class="{row.stage}"><td><i class="swatch"></i>{row.stage}</td>'
            f'<td class="bar">{charts.budget_bar(row.spent, row.budget_ms, scale)}</td>'
            f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        )
    heads = ["stage", "p50, p95 and budget", "budget", *(f"p{p}" for p in PERCENTILES)]
    heads += ["over", "work p50", "hidden p50"]
    head = "".join(
        f'<th scope="col"{" class=bar" if at == 1 else ""}>{name}</th>'
        for at, name in enumerate(heads)
    )
    return (
        "<section><h2>Where the time went</h2>"
        '<p class="note">Intervals on the critical path; in each turn they sum to the perceived '
        "latency. <em>Work</em> is what a stage really took, <em>hidden</em> the part of it that "
        "ran before the turn was certain and so delayed nobody. <em>Unattributed</em> is what "
        "sound and events differ by.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div></section>"
    )


def _trouble(report: Report) -> str:
    parts = []
    if report.degradations:
        rows = (
            [f"{words(r.stage)}: {words(r.what)}", str(r.n), ms(r.saved.percentile(50))]
            for r in report.degradations
        )
        parts.append(rows_table(["given up to save time", "n", "saved p50, ms"], rows))
    if report.faults:
        faults = sorted(report.faults.items())
        parts.append(rows_table(["fault", "n"], ([words(kind), str(n)] for kind, n in faults)))
    discards = [(account.name, d) for account in report.accounts for d in account.discards]
    if discards:
        rows_ = ([f"{words(name)}, turn {d.turn}: {words(d.reason)}"] for name, d in discards)
        parts.append(rows_table(["discarded from the perceived figures"], rows_))
    body = "".join(parts) or '<p class="soft">No degradation, no fault, no discarded turn.</p>'
    return f"<section><h2>Degradations, faults and discards</h2>{body}</section>"


def _config(report: Report) -> str:
    text = json.dumps(report.config, indent=2, sort_keys=True, default=str, ensure_ascii=False)
    return (
        "<section><details><summary>Effective configuration</summary>"
        f"<pre>{words(text)}</pre></details></section>"
    )
