"""Guesses of the next tokens, from places where they are cheap to have. The model checks them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from stages.llm.grammar import Grammar
from stages.llm.suffix import SuffixCursor
from voicepipe.errors import ComponentError

REALIGN_BY = 2
"""Tokens that must agree before an earlier reply is followed again after it was left."""

GIVE_UP_AFTER = 24
"""Tokens off the earlier reply after which it is another reply."""

MATCH_BUCKETS = 5
"""Classes of how long a suffix is known: 1, 2-3, 4-7, 8-15, 16 tokens or more."""

PADDING = re.compile(r"\[PAD\d+\]|<\|?(?:extra|unused|reserved|pad).*>|", re.IGNORECASE)
"""Texts of tokens that only fill a vocabulary up to a round size."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The likely next tokens according to one source.

    `bucket` is the source's own class of confidence: acceptance is counted apart for each. A
    source that must work for its tokens offers `n_offered` of them at `token_s` seconds each, after
    `start_s` seconds in which it learns what it has not seen yet, and `draw(n)` makes them.
    """

    source: str
    ids: Sequence[int] = ()
    bucket: int = 0
    n_offered: int = 0
    token_s: float = 0.0
    start_s: float = 0.0
    draw: Callable[[int], Sequence[int]] | None = None
    n_certain: int = 0
    """So many of the first tokens have no alternative: checking them only computes what has to be
    computed anyway."""

    def __len__(self) -> int:
        return len(self.ids) or self.n_offered

    def first(self, n: int) -> Proposal:
        """The same with at most `n` tokens, which are there: drawn if need be."""
        ids = self.draw(n) if self.draw else self.ids[:n]
        return replace(self, ids=ids, n_offered=0, draw=None)


NOTHING = Proposal("none")


class Draft(Protocol):
    """One source of proposals for one reply."""

    source: str

    def propose(self, n: int) -> Proposal:
        """Up to `n` tokens that may come next, maybe none."""
        ...

    def observe(self, ids: Sequence[int]) -> None:
        """These tokens came next; to be called after every step, proposal or not."""
        ...


class EarlierReply:
    """The reply that was generated for an earlier transcript of the same turn.

    Its continuation is proposed from where the new reply stands in it. After a difference the last
    `REALIGN_BY` tokens are looked up, nearest first; the bucket is the number of differences met,
    up to 2.
    """

    source = "earlier-reply"

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)
        self._at = 0
        self._n_off = 0
        """Tokens that came since the earlier reply was left, 0 while it is followed."""
        self._bucket = 0
        self._tail: list[int] = []

    def propose(self, n: int) -> Proposal:
        if self._n_off:
            return NOTHING
        return Proposal(self.source, self._ids[self._at : self._at + n], self._bucket)

    def observe(self, ids: Sequence[int]) -> None:
        for token in ids:
            self._tail = [*self._tail, token][-REALIGN_BY:]
            if not self._n_off and self._ids[self._at : self._at + 1] == [token]:
                self._at += 1
            elif self._n_off < GIVE_UP_AFTER:
                self._search()

    def _search(self) -> None:
        if self._n_off == 0:
            self._bucket = min(self._bucket + 1, 2)
        self._n_off += 1
        expected = self._at + self._n_off
        ends = range(REALIGN_BY, len(self._ids) + 1)
        found = [end for end in ends if self._ids[end - REALIGN_BY : end] == self._tail]
        if found:
            self._at = min(found, key=lambda end: abs(end - expected))
            self._n_off = 0


class SuffixDraft:
    """What usually followed the last tokens. The cursor must have followed the end of the prompt,
    as much of it as stands in front of the texts in its memory."""

    source = "suffix"

    def __init__(self, cursor: SuffixCursor) -> None:
        self._cursor = cursor

    def propose(self, n: int) -> Proposal:
        ids, n_known = self._cursor.propose(n)
        bucket = min(n_known.bit_length(), MATCH_BUCKETS) - 1
        return Proposal(self.source, ids, bucket) if ids else NOTHING

    def observe(self, ids: Sequence[int]) -> None:
        self._cursor.follow(ids)


class ForcedDraft:
    """What a grammar leaves no choice about."""

    source = "forced"

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def propose(self, n: int) -> Proposal:
        ids = self._grammar.forced(n)
        return Proposal(self.source, ids, n_certain=len(ids))

    def observe(self, ids: Sequence[int]) -> None:
        """The verifier has moved the grammar on."""


class DraftModel(Protocol):
    """A smaller model with a sequence of its own, on the engine's thread."""

    @property
    def token_s(self) -> float:
        """What a token costs, seconds."""
        ...

    @property
    def start_s(self) -> float:
        """What computing the tokens that it has not seen yet costs first, seconds."""
        ...

    def extend(self, ids: Sequence[int]) -> None:
        """More tokens are certain."""
        ...

    def next_tokens(self, n: int) -> Sequence[int]:
        """Go on by `n` tokens, drawn with the target's `Sampling` at the target's positions: the
        noise is the target's then, and where the models agree so do their draws."""
        ...

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens of the sequence, prompt included."""
        ...


class ModelDraft:
    """Proposals of a draft model after a prompt of `n_prompt` tokens, from the second token on:
    nobody's first token waits for a guess."""

    source = "model"

    def __init__(self, model: DraftModel, n_prompt: int, n_vocabulary: int) -> None:
        self._model = model
        self._n_prompt = self._n_sure = n_prompt
        self._n_vocabulary = n_vocabulary
        self._drawn: list[int] = []
        """What the model's sequence holds beyond what is certain."""

    def propose(self, n: int) -> Proposal:
        if self._n_sure == self._n_prompt:
            return NOTHING
        token_s, start_s = self._model.token_s, self._model.start_s
        return Proposal(self.source, n_offered=n, token_s=token_s, start_s=start_s, draw=self._draw)

    def observe(self, ids: Sequence[int]) -> None:
        n = n_agreeing(self._drawn, ids)
        if n < len(self._drawn):
            self._model.truncate(self._n_sure + n)
        if n < len(ids):
            self._model.extend(ids[n:])
        self._n_sure += len(ids)
        self._drawn = []

    def _draw(self, n: int) -> Sequence[int]:
        self._drawn = list(self._model.next_tokens(n))
        unknown = (i for i, token in enumerate(self._drawn) if token >= self._n_vocabulary)
        return self._drawn[: next(unknown, n)]


