"""The endpoints of a language model as one conversation sees them: whom to ask, and who is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stages.llm.completions import Completions, EndpointFailed
from stages.llm.dialogue import Dialogue, Message
from stages.llm.endpoints import Address, EndpointPool
from stages.llm.errands import Errands

log = logging.getLogger(__name__)

ANY_WORDS = "Hello."
"""Stands for the caller's words where only what is in front of them counts."""


@dataclass(frozen=True, slots=True)
class ConversationEndpoints:
    """The endpoints as one conversation sees them."""

    pool: EndpointPool
    completions: Completions
    errands: Errands
    conversation: str

    def ranked(self) -> list[Address]:
        """Whom to ask, in order."""
        return self.pool.ranked(self.conversation)

    def has_choice(self, address: Address, following: Address | None) -> bool:
        """Whether it is better to ask `following` than to wait for `address`."""
        if following is None:
            return False
        return self.pool.is_up(following) or not self.pool.is_up(address)

    def probe(self) -> None:
        """See whether those that are down are back, without waiting for it."""
        for address in self.pool.take_probes(asyncio.get_running_loop().time()):
            self.errands.start(partial(self._probe, address))

    def failed(self, error: EndpointFailed, address: Address) -> None:
        if error.of_endpoint:
            now_s = asyncio.get_running_loop().time()
            self.pool.failed(address, now_s, at_least_s=error.retry_after_s)

    async def warm_up(self, system: str) -> None:
        """Have the endpoint that will be asked prefill the system prompt."""
        messages = Dialogue().messages(system)
        messages.append({"role": "user", "content": ANY_WORDS})
        for address in self.ranked():
            try:
                await self._prefill(address, messages)
            except EndpointFailed as error:
                log.warning("warm-up: %s", error)
                self.failed(error, address)
                if not error.of_endpoint:
                    return
            else:
                self.pool.answered(address)
                return

    async def _prefill(self, address: Address, messages: Sequence[Message]) -> None:
        limit_s = self.completions.limits.warm_up_s
        try:
            async with (
                asyncio.timeout(limit_s),
                self.completions.ask(address, messages, max_tokens=1) as chunks,
            ):
                async for _ in chunks:
                    pass
        except TimeoutError:
            raise EndpointFailed(address, f"no end of one token within {limit_s:g} s") from None

    async def _probe(self, address: Address) -> None:
        if await self.completions.is_up(address):
            log.info("language model at %s is back", address)
            self.pool.found_up(address)
