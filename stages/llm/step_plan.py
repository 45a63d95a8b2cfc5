"""What a step has to do, flattened from ragged rows into the lists that the layers walk.

Pure: from slots and runs to numbers; the layers do the arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stages.llm.attention import Seen
from voicepipe.errors import UsageError

Runs = Sequence[tuple[int, int]]

MAX_RUNS = 6
"""A sequence in more pieces than this is gathered into one: two products a piece cost more."""

MIN_SHARED = 16
"""Fewer tokens are not worth products of their own."""

NO_GATHER = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Some consecutive tokens of one sequence in a step.

    `ids` are the tokens, the first of them at `position`; `slots` is where their keys and values
    go. `runs` are (first slot, number of tokens) of all tokens up to and including these, in order
    of position. Scores are wanted after the last `n_logits` of the rows.
    """

    ids: Sequence[int]
    position: int
    slots: Sequence[int]
    runs: Runs
    n_logits: int = 1

    def check(self, n_positions: int) -> None:
        """Raises UsageError when the numbers do not fit together, or into `n_positions`."""
        n, end = len(self.ids), self.position + len(self.ids)
        n_tokens = sum(length for _, length in self.runs)
        if not n or len(self.slots) != n or not 0 <= self.n_logits <= n:
            raise UsageError(
                f"a step of {n} tokens with {len(self.slots)} slots and {self.n_logits} logits"
            )
        if n_tokens != end:
            raise UsageError(
                f"{n} tokens at position {self.position} attend to runs of {n_tokens} tokens"
            )
        if end > n_positions:
            raise UsageError(
                f"a sequence of {end} tokens in a model loaded for {n_positions} positions"
            )


@dataclass(frozen=True, slots=True)
class Spans:
    """What rows attend to, in one kind of layer. Scores are a table: a line for each row, and for
    each token that it sees a column, in order of position."""

    segments: list[list[int]]
    """[first row, rows, first slot, tokens, first column]: these rows see these tokens. Rows of
    several sequences see in common what their sequences share."""
    gathers: list[torch.Tensor]
    """For each segment its slots one by one, where they are in too many pieces; else empty."""
    masked: list[list[int]]
    """[first row, first column] of each mask."""
    masks: list[torch.Tensor]
    """What is added to the scores of a sequence with several rows; see `causal_mask`."""
    n_rows: int

    @property
    def seen(self) -> Seen:
        """For TorchScript, which knows no dataclasses."""
        return self.segments, self.gathers, self.masked, self.masks, self.n_rows


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step over the rows of all sequences, one after the other."""

    ids: torch.Tensor
    position: int
    """Of the first row where the rows are consecutive, else -1: see `positions`."""
    positions: torch.Tensor
    first_slot: int
    """Of the rows where their slots are consecutive, else -1: see `slots`."""
    slots: torch.Tensor
    everything: Spans
    window: Spans
    """For sliding layers; `everything` itself where none is."""
    wanted: list[int]
    """Rows after which scores are wanted, in order."""


def plan_step(batch: Sequence[Rows], *, window: int, dtype: torch.dtype) -> StepPlan:
    """The plan of a step; `window` is that of the model's sliding layers, 0 if it has none."""
    ids = [token for rows in batch for token in rows.ids]
    slots = [slot for rows in batch for slot in rows.slots]
    is_one = len(batch) == 1
    first_slot = slots[0] if _consecutive(slots) else -1
    positions = [rows.position + n for rows in batch for n in range(len(rows.ids))]
    everything = _spans(batch, 0, dtype)
    beyond = window and any(rows.position + len(rows.ids) > window for rows in batch)
    return StepPlan(
        ids=torch.tensor(ids),
        position=batch[0].position if is_one else -1,
        positions=torch.tensor(() if is_one else positions, dtype=torch.int64),
        first_slot=first_slot,
        slots=torch.tensor(() if first_slot >= 0 else slots, dtype=torch.int64),
        everything=everything,
        window=_spans(batch, window, dtype) if beyond else everything,
        wanted=wanted_rows(batch),
    )


def last_tokens(runs: Runs, n: int) -> list[tuple[int, int]]:
    """The runs of the last `n` tokens of `runs`."""
    kept: list[tuple[int, int]] = []
    for first, length in reversed(runs):
        if n <= 0:
            break
        taken = min(length, n)
        kept.append((first + length - taken, taken))
        n -= taken
    return kept[::-1]


@functools.lru_cache(maxsize=512)
def causal_mask(n_rows: int, n_tokens: int, window: int, dtype: torch.dtype) -> torch.Tensor:
    """[n_rows, n_tokens]: 0 where row r may see token t, else -inf. The rows are the last of the
    tokens; each sees itself and what is before, `window` tokens in all if that is not 0."""
    row = torch.arange(n_tokens - n_rows, n_tokens)[:, None]
    token = torch.arange(n_tokens)
    hidden = token > row
    if window:
        hidden |= token <= row - window
    return torch.zeros(n_rows, n_tokens, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _spans(batch: Sequence[Rows], window: int, dtype: torch.dtype) -> Spans:
    shared = 0 if window else _n_shared(batch)
    n_all = sum(len(rows.ids) for rows in batch)
    spans = Spans([], [], [], [], n_all)
    if shared:
        _add(spans, 0, n_all, [(batch[0].runs[0][0], shared)], 0)
    row = 0
    for rows in batch:
        n = len(rows.ids)
        n_tokens = rows.position + n
        if window:
            n_tokens = min(n_tokens, window + n - 1)
        runs = last_tokens(rows.runs, n_tokens - shared)
        _add(spans, row, n, runs, shared)
        if n > 1:
            is_cut = window and n_tokens > window
            n_masked = n_tokens if is_cut else n
            spans.masked.append([row, n_tokens - n_masked])
            spans.masks.append(causal_mask(n, n_masked, window if is_cut else 0, dtype))
        row += n
    return spans


def _add(spans: Spans, row: int, n: int, runs: Runs, column: int) -> None:
    """`n` rows from `row` see `runs`."""
    n_tokens = sum(length for _, length in runs)
    if len(runs) > MAX_RUNS:
        spans.segments.append([row, n, 0, n_tokens, column])
        spans.gathers.append(torch.tensor(_slots(runs)))
        return
    for first, length in runs:
        spans.segments.append([row, n, first, length, column])
        spans.gathers.append(NO_GATHER)
        column += length


def _n_shared(batch: Sequence[Rows]) -> int:
    """How many tokens all sequences share, from the start and in one run; 0 for too few to matter.
    Some of their own are left to each."""
    first = batch[0].runs[0][0]
    if len(batch) == 1 or any(rows.runs[0][0] != first for rows in batch):
        return 0
    shared = min(min(rows.runs[0][1], rows.position) for rows in batch)
    return shared if shared >= MIN_SHARED else 0


def _slots(runs: Runs) -> list[int]:
    return [slot for first, length in runs for slot in range(first, first + length)]


def wanted_rows(batch: Sequence[Rows]) -> list[int]:
    """The rows of the step after which scores are wanted, in order."""
    wanted: list[int] = []
    end = 0
    for rows in batch:
        end += len(rows.ids)
        wanted += range(end - rows.n_logits, end)
    return wanted


def _consecutive(slots: Sequence[int]) -> bool:
    return slots[-1] - slots[0] == len(slots) - 1 and all(
        slot == slots[0] + n for n, slot in enumerate(slots)
    )