class BestDraft:
    """Several drafts as one: of those that cost nothing the one with the most expected tokens (the
    first of equals), and one that must work only where they have nothing to say. What contradicts
    a draft in front of it that is certain is left out."""

    source = "best"

    def __init__(self, drafts: Sequence[Draft], expected: Callable[[Proposal], float]) -> None:
        self._drafts = drafts
        self._expected = expected

    def propose(self, n: int) -> Proposal:
        best, most = NOTHING, 0.0
        certain: list[int] = []
        for draft in self._drafts:
            proposal = draft.propose(n)
            if not proposal or (best and proposal.token_s > 0):
                continue
            certain += proposal.ids[len(certain) : proposal.n_certain]
            n_agreed = n_agreeing(certain, proposal.ids)
            if n_agreed < min(len(certain), len(proposal)):
                continue
            proposal = replace(proposal, n_certain=n_agreed)
            expected = self._expected(proposal)
            if expected > most:
                best, most = proposal, expected
        return best

    def observe(self, ids: Sequence[int]) -> None:
        for draft in self._drafts:
            draft.observe(ids)


def n_agreeing(drafted: Sequence[int], ids: Sequence[int]) -> int:
    """How many tokens `drafted` got right."""
    pairs = enumerate(zip(drafted, ids, strict=False))
    n_common = min(len(drafted), len(ids))
    return next((n for n, (ours, theirs) in pairs if ours != theirs), n_common)


def check_same_vocabulary(target: Sequence[str], draft: Sequence[str]) -> None:
    """Raises ComponentError unless a draft model's tokens are the target's, id by id. Padding at
    the end of either may differ: models of a family round their vocabularies differently."""
    n_common = min(len(target), len(draft))
    for token_id in range(max(len(target), len(draft))):
        ours = target[token_id] if token_id < len(target) else ""
        theirs = draft[token_id] if token_id < len(draft) else ""
        if ours == theirs or (PADDING.fullmatch(ours) and PADDING.fullmatch(theirs)):
            continue
        raise ComponentError(
            f"draft model: its token {token_id} is {theirs!r}, the model's is {ours!r} (of "
            f"{len(draft)} and {len(target)}, {n_common} in common): use a smaller model of the "
            "same family"
        )
