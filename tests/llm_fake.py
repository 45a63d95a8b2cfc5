"""A model whose next token is a pure function of everything before it, and whose store remembers
which token each slot holds: a cache that is wrong anywhere gives wrong text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from stages.llm.step_plan import Rows
from stages.llm.tokenizer import Tokenizer, Vocabulary

N_VOCABULARY = 40
END = 0


@dataclass
class FakeCosts:
    """A step takes a second, and `per_row` more for each row after the first."""

    per_row: float = 0.1

    def of(self, n_rows: int) -> float:
        return (1.0 + self.per_row * (n_rows - 1)) / 100


@dataclass
class FakeModel:
    n_slots: int
    per_row: float = 0.1
    n_vocabulary: int = N_VOCABULARY
    favoured: Mapping[int, float] = field(default_factory=dict)
    """Tokens that it would rather say, and by how much."""
    steps: list[list[Rows]] = field(default_factory=list)
    error: Exception | None = None
    """Raised by the next step."""

    def __post_init__(self) -> None:
        self.held: NDArray[np.int64] = np.full(self.n_slots, -1, np.int64)

    def copy(self, source: int, target: int, n: int) -> None:
        self.held[target : target + n] = self.held[source : source + n].copy()

    def costs(self) -> FakeCosts:
        return FakeCosts(self.per_row)

    def step(self, batch: Sequence[Rows]) -> torch.Tensor:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.steps.append(list(batch))
        logits = []
        for rows in batch:
            self.held[list(rows.slots)] = rows.ids
        for rows in batch:
            slots = chain.from_iterable(range(first, first + n) for first, n in rows.runs)
            context = self.held[list(slots)].tolist()
            assert len(context) == rows.position + len(rows.ids)
            assert context[rows.position :] == list(rows.ids)
            n_first = len(context) - rows.n_logits + 1
            logits += [self._scores(context[:n]) for n in range(n_first, len(context) + 1)]
        return torch.tensor(np.array(logits)).reshape(-1, self.n_vocabulary)

    def _scores(self, context: Sequence[int]) -> NDArray[np.float64]:
        row = scores(context, self.n_vocabulary)
        row[list(self.favoured)] += list(self.favoured.values())
        return row


def scores(context: Sequence[int], n_vocabulary: int = N_VOCABULARY) -> NDArray[np.float64]:
    """Mostly decided by the last token, so that texts repeat, but by all others too."""
    near = np.random.default_rng(context[-1]).normal(size=n_vocabulary)
    far = np.random.default_rng(list(context)).normal(size=n_vocabulary)
    return np.asarray(near + 0.4 * far)


def continued(prompt: Sequence[int], n: int) -> list[int]:
    """The reply to `prompt` by taking the best token each time, up to `n` or the end."""
    ids: list[int] = []
    while len(ids) < n:
        token = int(scores([*prompt, *ids]).argmax())
        if token == END:
            break
        ids.append(token)
    return ids


def tokenizer() -> Tokenizer:
    """Each token spells its number and a space."""
    texts = ["", *(f"{n} " for n in range(1, N_VOCABULARY))]
    vocabulary = Vocabulary(
        tokens=texts,
        bytes_of=[text.encode() for text in texts],
        special={},
        control_ids=frozenset([END]),
        bos_id=None,
        eos_id=END,
        eos_ids=frozenset([END]),
        adds_bos=False,
        adds_space=False,
    )
    return Tokenizer(vocabulary, lambda text: [int(word) for word in text.split()])
