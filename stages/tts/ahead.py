"""Threads of one voice: one for what the listener may soon need, others for what is made ahead.

On a small machine the language model wants all cores for its first token. A voice that is seconds
ahead of its listener has time, and the system lets it wait; one that is not, has the same right.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from stages.tts.voice import Piece, Voice
from voicepipe.clock import Worker

STANDS_BACK = ((0.5, 5), (1.5, 10))
"""From so much sound on that is made and cannot have been heard yet, seconds, the voice is so nice.
The next piece is up to 1.4 s of it and takes 0.1 s on a core of its own; nice 5 leaves it a quarter
of one that somebody else wants (still about what speech needs), nice 10 a tenth: 0.4 and 1 s."""


class VoiceThreads:
    """Of a voice whose steps may run on several threads at once: a thread cannot become less nice
    again."""

    def __init__(self, name: str) -> None:
        self._soon = Worker(name)
        self._later = [
            (ahead_s, Worker(f"{name}-ahead-{nice}", nice=nice)) for ahead_s, nice in STANDS_BACK
        ]

    def worker(self, ahead_s: float) -> Worker:
        """Whose listener has `ahead_s` seconds to hear."""
        later = [worker for from_s, worker in self._later if ahead_s >= from_s]
        return later[-1] if later else self._soon


class Ahead:
    """Speaks the phrases of one reply, each step on the thread that it deserves."""

    def __init__(self, voice: Voice, threads: VoiceThreads) -> None:
        self._voice = voice
        self._threads = threads
        self._lasts_until_s = 0.0
        """When a listener who never waited has heard all that is made."""

    async def say(self, text: str) -> AsyncGenerator[Piece, None]:
        """`voice.say(text)`; cancel lands between steps."""
        steps = await self._worker().run(self._voice.say, text)
        while (piece := await self._worker().run(next, steps, None)) is not None:
            now_s = asyncio.get_running_loop().time()
            piece_s = len(piece.samples) / self._voice.sample_rate_hz
            self._lasts_until_s = max(self._lasts_until_s, now_s) + piece_s
            yield piece

    def _worker(self) -> Worker:
        return self._threads.worker(self._lasts_until_s - asyncio.get_running_loop().time())
