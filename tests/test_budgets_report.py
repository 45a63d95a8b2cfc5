"""The report as a whole: figures, text, JSON and page, of good sessions and of bad ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from budgets import run_report
from budgets.html import to_html
from budgets.html_turns import MAX_TURNS
from budgets.report import Report, build_report
from budgets.report_json import dumps
from budgets.text import to_text
from budgets.tokens import Tokens
from tests.budget_sessions import LOUDNESS, Composer, Exchange, compose
from voicepipe import events as ev
from voicepipe.errors import ComponentError, UsageError

MIXED = [
    Exchange(shift_ms=4),
    Exchange(endpointing=250, eager_ms=150, llm=0, tts=0),
    Exchange(endpointing=1500, reason="timeout"),
    Exchange(endpointing=310, status="interrupted"),
]


def report_of(*directories: Path, **how: Any) -> Report:
    return build_report(directories, detectors=LOUDNESS, **how)


def as_json(report: Report) -> dict[str, Any]:
    """Through text, strictly."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    loaded: dict[str, Any] = json.loads(dumps(report), parse_constant=refuse)
    return loaded


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    composer = Composer()
    composer.add(ev.TurnStarted(t_media_s=0.5, turn=99, text="what", held=True))
    composer.add(ev.TurnResumed(t_media_s=0.7))
    for exchange in MIXED:
        composer.exchange(exchange)
    composer.add(ev.Fault(t_media_s=3, kind="underrun", detail="late"))
    composer.add(ev.Degraded(t_media_s=3, stage="tts", what="a voice", why="late", saved_ms=50))
    composer.add(
        ev.TurnFinished(
            t_media_s=0.8, turn=99, status="superseded", user_text="what", text="a b",
            heard_text="", generated_tokens=10, drafted_tokens=4, accepted_tokens=2,
            prompt_tokens=40,
        )
    )  # fmt: skip
    return composer.write(tmp_path_factory.mktemp("mixed") / "call", stt="whisper:tiny.en")


def test_the_figures_are_those_of_the_sound(mixed: Path) -> None:
    report = report_of(mixed)
    expected = [exchange.perceived_ms for exchange in MIXED]
    assert list(report.perceived.values) == pytest.approx(expected, abs=5)
    assert list(report.content.values) == pytest.approx(expected, abs=5)
    assert report.perceived.n == 4
    assert report.instrument_gap.percentile(95) < 10
    for row in report.turns:
        assert sum(row.ledger.rows_us.values()) == row.ledger.total_us
        assert row.gap is not None
        assert row.ledger.total_ms == pytest.approx(row.gap.perceived_ms, abs=0.001)


def test_a_gap_between_sound_and_events_counts_in_either_direction(tmp_path: Path) -> None:
    shifts = [-40.0, 40.0, -40.0]
    report = report_of(compose(tmp_path / "s", [Exchange(shift_ms=ms) for ms in shifts]))
    assert list(report.instrument_gap.values) == pytest.approx([40, 40, 40], abs=5)
    rows = [row.ledger.rows_ms["unattributed"] for row in report.turns]
    assert rows == pytest.approx(shifts, abs=5)


def test_what_speculation_costs_and_saves(mixed: Path) -> None:
    found = report_of(mixed).speculation
    assert found.eager_turns == 2
    assert found.hit_rate == 0.5
    assert found.saved.values == pytest.approx([120], abs=1)


def test_what_the_language_model_was_given_and_made(mixed: Path) -> None:
    report = report_of(mixed)
    assert report.tokens == Tokens(
        prompt=200, cached=120, generated=50, wasted=10, drafted=4, accepted=2, verify_steps=8
    )
    speculation = as_json(report)["speculation"]
    assert speculation["wasted_token_ratio"] == pytest.approx(10 / 50)
    assert speculation["draft_acceptance_length"] == pytest.approx(10 / 8)
    assert speculation["prefix_hit_rate"] == pytest.approx(120 / 200)
    assert as_json(report)["turns"][0]["tokens"] == {
        "prompt": 40, "cached": 30, "generated": 10, "wasted": 0,
        "drafted": 0, "accepted": 0, "verify_steps": 0,
    }  # fmt: skip
    text = " ".join(to_text(report).split())
    assert "200 prompt (60 % cached), 50 generated (20 % wasted)" in text
    assert "4 drafted (acceptance length 1.25)" in text
    page = Page()
    page.feed(to_html(report))
    assert "prefix hit rate60 %" in page.text
    assert "wasted tokens20 %" in page.text
    assert "acceptance length1.25" in page.text


