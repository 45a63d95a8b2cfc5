"""What a step of a model is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens of one sequence that are computed in a step, beside those of others."""

    ids: Sequence[int]
    position: int
    """Of the first of them."""
    slots: Sequence[int]
    """Where their attention state goes."""
    runs: Sequence[tuple[int, int]]
    """(first slot, number of tokens) of everything up to and including them, in order."""
    n_logits: int
    """For how many of them, from the last, scores of the following token are wanted."""
