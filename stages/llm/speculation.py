"""How many drafted tokens to check in a step: as many as pay, and none where they do not.

A step with k drafts costs `Costs.of(1 + k + others)` seconds and yields one token more than drafts
are right from the first on. Which share is right is counted by source, by the source's own bucket
and by position; the best k maximises tokens per second of the whole step (Leviathan et al. 2023,
"Fast inference from transformers via speculative decoding", with measured costs and counted
acceptance). Where that is 0, decoding is plain, and an occasional probe finds out whether it has
changed.

A loss is bounded whatever the drafts are worth: each step that could lose time is paid from an
allowance that grows by `MAX_LOSS` of the time of plain steps, and by the time that right drafts
saved. So n tokens never take more than (1 + MAX_LOSS) of their plain time and START_STEPS steps.
Tokens that are certain are no risk: they are always checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from stages.llm.drafts import NOTHING, Draft, Proposal

MAX_LOSS = 0.05
"""Of the time without speculation."""

START_STEPS = 4.0
"""The allowance of a new session, in plain steps: to find out what its drafts are worth."""

MOST_STEPS = 16.0
"""The largest allowance: what was saved long ago does not pay for what is lost now."""

MAX_DRAFT = 32
MIN_GAIN = 1.02
"""Speculation must promise this much; choosing and checking drafts takes time too."""

START_TOKENS = 16.0
"""Over so many tokens, most of a spoken reply, what a source must do before its first guess is
spread where its gain is judged. It is paid at once."""

MEMORY = 0.95
"""A count's weight after each newer one: about the last twenty matter."""

FIRST_PROBE, LAST_PROBE = 16, 256
"""Plain tokens between probes: doubled by each that was wrong. One that was right is followed by
another at once, so that some in a row suffice to resume."""

POSITION_CLASSES = (0, 1, 2, 3, 4, 4, 4, 4, 5)
"""Of the position in a draft; the last for all after it."""

PRIOR_WEIGHT = 2.0
PRIORS = {
    "forced": (0.98,),
    "earlier-reply": (0.9, 0.75, 0.6),
    "suffix": (0.45, 0.6, 0.7, 0.8, 0.9),
    "model": (0.65,),
}
"""Acceptance by source and bucket before any is counted."""


class Costs(Protocol):
    """Measured times of model steps."""

    def of(self, n_rows: int) -> float:
        """Seconds of a step with this many tokens."""
        ...


def _position_class(position: int) -> int:
    return POSITION_CLASSES[min(position, len(POSITION_CLASSES) - 1)]


