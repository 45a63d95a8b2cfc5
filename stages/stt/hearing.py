"""One caller's stream: a task listens, and the reader of the transcripts does the transcribing.

Listening never waits for a model, so that what is to be decoded next is decided on all that was
heard by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

from voicepipe.errors import UsageError
from voicepipe.events import Transcript
from voicepipe.frames import CALLER_RATE_HZ, AudioFrame
from voicepipe.protocols import SpeechInput


class Hearing(Protocol):
    """What one STT stream knows and has yet to say."""

    def hear(self, item: SpeechInput) -> None:
        """Take in the next item. Must not block."""
        ...

    def end(self, error: Exception | None) -> None:
        """Nothing more will come, because the stream is over or because of `error`."""
        ...

    def transcripts(self) -> AsyncGenerator[Transcript, None]:
        """What is understood, as it becomes known; over when all that was asked for is said after
        `end`, and then raises the `error` given there."""
        ...


def check_rate(frame: AudioFrame) -> None:
    """Raises UsageError unless the frame has the rate at which everything listens."""
    if frame.sample_rate_hz != CALLER_RATE_HZ:
        raise UsageError(
            f"speech-to-text: got a frame of {frame.sample_rate_hz} Hz at {frame.start_s:.2f} s, "
            f"wants {CALLER_RATE_HZ} Hz: resample at the transport"
        )


def sample_of(t_media_s: float) -> int:
    """The caller sample at media time `t_media_s`."""
    return round(t_media_s * CALLER_RATE_HZ)


async def _listen(audio: AsyncIterator[SpeechInput], hearing: Hearing) -> None:
    try:
        async for item in audio:
            hearing.hear(item)
    except Exception as error:  # noqa: BLE001 - raised again by `transcripts`, to its reader
        hearing.end(error)
    else:
        hearing.end(None)


@asynccontextmanager
async def listening(
    audio: AsyncIterator[SpeechInput], hearing: Hearing
) -> AsyncIterator[AsyncIterator[Transcript]]:
    """The transcripts of `audio`. Leaving ends the listening and waits for a running model step."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as group, aclosing(hearing.transcripts()) as transcripts:
        task = group.create_task(_listen(audio, hearing))
        try:
            yield transcripts
        except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        finally:
            task.cancel()
    if failure is not None:
        raise failure
