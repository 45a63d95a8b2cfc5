"""Rows of sequences whose tokens lie wherever they like."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch
from hypothesis import strategies as st

from stages.llm.step_plan import Rows
from stages.llm.transformer import KvStore, Model
from tests import llm_tiny

N_SLOTS = 96
N_VOCABULARY = len(llm_tiny.vocabulary())
IDS = [int(n) for n in np.random.default_rng(1).integers(0, N_VOCABULARY, 48)]


@dataclass
class Placed:
    """A sequence whose tokens lie in `slots`, in order of position."""

    slots: list[int]
    n: int = 0
    ids: list[int] = field(default_factory=list)

    def rows(self, ids: list[int], n_logits: int) -> Rows:
        """The rows that make the sequence longer by `ids`."""
        position = len(self.ids)
        self.ids += ids
        used = self.slots[: len(self.ids)]
        runs: list[tuple[int, int]] = []
        for slot in used:
            if runs and sum(runs[-1]) == slot:
                runs[-1] = runs[-1][0], runs[-1][1] + 1
            else:
                runs.append((slot, 1))
        return Rows(ids, position, used[position:], runs, n_logits)


def dirty_store(model: Model) -> KvStore:
    """A store whose unwritten slots are noticed when they are read."""
    store = model.new_store(N_SLOTS)
    for layer in store.layers:
        layer.fill_(torch.nan)
    return store


@st.composite
def slot_orders(draw: st.DrawFn) -> list[int]:
    """All slots, in pieces of any length, shuffled."""
    cuts = draw(st.lists(st.integers(1, N_SLOTS - 1), max_size=12, unique=True).map(sorted))
    ends = [0, *cuts, N_SLOTS]
    pieces = [list(range(*piece)) for piece in itertools.pairwise(ends)]
    return [slot for piece in draw(st.permutations(pieces)) for slot in piece]
