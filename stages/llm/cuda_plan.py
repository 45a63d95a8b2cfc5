"""Steps in few shapes, so that each can be captured once and replayed: rows and contexts padded.

Pure: from ragged rows to the numbers in a graph's input buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stages.llm.step_plan import Rows

ROW_BUCKETS = (1, 2, 4, 8, 16, 32)
"""Rows of a captured step; larger steps (prompts) are not captured, their launches cost little."""

FIRST_CONTEXT = 256
"""The shortest captured context; each longer one is twice as long."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A captured step: this many rows, each over this many tokens."""

    n_rows: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """What a captured step reads, int64: `row_inputs` [4, n_rows] (token, position, slot, number of
    tokens that the row sees) and `table` [n_rows, n_tokens], the slots of those tokens in order of
    position. Rows and tokens that are only padding are at the scratch slot."""

    row_inputs: torch.Tensor
    table: torch.Tensor


def contexts(n_positions: int) -> list[int]:
    """The captured contexts of a model for up to `n_positions` tokens."""
    lengths = [min(FIRST_CONTEXT, n_positions)]
    while lengths[-1] < n_positions:
        lengths.append(min(2 * lengths[-1], n_positions))
    return lengths


def shape_of(batch: Sequence[Rows], n_positions: int) -> Shape | None:
    """The smallest captured shape that `batch` fits into; None when it has too many rows."""
    n_rows = sum(len(rows.ids) for rows in batch)
    longest = max(rows.position + len(rows.ids) for rows in batch)
    bucket = next((n for n in ROW_BUCKETS if n >= n_rows), None)
    if bucket is None:
        return None
    return Shape(bucket, next(n for n in contexts(n_positions) if n >= longest))


def padded(batch: Sequence[Rows], shape: Shape, scratch: int) -> PaddedRows:
    """`batch` in `shape`. Each row sees the tokens of its sequence up to itself."""
    row_inputs = torch.tensor([[0], [0], [scratch], [1]]).repeat(1, shape.n_rows)
    table = torch.full((shape.n_rows, shape.n_tokens), scratch)
    row = 0
    for rows in batch:
        n, end = len(rows.ids), rows.position + len(rows.ids)
        row_inputs[0, row : row + n] = torch.tensor(list(rows.ids))
        row_inputs[1, row : row + n] = torch.arange(rows.position, end)
        row_inputs[2, row : row + n] = torch.tensor(list(rows.slots))
        row_inputs[3, row : row + n] = torch.arange(rows.position + 1, end + 1)
        table[row : row + n, :end] = slots_of(rows)
        row += n
    return PaddedRows(row_inputs, table)


def slots_of(rows: Rows) -> torch.Tensor:
    """The slots of all tokens that the last of `rows` sees, in order of position."""
    return torch.cat([torch.arange(first, first + n) for first, n in rows.runs])


def visible(n_seen: torch.Tensor, n_tokens: int, window: int) -> torch.Tensor:
    """[n_rows, n_tokens]: whether a row sees a token; the first `n_seen` of them, or the last
    `window` of those if it is not 0."""
    token = torch.arange(n_tokens, device=n_seen.device)
    seen = token < n_seen[:, None]
    if window:
        seen &= token >= n_seen[:, None] - window
    return seen
