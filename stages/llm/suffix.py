"""A suffix automaton over token ids: after any text, what came next the other times.

Greetings, confirmations, the caller's own words and the JSON of tool calls recur. The automaton
(Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text") holds every
substring of the texts it was given, takes a new token in amortised constant time, and finds the
longest suffix of what is being generated that was ever seen, one token at a time.

What it proposes is only ever *verified*: a drafted token is kept where the model would have chosen
the same, so the output does not depend on what is stored here. Its timing could, therefore texts of
callers never go into an automaton that others use: a conversation has one of its own, and
`ReplyMemory` shares replies among conversations that have the same system prompt.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence

ROOT = 0

MAX_LINKS = 24
"""Suffixes of a token's context whose counts are kept exact. Real text has about ten; a token that
is repeated for ever has as many as repetitions, and must not cost more."""

MIN_CONFIDENCE = 0.3
"""A draft ends where the share of its continuation, multiplied up from its start, falls below."""


class SuffixAutomaton:
    """All substrings of the texts added, with how often each occurred. At most two states a
    token, about 400 bytes each."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self.length = array("q", [0])
        """Of a state's longest substring."""
        self.link = array("q", [-1])
        """The state of the longest suffix that occurs elsewhere too; -1 for the root."""
        self.count = array("q", [0])
        """Occurrences of a state's substrings."""
        self.likeliest = array("q", [-1])
        """The token that follows most often, the latest of equals; -1 where none ever did."""
        self.following: list[dict[int, int]] = [{}]
        """The state after each token that ever followed."""

    def add(self, ids: Sequence[int]) -> None:
        """Take in a text; nothing follows its last token."""
        last = ROOT
        for token in ids:
            last = self._append(last, token)
        self.n_tokens += len(ids)

    def _append(self, last: int, token: int) -> int:
        state = self._extended(last, token)
        self._count(last, state, token)
        return state

    def _extended(self, last: int, token: int) -> int:
        """The state of `last`'s text plus `token`, made where it is new."""
        known = self.following[last].get(token)
        if known is not None:
            return self._exactly(last, token, known)
        state = self._new(self.length[last] + 1)
        while last >= 0 and token not in self.following[last]:
            self._connect(last, token, state)
            last = self.link[last]
        if last < 0:
            self.link[state] = ROOT
        else:
            self.link[state] = self._exactly(last, token, self.following[last][token])
        return state

    def _exactly(self, state: int, token: int, target: int) -> int:
        """`target`, or a clone of it for the part of its substrings that end in `state`'s."""
        if self.length[target] == self.length[state] + 1:
            return target
        clone = self._new(self.length[state] + 1)
        self.following[clone] = self.following[target].copy()
        self.count[clone] = self.count[target]
        self.likeliest[clone] = self.likeliest[target]
        self.link[clone] = self.link[target]
        self.link[target] = clone
        while state >= 0 and self.following[state].get(token) == target:
            self.following[state][token] = clone
            state = self.link[state]
        return clone

    def _new(self, length: int) -> int:
        self.length.append(length)
        self.link.append(ROOT)
        self.count.append(0)
        self.likeliest.append(-1)
        self.following.append({})
        return len(self.following) - 1

    def _connect(self, state: int, token: int, target: int) -> None:
        if not self.following[state]:
            self.likeliest[state] = token
        self.following[state][token] = target

    def _count(self, before: int, after: int, token: int) -> None:
        """Count one more occurrence of `after` and of its suffixes; it came by `token` after
        `before` and after its suffixes."""
        count, link = self.count, self.link
        for _ in range(MAX_LINKS):
            if after == ROOT:
                break
            count[after] += 1
            after = link[after]
        for _ in range(MAX_LINKS):
            if before < 0:
                break
            following = self.following[before]
            if count[following[token]] >= count[following[self.likeliest[before]]]:
                self.likeliest[before] = token
            before = link[before]


