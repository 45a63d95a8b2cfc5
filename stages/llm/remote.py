"""A language model behind an OpenAI-compatible endpoint (vLLM, SGLang, llama-server, Ollama)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import httpx

from stages.llm.dialogue import Dialogue
from stages.llm.reply import GeneratedReply
from stages.llm.sse import BadStream, Chunk, error_text, parse_line
from voicepipe.errors import ComponentError
from voicepipe.protocols import Conversation, ReplyStats


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """How long an endpoint may take: to accept a connection, to say the first word, and between
    words (role-only and empty events count as no word, but show that it lives)."""

    connect_s: float = 5.0
    first_token_s: float = 20.0
    idle_s: float = 10.0


class OpenAILLM:
    """Streams chat completions from `base_url` (up to and including /v1).

    Leaving a reply closes its connection, which makes servers stop generating. Errors of the
    endpoint are raised as ComponentError of one line where the reply is read; nothing is retried.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        max_tokens: int = 120,
        temperature: float = 0.7,
        seed: int | None = None,
        limits: EndpointLimits | None = None,
    ) -> None:
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._request: dict[str, object] = {
            "model": model,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if seed is not None:
            self._request["seed"] = seed
        self._limits = limits or EndpointLimits()

    def open(self, system: str) -> AbstractAsyncContextManager[Conversation]:
        """See `protocols.LanguageModel`. Connects at the first reply."""
        return self._open(system)

    @asynccontextmanager
    async def _open(self, system: str) -> AsyncIterator[Conversation]:
        timeout = httpx.Timeout(None, connect=self._limits.connect_s)
        async with httpx.AsyncClient(timeout=timeout, headers=self._headers) as client:
            yield _RemoteConversation(
                _Endpoint(client, self._url, self._request, self._limits), system
            )


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Where and how to ask."""

    client: httpx.AsyncClient
    url: str
    request: dict[str, object]
    limits: EndpointLimits

    @asynccontextmanager
    async def completion(
        self, messages: list[dict[str, str]]
    ) -> AsyncIterator[AsyncIterator[Chunk]]:
        """The events of one completion; leaving cancels it. Raises ComponentError."""
        body = {**self.request, "messages": messages}
        with self._explained():
            async with self.client.stream("POST", self.url, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._failed(await _refusal(response))
                yield self._chunks(response)

    async def _chunks(self, response: httpx.Response) -> AsyncIterator[Chunk]:
        finished = False
        async for line in response.aiter_lines():
            chunk = parse_line(line)
            if chunk is not None:
                finished = finished or chunk.finished
                yield chunk
        if not finished:
            raise BadStream("it closed the stream in the middle of a reply")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What goes wrong on the way becomes a ComponentError of one line."""
        try:
            yield
        except httpx.ConnectTimeout as error:
            raise self._failed(f"no connection within {self.limits.connect_s:g} s") from error
        except httpx.ConnectError as error:
            raise self._failed(f"cannot connect ({error})") from error
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            raise self._failed(
                f"it closed the stream in the middle of a reply ({error})"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from error
        except BadStream as error:
            raise self._failed(str(error)) from error

    def timed_out(self, seconds: float, first: bool) -> ComponentError:
        what = "no first word" if first else "no further word"
        return self._failed(f"{what} within {seconds:g} s")

    def _failed(self, why: str) -> ComponentError:
        return ComponentError(
            f"language model at {self.url}: {why}: check that the server runs there and serves "
            f"model {self.request['model']!r}"
        )


async def _refusal(response: httpx.Response) -> str:
    """An HTTP error in one line."""
    raw = await response.aread()
    try:
        body = json.loads(raw)
    except ValueError:
        body = raw.decode("utf-8", errors="replace")
    return f"HTTP {response.status_code}: {error_text(body)}"


class _RemoteConversation:
    """`protocols.Conversation` as a list of messages; the server's prefix cache does the rest."""

    def __init__(self, endpoint: _Endpoint, system: str) -> None:
        self._endpoint, self._system = endpoint, system
        self.dialogue = Dialogue()

    def extend(self, text: str) -> None:
        """Nothing to do: the endpoint takes whole requests only."""

    def reply(self, text: str, *, held: bool = False) -> GeneratedReply:
        messages = self.dialogue.messages(self._system)
        messages.append({"role": "user", "content": text})
        return GeneratedReply(_RemoteReply(self.dialogue, self._endpoint, text, messages))

    def truncate(self, heard_text: str) -> None:
        self.dialogue.truncate(heard_text)

    def add_user_text(self, text: str) -> None:
        self.dialogue.add(text)

    def reopen(self) -> str:
        return self.dialogue.reopen()


class _RemoteReply:
    """`ReplySource` that reads one completion."""

    def __init__(
        self,
        dialogue: Dialogue,
        endpoint: _Endpoint,
        user_text: str,
        messages: list[dict[str, str]],
    ) -> None:
        self.stats = ReplyStats()
        self._dialogue, self._endpoint = dialogue, endpoint
        self._user_text, self._messages = user_text, messages

    def release(self) -> None:
        """The endpoint knows no priorities."""

    def adopt(self, text: str) -> None:
        self._dialogue.add(self._user_text, text)

    async def generate(self, emit: Callable[[str], Awaitable[None]]) -> None:
        limits, now = self._endpoint.limits, asyncio.get_running_loop().time
        n_texts = 0
        try:
            async with (
                asyncio.timeout(limits.first_token_s) as patience,
                self._endpoint.completion(self._messages) as chunks,
            ):
                async for chunk in chunks:
                    self._count(chunk, n_texts)
                    if chunk.text:
                        n_texts += 1
                        patience.reschedule(None)  # a slow reader is no fault of the endpoint
                        await emit(chunk.text)
                    if n_texts:
                        patience.reschedule(now() + limits.idle_s)
        except TimeoutError:
            first = n_texts == 0
            seconds = limits.first_token_s if first else limits.idle_s
            raise self._endpoint.timed_out(seconds, first) from None

    def _count(self, chunk: Chunk, n_texts: int) -> None:
        """Usage as the server reports it; until then a text counts as a token."""
        if chunk.prompt_tokens is None:
            n_generated = n_texts + 1 if chunk.text else n_texts
            self.stats = replace(
                self.stats, generated_tokens=max(self.stats.generated_tokens, n_generated)
            )
            return
        self.stats = replace(
            self.stats,
            prompt_tokens=chunk.prompt_tokens,
            cached_tokens=chunk.cached_tokens,
            generated_tokens=chunk.generated_tokens or n_texts,
        )
