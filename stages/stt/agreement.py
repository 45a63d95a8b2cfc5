"""The text of a turn while it grows: words become stable when two hypotheses in a row, on different
audio, agree on them (LocalAgreement-2 of Macháček et al., "Turning Whisper into Real-Time
Transcription System", 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

from stages.stt.words import Word, spoken_alike
from voicepipe.frames import CALLER_RATE_HZ

MIN_NEWS = CALLER_RATE_HZ // 10
"""100 ms: hypotheses on audio that differs by less do not count as two."""

N_OPEN = 1
"""The last word may be half a word, and what follows may change the one before it."""

MIN_SURE = 0.5
"""Probability of a word's tokens, on average, for it to become stable."""

SENTENCE_ENDS = ".?!。？！"  # noqa: RUF001 - Chinese and Japanese text ends so


class GrowingText:
    """What is understood of one turn: settled, stable and open words, in this order.

    Settled words lie before the window that is decoded; stable ones are in it and will not change;
    open ones are the rest of the latest hypothesis.
    """

    def __init__(self) -> None:
        self._settled: list[Word] = []
        self.stable: list[Word] = []
        self.open: list[Word] = []
        self._heard_to = 0

    @property
    def text(self) -> str:
        return _joined(self._settled, self.stable, self.open)

    @property
    def stable_text(self) -> str:
        return _joined(self._settled, self.stable)

    @property
    def confidence(self) -> float:
        """exp(mean log-probability of a token); nan without words."""
        words = (*self._settled, *self.stable, *self.open)
        log_probs = [log_prob for word in words for log_prob in word.log_probs]
        return math.exp(sum(log_probs) / len(log_probs)) if log_probs else math.nan

    @property
    def before(self) -> list[int]:
        """The tokens of what is settled."""
        return _tokens(self._settled)

    @property
    def known(self) -> list[int]:
        """The tokens that the next hypothesis must begin with."""
        return _tokens(self.stable)

    @property
    def open_tokens(self) -> list[int]:
        """The tokens that the next hypothesis probably goes on with."""
        return _tokens(self.open)

    def news(self, words: Sequence[Word]) -> list[Word]:
        """What a hypothesis, of words after the stable ones, says that the last one did not."""
        return list(words[_n_alike(self.open, words) :])

    def take(self, words: Sequence[Word], heard_to: int) -> None:
        """The next hypothesis: its words after the stable ones, on audio up to `heard_to`."""
        n_agreed = _n_alike(self.open, words) if heard_to - self._heard_to >= MIN_NEWS else 0
        n_sure = sum(1 for _ in takewhile(lambda word: word.probability >= MIN_SURE, words))
        n_stable = max(0, min(n_agreed, n_sure, len(words) - N_OPEN))
        self.stable += words[:n_stable]
        self.open = list(words[n_stable:])
        self._heard_to = heard_to

    def settle(self, n_words: int) -> None:
        """The first so many of the stable and open words leave the window for good."""
        words = [*self.stable, *self.open]
        self._settled += words[:n_words]
        self.stable = self.stable[n_words:]
        self.open = words[max(n_words, len(words) - len(self.open)) :]

    def n_sentences_stable(self) -> int:
        """The number of stable words up to the end of the last whole sentence."""
        ends = (i + 1 for i, word in enumerate(self.stable) if word.text[-1:] in SENTENCE_ENDS)
        return max(ends, default=0)


def _n_alike(one: Sequence[Word], other: Sequence[Word]) -> int:
    """How many words two hypotheses begin with in common."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: spoken_alike(*pair), pairs))


def _joined(*parts: Sequence[Word]) -> str:
    return "".join(word.text for part in parts for word in part).strip()


def _tokens(words: Sequence[Word]) -> list[int]:
    return [token for word in words for token in word.tokens]
