"""Words as the decoder writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from voicepipe.wording import normalised


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its leading space and trailing punctuation: a text is its words joined."""

    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]

    @property
    def spoken(self) -> str:
        """What was said, without case and punctuation; "" for punctuation alone."""
        return normalised(self.text)

    @property
    def probability(self) -> float:
        """The geometric mean of its tokens'; 1 when nothing is known of them."""
        return math.exp(sum(self.log_probs) / max(1, len(self.log_probs)))

    def followed_by(self, other: Word) -> Word:
        """Both as one word."""
        return Word(
            self.text + other.text, self.tokens + other.tokens, self.log_probs + other.log_probs
        )


def spoken_alike(one: Word, other: Word) -> bool:
    return one.spoken == other.spoken
