"""What the language model was given and what it made, in tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from budgets.figures import ratio
from voicepipe import events as ev


@dataclass(frozen=True)
class Tokens:
    """Of some replies: `cached` of the `prompt` needed no computing, `wasted` of the `generated`
    were of replies of which nothing was heard, and `accepted` of the `drafted` were right, found
    so in `verify_steps` model steps."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    wasted: int = 0
    drafted: int = 0
    accepted: int = 0
    verify_steps: int = 0

    @classmethod
    def of(cls, finished: Iterable[ev.TurnFinished]) -> Tokens:
        return sum((_of_one(event) for event in finished), cls())

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*(a + b for a, b in zip(_counts(self), _counts(other), strict=True)))

    @property
    def prefix_hit_rate(self) -> float:
        return ratio(self.cached, self.prompt)

    @property
    def wasted_ratio(self) -> float:
        return ratio(self.wasted, self.generated)

    @property
    def acceptance_length(self) -> float:
        """Tokens that one checking step makes: the drafted ones that were right and one of its
        own. nan when nothing was drafted."""
        return 1.0 + ratio(self.accepted, self.verify_steps)

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def _counts(tokens: Tokens) -> Iterable[int]:
    return asdict(tokens).values()


def _of_one(event: ev.TurnFinished) -> Tokens:
    steps = event.verify_steps
    if event.drafted_tokens and not steps:
        # Not every model tells: then each step is taken for one that checked a draft.
        steps = event.generated_tokens - event.accepted_tokens
    return Tokens(
        prompt=event.prompt_tokens,
        cached=event.cached_tokens,
        generated=event.generated_tokens,
        wasted=0 if event.heard_text else event.generated_tokens,
        drafted=event.drafted_tokens,
        accepted=event.accepted_tokens,
        verify_steps=steps,
    )