@dataclass(slots=True)
class _Acceptance:
    """Counts of one source and bucket, and when to probe it."""

    prior: float
    right: list[float] = field(default_factory=lambda: [0.0] * (POSITION_CLASSES[-1] + 1))
    wrong: list[float] = field(default_factory=lambda: [0.0] * (POSITION_CLASSES[-1] + 1))
    probe_every: int = FIRST_PROBE
    n_declined: int = 0

    def probability(self, position: int) -> float:
        """That the draft at `position` is right when all before it are: the mean of a Beta
        distribution."""
        n = _position_class(position)
        right, wrong = self.right[n], self.wrong[n]
        return (right + PRIOR_WEIGHT * self.prior) / (right + wrong + PRIOR_WEIGHT)

    def count(self, n_drafted: int, n_accepted: int) -> None:
        for position in range(min(n_drafted, n_accepted + 1)):
            n = _position_class(position)
            is_right = position < n_accepted
            self.right[n] = MEMORY * self.right[n] + is_right
            self.wrong[n] = MEMORY * self.wrong[n] + (not is_right)
        if n_accepted:
            self.probe_every = max(self.probe_every // 2, FIRST_PROBE)
            self.n_declined = self.probe_every
        else:
            self.probe_every = min(self.probe_every * 2, LAST_PROBE)
            self.n_declined = 0

    def is_probe_due(self) -> bool:
        """Whether to check a draft that is not expected to pay, where one is declined again."""
        self.n_declined += 1
        return self.n_declined > self.probe_every


class Speculation:
    """The policy of one session. Every `propose` (or `length`) that yields drafts must be followed
    by `learn`, unless the step failed. Other rows of a step count as one token each: what slows
    them down more than it helps is left out."""

    def __init__(self) -> None:
        self._acceptance: dict[tuple[str, int], _Acceptance] = {}
        self._allowance_s: float | None = None
        self._token_s = 0.0
        """What a right draft of the step in progress saves."""

    def propose(
        self, draft: Draft, costs: Costs, n_other_rows: int, n_room: int = MAX_DRAFT
    ) -> Proposal:
        """What to check in the next step, at most `n_room` tokens; empty: decode plainly."""
        proposal = draft.propose(min(n_room, MAX_DRAFT))
        n = self.length(proposal, costs, n_other_rows)
        return proposal.first(n) if n else NOTHING

    def length(self, proposal: Proposal, costs: Costs, n_other_rows: int) -> int:
        """How many tokens of `proposal` to check in a step that computes `n_other_rows` anyway."""
        plain_s = costs.of(1 + n_other_rows)
        allowance_s = self._earn(plain_s)
        if not proposal:
            return 0
        acceptance, chance, tokens = self._of(proposal), 1.0, 1.0
        plain_rate = MIN_GAIN * (1 + n_other_rows) / plain_s
        best, best_rate = 0, plain_rate
        extra_s = [0.0]
        for n in range(1, len(proposal) + 1):
            step_s = costs.of(1 + n + n_other_rows) + n * proposal.token_s
            extra = step_s - plain_s + proposal.start_s
            is_certain = n <= proposal.n_certain
            if extra > allowance_s and not is_certain:
                break
            extra_s.append(extra)
            chance *= 1.0 if is_certain else acceptance.probability(n - 1)
            tokens += chance
            share = min(tokens / START_TOKENS, 1.0)
            rate = (tokens + n_other_rows) / (step_s + share * proposal.start_s)
            if rate > best_rate or is_certain:
                best, best_rate = n, rate
        if best == 0 and len(extra_s) > 1:
            one_s = plain_s + extra_s[1] - (1 - 2 / START_TOKENS) * proposal.start_s
            if (2 + n_other_rows) / one_s > plain_rate and acceptance.is_probe_due():
                best = 1
        self._allowance_s = allowance_s - extra_s[best]
        self._token_s = plain_s / (1 + n_other_rows)
        return best

    def learn(self, proposal: Proposal, n_drafted: int, n_accepted: int) -> None:
        """`n_accepted` of the `n_drafted` tokens that were checked were right."""
        if self._allowance_s is not None:
            self._allowance_s += n_accepted * self._token_s
        self._of(proposal).count(n_drafted, n_accepted)

    def expected_tokens(self, proposal: Proposal) -> float:
        """Right drafts to expect when all of `proposal` is checked."""
        acceptance, chance, tokens = self._of(proposal), 1.0, 0.0
        for position in range(len(proposal)):
            is_certain = position < proposal.n_certain
            chance *= 1.0 if is_certain else acceptance.probability(position)
            tokens += chance
        return tokens

    def _of(self, proposal: Proposal) -> _Acceptance:
        key = (proposal.source, proposal.bucket)
        if key not in self._acceptance:
            priors = PRIORS.get(proposal.source, (0.5,))
            self._acceptance[key] = _Acceptance(priors[min(proposal.bucket, len(priors) - 1)])
        return self._acceptance[key]

    def _earn(self, plain_s: float) -> float:
        """The allowance at another step, seconds."""
        if self._allowance_s is None:
            self._allowance_s = START_STEPS * plain_s
        earned_s = self._allowance_s + MAX_LOSS * plain_s
        self._allowance_s = min(earned_s, MOST_STEPS * plain_s)
        return self._allowance_s
