"""Time to first token while a voice speaks another reply: on two cores both want the second one.

Two kinds of speaking: at a listener's pace, as in a call, where the voice works in bursts; and
without a pause, the worst that one voice can do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import numpy as np

from benchmarks.llm_calls import NEWS, SYSTEM
from stages.llm import LocalLLM
from stages.tts import PiperTTS
from voicepipe.clock import process_time_s
from voicepipe.models import path_of
from voicepipe.protocols import Conversation, Phrase

VOICE = "piper-en_US-joe-medium"
RATE_HZ = 16_000
N_ROUNDS = 8
N_TURNS = 2
"""Turns of one round in each situation."""
PAUSE_S = 0.25
"""Between turns; also what the voice speaks before the first one."""

SPOKEN = (
    "Try to go to bed at the same time every night, and keep your room dark and cool. ",
    "London is the largest city in England, and it stands on the river Thames. ",
    "You could try roasted chicken with potatoes and a green salad for your dinner. ",
)

Speech = Literal["none", "paced", "unpaced"]
WHAT: dict[Speech, str] = {
    "none": "ttft of a later turn, no voice, ms",
    "paced": "ttft of a later turn beside a voice, ms",
    "unpaced": "ttft of a later turn beside a voice without pauses, ms",
}

Samples = dict[str, list[float]]


async def measure(llm: LocalLLM) -> tuple[Samples, dict[str, float]]:
    """Samples by what they are of, and ratios of their medians; situations alternate."""
    voice = PiperTTS(path_of(VOICE))
    samples: Samples = {what: [] for what in WHAT.values()}
    n_asked = 0
    async with llm.open(SYSTEM) as conversation:
        for n in range(N_ROUNDS):
            for speech in list(WHAT) if n % 2 else reversed(WHAT):
                async with _speaking(voice, speech):
                    for turn in range(N_TURNS):
                        await asyncio.sleep(PAUSE_S)
                        text = NEWS[(n * N_TURNS + turn) % len(NEWS)]
                        n_asked += 1
                        took_ms = await _first_token_ms(conversation, f"{100 + n_asked}, {text}")
                        samples[WHAT[speech]].append(took_ms)
    p50 = {speech: float(np.median(samples[what])) for speech, what in WHAT.items()}
    return samples, {
        "ttft_beside_tts_vs_alone": round(p50["paced"] / p50["none"], 3),
        "ttft_beside_unpaced_tts_vs_alone": round(p50["unpaced"] / p50["none"], 3),
    }


async def _first_token_ms(conversation: Conversation, text: str) -> float:
    """To the first token of a reply, most of which is generated before it is dropped."""
    reply = conversation.reply(text)
    start_s, took_ms = process_time_s(), 0.0
    async with reply as deltas:
        async for _ in deltas:
            took_ms = took_ms or (process_time_s() - start_s) * 1000
    reply.drop()
    return took_ms


@asynccontextmanager
async def _speaking(voice: PiperTTS, speech: Speech) -> AsyncIterator[None]:
    """A reply without end is spoken meanwhile."""

    async def phrases() -> AsyncIterator[Phrase]:
        while True:
            for text in SPOKEN:
                yield Phrase(text)

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        async with voice.open(phrases(), sample_rate_hz=RATE_HZ) as frames:
            async for frame in frames:
                if speech == "paced":
                    end_s = start_s + (frame.start_sample + len(frame.samples)) / RATE_HZ
                    await asyncio.sleep(end_s - loop.time())

    async with asyncio.TaskGroup() as group:
        listener = group.create_task(listen()) if speech != "none" else None
        yield
        if listener is not None:
            listener.cancel()
