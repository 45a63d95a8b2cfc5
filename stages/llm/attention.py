"""Causal attention of ragged rows over runs of slots; keys and values are never moved.

Heads that share a KV head are rows of one product, so that keys and values are not repeated. What
all sequences of a step share (a system prompt) is read once for all of them, as in Hydragen
(Juravsky et al. 2024, arXiv:2402.05099). TorchScript compiles these functions; see layer.py.
"""

from __future__ import annotations

import torch

Seen = tuple[list[list[int]], list[torch.Tensor], list[list[int]], list[torch.Tensor], int]
"""The fields of `step_plan.Spans`."""


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: Seen, softcap: float
) -> torch.Tensor:
    """What each row reads, [n, n_heads * head_size].

    `queries` [n, n_heads, head_size] are scaled and turned; `keys` and `values` are [n_kv, n_slots,
    head_size]; each row attends to what `seen` says.
    """
    n, n_kv, size = queries.size(0), keys.size(0), keys.size(2)
    grouped = queries.view(n, n_kv, -1, size).transpose(0, 1).reshape(n_kv, -1, size)
    if len(seen[0]) == 1:
        mixed = _over_one_run(grouped, keys, values, seen, softcap)
    else:
        mixed = _over_runs(grouped, keys, values, seen, softcap)
    return mixed.view(n_kv, n, -1, size).transpose(0, 1).reshape(n, -1)


def _over_one_run(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: Seen, softcap: float
) -> torch.Tensor:
    """One sequence in one run, [n_kv, n * group, head_size] as `queries`."""
    segment, gather = seen[0][0], seen[1][0]
    keys, values = _run(keys, segment, gather), _run(values, segment, gather)
    scores = torch.bmm(queries, keys.transpose(1, 2))
    return torch.bmm(_shares(scores, seen, softcap), values)


def _over_runs(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: Seen, softcap: float
) -> torch.Tensor:
    """Any number of sequences in any number of runs."""
    segments, gathers = seen[0], seen[1]
    n_kv, n_queries, group = queries.size(0), queries.size(1), queries.size(1) // seen[4]
    width = 0
    for segment in segments:
        width = max(width, segment[4] + segment[3])
    scores = torch.full(
        [n_kv, n_queries, width], float("-inf"), dtype=queries.dtype, device=queries.device
    )
    for i in range(len(segments)):
        s = segments[i]
        run = _run(keys, s, gathers[i]).transpose(1, 2)
        part = torch.bmm(queries.narrow(1, s[0] * group, s[1] * group), run)
        scores.narrow(1, s[0] * group, s[1] * group).narrow(2, s[4], s[3]).copy_(part)
    shares = _shares(scores, seen, softcap)
    mixed = torch.zeros_like(queries)
    for i in range(len(segments)):
        s = segments[i]
        part = shares.narrow(1, s[0] * group, s[1] * group).narrow(2, s[4], s[3])
        part = torch.bmm(part, _run(values, s, gathers[i]))
        mixed.narrow(1, s[0] * group, s[1] * group).add_(part)
    return mixed


def _run(state: torch.Tensor, segment: list[int], gather: torch.Tensor) -> torch.Tensor:
    """The part of `state` [n_kv, n_slots, head_size] that a segment is about."""
    if gather.size(0) > 0:
        return state.index_select(1, gather)
    return state.narrow(1, segment[2], segment[3])


def _shares(scores: torch.Tensor, seen: Seen, softcap: float) -> torch.Tensor:
    """Softmax of scores [n_kv, n * group, tokens], masked."""
    if softcap > 0.0:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    masked, masks, n = seen[2], seen[3], seen[4]
    if len(masks) > 0:
        by_row = scores.view(scores.size(0), n, -1, scores.size(2))
        for i in range(len(masks)):
            m, mask = masked[i], masks[i]
            by_row.narrow(1, m[0], mask.size(0)).narrow(3, m[1], mask.size(1)).add_(
                mask.unsqueeze(1)
            )
    return torch.softmax(scores, -1)
