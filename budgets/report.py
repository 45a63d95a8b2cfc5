"""The report: what a caller of these sessions heard, and what the milliseconds were spent on."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from pathlib import Path

from budgets.account import Account, account_for
from budgets.critical_path import STAGES, WORK_STAGES
from budgets.figures import Distribution, ratio, tenths
from budgets.ledger import UNATTRIBUTED, Ledger
from budgets.perceived import Detectors, Gap
from budgets.plan import BudgetPlan
from budgets.quality import ListenBack, Quality
from budgets.recording import find_sessions, load
from budgets.tokens import Tokens
from budgets.why import why_slow
from voicepipe import events as ev


def build_report(
    dirs: Sequence[Path],
    *,
    detectors: Detectors,
    target_ms: float | None = None,
    plan: BudgetPlan | None = None,
    listen_back: ListenBack | None = None,
) -> Report:
    """The report of all sessions in `dirs`, each a session directory or one that contains some.

    `target_ms` and `plan` stand in for what the sessions themselves ran with; `listen_back`
    transcribes replies, for the TTS word error rate. Raises UsageError when a directory holds no
    session; damage inside one is reported, not raised.
    """
    found = find_sessions(dirs)
    names = Counter(directory.name for directory in found)
    accounts = []
    for directory in found:
        name = directory.name if names[directory.name] == 1 else str(directory)
        accounts.append(account_for(load(directory, name), detectors, listen_back))
    if plan is None:
        if target_ms is None:
            target_ms = accounts[0].target_ms
        plan = BudgetPlan.of_config(accounts[0].config, target_ms)
    return Report(tuple(accounts), plan)


@dataclass(frozen=True)
class TurnRow:
    """One committed turn in the report."""

    session: str
    ledger: Ledger
    gap: Gap | None
    cut_off: bool
    why_slow: str
    tokens: Tokens

    def to_json(self) -> dict[str, object]:
        ledger = self.ledger
        return {
            "session": self.session,
            "turn": ledger.turn,
            "perceived": None if self.gap is None else tenths(self.gap.perceived_ms),
            "content": None if self.gap is None else tenths(self.gap.content_ms),
            "stages": {stage: tenths(ms) for stage, ms in ledger.rows_ms.items()},
            "user": ledger.user_text,
            "agent_heard": ledger.heard_text,
            "status": ledger.status,
            "eager": ledger.eager,
            "cut_off": self.cut_off,
            "why_slow": self.why_slow,
            "tokens": self.tokens.to_json(),
        }


@dataclass(frozen=True)
class StageRow:
    """One row of budget against actual. `unattributed` has no budget, and its figures are of its
    absolute value: the instrument is to be right in both directions."""

    stage: str
    budget_ms: float
    spent: Distribution

    @property
    def over(self) -> float:
        """Share of the turns that were over the budget."""
        return self.spent.share(above=self.budget_ms)


@dataclass(frozen=True)
class WorkRow:
    """What a stage really took, hidden or not."""

    stage: str
    took: Distribution
    hidden: Distribution


@dataclass(frozen=True)
class GivenUp:
    """What the budget controller gave up at one stage, and the time it saved."""

    stage: str
    what: str
    n: int
    saved: Distribution


@dataclass(frozen=True)
class Speculation:
    """What starting before the end of the turn was certain has brought and cost."""

    eager_turns: int
    hit_rate: float
    saved: Distribution


@dataclass(frozen=True)
class Report:
    """Figures over all turns of some sessions. Everything in `to_json` is derived from here."""

    accounts: tuple[Account, ...]
    plan: BudgetPlan

    @property
    def target_ms(self) -> float:
        return self.plan.target_ms

    @cached_property
    def turns(self) -> list[TurnRow]:
        rows = []
        for account in self.accounts:
            finished = [e for e in account.events if isinstance(e, ev.TurnFinished)]
            tokens = {e.turn: Tokens.of([e]) for e in finished}
            mishaps = [e for e in account.events if isinstance(e, ev.Fault | ev.Degraded)]
            for ledger in account.ledgers:
                gap = account.gaps.get(ledger.turn)
                cut_off = ledger.turn in account.cut_off
                why = why_slow(ledger, self.plan, mishaps)
                took = tokens.get(ledger.turn, Tokens())
                rows.append(TurnRow(account.name, ledger, gap, cut_off, why, took))
        return rows

    @cached_property
    def perceived(self) -> Distribution:
        return Distribution.of(gap.perceived_ms for gap in self._gaps)

    @cached_property
    def content(self) -> Distribution:
        return Distribution.of(gap.content_ms for gap in self._gaps)

    @cached_property
    def reported(self) -> Distribution:
        """What the events alone would have it be, of the same turns; of all turns that were
        answered when there is no sound to measure at all."""
        rows = [row for row in self.turns if row.gap is not None or not self.perceived.n]
        return Distribution.of(
            sum(row.ledger.rows_ms[stage] for stage in STAGES) for row in rows if row.ledger.rows_us
        )

    @cached_property
    def instrument_gap(self) -> Distribution:
        """How far events and sound are apart, in either direction."""
        rows = (row.ledger.rows_ms for row in self.turns if row.gap is not None)
        return Distribution.of(abs(row[UNATTRIBUTED]) for row in rows)

    @property
    def _gaps(self) -> Iterator[Gap]:
        return (row.gap for row in self.turns if row.gap is not None)

    @cached_property
    def stages(self) -> list[StageRow]:
        """Of the measured turns, so that they explain the perceived figures; of all turns that
        were answered when none is measured."""
        measured = [row.ledger.rows_ms for row in self.turns if row.gap is not None]
        rows = measured or [row.ledger.rows_ms for row in self.turns if row.ledger.rows_us]
        table = [
            StageRow(stage, self.plan.stage_ms[stage], Distribution.of(row[stage] for row in rows))
            for stage in STAGES
        ]
        return [*table, StageRow(UNATTRIBUTED, math.nan, self.instrument_gap)]

    @cached_property
    def work(self) -> list[WorkRow]:
        done = {
            stage: [row.ledger.work[stage] for row in self.turns if stage in row.ledger.work]
            for stage in WORK_STAGES
        }
        return [
            WorkRow(
                stage,
                Distribution.of(work.took_ms for work in done[stage]),
                Distribution.of(work.hidden_ms for work in done[stage]),
            )
            for stage in WORK_STAGES
        ]

    @cached_property
    def audible_cutoffs(self) -> int:
        return sum(row.cut_off for row in self.turns)

    @cached_property
    def silent_false_eagers(self) -> int:
        return self._count(ev.TurnResumed)

    @cached_property
    def reopened(self) -> int:
        return self._count(ev.TurnReopened)

    @cached_property
    def missed(self) -> int:
        return sum(account.missed for account in self.accounts)

    @cached_property
    def speculation(self) -> Speculation:
        n_eager = sum(isinstance(e, ev.TurnStarted) and e.held for e in self._events)
        eager = [row.ledger for row in self.turns if row.ledger.eager]
        return Speculation(
            eager_turns=n_eager,
            hit_rate=ratio(len(eager), n_eager),
            saved=Distribution.of(ledger.saved_ms for ledger in eager),
        )

    @cached_property
    def tokens(self) -> Tokens:
        """Of all replies, wanted or not."""
        return Tokens.of(e for e in self._events if isinstance(e, ev.TurnFinished))

    @cached_property
    def stops(self) -> Distribution:
        """Of barge-ins that meant it."""
        return Distribution.of(
            stop.stop_ms
            for account in self.accounts
            for stop in account.overlaps.stops
            if not stop.false
        )

    @cached_property
    def false_stops(self) -> int:
        found = (account.overlaps for account in self.accounts)
        return sum(sum(s.false for s in o.stops) + o.backchannels_obeyed for o in found)

    @cached_property
    def backchannels_ignored(self) -> int:
        return sum(account.overlaps.backchannels_ignored for account in self.accounts)

    @cached_property
    def quality(self) -> Quality:
        return reduce(add, (account.quality for account in self.accounts), Quality())

    @cached_property
    def degradations(self) -> list[GivenUp]:
        saved: dict[tuple[str, str], list[float]] = defaultdict(list)
        for event in self._events:
            if isinstance(event, ev.Degraded):
                saved[event.stage, event.what].append(event.saved_ms)
        return [
            GivenUp(stage, what, len(ms), Distribution.of(ms))
            for (stage, what), ms in sorted(saved.items())
        ]

    @cached_property
    def faults(self) -> Counter[str]:
        return Counter(e.kind for e in self._events if isinstance(e, ev.Fault))

    @cached_property
    def losses(self) -> list[str]:
        """What could not be read, one line each."""
        several = len(self.accounts) > 1
        return [
            f"{account.name}: {loss}" if several else loss
            for account in self.accounts
            for loss in account.losses
        ]

    @property
    def config(self) -> dict[str, object]:
        """What all sessions have in common, and below `sessions` what each has for itself."""
        configs = {account.name: dict(account.config) for account in self.accounts}
        first, *others = configs.values()
        common = {k: v for k, v in first.items() if all(k in o and o[k] == v for o in others)}
        if not others:
            return common
        own = {
            name: {k: v for k, v in config.items() if k not in common}
            for name, config in configs.items()
        }
        return {**common, "sessions": own}

    @property
    def _events(self) -> Iterator[ev.Event]:
        return (event for account in self.accounts for event in account.events)

    def _count(self, kind: type[ev.Event]) -> int:
        return sum(isinstance(event, kind) for event in self._events)
