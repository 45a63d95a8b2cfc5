"""The way of a reply out: language model -> phrases -> text-to-speech -> lease.

One function, `speak`, reads top to bottom. It returns when the caller has heard the reply to its
end, or raises what a stage raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from voicepipe.errors import ComponentError
from voicepipe.frames import AudioFrame
from voicepipe.phrases import PhraseSplitter
from voicepipe.playout import Lease
from voicepipe.protocols import Phrase, Reply, TextToSpeech

PHRASES_AHEAD = 2
"""Phrases that may wait for the voice: it never starves, and a cancelled reply wastes little."""


@dataclass(frozen=True, slots=True)
class StageLimits:
    """How long a stage may go without a sign of life before it counts as hung."""

    llm_s: float = 10.0
    tts_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ReplyWatch:
    """What the turn wants to be told while its reply is made; all synchronous."""

    first_token: Callable[[], None]
    first_phrase: Callable[[str], None]


class StageFailure(ComponentError):
    """What went wrong in which stage: `kind` is e.g. `llm_error`, `llm_timeout`, `tts_empty`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@contextmanager
def _blamed_on(stage: str) -> Iterator[None]:
    """Whatever a stage raises leaves here as a `StageFailure` that names it."""
    try:
        yield
    except StageFailure:
        raise
    except Exception as error:
        raise StageFailure(f"{stage}_error", f"{type(error).__name__}: {error}") from error


async def speak(
    reply: Reply,
    tts: TextToSpeech,
    lease: Lease,
    watch: ReplyWatch,
    *,
    sample_rate_hz: int,
    limits: StageLimits,
) -> None:
    """Generate `reply`, speak it through `lease`, and return once it was heard to the end.

    Everything made for it lives in one TaskGroup: cancelling this coroutine, or an error in a
    stage, ends it all. Raises an ExceptionGroup of `StageFailure`s (or what the transport raised).
    """
    phrases: asyncio.Queue[Phrase | None] = asyncio.Queue(PHRASES_AHEAD)
    async with asyncio.TaskGroup() as group:
        group.create_task(_generate(reply, phrases, watch, limits.llm_s))
        group.create_task(_voice(tts, phrases, lease, sample_rate_hz, limits.tts_s))
        group.create_task(lease.play())


async def _generate(
    reply: Reply, phrases: asyncio.Queue[Phrase | None], watch: ReplyWatch, limit_s: float
) -> None:
    splitter = PhraseSplitter()
    n_phrases = 0

    async def put(ready: list[Phrase], patience: asyncio.Timeout) -> None:
        nonlocal n_phrases
        patience.reschedule(None)  # from here on a slow voice, not the model, makes us wait
        for phrase in ready:
            if n_phrases == 0:
                watch.first_phrase(phrase.text)
            n_phrases += 1
            await phrases.put(phrase)

    now = asyncio.get_running_loop().time
    with _blamed_on("llm"):
        try:
            async with asyncio.timeout(limit_s) as patience, reply as deltas:
                first = True
                async for delta in deltas:
                    if first:
                        watch.first_token()
                        first = False
                    await put(splitter.feed(delta), patience)
                    patience.reschedule(now() + limit_s)
                await put(splitter.finish(), patience)
        except TimeoutError:
            if not patience.expired():
                raise
            raise StageFailure(
                "llm_timeout",
                f"language model: no token for {limit_s:g} s; it hangs or is far too slow: "
                "use a smaller model or raise StageLimits.llm_s",
            ) from None
        if n_phrases == 0:
            raise StageFailure("llm_empty", "language model: the reply is empty, nothing to speak")
        await phrases.put(None)


async def _voice(
    tts: TextToSpeech,
    phrases: asyncio.Queue[Phrase | None],
    lease: Lease,
    sample_rate_hz: int,
    limit_s: float,
) -> None:
    """Speak `phrases`, up to None, into `lease` and close it. Raises StageFailure when the voice
    raises, owes sound for a phrase and gives none for `limit_s`, or spoke no sample at all."""
    now = asyncio.get_running_loop().time
    n_owed = 0  # characters given to the voice whose labels have not come back
    n_samples = 0
    with _blamed_on("tts"):
        try:
            async with asyncio.timeout(None) as patience:

                async def counted() -> AsyncGenerator[Phrase, None]:
                    nonlocal n_owed
                    while (phrase := await phrases.get()) is not None:
                        n_owed += len(phrase.text)
                        if patience.when() is None:
                            patience.reschedule(now() + limit_s)
                        yield phrase

                async with (
                    aclosing(counted()) as given,
                    tts.open(given, sample_rate_hz=sample_rate_hz) as frames,
                ):
                    async for frame in frames:
                        n_owed -= len(frame.text)
                        n_samples += frame.n_samples
                        patience.reschedule(None)  # a full lease is no fault of the voice
                        await lease.write(frame)
                        patience.reschedule(now() + limit_s if n_owed else None)
        except TimeoutError:
            if not patience.expired():
                raise
            raise StageFailure(
                "tts_timeout",
                f"text-to-speech: no sound for {limit_s:g} s although a phrase waits; it hangs or "
                "is far too slow: use a faster voice or raise StageLimits.tts_s",
            ) from None
        if n_samples == 0:
            raise StageFailure("tts_empty", "text-to-speech: no sound for the whole reply")
    lease.close()


async def spoken(
    tts: TextToSpeech, text: str, sample_rate_hz: int, limit_s: float
) -> list[AudioFrame]:
    """All frames of `text`. Raises StageFailure when the voice fails or takes too long."""

    async def one() -> AsyncGenerator[Phrase, None]:
        yield Phrase(text)

    made: list[AudioFrame] = []
    with _blamed_on("tts"):
        try:
            async with (
                asyncio.timeout(limit_s),
                aclosing(one()) as phrases,
                tts.open(phrases, sample_rate_hz=sample_rate_hz) as frames,
            ):
                made = [frame async for frame in frames]
        except TimeoutError:
            raise StageFailure(
                "tts_timeout", f"text-to-speech: {text!r} was not spoken within {limit_s:g} s"
            ) from None
    return made
