"""The way of a caller frame in: transport -> turn detection and STT -> decisions.

Every frame is given to turn detection and to the STT exactly once and in order; between them the
STT sees the decisions about them. What listening finds out leaves through one synchronous call,
`decide`, in the order in which it became known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing

from voicepipe.clock import Worker
from voicepipe.events import (
    Backchannel,
    EndOfTurn,
    Event,
    Fault,
    SpeechPaused,
    SpeechStarted,
    Transcript,
)
from voicepipe.frames import FRAME_MS, AudioFrame
from voicepipe.protocols import (
    EndOfTurnModel,
    ScoreRequest,
    SpeechInput,
    SpeechToText,
    TurnDetector,
)

log = logging.getLogger(__name__)

STT_QUEUE_ITEMS = 30 * 1000 // FRAME_MS
"""Half a minute of frames: an STT that is that far behind will not catch up in this turn."""

REPLAY_ITEMS = STT_QUEUE_ITEMS
"""How much of the turn is given again to an STT that had to be opened anew."""

MAX_STT_FAILURES = 3
"""In a row and without a transcript between them; then the STT counts as gone for good."""

LAST_WORDS_S = 5.0
"""How long the STT may take for what was said before the caller went away."""


class Listening:
    """One session's ears. `run` lives as long as the caller's stream."""

    def __init__(
        self,
        detector: TurnDetector,
        stt: SpeechToText,
        end_of_turn_model: EndOfTurnModel | None,
        decide: Callable[[Event], None],
    ) -> None:
        self._detector = detector
        self._stt = stt
        self._model = end_of_turn_model
        self._decide = decide
        self._heard_s = 0.0
        self._to_stt: asyncio.Queue[SpeechInput | None] = asyncio.Queue(STT_QUEUE_ITEMS)
        self._turn_items: deque[SpeechInput] = deque(maxlen=REPLAY_ITEMS)
        self._overflowing = False
        self._ended = False
        self._request: ScoreRequest | None = None
        self._requested = asyncio.Event()

    @property
    def heard_s(self) -> float:
        """Media time up to which the caller was listened to."""
        return self._heard_s

    async def run(self, frames: AsyncIterator[AudioFrame]) -> None:
        """Listen until `frames` ends; what was said before is still transcribed."""
        async with asyncio.TaskGroup() as group:
            transcriber = group.create_task(self._transcribe())
            scorer = group.create_task(self._score())
            async for frame in frames:
                self._heard_s = frame.end_s
                decisions = self._detector.hear(frame)
                self._feed(frame)
                self.take(decisions)
            self._ended = True
            try:
                async with asyncio.timeout(LAST_WORDS_S):
                    await self._to_stt.put(None)
                    await asyncio.wait([transcriber])
            except TimeoutError:
                self._fault("stt_stalled", f"the STT did not finish within {LAST_WORDS_S:g} s")
                transcriber.cancel()
            scorer.cancel()

    def take(self, decisions: Sequence[Event | ScoreRequest]) -> None:
        """Pass on what turn detection decided: marks to the STT, events to the session."""
        for decision in decisions:
            if isinstance(decision, ScoreRequest):
                self._request = decision  # only the newest is worth computing
                self._requested.set()
                continue
            if isinstance(decision, SpeechStarted | SpeechPaused | EndOfTurn | Backchannel):
                self._feed(decision)
            self._decide(decision)

    def _feed(self, item: SpeechInput) -> None:
        self._turn_items.append(item)
        if isinstance(item, EndOfTurn | Backchannel):
            self._turn_items.clear()
        try:
            self._to_stt.put_nowait(item)
            self._overflowing = False
        except asyncio.QueueFull:
            if not self._overflowing:
                self._overflowing = True
                self._fault("stt_stalled", "the STT is 30 s behind; caller audio is lost to it")

    async def _transcribe(self) -> None:
        """Run the STT; one that breaks is opened anew and given the turn so far again."""
        failures = 0
        done = False
        again: Sequence[SpeechInput] = ()
        while not done and failures < MAX_STT_FAILURES:
            try:
                async with (
                    aclosing(self._items(again)) as items,
                    self._stt.open(items) as transcripts,
                ):
                    async for transcript in transcripts:
                        failures = 0
                        self._transcribed(transcript)
                done = True
            except Exception as error:
                failures += 1
                log.debug("stt failed", exc_info=error)
                self._fault("stt_error", f"{type(error).__name__}: {error}")
                again = tuple(self._turn_items)
                while not self._to_stt.empty():  # what waits is part of `again`
                    self._to_stt.get_nowait()
                if self._ended:
                    self._to_stt.put_nowait(None)
        if not done:
            self._fault("stt_gone", f"the STT failed {failures} times in a row; giving it up")
            while await self._to_stt.get() is not None:
                pass  # the caller's frames still pass through; turn detection goes on

    async def _items(self, again: Sequence[SpeechInput]) -> AsyncGenerator[SpeechInput, None]:
        for item in again:
            yield item
        while (fresh := await self._to_stt.get()) is not None:
            yield fresh

    def _transcribed(self, transcript: Transcript) -> None:
        decisions = self._detector.transcribed(transcript)
        self._decide(transcript)
        self.take(decisions)

    async def _score(self) -> None:
        """Run the end-of-turn model beside everything else, always on the newest request."""
        if self._model is None:
            return
        with Worker("turn") as worker:
            while True:
                await self._requested.wait()
                self._requested.clear()
                request = self._request
                if request is None:
                    continue
                try:
                    probability = await worker.run(self._model.probability, request.samples)
                except Exception as error:
                    log.debug("end-of-turn model failed", exc_info=error)
                    self._fault("turn_error", f"{type(error).__name__}: {error}")
                    continue
                self.take(self._detector.scored(request, probability))

    def _fault(self, kind: str, detail: str) -> None:
        self._decide(Fault(t_media_s=self._heard_s, kind=kind, detail=detail))
