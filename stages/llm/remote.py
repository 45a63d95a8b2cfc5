"""A language model behind OpenAI-compatible endpoints (vLLM, SGLang, llama-server, Ollama)."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial

import httpx

from stages.llm.channels import SpokenText
from stages.llm.completions import (
    Completions,
    EndpointFailed,
    EndpointLimits,
    all_failed,
    timed_out,
)
from stages.llm.conversation_endpoints import ConversationEndpoints
from stages.llm.dialogue import Dialogue, Message, Said, Turn
from stages.llm.endpoints import Address, EndpointPool
from stages.llm.errands import Errands
from stages.llm.remote_calls import BadCall, CallParts
from stages.llm.reply import Emit, GeneratedReply
from stages.llm.sse import Chunk
from stages.llm.tools import as_openai
from voicepipe.protocols import Conversation, ReplyStats, ToolCall, ToolSpec

log = logging.getLogger(__name__)

TAIL_S = 0.5
"""How long an endpoint may take from the end of a reply to the end of the stream; what comes
between them is usage."""


class OpenAILLM:
    """Streams chat completions from `base_url` (up to and including /v1) and `others`.

    A conversation asks the same endpoint as long as that is well, for the sake of its prefix
    cache, and another one when it fails before the first word of a reply; later errors are raised
    as ComponentError of one line where the reply is read. An endpoint that failed is asked again
    when GET /v1/models is answered, looked at ever more rarely. Leaving a reply closes its
    connection, which makes servers stop generating.

    `warm_up`: a conversation begins with a request of one token, so that connection, model and the
    system prompt's state are there when the caller has spoken.

    Calls of tools count among the `max_tokens` of a reply. One that is not whole or not of a tool
    that was given is a ComponentError where the reply is read.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        others: Sequence[Address] = (),
        api_key: str | None = None,
        max_tokens: int = 120,
        temperature: float = 0.7,
        seed: int | None = None,
        warm_up: bool = True,
        limits: EndpointLimits | None = None,
    ) -> None:
        self._limits = limits or EndpointLimits()
        addresses = [Address(base_url.rstrip("/"), model), *others]
        self._pool = EndpointPool(addresses, self._limits.back_off)
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._settings: dict[str, object] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if seed is not None:
            self._settings["seed"] = seed
        self._warm_up = warm_up
        self._tls = httpx.create_ssl_context()  # reads all certificates: once, not for each caller

    def open(
        self, system: str, tools: Sequence[ToolSpec] = ()
    ) -> AbstractAsyncContextManager[Conversation]:
        """See `protocols.LanguageModel`. Does not wait for the warm-up, so that an endpoint that
        takes no tools says so in the first reply."""
        return self._open(system, tools)

    @asynccontextmanager
    async def _open(self, system: str, tools: Sequence[ToolSpec]) -> AsyncIterator[Conversation]:
        described = {"tools": as_openai(tools)} if tools else {}
        async with (
            Completions.open(
                self._settings | described,
                limits=self._limits,
                headers=self._headers,
                tls=self._tls,
            ) as completions,
            Errands() as errands,
        ):
            key = secrets.token_hex(8)
            endpoints = ConversationEndpoints(self._pool, completions, errands, key)
            names = frozenset(tool.name for tool in tools)
            if self._warm_up:
                errands.start(partial(endpoints.warm_up, system))
            yield _RemoteConversation(endpoints, system, names)


class _RemoteConversation:
    """`protocols.Conversation` as a list of messages; the server's prefix cache does the rest."""

    def __init__(
        self, endpoints: ConversationEndpoints, system: str, tools: Collection[str]
    ) -> None:
        self._endpoints, self._system, self._tools = endpoints, system, tools
        self.dialogue = Dialogue()

    def extend(self, text: str) -> None:
        """Endpoints take whole requests only; but there will be one soon."""
        self._endpoints.probe()

    def reply(self, text: str, *, held: bool = False) -> GeneratedReply:
        messages = self.dialogue.messages(self._system)
        messages.append({"role": "user", "content": text})
        return self._generated(Turn(text), messages)

    def reply_to_results(
        self, results: Sequence[str], *, held: bool = False, may_call: bool = True
    ) -> GeneratedReply:
        turn = self.dialogue.answer(results)
        messages = self.dialogue.messages(self._system)
        return self._generated(turn, messages, may_call=may_call)

    def add_results(self, results: Sequence[str]) -> None:
        self.dialogue.add_results(results)

    def truncate(self, heard_text: str) -> None:
        self.dialogue.truncate(heard_text)

    def add_user_text(self, text: str) -> None:
        self.dialogue.add(text)

    def reopen(self) -> str:
        return self.dialogue.reopen()

    def _generated(
        self, turn: Turn, messages: Sequence[Message], *, may_call: bool = True
    ) -> GeneratedReply:
        source = _RemoteReply(self.dialogue, self._endpoints, turn, messages, self._tools)
        if not may_call:
            source.forbid_calls()
        return GeneratedReply(source)


