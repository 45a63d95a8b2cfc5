"""Latency is a budget: what a turn may take, what it took, and what the caller heard of it."""

from budgets.command import run_report
from budgets.ledger import Ledger, TurnLedgers, ledgers_of
from budgets.perceived import Detectors, Gap, find_gaps, measure_sides
from budgets.plan import BudgetPlan
from budgets.report import Report, build_report
from budgets.tape import Tape, Track, read_tape

__all__ = [
    "BudgetPlan",
    "Detectors",
    "Gap",
    "Ledger",
    "Report",
    "Tape",
    "Track",
    "TurnLedgers",
    "build_report",
    "find_gaps",
    "ledgers_of",
    "measure_sides",
    "read_tape",
    "run_report",
]
