"""Splits a reply, while it is being generated, into phrases that can be spoken one after another.

A phrase that ends early lets the voice start early; a long one sounds better, because a voice
models the melody of what it is given at once. So the first phrase ends at the first place where a
speaker could pause, and each later one may be longer, because more speech is already waiting.

The unit of length is the *letter*: English speech runs at about 13 letters a second. A digit counts
as three (it is read as a word), so does a Chinese or Japanese character; markup and emoji as none.

Decisions depend on nothing but the characters, so that a reply is cut in the same places however
its deltas arrive, and a cut falls in front of white space, where most tokenizers cut too. What a
decision costs in latency: a line break, `?` and `!` after a plain word, and a comma cost nothing or
the space after them; a full stop waits for the first character of the next word, because only that
tells the end of a sentence from "Dr. Smith", "3.5" or "example.com" (the space and that character
mostly come in one token). Cutting at once at `?` leaves the rest of a "?!" to the next phrase,
which does not speak it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from voicepipe.boundaries import (
    CLOSERS,
    JOINTS,
    NEED_NO_SPACE,
    PREPOSITIONS,
    SENTENCE_ENDS,
    Boundary,
    after_word,
    between_words,
    is_ideograph,
    n_letters,
)
from voicepipe.protocols import Phrase
from voicepipe.silent_text import Kind, ReplyScanner


@dataclass(frozen=True, slots=True)
class Length:
    """From how many letters on a phrase may end at a boundary of some strength: `first` for the
    first phrase, later `growth` times the letters of all phrases before it, `most` at most."""

    first: int
    growth: float
    most: int

    def after(self, n_spoken: int) -> float:
        return min(max(self.first, self.growth * n_spoken), self.most)


@dataclass(frozen=True, slots=True)
class PhraseLengths:
    """How long phrases are.

    The growths assume that a second of speech takes at most ~0.3 s to generate and synthesise
    (20 tokens/s and a real-time factor of 0.1 are enough); halve them for a slower machine. The
    limits keep one synthesis step, which cannot be cancelled half way, below ~0.7 s at that factor.
    """

    sentence: Length = Length(first=1, growth=1, most=40)
    """A sentence, even "Sure!", is followed by a pause anyway, and while its ~400 ms are heard the
    next phrase gets ready. Later ones are grouped up to 3 s."""
    clause: Length = Length(first=8, growth=2, most=80)
    """At a comma no pause is expected: "Of course," (0.6 s) covers the next synthesis, "Yes," does
    not."""
    joint: Length = Length(first=20, growth=2, most=100)
    """In front of "and", "because" and the like: about five words, so that a long first clause does
    not hold up the voice."""
    word: Length = Length(first=40, growth=3, most=120)
    """Between any two words, because some texts have no punctuation at all."""
    endless: int = 240
    """Inside a word. No real word or web address is as long."""

    def at(self, boundary: Boundary) -> Length | None:
        """None where no phrase ends on purpose."""
        return {
            Boundary.WORD: self.word,
            Boundary.JOINT: self.joint,
            Boundary.CLAUSE: self.clause,
            Boundary.SENTENCE: self.sentence,
        }.get(boundary)


_PLAIN_WORD = re.compile(r"[^\W\d_]+[?!]")
_NOT_PLAIN = frozenset('"“”«»()[]{}<>*_`~|/\\@=&#$%^+')
"""What opens something that a `?` may close, or makes a `?` part of an address or of code."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A place where the phrase may end: after so many of its characters and letters."""

    at: int = 0
    n_letters: int = 0

    def less(self, dropped: _Cut) -> _Cut:
        """The same place once all up to `dropped` is gone."""
        return _Cut(max(self.at - dropped.at, 0), max(self.n_letters - dropped.n_letters, 0))


class _Pending:
    """The characters that are in no phrase yet, and what is known of them."""

    def __init__(self) -> None:
        self.chars: list[str] = []
        self.n_letters = 0
        self.word = _Cut()
        """Where the last word starts."""
        self.gap = _Cut()
        """Where the last white space that is not inside a span starts."""
        self.seen: dict[Boundary, _Cut] = {}
        """The last boundary of each strength."""
        self.plain = True
        """Nothing but words and ordinary punctuation."""

    @property
    def here(self) -> _Cut:
        return _Cut(len(self.chars), self.n_letters)

    @property
    def last_word(self) -> str:
        return "".join(self.chars[self.word.at :]).rstrip()

    @property
    def ends_plain_word(self) -> bool:
        """The last character follows a word of letters, and nothing is open that it may close."""
        return (
            self.plain
            and len(self.chars) > 1
            and self.chars[-2].isalpha()
            and bool(_PLAIN_WORD.fullmatch(self.last_word))
        )

    def best(self, cut: _Cut, need: float, boundary: Boundary) -> _Cut:
        """The strongest boundary up to `cut` that leaves at least half of `need`."""
        stronger = [b for b, c in self.seen.items() if b > boundary and c.n_letters >= need / 2]
        return self.seen[max(stronger)] if stronger else cut

    def take(self, cut: _Cut) -> str:
        """Remove and return the text up to `cut`."""
        text = "".join(self.chars[: cut.at])
        del self.chars[: cut.at]
        self.n_letters -= cut.n_letters
        self.seen = {b: c.less(cut) for b, c in self.seen.items() if c.at > cut.at}
        self.word, self.gap = self.word.less(cut), self.gap.less(cut)
        self.plain = _NOT_PLAIN.isdisjoint(self.chars)
        return text


