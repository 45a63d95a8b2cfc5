"""Which thread of a voice makes what: decided by how much the listener still has to hear."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np

from stages.tts.ahead import Ahead, VoiceThreads
from stages.tts.voice import Piece
from voicepipe.clock import run_virtual

PIECE_S = 0.5


class Voice:
    """Says a piece for each letter, and remembers where."""

    sample_rate_hz = 1000

    def __init__(self) -> None:
        self.threads: list[str] = []

    def say(self, text: str) -> Iterator[Piece]:
        for _ in text:
            self.threads.append(threading.current_thread().name)
            yield Piece(np.zeros(round(PIECE_S * self.sample_rate_hz), np.float32), ())


def nices(voice: Voice) -> list[int]:
    """How nice the thread of each piece was."""
    ends = [name.rpartition("ahead-")[2].split("_")[0] for name in voice.threads]
    return [int(end) if end.isdigit() else 0 for end in ends]


def test_the_further_ahead_of_its_listener_the_more_a_voice_stands_back() -> None:
    voice = Voice()
    ahead = Ahead(voice, VoiceThreads("test"))

    async def main() -> None:
        for text in ("abcde", "fg"):
            async for _ in ahead.say(text):
                pass
        await asyncio.sleep(7 * PIECE_S - 1.2)
        async for _ in ahead.say("hi"):
            pass
        await asyncio.sleep(60)  # the listener has long heard all
        async for _ in ahead.say("jklm"):
            pass

    run_virtual(main())
    assert nices(voice) == [0, 5, 5, 10, 10, 10, 10, 5, 10, 0, 5, 5, 10]


def test_each_reply_counts_for_itself() -> None:
    voice, threads = Voice(), VoiceThreads("test")

    async def main() -> None:
        for reply in (Ahead(voice, threads), Ahead(voice, threads)):
            async for _ in reply.say("abcde"):
                pass

    run_virtual(main())
    assert nices(voice) == [0, 5, 5, 10, 10] * 2
