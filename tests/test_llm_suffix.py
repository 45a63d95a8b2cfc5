from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.suffix import ROOT, ReplyMemory, SuffixAutomaton, SuffixMemory

texts = st.lists(st.lists(st.integers(0, 3), max_size=14), max_size=5)
GREETING = [11, 12, 13, 14, 15, 16]
LONGEST = 40


def occurrences(added: list[list[int]], part: tuple[int, ...]) -> int:
    n = len(part)
    return sum(tuple(ids[i : i + n]) == part for ids in added for i in range(len(ids) - n + 1))


def state_of(automaton: SuffixAutomaton, part: tuple[int, ...]) -> int | None:
    state: int | None = ROOT
    for token in part:
        state = automaton.following[state].get(token) if state is not None else None
    return state


@settings(max_examples=60, deadline=None)
@given(texts)
def test_every_substring_is_known_with_its_count_and_its_likeliest_continuation(
    added: list[list[int]],
) -> None:
    automaton = SuffixAutomaton()
    for ids in added:
        automaton.add(ids)
    parts = {tuple(t[i:j]) for t in added for i in range(len(t)) for j in range(i + 1, len(t) + 1)}
    for part in parts:
        state = state_of(automaton, part)
        assert state is not None
        assert automaton.count[state] == occurrences(added, part)
        following = {t: occurrences(added, (*part, t)) for t in range(4)}
        likeliest = automaton.likeliest[state]
        if any(following.values()):
            assert following[likeliest] == max(following.values())
        else:
            assert likeliest == -1
    assert len(automaton.following) <= 2 * sum(map(len, added)) + 1


@settings(max_examples=60, deadline=None)
@given(texts, texts, st.lists(st.integers(0, 4), max_size=20), st.booleans())
def test_a_cursor_is_at_the_longest_known_suffix(
    added: list[list[int]], later: list[list[int]], followed: list[int], looks: bool
) -> None:
    memory = SuffixMemory()
    for ids in added:
        memory.add(ids)
    cursor = memory.cursor()
    for n, token in enumerate(followed):
        if n == len(followed) // 2:
            for ids in later:
                memory.add(ids)
        cursor.follow([token])
        if looks:
            assert cursor.n_matched <= n + 1
    suffixes = [tuple(followed[i:]) for i in range(len(followed))]
    known = [s for s in suffixes if occurrences(added, s)]
    known_now = [s for s in suffixes if occurrences(added + later, s)]
    longest, longest_now = (max(map(len, k), default=0) for k in (known, known_now))
    assert longest <= cursor.n_matched <= longest_now
    assert cursor.n_matched == longest_now or (later and looks)


def test_the_most_frequent_continuation_is_proposed_and_of_equals_the_latest() -> None:
    memory = SuffixMemory()
    for ids in ([1, 2, 7], [1, 2, 8, 9], [1, 2, 8, 5]):
        memory.add(ids)
    cursor = memory.cursor()
    cursor.follow([1, 2])
    assert cursor.propose(8)[0] == [8, 5]
    assert cursor.propose(1)[0] == [8]


def test_an_unlikely_continuation_is_not_proposed() -> None:
    memory = SuffixMemory()
    for last in range(10, 20):
        memory.add([1, last])
    cursor = memory.cursor()
    cursor.follow([1])
    assert cursor.propose(4)[0] == []


def test_nothing_is_proposed_where_nothing_matches() -> None:
    memory = SuffixMemory()
    memory.add(GREETING)
    cursor = memory.cursor()
    assert cursor.propose(4)[0] == []
    cursor.follow([99])
    assert cursor.propose(4)[0] == []


def test_a_greeting_is_proposed_to_its_end() -> None:
    memory = SuffixMemory()
    memory.add([1, *GREETING])
    cursor = memory.cursor()
    cursor.follow([1])
    assert cursor.propose(10)[0] == GREETING
    cursor.follow(GREETING)
    assert cursor.propose(10)[0] == []


def test_about_the_latest_half_of_what_came_is_never_forgotten_and_memory_is_bounded() -> None:
    rng, bound = random.Random(3), 400
    memory, added = SuffixMemory(bound), list[list[int]]()
    for n in range(200):
        added.append([1000 + n, *(rng.randrange(50) for _ in range(rng.randrange(1, LONGEST)))])
        memory.add(added[-1])
        assert memory.n_tokens <= bound
        n_tokens = 0
        for ids in reversed(added):
            n_tokens += len(ids)
            if n_tokens > bound // 2 - LONGEST:
                break
            cursor = memory.cursor()
            cursor.follow(ids[:1])
            assert cursor.propose(100)[0] == ids[1:]


def test_of_a_text_longer_than_the_memory_the_end_is_kept() -> None:
    memory = SuffixMemory(20)
    memory.add(list(range(100)))
    cursor = memory.cursor()
    cursor.follow([95])
    assert cursor.propose(9)[0] == [96, 97, 98, 99]


def test_a_token_repeated_for_ever_costs_no_more_than_others() -> None:
    automaton = SuffixAutomaton()
    automaton.add([7] * 20_000)
    assert len(automaton.following) == 20_001


def test_replies_are_shared_by_conversations_with_the_same_prefix_alone() -> None:
    replies = ReplyMemory(max_prefixes=2)
    replies.of("a").add(GREETING)
    same, other = replies.of("a").cursor(), replies.of("b").cursor()
    for cursor in (same, other):
        cursor.follow(GREETING[:1])
    assert same.propose(2)[0] == GREETING[1:3]
    assert other.propose(2)[0] == []
    replies.of("c")
    assert replies.of("a").n_tokens == 0
