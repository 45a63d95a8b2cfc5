"""Choosing the next token: the noise is a pure function of (seed, position, token id), so a reply
depends on its context and the seed alone, however it was computed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from voicepipe.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; `temperature=0` always takes the likeliest.

    Applied in this order: repetition penalty (Keskar et al. 2019: scores of tokens in the window
    are divided by it, or multiplied where negative), temperature, `top_k` (0: all), `top_p`,
    `min_p` (relative to the likeliest).
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.05
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            self.temperature < 0
            or self.top_k < 0
            or not 0 < self.top_p <= 1
            or not 0 <= self.min_p <= 1
            or self.repetition_penalty <= 0
        ):
            raise UsageError(
                f"{self}: temperature and top_k must not be negative, top_p lies in (0, 1], min_p "
                "in [0, 1], repetition_penalty above 0"
            )


def choose(
    logits: torch.Tensor, sampling: Sampling, position: int, recent_ids: Collection[int] = ()
) -> int:
    """The token for `position`, from `logits` of shape [vocabulary] (changed in place)."""
    if recent_ids and sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(recent_ids)))
        before, penalty = logits[seen], sampling.repetition_penalty
        logits[seen] = torch.where(before > 0, before / penalty, before * penalty)
    if sampling.temperature == 0:
        return int(logits.argmax())
    scores, ids = candidates(logits, sampling)
    noisy = scores + gumbel(sampling.seed, position, ids)
    return int(ids[noisy.argmax()])


def candidates(
    logits: torch.Tensor, sampling: Sampling
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Log-probabilities (not normalised) and ids of the tokens that may be drawn, likeliest
    first; equal ones by id."""
    n = len(logits) if sampling.top_k == 0 else min(sampling.top_k, len(logits))
    top = torch.topk(logits, n)
    scores = top.values.numpy().astype(np.float64) / sampling.temperature
    ids = top.indices.numpy().astype(np.int64)
    order = np.lexsort((ids, -scores))
    scores, ids = scores[order], ids[order]
    probabilities = np.exp(scores - scores[0])
    probabilities /= probabilities.sum()
    mass_before = np.cumsum(probabilities) - probabilities
    kept = (mass_before < sampling.top_p) & (probabilities >= sampling.min_p * probabilities[0])
    return scores[kept], ids[kept]


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise for each id: the maximum of log-probability plus noise is a fair draw.

    Uniform bits by splitmix64 (Steele, Lea and Flood 2014) of the three numbers, chained.
    """
    with np.errstate(over="ignore"):
        state = _mixed(np.uint64(seed % 2**64))
        state = _mixed(state ^ np.uint64(position))
        bits = _mixed(state ^ ids.astype(np.uint64))
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return np.asarray(-np.log(-np.log(uniform)))


def _mixed(x: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    z = np.asarray(x + np.uint64(0x9E3779B97F4A7C15))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)), np.uint64)
