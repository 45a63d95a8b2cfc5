"""Which of several OpenAI-compatible endpoints a conversation asks: decisions only, no I/O.

A conversation prefers the same endpoint as long as that is up, so that the endpoint's prefix cache
holds the conversation; taking an endpoint away moves only the conversations that preferred it
(rendezvous hashing: Thaler and Ravishankar, "A name-based mapping scheme for rendezvous", 1996).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from voicepipe.errors import UsageError


@dataclass(frozen=True, slots=True)
class Address:
    """Where a model is served: `base_url` up to and including /v1."""

    base_url: str
    model: str

    def __str__(self) -> str:
        return self.base_url


def parse_addresses(text: str) -> tuple[Address, ...]:
    """`URL#model`, or several with commas between them; one that names no model serves the same as
    the next one that does. Raises UsageError."""
    addresses: list[Address] = []
    model = ""
    for part in reversed(text.split(",")):
        url, _, own = part.strip().partition("#")
        model = own or model
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc or not model:
            raise UsageError(
                f"llm openai:{text}: {part.strip()!r} names no endpoint and model: give "
                "openai:http://host:8000/v1#model, or several addresses with commas between them"
            )
        addresses.append(Address(url.rstrip("/"), model))
    return tuple(reversed(addresses))


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long an endpoint is left alone after its n-th failure in a row: doubling."""

    first_s: float = 1.0
    longest_s: float = 60.0

    def after(self, n_failures: int) -> float:
        return min(self.longest_s, self.first_s * 2.0 ** min(n_failures - 1, 32))


@dataclass(slots=True)
class _Health:
    """`down_until_s` is when to look whether the endpoint is back, -inf while it is up."""

    n_failures: int = 0
    down_until_s: float = -math.inf

    @property
    def is_up(self) -> bool:
        return self.down_until_s == -math.inf


class EndpointPool:
    """The endpoints of one language model and how they are, as its conversations report it.

    Times are those of the event loop, in seconds.
    """

    def __init__(self, addresses: Sequence[Address], back_off: BackOff) -> None:
        if not addresses or len(set(addresses)) < len(addresses):
            named = ", ".join(map(str, addresses)) or "none"
            raise UsageError(f"llm openai: give at least one endpoint, each once; got {named}")
        self._back_off = back_off
        self._health = {address: _Health() for address in addresses}

    def ranked(self, conversation: str) -> list[Address]:
        """All endpoints in the order to ask them: those that are up as the conversation prefers
        them, then those that are down, the one to come back first in front."""

        def order(address: Address) -> tuple[float, int]:
            return self._health[address].down_until_s, -_weight(conversation, address)

        return sorted(self._health, key=order)

    def is_up(self, address: Address) -> bool:
        return self._health[address].is_up

    def answered(self, address: Address) -> None:
        """It generates: all is well."""
        self._health[address] = _Health()

    def failed(self, address: Address, now_s: float, *, at_least_s: float = 0.0) -> None:
        """A request failed: the endpoint is down for a while, `at_least_s` when it says so itself.
        What else fails while it is down is the same outage and makes it no longer."""
        health = self._health[address]
        if health.is_up:
            health.n_failures += 1
            health.down_until_s = now_s + self._back_off.after(health.n_failures)
        health.down_until_s = max(health.down_until_s, now_s + at_least_s)

    def take_probes(self, now_s: float) -> list[Address]:
        """Endpoints whose time to be looked at has come; each is handed out to one caller, who
        then says `found_up` or nothing: unless it is up by then, its next time is twice as far."""
        due = [a for a, h in self._health.items() if not h.is_up and h.down_until_s <= now_s]
        for address in due:
            health = self._health[address]
            health.n_failures += 1
            health.down_until_s = now_s + self._back_off.after(health.n_failures)
        return due

    def found_up(self, address: Address) -> None:
        """A probe was answered. The failures are forgotten only when it generates again, so that
        an endpoint that answers probes and fails requests is asked ever more rarely."""
        self._health[address].down_until_s = -math.inf


def _weight(conversation: str, address: Address) -> int:
    digest = hashlib.blake2b(f"{conversation}\0{address.base_url}".encode(), digest_size=8)
    return int.from_bytes(digest.digest())
