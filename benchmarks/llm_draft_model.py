"""What a draft model is worth: the 0.5B drafts for the 1.5B of the same family.

Alone among the sources of drafts it costs time itself, so that the policy may well decline it; how
often it did not stands beside the speed.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from benchmarks.llm_calls import NEWS, SYSTEM
from stages.llm import LocalLLM, ReplyLength
from stages.llm.runtime import DraftSource
from stages.llm.transformer import Device
from voicepipe.clock import process_time_s
from voicepipe.models import is_present, path_of, state_root
from voicepipe.protocols import Conversation, ReplyStats

MODEL, DRAFT_MODEL = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"
N_QUESTIONS = 6
N_TOKENS = 32
PAUSE_S = 1.0
"""How long the caller speaks, in which both models prepare."""

PLAIN, DRAFTED = "decode of a 1.5B, tok/s", "decode of a 1.5B with a 0.5B's drafts, tok/s"

MODES: dict[str, tuple[DraftSource, ...]] = {PLAIN: (), DRAFTED: ("model",)}

Samples = dict[str, list[float]]


def missing() -> str:
    """What to do before this can be measured; empty when nothing."""
    names = [name for name in (MODEL, DRAFT_MODEL) if not is_present(name)]
    return f"skipped: `voicepipe models fetch {' '.join(names)}` first" if names else ""


def measure(n_threads: int, device: Device) -> tuple[Samples, dict[str, float]]:
    """Samples by what they are of, and the ratio of speeds; modes alternate reply by reply."""
    llm = LocalLLM(
        next(path_of(MODEL).glob("*.gguf")),
        draft_path=next(path_of(DRAFT_MODEL).glob("*.gguf")),
        n_threads=n_threads,
        device=device,
        context_tokens=1024,
        kv_tokens=2048,
        length=ReplyLength(soft_tokens=N_TOKENS // 2, max_tokens=N_TOKENS),
        kv_folder=state_root(),
    )
    samples: Samples = {}
    try:
        asyncio.run(_talk(llm, samples))
    finally:
        llm.close()
    ratio = float(np.median(samples[DRAFTED]) / np.median(samples[PLAIN]))
    return samples, {"decode_model_draft_vs_plain": round(ratio, 3)}


async def _talk(llm: LocalLLM, samples: Samples) -> None:
    runtime = llm.runtime
    async with llm.open(SYSTEM) as conversation:
        for n, text in enumerate(NEWS[:N_QUESTIONS]):
            for mode in list(MODES) if n % 2 else reversed(MODES):
                conversation.extend(text)
                await asyncio.sleep(PAUSE_S)
                runtime.settings = replace(runtime.settings, drafts=MODES[mode])
                speed, stats = await _reply(conversation, text)
                samples.setdefault(mode, []).append(speed)
                if mode == DRAFTED:
                    _note(stats, samples)


def _note(stats: ReplyStats, samples: Samples) -> None:
    n_steps = stats.generated_tokens - stats.accepted_tokens
    share = 100 * stats.verify_steps / n_steps
    samples.setdefault("steps in which a 0.5B was let draft, %", []).append(share)
    if stats.verify_steps:
        length = 1 + stats.accepted_tokens / stats.verify_steps
        samples.setdefault("acceptance length, drafts of a 0.5B", []).append(length)


async def _reply(conversation: Conversation, text: str) -> tuple[float, ReplyStats]:
    """Tokens a second after the first."""
    reply = conversation.reply(text)
    first_s = 0.0
    async with reply as deltas:
        async for _ in deltas:
            first_s = first_s or process_time_s()
    took_s = process_time_s() - first_s
    reply.drop()
    return (reply.stats.generated_tokens - 1) / took_s, reply.stats
