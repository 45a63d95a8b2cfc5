"""Which thread of a voice makes what: decided by how much the listener still has to hear."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np

from stages.tts.ahead import WELL_AHEAD_S, Ahead, VoiceThreads
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


def test_only_what_is_made_well_ahead_of_the_listener_stands_back() -> None:
    voice = Voice()
    ahead = Ahead(voice, VoiceThreads("test"))

    async def main() -> None:
        for text in ("abcde", "fg"):
            async for _ in ahead.say(text):
                pass
        await asyncio.sleep(7 * PIECE_S - WELL_AHEAD_S)
        async for _ in ahead.say("hi"):
            pass
        await asyncio.sleep(60)  # the listener has long heard all
        async for _ in ahead.say("jklm"):
            pass

    run_virtual(main())
    later = ["later" in name for name in voice.threads]
    assert later == [
        *(False, False, False, False, True, True, True),  # 0, 0.5, 1 and 1.5 s are ready
        *(False, True),
        *(False, False, False, False),
    ]


def test_each_reply_counts_for_itself() -> None:
    voice, threads = Voice(), VoiceThreads("test")

    async def main() -> None:
        for reply in (Ahead(voice, threads), Ahead(voice, threads)):
            async for _ in reply.say("abcde"):
                pass

    run_virtual(main())
    assert ["later" in name for name in voice.threads] == [False, False, False, False, True] * 2
