"""From the logits of one step to the tokens it yields: drafts that are right, and one more.

A draft is right when it is the token that would have been chosen there. The noise of a choice is
keyed by its position, so choosing in a batch gives exactly what choosing token by token gives, at
any temperature: unlike rejection sampling, speculation does not even change which sample is drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from stages.llm.grammar import Grammar
from stages.llm.sampling import Sampling, choices, penalize


class Verifier:
    """Chooses the tokens of one reply. Nothing is chosen after one of `end_ids`."""

    def __init__(
        self,
        sampling: Sampling,
        grammar: Grammar | None = None,
        end_ids: Collection[int] = (),
    ) -> None:
        self._sampling = sampling
        self._grammar = grammar
        self._end_ids = frozenset(end_ids)

    def verify(
        self,
        logits: torch.Tensor,
        drafts: Sequence[int],
        *,
        position: int,
        generated: Sequence[int],
    ) -> list[int]:
        """The right ones of `drafts` and the token after them: 1 to len(drafts) + 1 tokens.

        `logits` [1 + len(drafts), vocabulary] follow the last known token and each draft; they are
        changed in place. `position` is that of the first token chosen, `generated` are the tokens
        of the reply so far.
        """
        with torch.inference_mode():  # which the logits may come from
            penalize(logits, self._sampling, generated, drafts)
            n_followed = self._follow(logits, drafts)
            chosen = choices(logits[: n_followed + 1], self._sampling, position)
        found = self._agreeing(chosen, drafts)
        if self._grammar is not None:
            self._grammar.rollback(n_followed - (len(found) - 1))
            if found[-1] not in self._end_ids:
                self._grammar.accept(found[-1])
        return found

    def _agreeing(self, chosen: Sequence[int], drafts: Sequence[int]) -> list[int]:
        found = []
        for n, token in enumerate(chosen):
            found.append(token)
            if token in self._end_ids or n >= len(drafts) or token != drafts[n]:
                break
        return found

    def _follow(self, logits: torch.Tensor, drafts: Sequence[int]) -> int:
        """Constrain each row after the drafts in front of it; how many of these are allowed."""
        if self._grammar is None:
            return len(drafts)
        for n, token in enumerate(drafts):
            self._grammar.constrain(logits[n])
            if token in self._end_ids or not self._grammar.accept(token):
                return n
        self._grammar.constrain(logits[len(drafts)])
        return len(drafts)
