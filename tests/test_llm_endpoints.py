"""Which endpoint a conversation asks: stable, spread, and away from what is down."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.endpoints import Address, BackOff, EndpointPool, parse_addresses
from voicepipe.errors import UsageError

addresses = st.integers(0, 10_000).map(lambda n: Address(f"http://host-{n}:8000/v1", "m"))
fleets = st.lists(addresses, min_size=2, max_size=8, unique=True)
conversations = st.text(max_size=20)
A, B, C = (Address(f"http://{name}/v1", "m") for name in "abc")


def pool(*of: Address, first_s: float = 1.0, longest_s: float = 60.0) -> EndpointPool:
    return EndpointPool(of, BackOff(first_s, longest_s))


@given(fleets, conversations, st.randoms())
@settings(max_examples=60)
def test_the_order_depends_on_the_conversation_and_on_nothing_else(
    fleet: list[Address], conversation: str, random: object
) -> None:
    ranked = pool(*fleet).ranked(conversation)
    assert sorted(ranked, key=str) == sorted(fleet, key=str)
    assert pool(*reversed(fleet)).ranked(conversation) == ranked


@given(fleets, conversations, st.data())
@settings(max_examples=60)
def test_an_endpoint_that_goes_moves_only_the_conversations_it_had(
    fleet: list[Address], conversation: str, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(fleet))
    before = pool(*fleet).ranked(conversation)
    rest = [address for address in before if address != gone]
    assert pool(*rest).ranked(conversation) == rest
    all_there = pool(*fleet)
    all_there.failed(gone, 0.0)
    assert all_there.ranked(conversation) == [*rest, gone]
    all_there.found_up(gone)
    assert all_there.ranked(conversation) == before


def test_conversations_are_spread_evenly() -> None:
    fleet = [Address(f"http://10.0.0.{n}:8000/v1", "m") for n in range(4)]
    preferred = Counter(pool(*fleet).ranked(f"{n:x}")[0] for n in range(4000))
    assert all(900 < preferred[address] < 1100 for address in fleet), preferred


def test_those_that_are_down_come_last_and_the_soonest_back_first() -> None:
    some = pool(A, B, C)
    some.failed(B, 5.0)
    some.failed(A, 3.0)
    assert some.ranked("x") == [C, A, B]
    assert [some.is_up(address) for address in (A, B, C)] == [False, False, True]


def test_a_fleet_that_fails_at_once_is_one_outage() -> None:
    one = pool(A, B, first_s=1.0)
    for _ in range(100):
        one.failed(A, 0.0)
    assert one.take_probes(0.9) == []
    assert one.take_probes(1.0) == [A]


def test_an_endpoint_says_itself_how_long_it_wants_to_be_left_alone() -> None:
    one = pool(A, B)
    one.failed(A, 0.0, at_least_s=7.0)
    assert one.take_probes(6.9) == []
    assert one.take_probes(7.0) == [A]


def test_a_probe_is_for_one_and_each_comes_later_than_the_one_before() -> None:
    one = pool(A, B, first_s=1.0, longest_s=8.0)
    one.failed(A, 0.0)
    now_s, waits = 0.0, []
    for _ in range(6):
        due_s = next(t / 4 for t in range(1000) if one.take_probes(now_s + t / 4))
        waits.append(due_s)
        now_s += due_s
        assert one.take_probes(now_s) == [], "handed out once"
    assert waits == [1, 2, 4, 8, 8, 8]


def test_only_a_reply_makes_failures_forgotten() -> None:
    one = pool(A, B, first_s=1.0)
    for expected_s in (1.0, 4.0, 16.0):  # a failure, a probe that is answered, a failure, ...
        one.failed(A, 0.0)
        assert one.take_probes(expected_s - 0.1) == []
        assert one.take_probes(expected_s) == [A]
        one.found_up(A)
        assert one.is_up(A)
    one.answered(A)
    one.failed(A, 0.0)
    assert one.take_probes(1.0) == [A]


@given(st.integers(1, 10**9))
@settings(max_examples=60)
def test_the_back_off_has_a_limit(n_failures: int) -> None:
    wait_s = BackOff(first_s=0.5, longest_s=30.0).after(n_failures)
    assert math.isfinite(wait_s)
    assert 0.5 <= wait_s <= 30.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a/v1#m", [A]),
        ("http://a/v1/#m", [A]),
        ("http://a/v1,http://b/v1#m", [A, B]),
        ("http://a/v1#m, http://b/v1#m", [A, B]),
        (
            "http://a/v1#org/x:7b,https://b/v1,http://c/v1#m",
            [Address("http://a/v1", "org/x:7b"), Address("https://b/v1", "m"), C],
        ),
    ],
)
def test_an_address_names_endpoints_and_models(text: str, expected: list[Address]) -> None:
    assert list(parse_addresses(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "#m", "http://a/v1", "http://a/v1#m,http://b/v1", "a/v1#m", "http://a/v1,,#m"]
)
def test_an_incomplete_address_is_one_clear_line(text: str) -> None:
    with pytest.raises(UsageError, match="give openai:http://host:8000/v1#model") as error:
        parse_addresses(text)
    assert "\n" not in str(error.value)


def test_a_pool_wants_endpoints_each_once() -> None:
    with pytest.raises(UsageError, match="got none"):
        pool()
    with pytest.raises(UsageError, match="each once; got http://a/v1, http://a/v1"):
        pool(A, A)