PERCENTILES = {"n", "p50", "p90", "p95", "p99"}
LATENCY = {*PERCENTILES, "mean", "within_target"}
TOKENS = {"prompt", "cached", "generated", "wasted", "drafted", "accepted", "verify_steps"}
SCHEMA: dict[str, set[str] | None] = {
    "schema": None,
    "target_ms": None,
    "sessions": None,
    "n_turns": None,
    "perceived": LATENCY,
    "content": LATENCY,
    "reported": LATENCY,
    "instrument_gap": PERCENTILES,
    "stages": {"stage", "budget", "over", *PERCENTILES},
    "work": {"stage", "n", "p50", "hidden_p50"},
    "turn_taking": {"turns", "audible_cutoffs", "silent_false_eagers", "missed", "reopened"},
    "speculation": {
        "eager_turns",
        "hit_rate",
        "saved_p50",
        "wasted_token_ratio",
        "draft_acceptance_length",
        "prefix_hit_rate",
    },
    "tokens": TOKENS,
    "barge_in": {"n", "stop_p50", "stop_p95", "false_stops", "backchannels_ignored"},
    "quality": {"wer", "low_confidence_turns", "words_generated", "words_heard", "tts_wer"},
    "degradations": {"stage", "what", "n", "saved_p50"},
    "faults": {"kind", "n"},
    "discards": {"session", "turn", "reason"},
    "losses": None,
    "turns": {
        "session",
        "turn",
        "perceived",
        "content",
        "stages",
        "user",
        "agent_heard",
        "status",
        "eager",
        "cut_off",
        "why_slow",
        "tokens",
    },
    "config": None,
}


def check_schema(written: dict[str, Any]) -> None:
    assert set(written) == set(SCHEMA)
    for key, keys in SCHEMA.items():
        rows = written[key] if isinstance(written[key], list) else [written[key]]
        if keys is not None:
            assert all(set(row) == keys for row in rows), key


def test_the_json_has_the_keys_of_its_schema_and_is_json(mixed: Path) -> None:
    written = as_json(report_of(mixed))
    check_schema(written)
    assert written["schema"] == "voicepipe.report/1"
    assert [row["stage"] for row in written["stages"]] == [
        "endpointing", "stt", "llm", "tts", "playout", "unattributed",
    ]  # fmt: skip
    assert sum(row["budget"] or 0 for row in written["stages"]) == pytest.approx(600)
    assert written["stages"][-1]["budget"] is None
    assert written["turn_taking"]["silent_false_eagers"] == 1
    assert written["faults"] == [{"kind": "underrun", "n": 1}]
    assert written["degradations"][0]["saved_p50"] == 50
    assert written["quality"]["wer"] == 0
    assert written["config"]["stt"] == "whisper:tiny.en"
    for turn in written["turns"]:
        assert sum(turn["stages"].values()) == pytest.approx(turn["perceived"], abs=0.5)


def test_the_text_has_the_cut_offs_beside_every_latency(mixed: Path) -> None:
    text = to_text(report_of(mixed))
    latencies = re.findall(r"^(?:perceived|by events).*$", text, re.MULTILINE)
    assert len(latencies) == 3
    assert all(line.endswith("0 of 4") for line in latencies)
    assert re.search(r"^  2: 1,73\d ms, 1,13\d over", text, re.MULTILINE)
    assert "so the silence timed out" in " ".join(text.split())
    assert "underrun x1" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_caller_who_was_not_done_was_cut_off(tmp_path: Path) -> None:
    composer = Composer()
    composer.exchange(Exchange())
    composer.add(ev.TurnReopened(t_media_s=composer.at_s))
    composer.exchange(Exchange())
    report = report_of(composer.write(tmp_path / "s"))
    assert report.audible_cutoffs == 1
    assert report.reopened == 1
    assert report.perceived.n == 1
    assert as_json(report)["discards"][0]["reason"] == "the caller went on: a cut-off is no answer"


def test_truth_knows_cut_offs_that_the_events_do_not(tmp_path: Path) -> None:
    composer = Composer()
    composer.exchange(Exchange())
    composer.truth[0]["speech_end_s"] = 4.0
    assert report_of(composer.write(tmp_path / "s")).audible_cutoffs == 1


def test_what_nobody_answered_is_missed(tmp_path: Path) -> None:
    composer = Composer()
    composer.exchange(Exchange())
    heard = list(composer.events)
    composer.exchange(Exchange())
    composer.events = heard
    report = report_of(composer.write(tmp_path / "s"))
    assert report.missed == 1
    assert len(report.turns) == 1


