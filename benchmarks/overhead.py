"""What the framework itself costs: stages that take no time, in real time on the real loop.

`voicepipe bench overhead`. The first figure is from the moment at which the end of the turn was
decided (the caller frame that decided it) to the first audible sample of the reply; the second is
the processor time of a session in which nobody speaks, with its real voice activity detection.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from benchmarks.document import publish, row
from stages.llm import ScriptedLLM
from stages.stt import ScriptedSTT
from stages.tts import ScriptedTTS
from turn_detection import Endpointing, ScriptedEndOfTurn, ScriptedVAD, SileroVAD
from voicepipe import Session, Stages
from voicepipe import events as ev
from voicepipe.clock import cpu_time_s, process_time_s
from voicepipe.frames import CALLER_RATE_HZ
from voicepipe.models import path_of
from voicepipe.protocols import TurnDetection
from voicepipe.transports import CallerTurn, Cue, MemoryTransport

N_TURNS = 30
IDLE_S = 20.0
GAP = Cue("agent_silence", 200)


def run(json_file: Path | None = None) -> str:
    """Measure, write `json_file` if given, return the table."""
    added_ms = asyncio.run(_added_ms())
    idle = asyncio.run(_idle_cpu_percent())
    rows = [
        row("end of turn decided -> first audible sample, ms", added_ms),
        row("idle session, % of one core", [idle]),
    ]
    ratios = {
        "overhead_p50_ms": rows[0]["p50"],
        "overhead_p95_ms": rows[0]["p95"],
        "idle_cpu_percent": rows[1]["p50"],
    }
    return publish("overhead", {"turns": N_TURNS, "idle_s": IDLE_S}, rows, ratios, json_file)


def _stages(turn: TurnDetection) -> Stages:
    return Stages(
        stt=ScriptedSTT(["What time is it?"], final_ms=0),
        llm=ScriptedLLM(["It is noon."], first_token_ms=0, per_token_ms=0),
        tts=ScriptedTTS(ms_per_char=20),
        turn=turn,
    )


async def _added_ms() -> list[float]:
    noise = np.random.default_rng(0).normal(0, 3000, CALLER_RATE_HZ // 2)
    transport = MemoryTransport([CallerTurn(noise.astype(np.int16), GAP)] * N_TURNS)
    events: list[ev.Event] = []
    turn = Endpointing(ScriptedEndOfTurn([0.999]), vad=ScriptedVAD())
    await Session(transport, _stages(turn), observers=[events.append]).run()
    decided_s = [event.decided_s for event in events if isinstance(event, ev.EndOfTurn)]
    heard_s = [event.t_media_s for event in events if isinstance(event, ev.FirstAudio)]
    return [(heard - at) * 1000 for at, heard in zip(decided_s, heard_s, strict=True)]


async def _idle_cpu_percent() -> float:
    silence = CallerTurn(np.zeros(round(IDLE_S * CALLER_RATE_HZ), np.int16), expects_reply=False)
    transport = MemoryTransport([silence], noise_dbfs=-60)
    vad = SileroVAD(path_of("silero-vad"))
    session = Session(transport, _stages(Endpointing(ScriptedEndOfTurn(), vad=vad)))
    began_s, cpu_s = process_time_s(), cpu_time_s()
    await session.run()
    return 100 * (cpu_time_s() - cpu_s) / (process_time_s() - began_s)