class PhraseSplitter:
    """Splits one reply. The texts of its phrases concatenate to the text fed, exactly.

    Every phrase but the last has something to say: silent text, emoji and white space wait for the
    next spoken word and travel with it.
    """

    def __init__(self, lengths: PhraseLengths | None = None) -> None:
        self._lengths = lengths or PhraseLengths()
        self._scanner = ReplyScanner()
        self._pending = _Pending()
        self._n_spoken = 0
        self._undecided = False  # the next word tells what the last word ended
        self._at_line_start = True
        self._first_of_line = True  # the last word is
        self._word_before = ""
        self._n_letters_before_span = 0

    def feed(self, delta: str) -> list[Phrase]:
        """The phrases that `delta` completes."""
        return [phrase for char in delta for phrase in self._step(char)]

    def finish(self) -> list[Phrase]:
        """The reply ends here: what is left of it, if anything."""
        rest = "".join(self._pending.chars)
        self._pending = _Pending()
        return [Phrase(rest)] if rest else []

    def _step(self, char: str) -> list[Phrase]:
        pending, scanner = self._pending, self._scanner
        scanner.step(char)
        phrases = [] if scanner.inside else self._before(char)
        pending.chars.append(char)
        pending.plain = pending.plain and char not in _NOT_PLAIN
        if scanner.kind is Kind.SILENT:
            pending.n_letters = self._n_letters_before_span
        elif scanner.kind is Kind.ALL_SILENT:
            pending.n_letters = 0
            pending.seen.clear()
        elif scanner.kind is Kind.SPOKEN:
            pending.n_letters += n_letters(char)
        if scanner.open and not scanner.inside:
            self._n_letters_before_span = pending.n_letters
        if char == "\n":
            self._at_line_start = True
        if char in "?!" and pending.ends_plain_word:
            phrases += self._consider(Boundary.SENTENCE, pending.here)
        if pending.n_letters >= self._lengths.endless and not scanner.open:
            phrases.append(self._cut(pending.here))
        return phrases

    def _before(self, char: str) -> list[Phrase]:
        """What ends in front of `char`."""
        pending = self._pending
        last = pending.chars[-1] if pending.chars else " "
        if char.isspace():
            if not last.isspace():
                return self._word_ended(line_ended=char == "\n")
            if char == "\n":
                self._undecided = False
                return self._consider(Boundary.SENTENCE, pending.gap)
            return []
        phrases: list[Phrase] = []
        if not last.isspace():
            return self._inside_word(char, last)
        if self._undecided:
            self._undecided = False
            phrases = self._consider(between_words(pending.last_word, char), pending.gap)
        pending.word = pending.here
        self._first_of_line, self._at_line_start = self._at_line_start, False
        return phrases

    def _word_ended(self, *, line_ended: bool) -> list[Phrase]:
        pending = self._pending
        word = pending.last_word
        phrases: list[Phrase] = []
        if word in JOINTS:
            phrases += self._consider(Boundary.JOINT, pending.gap)
        elif word in PREPOSITIONS:
            pending.seen[Boundary.WEAK] = pending.gap
        boundary = after_word(word, before=self._word_before, first_of_line=self._first_of_line)
        self._word_before = word
        if line_ended:
            boundary = Boundary.SENTENCE
        pending.gap = pending.here
        if boundary is None:
            self._undecided = True
            return phrases
        return phrases + self._consider(boundary, pending.gap)

    def _inside_word(self, char: str, last: str) -> list[Phrase]:
        """Cuts without white space: behind a dash, and in Chinese and Japanese."""
        if char.isascii() and last.isascii() and last.isalnum():
            return []
        if char in CLOSERS or char in NEED_NO_SPACE:
            return []
        here = self._pending.here
        end = "".join(self._pending.chars[-4:]).rstrip(CLOSERS)[-1:]
        if end in NEED_NO_SPACE:
            strength = Boundary.SENTENCE if end in SENTENCE_ENDS else Boundary.CLAUSE
            return self._consider(strength, here)
        if is_ideograph(char) or is_ideograph(last):
            return self._consider(Boundary.WORD, here)
        return []

    def _consider(self, boundary: Boundary, cut: _Cut) -> list[Phrase]:
        """There is a boundary at `cut`: the phrases that end there, or at a better place before."""
        pending = self._pending
        length = self._lengths.at(boundary)
        phrases: list[Phrase] = []
        if length is None:
            return phrases
        pending.seen[boundary] = cut
        while found := pending.seen.get(boundary):
            need = max(length.after(self._n_spoken), 1)
            if found.n_letters < need:
                break
            phrases.append(self._cut(pending.best(found, need, boundary)))
        return phrases

    def _cut(self, cut: _Cut) -> Phrase:
        self._n_spoken += cut.n_letters
        return Phrase(self._pending.take(cut))
