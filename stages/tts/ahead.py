"""Two threads of one voice: one for what the listener may soon need, one for what is made ahead.

On a small machine the language model wants all cores for its first token. A voice that is seconds
ahead of its listener has time, and the system lets it wait; one that is not, has the same right.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from stages.tts.voice import Piece, Voice
from voicepipe.clock import Worker

WELL_AHEAD_S = 1.5
"""Sound that is made and cannot have been heard yet. The next piece is up to 1.4 s of it and takes
0.1 s on a core of its own, 0.5 s on what `LATER_NICE` leaves of a busy one."""

LATER_NICE = 5
"""About a quarter of a core that somebody else wants, still three times what speech needs."""


class VoiceThreads:
    """Of a voice whose steps may run on two threads at once."""

    def __init__(self, name: str) -> None:
        self.soon = Worker(name)
        self.later = Worker(f"{name}-later", nice=LATER_NICE)


class Ahead:
    """Speaks the phrases of one reply, each step on the thread that it deserves."""

    def __init__(self, voice: Voice, threads: VoiceThreads) -> None:
        self._voice = voice
        self._threads = threads
        self._lasts_until_s = 0.0
        """When a listener who never waited has heard all that is made."""

    async def say(self, text: str) -> AsyncGenerator[Piece, None]:
        """`voice.say(text)`; cancel lands between steps."""
        steps = await self._threads.soon.run(self._voice.say, text)
        while (piece := await self._worker().run(next, steps, None)) is not None:
            now_s = asyncio.get_running_loop().time()
            piece_s = len(piece.samples) / self._voice.sample_rate_hz
            self._lasts_until_s = max(self._lasts_until_s, now_s) + piece_s
            yield piece

    def _worker(self) -> Worker:
        ahead_s = self._lasts_until_s - asyncio.get_running_loop().time()
        return self._threads.later if ahead_s > WELL_AHEAD_S else self._threads.soon