class _RemoteReply:
    """`ReplySource` that reads one completion, of the first endpoint that gives one."""

    def __init__(
        self,
        dialogue: Dialogue,
        endpoints: ConversationEndpoints,
        turn: Turn,
        messages: Sequence[Message],
        tools: Collection[str],
    ) -> None:
        self.stats = ReplyStats()
        self._dialogue, self._endpoints = dialogue, endpoints
        self._turn, self._messages, self._tools = turn, messages, tools
        self._settings: dict[str, object] = {}
        self._has_spoken = False

    def forbid_calls(self) -> None:
        """To be asked before generating; calls that are made all the same are nobody's."""
        self._tools, self._settings = (), {"tool_choice": "none"}

    def release(self) -> None:
        """Endpoints know no priorities."""

    def drop(self) -> None:
        """The endpoint keeps nothing."""

    def adopt(self, text: str, calls: Sequence[ToolCall]) -> None:
        self._dialogue.adopt(self._turn, Said(text, calls=calls))

    async def generate(self, emit: Emit) -> None:
        limits, now = self._endpoints.completions.limits, asyncio.get_running_loop().time
        latest_s = now() + limits.first_token_s
        self._endpoints.probe()
        ranked = self._endpoints.ranked()
        failures: list[EndpointFailed] = []
        for address, following in zip(ranked, [*ranked[1:], None], strict=True):
            has_choice = self._endpoints.has_choice(address, following)
            patience_s = min(latest_s - now(), limits.failover_s if has_choice else math.inf)
            try:
                await self._read(address, patience_s, emit)
            except EndpointFailed as error:
                self._endpoints.failed(error, address)
                if self._has_spoken or not error.of_endpoint:
                    raise
                failures.append(error)
                log.warning("%s", error)
                if now() >= latest_s:
                    break
            else:
                return
        raise all_failed(failures)

    async def _read(self, address: Address, patience_s: float, emit: Emit) -> None:
        """One attempt; `patience_s` is to its first token. Raises EndpointFailed."""
        idle_s, now = self._endpoints.completions.limits.idle_s, asyncio.get_running_loop().time
        spoken, parts, n_tokens, finished = SpokenText(), CallParts(), 0, False
        try:
            async with (
                asyncio.timeout(patience_s) as patience,
                self._endpoints.completions.ask(
                    address, self._messages, **self._settings
                ) as chunks,
            ):
                async for chunk in chunks:
                    n_tokens += chunk.has_token
                    self._count(chunk, n_tokens)
                    if n_tokens == 1 and chunk.has_token:
                        self._endpoints.pool.answered(address)
                    for part in chunk.calls:
                        parts.add(part)
                    if chunk.has_token:
                        patience.reschedule(None)  # a slow reader is no fault of the endpoint
                        await self._say(spoken.feed(chunk.text), emit)
                        patience.reschedule(now() + idle_s)
                    if chunk.finished and not finished:
                        finished = True
                        patience.reschedule(now() + TAIL_S)
        except TimeoutError:
            if not finished:
                raise timed_out(address, patience_s, idle_s, n_tokens) from None
        except EndpointFailed:
            if not finished:
                raise
        await self._say(spoken.finish(), emit)
        if self._tools:  # otherwise nobody could run them
            await self._call(address, parts, emit)

    async def _call(self, address: Address, parts: CallParts, emit: Emit) -> None:
        try:
            calls = parts.whole(self._tools)
        except BadCall as error:
            advice = "raise max_tokens, or use a model that is better at calling tools"
            raise EndpointFailed(address, str(error), advice, of_endpoint=False) from error
        for call in calls:
            await emit(call)

    async def _say(self, text: str, emit: Emit) -> None:
        if text:
            self._has_spoken = True
            await emit(text)

    def _count(self, chunk: Chunk, n_tokens: int) -> None:
        """Usage as the endpoint reports it; until then an event with a token counts as one."""
        found = {
            "prompt_tokens": chunk.prompt_tokens,
            "cached_tokens": chunk.cached_tokens,
            "generated_tokens": chunk.generated_tokens or n_tokens,
            "drafted_tokens": chunk.drafted_tokens,
            "accepted_tokens": chunk.accepted_tokens,
        }
        self.stats = replace(self.stats, **{k: n for k, n in found.items() if n is not None})
