"""Chat completions over HTTP: a request to an endpoint, its events, its errors in one line."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import httpx

from stages.llm.dialogue import Message
from stages.llm.endpoints import Address, BackOff
from stages.llm.sse import BadStream, Chunk, Lines, error_text, parse_line
from voicepipe.errors import ComponentError

OF_THE_REQUEST = frozenset({400, 413, 415, 422})
"""HTTP statuses that say the request is wrong: any endpoint would say the same."""

KEEP_ALIVE_S = 120.0
"""An idle connection outlives a caller's turn and the reply to it."""

LONGEST_RETRY_AFTER_S = 300.0

_ADVICE = {
    401: "set OPENAI_API_KEY to a key that it accepts",
    403: "set OPENAI_API_KEY to a key that may use the model",
    404: "give the address up to and including /v1, and a model that its /v1/models lists",
    429: "let it serve fewer callers at once, or name another endpoint beside it",
}


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """How long endpoints may take: one to accept a connection, all together to say the first token
    of a reply (`failover_s` when another one could be asked instead), one between tokens, and to
    prefill the system prompt. A token is one of any channel; other events stop no clock.
    `back_off` is how long one that failed is left alone."""

    connect_s: float = 2.0
    first_token_s: float = 9.0
    failover_s: float = 2.5
    idle_s: float = 5.0
    warm_up_s: float = 30.0
    back_off: BackOff = field(default_factory=BackOff)


class EndpointFailed(ComponentError):
    """A completion failed. `of_endpoint`: it was this endpoint, so that another may be asked."""

    def __init__(
        self,
        address: Address,
        why: str,
        advice: str = "",
        *,
        of_endpoint: bool = True,
        retry_after_s: float = 0.0,
    ) -> None:
        advice = advice or f"check that the server runs there and serves model {address.model!r}"
        super().__init__(f"language model at {address}: {why}: {advice}")
        self.why = f"{address}: {why}"
        self.of_endpoint = of_endpoint
        self.retry_after_s = retry_after_s


def timed_out(address: Address, first_s: float, idle_s: float, n_tokens: int) -> EndpointFailed:
    """After `n_tokens` tokens, for want of a first one within `first_s` or a next in `idle_s`."""
    if n_tokens:
        why = f"no further token within {idle_s:g} s, after {n_tokens} of them"
    else:
        why = f"no first token within {first_s:.2g} s"
    advice = "use a smaller model, give it fewer callers, or name another endpoint beside it"
    return EndpointFailed(address, why, advice)


def all_failed(failures: Sequence[EndpointFailed]) -> ComponentError:
    """Every endpoint was asked, at least one."""
    if len(failures) == 1:
        return failures[0]
    each = "; ".join(failure.why for failure in failures)
    return ComponentError(f"language model: no endpoint answers: {each}: start one of them again")


class Completions:
    """Asks for completions over connections that it keeps; see `open`."""

    def __init__(
        self, client: httpx.AsyncClient, settings: Mapping[str, object], limits: EndpointLimits
    ) -> None:
        self.limits = limits
        self._client = client
        self._settings = settings

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: Mapping[str, object],
        *,
        limits: EndpointLimits,
        headers: Mapping[str, str],
        tls: ssl.SSLContext,
    ) -> AsyncIterator[Completions]:
        """`settings` go into every request. Leaving closes every connection."""
        async with httpx.AsyncClient(
            headers=headers,
            verify=tls,
            timeout=httpx.Timeout(None, connect=limits.connect_s),
            limits=httpx.Limits(keepalive_expiry=KEEP_ALIVE_S),
        ) as client:
            yield cls(client, settings, limits)

    @asynccontextmanager
    async def ask(
        self, address: Address, messages: Sequence[Message], **settings: object
    ) -> AsyncIterator[AsyncIterator[Chunk]]:
        """The events of one completion; leaving before their end closes the connection, which
        makes servers stop generating. Raises EndpointFailed."""
        body = {**self._settings, **settings, "model": address.model, "messages": list(messages)}
        with self._explained(address):
            response = await self._post(f"{address.base_url}/chat/completions", body)
            try:
                if response.status_code != httpx.codes.OK:
                    raise await _refused(address, response)
                async with aclosing(_chunks(response)) as chunks:
                    yield chunks
            finally:
                await response.aclose()

    async def is_up(self, address: Address) -> bool:
        """Whether the endpoint answers a cheap request; one without /v1/models answers too."""
        try:
            async with asyncio.timeout(self.limits.connect_s):
                response = await self._client.get(f"{address.base_url}/models")
        except (httpx.HTTPError, TimeoutError):
            return False
        overloaded = response.status_code == httpx.codes.TOO_MANY_REQUESTS
        return not response.is_server_error and not overloaded

    async def _post(self, url: str, body: Mapping[str, object]) -> httpx.Response:
        """A kept connection may have been closed by the server just now: then the request was not
        answered at all and goes out once more."""
        request = self._client.build_request("POST", url, json=body)
        try:
            return await self._client.send(request, stream=True)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            if self._client.is_closed:
                raise
            return await self._client.send(request, stream=True)

    @contextmanager
    def _explained(self, address: Address) -> Iterator[None]:
        """What goes wrong on the way becomes an EndpointFailed of one line."""
        if self._client.is_closed:
            raise _left(address)
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, BadStream) as error:
            if self._client.is_closed:
                raise _left(address) from error
            raise EndpointFailed(address, self._what(error)) from error

    def _what(self, error: Exception) -> str:
        match error:
            case BadStream():
                return str(error)
            case httpx.ConnectTimeout():
                return f"no connection within {self.limits.connect_s:g} s"
            case httpx.ConnectError():
                return f"cannot connect ({error})"
            case httpx.RemoteProtocolError() | httpx.ReadError() | httpx.WriteError():
                return f"it closed the stream in the middle of a reply ({error})"
        return f"{type(error).__name__}: {error}"


def _left(address: Address) -> EndpointFailed:
    why, advice = "the conversation was left before its reply", "leave its replies first"
    return EndpointFailed(address, why, advice, of_endpoint=False)


async def _chunks(response: httpx.Response) -> AsyncGenerator[Chunk, None]:
    finished = False
    lines = Lines()
    async for data in response.aiter_bytes():
        for line in lines.feed(data):
            if chunk := parse_line(line):
                finished = finished or chunk.finished
                yield chunk
    if chunk := parse_line(lines.finish()):
        finished = finished or chunk.finished
        yield chunk
    if not finished:
        raise BadStream("it closed the stream in the middle of a reply")


async def _refused(address: Address, response: httpx.Response) -> EndpointFailed:
    """An HTTP error in one line."""
    raw = await response.aread()
    try:
        body = json.loads(raw)
    except ValueError:
        body = raw.decode("utf-8", errors="replace")
    status = response.status_code
    return EndpointFailed(
        address,
        f"HTTP {status}: {error_text(body)}",
        _ADVICE.get(status, ""),
        of_endpoint=status not in OF_THE_REQUEST,
        retry_after_s=_retry_after_s(response.headers.get("retry-after", "")),
    )


def _retry_after_s(value: str) -> float:
    """Of the header in seconds; 0 for a date or nonsense: the usual back-off serves then."""
    return min(float(value), LONGEST_RETRY_AFTER_S) if value.isdecimal() else 0.0
