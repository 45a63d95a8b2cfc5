"""Causal attention of ragged rows over runs of slots; keys and values are never moved.

TorchScript compiles these functions; see layer.py.
"""

from __future__ import annotations

import torch


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    span: list[int],
    mask: torch.Tensor,
    gather: torch.Tensor,
    softcap: float,
) -> torch.Tensor:
    """What the rows of one sequence read, [n, n_heads * head_size].

    `queries` [n, n_heads, head_size] are scaled and turned; `keys` and `values` [n_kv, n_slots,
    head_size]; `span`, `mask` and `gather` as in `step_plan.Spans`. Heads that share a KV head are
    rows of one product, so that keys and values are not repeated.
    """
    n_kv, size = keys.size(0), keys.size(2)
    n, n_heads = queries.size(0), queries.size(1)
    if gather.size(0) > 0:
        keys, values = keys.index_select(1, gather), values.index_select(1, gather)
        span = [n, 0, gather.size(0)]
    if n == 1:
        grouped = queries.view(n_kv, -1, size)
    else:
        grouped = queries.view(n, n_kv, -1, size).permute(1, 2, 0, 3).reshape(n_kv, -1, size)
    if len(span) == 3:
        scores = torch.bmm(grouped, keys.narrow(1, span[1], span[2]).transpose(1, 2))
    else:
        parts: list[torch.Tensor] = []
        for i in range(1, len(span), 2):
            run = keys.narrow(1, span[i], span[i + 1])
            parts.append(torch.bmm(grouped, run.transpose(1, 2)))
        scores = torch.cat(parts, 2)
    if softcap > 0.0:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if n > 1:
        masked = mask.size(1)
        by_row = scores.view(n_heads, n, -1)
        by_row.narrow(2, by_row.size(2) - masked, masked).add_(mask)
    shares = torch.softmax(scores, -1)
    if len(span) == 3:
        mixed = torch.bmm(shares, values.narrow(1, span[1], span[2]))
    else:
        at = span[2]
        mixed = torch.bmm(shares.narrow(2, 0, at), values.narrow(1, span[1], at))
        for i in range(3, len(span), 2):
            run = values.narrow(1, span[i], span[i + 1])
            mixed.baddbmm_(shares.narrow(2, at, span[i + 1]), run)
            at += span[i + 1]
    if n == 1:
        return mixed.view(1, -1)
    return mixed.view(n_heads, n, size).transpose(0, 1).reshape(n, -1)


def attend_each(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    spans: list[list[int]],
    masks: list[torch.Tensor],
    gathers: list[torch.Tensor],
    softcap: float,
) -> torch.Tensor:
    """`attend` for every sequence of a step, whose rows follow each other in `queries`."""
    if len(spans) == 1:
        return attend(queries, keys, values, spans[0], masks[0], gathers[0], softcap)
    mixed: list[torch.Tensor] = []
    row = 0
    for i in range(len(spans)):
        span = spans[i]
        rows = queries.narrow(0, row, span[0])
        mixed.append(attend(rows, keys, values, span, masks[i], gathers[i], softcap))
        row += span[0]
    return torch.cat(mixed, 0)