def test_several_sessions_are_one_report(tmp_path: Path) -> None:
    compose(tmp_path / "a" / "x", [Exchange()], seed=1, llm="l", odd=[math.nan, {"a": math.inf}])
    compose(tmp_path / "b" / "x", [Exchange(), Exchange()], seed=2, llm="l")
    report = report_of(tmp_path)
    written = as_json(report)
    assert written["sessions"] == 2
    assert written["n_turns"] == 3
    names = {turn["session"] for turn in written["turns"]}
    assert len(names) == 2
    assert written["config"]["llm"] == "l"
    assert [None, {"a": None}] in [own.get("odd") for own in written["config"]["sessions"].values()]
    assert {own["seed"] for own in written["config"]["sessions"].values()} == {1, 2}


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "call.wav").unlink(),
        lambda d: (d / "call.wav").write_bytes(b""),
        lambda d: (d / "config.json").unlink(),
        lambda d: (d / "events.jsonl").write_text(""),
        lambda d: (d / "events.jsonl").write_bytes((d / "events.jsonl").read_bytes()[:1000]),
        lambda d: (d / "call.wav").write_bytes((d / "call.wav").read_bytes()[:60_001]),
        lambda d: (d / "events.jsonl").write_text(
            re.sub(r"_s\": [0-9.]+", '_s": NaN', (d / "events.jsonl").read_text())
        ),
    ],
    ids=["no tape", "empty tape", "no config", "no events", "few events", "short tape", "no times"],
)
def test_a_damaged_session_is_reported_as_far_as_it_goes(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    directory = compose(tmp_path / "s", MIXED)
    damage(directory)
    report = report_of(directory)
    written = as_json(report)
    check_schema(written)
    assert report.perceived.n + len(written["discards"]) == len(report.turns)
    Page().feed(to_html(report))
    assert "budget report: 1 session" in to_text(report)


def test_without_sound_the_events_still_speak(tmp_path: Path) -> None:
    directory = compose(tmp_path / "s", [Exchange(), Exchange()])
    (directory / "call.wav").unlink()
    report = report_of(directory)
    assert report.perceived.n == 0
    assert report.reported.values == pytest.approx([535, 535], abs=0.1)
    assert report.stages[0].spent.n == 2
    assert report.stages[-1].spent.n == 0
    assert "call.wav" in report.losses[0]


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects them."""

    VOID = ("meta", "br", "rect", "line")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_well_formed_and_needs_nothing_else(mixed: Path) -> None:
    html = to_html(report_of(mixed))
    page = Page()
    page.feed(html)
    assert page.open == []
    assert "script" not in page.tags
    assert not re.search(r"(?:src|href)=|url\(|@import", html)
    assert "nan" not in html.replace("finance", "")
    assert page.tags.count("li") >= len(MIXED)
    assert "so the silence timed out" in page.text


EVIL = """<script>alert(1)</script><img src=x onerror="x">'"&amp;\x1b[2J\ud800</style></pre>"""


def test_nothing_a_caller_says_becomes_markup_or_commands_a_terminal(tmp_path: Path) -> None:
    composer = Composer()
    composer.exchange(Exchange(user=EVIL, agent=EVIL, endpointing=900))
    composer.add(ev.Fault(t_media_s=2.5, kind=EVIL, detail=EVIL))
    composer.add(ev.Degraded(t_media_s=2.5, stage=EVIL, what=EVIL, why=EVIL, saved_ms=1))
    directory = composer.write(tmp_path / "s<b>&", **{EVIL: EVIL})
    with (directory / "events.jsonl").open("a") as events:
        events.write(json.dumps({"type": EVIL, "t_media_s": 1}) + "\n")
    text, _ = run_report(
        [directory], detectors=LOUDNESS, html=tmp_path / "r.html", json=tmp_path / "r.json"
    )
    assert "\x1b" not in text
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(html)
    assert page.open == []
    assert not {"script", "img", "b"} & (set(page.tags) - {"b"})
    assert html.count("</style>") == 1
    assert "\x1b" not in html
    assert page.text.count("alert(1)") >= 6
    turn = json.loads((tmp_path / "r.json").read_text())["turns"][0]
    assert turn["user"] == EVIL


def test_a_long_call_shows_its_slowest_turns(tmp_path: Path) -> None:
    composer = Composer()
    for _ in range(MAX_TURNS + 5):
        composer.exchange(Exchange(), recorded=False)
    composer.at_s = 1.0
    report = report_of(composer.write(tmp_path / "s"))
    page = Page()
    page.feed(to_html(report))
    assert f"the {MAX_TURNS} slowest of {MAX_TURNS + 5} turns" in page.text
    assert page.tags.count("li") <= MAX_TURNS + 2


def test_the_command_writes_what_it_is_asked_for(mixed: Path, tmp_path: Path) -> None:
    html, written = tmp_path / "new" / "r.html", tmp_path / "new" / "r.json"
    text, ok = run_report([mixed], detectors=LOUDNESS, html=html, json=written)
    assert ok
    assert text.startswith("budget report: 1 session, 4 turns")
    assert html.read_text().startswith("<!doctype html>")
    check_schema(json.loads(written.read_text()))


def test_another_target_can_be_asked_for(mixed: Path) -> None:
    report = report_of(mixed, target_ms=2_000)
    assert report.target_ms == 2_000
    assert all(row.why_slow == "" for row in report.turns)


def test_errors_are_one_line(mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ComponentError, match="cannot be written") as error:
        run_report([mixed], detectors=LOUDNESS, html=tmp_path / "file" / "r.html")
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="no such directory"):
        run_report([tmp_path / "none"], detectors=LOUDNESS)
    with pytest.raises(UsageError, match="no such directory"):
        run_report([mixed], detectors=LOUDNESS, compare=tmp_path / "none")


def test_a_session_without_turns_has_nothing_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    report = report_of(tmp_path)
    written = as_json(report)
    check_schema(written)
    assert written["perceived"]["n"] == 0
    assert written["perceived"]["p50"] is None
    assert math.isnan(report.perceived.mean)
    page = Page()
    page.feed(to_html(report))
    assert "No turn was completed." in page.text
