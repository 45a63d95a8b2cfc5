"""Choosing the next token: the noise is a pure function of (seed, position, token id), so a reply
depends on its context and the seed alone, however it was computed.

Logits on the CPU are float32 or float64 and are handled by numpy: on one row of a vocabulary it is
up to ten times as fast as torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from voicepipe.errors import UsageError

GOLDEN, MIX = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Of splitmix64."""

Logits = NDArray[np.float32 | np.float64]

Candidates = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Log-probabilities (not normalised) and ids of the tokens that may be drawn, likeliest first;
equal ones by id."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; `temperature=0` always takes the likeliest.

    Applied in this order: penalties, temperature, `min_p` (relative to the likeliest; 0: off),
    `top_k` (0: off), `top_p` (of the probability of what is left by then). Penalties look at the
    last `penalty_window` tokens of the reply: scores of those are divided by the repetition penalty
    (multiplied where negative; Keskar et al. 2019), then lowered by the presence penalty, and by
    the frequency penalty for each time they occur (as in OpenAI's API).
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.05
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("temperature", 0 <= self.temperature < math.inf, "0 or more")
        self._require("top_k", self.top_k >= 0, "0 (all tokens) or more")
        self._require("top_p", 0 < self.top_p <= 1, "above 0, at most 1")
        self._require("min_p", 0 <= self.min_p <= 1, "from 0 to 1")
        self._require("repetition_penalty", 0 < self.repetition_penalty < math.inf, "above 0")
        self._require("presence_penalty", abs(self.presence_penalty) <= 2, "from -2 to 2")
        self._require("frequency_penalty", abs(self.frequency_penalty) <= 2, "from -2 to 2")
        self._require("penalty_window", self.penalty_window >= 0, "0 (no penalties) or more")

    def _require(self, name: str, holds: bool, range_: str) -> None:
        if not holds:
            raise UsageError(f"sampling: {name} is {getattr(self, name)}: it must be {range_}")

    @property
    def penalizes(self) -> bool:
        penalties = (self.repetition_penalty - 1, self.presence_penalty, self.frequency_penalty)
        return self.penalty_window > 0 and any(penalties)


def choose(
    logits: torch.Tensor, sampling: Sampling, position: int, recent_ids: Sequence[int] = ()
) -> int:
    """The token for `position`, from `logits` of shape [vocabulary] (changed in place);
    `recent_ids` are the reply's tokens so far."""
    rows = logits[None]
    penalize(rows, sampling, recent_ids)
    return choices(rows, sampling, position)[0]


def penalize(
    rows: torch.Tensor, sampling: Sampling, recent_ids: Sequence[int], more_ids: Sequence[int] = ()
) -> None:
    """Apply the penalties to `rows` of logits [n, vocabulary], in place. Row i comes after
    `recent_ids` and the first i of `more_ids` (n - 1 tokens)."""
    if not sampling.penalizes or not (recent_ids or more_ids):
        return
    ids = [*recent_ids[-sampling.penalty_window :], *more_ids]
    n_before = len(ids) - len(more_ids)
    windows = [
        Counter(ids[max(0, end - sampling.penalty_window) : end])
        for end in range(n_before, len(ids) + 1)
    ]
    row = np.array([n for n, window in enumerate(windows) for _ in window])
    column = np.array([i for window in windows for i in window])
    times = np.array([n for window in windows for n in window.values()])
    before = (
        rows[row, column].double().cpu().numpy() if not rows.is_cpu else rows.numpy()[row, column]
    )
    penalty = sampling.repetition_penalty
    after = np.where(before > 0, before / penalty, before * penalty)
    after -= sampling.presence_penalty + sampling.frequency_penalty * times
    if rows.is_cpu:
        rows.numpy()[row, column] = after
    else:
        rows[row, column] = torch.from_numpy(after).to(rows)


def choices(rows: torch.Tensor, sampling: Sampling, position: int) -> list[int]:
    """The token for each of `rows` of logits [n, vocabulary], for `position` and those after it:
    row by row what one row alone would give."""
    if sampling.temperature == 0:
        best = rows.numpy().argmax(-1) if rows.is_cpu else rows.argmax(-1)
        return [int(n) for n in best.tolist()]
    return [
        int(ids[(scores + gumbel(sampling.seed, position + n, ids)).argmax()])
        for n, (scores, ids) in enumerate(_shortlists(rows, sampling))
    ]


def candidates(logits: torch.Tensor, sampling: Sampling) -> Candidates:
    """Those of one row of logits [vocabulary], at a temperature above 0."""
    return _shortlists(logits[None], sampling)[0]


def _shortlists(rows: torch.Tensor, sampling: Sampling) -> list[Candidates]:
    """A threshold by `min_p`, or else `top_k`, leaves few tokens to sort; equal scores are all
    above it or all below, so that the result does not depend on how they were found."""
    if not rows.is_cpu:
        return shortlists_on_device(rows, sampling)
    return [
        _kept(row[ids], ids, sampling)
        for row in rows.numpy()
        for ids in [np.flatnonzero(row >= _threshold(row, sampling))]
    ]


def shortlists_on_device(rows: torch.Tensor, sampling: Sampling) -> list[Candidates]:
    """The candidates of `rows` [n, vocabulary], all searched where they are and fetched at once."""
    if sampling.min_p > 0:
        least = rows.amax(-1, keepdim=True) + sampling.temperature * math.log(sampling.min_p)
    elif 0 < sampling.top_k < rows.shape[1]:
        least = rows.topk(sampling.top_k).values[:, -1:]
    else:
        least = rows.amin(-1, keepdim=True)
    found = (rows >= least).nonzero()
    row_of, ids = found.cpu().numpy().T
    values = rows[found[:, 0], found[:, 1]].double().cpu().numpy()
    cuts = np.searchsorted(row_of, np.arange(1, len(rows)))
    parts = zip(np.split(values, cuts), np.split(ids, cuts), strict=True)
    return [_kept(values, ids, sampling) for values, ids in parts]


def _threshold(row: Logits, sampling: Sampling) -> float:
    if sampling.min_p > 0:
        return float(row.max()) + sampling.temperature * math.log(sampling.min_p)
    if 0 < sampling.top_k < len(row):
        return float(np.partition(row, -sampling.top_k)[-sampling.top_k])
    return -math.inf


def _kept(values: Logits, ids: NDArray[np.int64], sampling: Sampling) -> Candidates:
    """`top_k` and `top_p` of the tokens above the threshold."""
    scores = values.astype(np.float64) / sampling.temperature
    order = np.lexsort((ids, -scores))[: sampling.top_k or None]
    scores, ids = scores[order], ids[order]
    if sampling.top_p < 1:
        probabilities = np.exp(scores - scores[0])
        mass = np.cumsum(probabilities)
        n = 1 + int(np.count_nonzero(mass[:-1] < sampling.top_p * mass[-1]))
        scores, ids = scores[:n], ids[:n]
    return scores, ids


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise for each id: the maximum of log-probability plus noise is a fair draw.

    Uniform bits by splitmix64 (Steele, Lea and Flood 2014) of the three numbers, chained.
    """
    key = np.uint64(_mixed_int(_mixed_int(seed % 2**64) ^ position))
    z = (ids.astype(np.uint64) ^ key) + np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX[0])
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX[1])
    z ^= z >> np.uint64(31)
    uniform = ((z >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return np.asarray(-np.log(-np.log(uniform)))


def _mixed_int(x: int) -> int:
    z = (x + GOLDEN) % 2**64
    z = (z ^ (z >> 30)) * MIX[0] % 2**64
    z = (z ^ (z >> 27)) * MIX[1] % 2**64
    return z ^ (z >> 31)