class SuffixCursor:
    """Where one reply stands in an automaton: at the longest suffix of its text that is known.

    Looks nothing up before it is asked; stays right while texts are added.
    """

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self._automaton = automaton
        self._state = ROOT
        self._n_matched = 0
        self._ahead: list[int] = []
        """Text that was not looked up yet."""

    @property
    def n_matched(self) -> int:
        """Length of that suffix in tokens."""
        self._settle()
        return self._n_matched

    def follow(self, ids: Sequence[int]) -> None:
        """The reply's text (or the prompt in front of it) went on with `ids`."""
        self._ahead += ids

    def propose(self, n: int) -> tuple[list[int], int]:
        """Up to `n` tokens, the most frequent continuation as far as it is likely, and how many
        tokens in front of it were known; none where nothing ever followed the text so far."""
        automaton, state = self._automaton, self._settle()
        while state != ROOT and automaton.likeliest[state] < 0:
            state = automaton.link[state]
        n_known = min(self._n_matched, automaton.length[state])
        ids: list[int] = []
        confidence = 1.0
        while state != ROOT and len(ids) < n and automaton.likeliest[state] >= 0:
            token = automaton.likeliest[state]
            following = automaton.following[state][token]
            confidence *= automaton.count[following] / automaton.count[state]
            if confidence < MIN_CONFIDENCE:
                break
            ids.append(token)
            state = following
        return ids, n_known

    def _settle(self) -> int:
        """The state of all of the text, looked up where that is still to be done."""
        for token in self._ahead:
            self._step(token)
        self._ahead.clear()
        return self._shortest()

    def _step(self, token: int) -> None:
        automaton, state = self._automaton, self._shortest()
        while state >= 0 and token not in automaton.following[state]:
            state = automaton.link[state]
            self._n_matched = automaton.length[state] if state >= 0 else -1
        self._state = automaton.following[state][token] if state >= 0 else ROOT
        self._n_matched += 1

    def _shortest(self) -> int:
        """The state of the match, which a clone made since may have taken over."""
        automaton = self._automaton
        while self._state and automaton.length[automaton.link[self._state]] >= self._n_matched:
            self._state = automaton.link[self._state]
        return self._state


class SuffixMemory:
    """The latest texts, from about half of `max_tokens` to all of it, in an automaton.

    A successor takes in the second half of what comes and replaces the automaton when that is
    full, so that nothing is ever rebuilt while somebody waits. Not thread-safe.
    """

    def __init__(self, max_tokens: int = 16_384) -> None:
        self._max_tokens = max_tokens
        self._automaton, self._successor = SuffixAutomaton(), SuffixAutomaton()

    @property
    def n_tokens(self) -> int:
        return self._automaton.n_tokens

    def add(self, ids: Sequence[int]) -> None:
        """Remember a text, of a long one the end."""
        ids = ids[-(self._max_tokens // 2) :]
        if self._automaton.n_tokens + len(ids) > self._max_tokens:
            self._automaton, self._successor = self._successor, SuffixAutomaton()
        if self._automaton.n_tokens + len(ids) > self._max_tokens // 2:
            self._successor.add(ids)
        self._automaton.add(ids)

    def cursor(self) -> SuffixCursor:
        """For one reply: texts that are forgotten meanwhile stay known to it."""
        return SuffixCursor(self._automaton)


class ReplyMemory:
    """Replies of all conversations, by what they were generated from: `prefix` stands for the
    system prompt and tools. The latest `max_prefixes` are kept."""

    def __init__(self, max_tokens: int = 16_384, max_prefixes: int = 8) -> None:
        self._max_tokens, self._max_prefixes = max_tokens, max_prefixes
        self._memories: OrderedDict[Hashable, SuffixMemory] = OrderedDict()

    def of(self, prefix: Hashable) -> SuffixMemory:
        """The memory of conversations with this prefix; add replies to it and nothing else."""
        memory = self._memories.setdefault(prefix, SuffixMemory(self._max_tokens))
        self._memories.move_to_end(prefix)
        while len(self._memories) > self._max_prefixes:
            self._memories.popitem(last=False)
        return memory
