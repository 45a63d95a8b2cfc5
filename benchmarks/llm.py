"""The local LLM against llama.cpp, and what its own means are worth. `voicepipe bench llm`.

Same GGUF file, same number of threads, rounds in alternation, medians. llama.cpp runs in a process
of its own with its prompt cache on. Then the means: time to first token in
each situation of a call, several conversations at once, beside a voice, each source of drafts.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import llm_beside_tts, llm_draft_model
from benchmarks.document import Row, publish, row
from benchmarks.llamacpp import LlamaCpp
from benchmarks.llm_calls import CALLS, NEWS, SYSTEM, TURNS
from stages.llm import LocalLLM, ReplyLength, Sampling
from stages.llm.generation import Generation, Priority, Trunk
from stages.llm.metrics import LlmMetrics, Targets
from stages.llm.reply_text import ReplyText
from stages.llm.runtime import DRAFT_SOURCES, DraftSource
from stages.llm.speculation import Speculation
from stages.llm.transformer import Device
from stages.llm.verify import Verifier
from voicepipe.clock import process_time_s
from voicepipe.models import path_of
from voicepipe.protocols import Conversation, Reply

MODEL = "smollm2-135m-instruct"
N_THREADS = 2
N_ROUNDS = 4
N_PROMPT = 256
N_GENERATED = 48
PAUSE_S = 0.4
"""How long a caller listens or speaks between two things that the model could prepare."""

SAMPLED = Sampling(temperature=0.8)
GREEDY = Sampling()
TARGETS = Targets(ttft_s=0.15, tpot_s=0.06)
AT_ONCE = (1, 4, 16)
N_CALLS = 2

Samples = dict[str, list[float]]


def run(json_file: Path | None = None, *, device: Device = "cpu") -> str:
    """Measure and return a table; `json_file` gets it in the form `voicepipe.bench/1`. On a GPU of
    ours llama.cpp still has the CPU."""
    file = next(path_of(MODEL).glob("*.gguf"))
    length = ReplyLength(soft_tokens=24, max_tokens=N_GENERATED)
    theirs = LlamaCpp(file, N_THREADS)
    try:
        ours = LocalLLM(file, n_threads=N_THREADS, length=length, device=device)
        try:
            samples, facts = asyncio.run(_measure(ours, theirs))
        finally:
            ours.close()
    finally:
        theirs.close()
    note = llm_draft_model.missing()
    if not note:
        more, ratios = llm_draft_model.measure(N_THREADS, device)
        samples |= more
        facts |= ratios
    rows: list[Row] = [row(what, values) for what, values in samples.items()]
    config: dict[str, object] = {
        "model": MODEL,
        "threads": N_THREADS,
        "rounds": N_ROUNDS,
        "prompt_tokens": N_PROMPT,
    }
    config["device"] = device
    config["draft_model"] = note or f"{llm_draft_model.DRAFT_MODEL} for {llm_draft_model.MODEL}"
    table = publish("llm", config, rows, _ratios(samples) | facts, json_file)
    return f"{table}\n\ndraft model: {note}" if note else table


async def _measure(ours: LocalLLM, theirs: LlamaCpp) -> tuple[Samples, dict[str, float]]:
    samples: Samples = {}
    prompt = ours.runtime.tokenizer.encode(" ".join(TURNS * 8))[:N_PROMPT]
    theirs.complete(prompt, N_GENERATED, cached=False)
    for n in range(N_ROUNDS):
        told = _speeds(ours, theirs, prompt, n)
        told |= await _call(ours, theirs)
        told |= _fork_and_cancel(ours, prompt)
        for what, value in told.items():
            samples.setdefault(what, []).append(value)
    facts = await _shared_prompt(ours)
    for n in AT_ONCE:
        facts |= await _at_once(ours, n)
    await _speculation(ours, samples)
    beside_voice, ratios = await llm_beside_tts.measure(ours)
    return samples | beside_voice, facts | ratios


# -- speed -----------------------------------------------------------------------------------------


class _Endless(ReplyText):
    """So many tokens, whatever they are."""

    def take(self, token: int) -> bool:
        self.ids.append(token)
        return self.n_left > 0


def _generated(
    ours: LocalLLM, prompt: Sequence[int], sampling: Sampling
) -> tuple[float, float, Trunk]:
    """Seconds until the first token and for all others, and what was computed."""
    runtime = ours.runtime
    trunk = Trunk(runtime.pool.new_sequence())
    runtime.scheduler.add_trunk(trunk)
    generation = Generation(
        prompt,
        text=_Endless(runtime.tokenizer, ReplyLength(max_tokens=N_GENERATED)),
        verifier=Verifier(sampling),
        draft=None,
        speculation=Speculation(),
        priority=Priority.RELEASED,
    )
    start_s = process_time_s()
    runtime.scheduler.submit(generation, trunk)
    while not generation.is_decoding:
        runtime.scheduler.step()
    first_s = process_time_s()
    while not generation.over:
        runtime.scheduler.step()
    end_s = process_time_s()
    runtime.scheduler.close(generation)
    return first_s - start_s, end_s - first_s, trunk


def _speeds(ours: LocalLLM, theirs: LlamaCpp, prompt: Sequence[int], n: int) -> dict[str, float]:
    """Tokens a second of a prompt that was never seen, and of generating after it."""
    fresh = [*prompt[n + 1 :], *prompt[: n + 1]]  # nothing of it is in a cache
    told: dict[str, float] = {}
    for name, sampling in (("decode", GREEDY), ("decode sampled", SAMPLED)):
        prefill_s, decode_s, trunk = _generated(ours, fresh, sampling)
        ours.runtime.scheduler.remove_trunk(trunk)
        timings = theirs.complete(
            fresh, N_GENERATED, cached=False, temperature=sampling.temperature
        )
        told[f"{name}, tok/s"] = (N_GENERATED - 1) / decode_s
        told[f"{name} llama.cpp, tok/s"] = timings["predicted_per_second"]
        if sampling is GREEDY:
            told["prefill, tok/s"] = len(fresh) / prefill_s
            told["prefill llama.cpp, tok/s"] = timings["prompt_per_second"]
    return told


def _fork_and_cancel(ours: LocalLLM, prompt: Sequence[int]) -> dict[str, float]:
    """A fork with its first token's room, and blocks back after a cancel."""
    runtime = ours.runtime
    _, _, trunk = _generated(ours, prompt, GREEDY)
    before = runtime.pool.n_referenced
    start_s = process_time_s()
    fork = trunk.sequence.fork()
    fork.append([0])
    forked_s = process_time_s()
    fork.release()
    released_s = process_time_s()
    assert runtime.pool.n_referenced == before, "a cancelled fork keeps blocks"
    runtime.scheduler.remove_trunk(trunk)
    return {
        "fork with a copied tail, ms": (forked_s - start_s) * 1000,
        "cancel to free blocks, ms": (released_s - forked_s) * 1000,
    }


# -- a call ----------------------------------------------------------------------------------------


async def _first_token_ms(reply: Reply, *, read_all: bool = True) -> float:
    start_s, took_ms = process_time_s(), 0.0
    async with reply as deltas:
        async for _ in deltas:
            took_ms = took_ms or (process_time_s() - start_s) * 1000
            if not read_all:
                break
    return took_ms


async def _call(ours: LocalLLM, theirs: LlamaCpp) -> dict[str, float]:
    """Time to first token in the situations of one call; the fifth turn also by llama.cpp."""
    told: dict[str, float] = {}
    tokenizer, template = ours.runtime.tokenizer, ours.runtime.template
    async with ours.open(SYSTEM) as conversation:
        ids = list(template.system_ids(SYSTEM))
        for n, text in enumerate(TURNS[:5]):
            reply = conversation.reply(text)
            told[f"ttft of turn {n + 1}, ms"] = await _first_token_ms(reply)
            ids += template.user_ids(text, "reply" if n else "system") + template.reply_header_ids
            if n == 4:
                timings = theirs.complete(ids, 1, cached=True)
                told["ttft of turn 5 llama.cpp, ms"] = timings["wall_ms"]
            reply.adopt()
            ids += tokenizer.encode(reply.text)
            if n == 3:
                theirs.complete(ids, 1, cached=True)
            await asyncio.sleep(PAUSE_S)
        conversation.truncate(reply.text[: len(reply.text) // 2])
        await asyncio.sleep(PAUSE_S)
        told |= await _eager(conversation)
    return told


async def _eager(conversation: Conversation) -> dict[str, float]:
    told: dict[str, float] = {}
    reply = conversation.reply(TURNS[5])
    told["ttft after a barge-in, ms"] = await _first_token_ms(reply)
    reply.adopt()
    await asyncio.sleep(PAUSE_S)
    eager = conversation.reply(TURNS[6], held=True)
    async with eager as deltas:
        async for _ in deltas:
            eager.release()
    eager.adopt()
    await asyncio.sleep(PAUSE_S)
    dropped = conversation.reply(TURNS[7], held=True)
    told["ttft after an adopted fork, ms"] = await _first_token_ms(dropped, read_all=False)
    dropped.drop()
    again = conversation.reply(TURNS[7] + " please")
    told["ttft after a dropped fork, ms"] = await _first_token_ms(again)
    again.drop()
    return told


# -- many conversations ----------------------------------------------------------------------------


async def _shared_prompt(ours: LocalLLM) -> dict[str, float]:
    """KV blocks of 16 sessions with a system prompt of 600 tokens, beside those of one."""
    runtime = ours.runtime
    words = itertools.cycle(" ".join(TURNS).split())
    system = " ".join(itertools.islice(words, 480))
    before = runtime.pool.n_referenced
    async with ours.open(system):
        alone = runtime.pool.n_referenced - before
        n_tokens = len(runtime.template.system_ids(system))
        async with asyncio.TaskGroup() as group:
            done = asyncio.Event()
            opened = [asyncio.Event() for _ in range(15)]
            for event in opened:
                group.create_task(_hold_open(ours, system, event, done))
            for event in opened:
                await event.wait()
            together = runtime.pool.n_referenced - before
            done.set()
    return {
        "shared_prompt_tokens": n_tokens,
        "kv_of_16_sessions_vs_one": round(together / alone, 3),
    }


async def _hold_open(
    ours: LocalLLM, system: str, opened: asyncio.Event, done: asyncio.Event
) -> None:
    async with ours.open(system):
        opened.set()
        await done.wait()


async def _at_once(ours: LocalLLM, n: int) -> dict[str, float]:
    """`n` conversations of three turns, begun 0.3 s apart: replies a second in time."""
    runtime = ours.runtime
    before, runtime.metrics = runtime.metrics, LlmMetrics(TARGETS)
    start_s = process_time_s()

    async def talk(which: int) -> None:
        await asyncio.sleep(0.3 * which)
        async with ours.open(SYSTEM) as conversation:
            for turn in range(3):
                reply = conversation.reply(NEWS[(which + 5 * turn) % len(NEWS)])
                await _first_token_ms(reply)
                reply.adopt()
                await asyncio.sleep(1.0)

    async with asyncio.TaskGroup() as group:
        for which in range(n):
            group.create_task(talk(which))
    took_s = process_time_s() - start_s
    summary, runtime.metrics = runtime.metrics.summary(), before
    return {
        f"at_once_{n}_replies_per_s": round(summary.n_replies / took_s, 2),
        f"at_once_{n}_goodput_per_s": round(summary.goodput_per_s, 2),
        f"at_once_{n}_ttft_p90_ms": round(summary.ttft_s.p90 * 1000, 1),
        f"at_once_{n}_itl_p90_ms": round(summary.itl_s.p90 * 1000, 1),
    }


# -- speculation -----------------------------------------------------------------------------------

MODES: dict[str, tuple[DraftSource, ...]] = {
    "off": (),
    "suffix": ("suffix",),
    "earlier-reply": ("earlier-reply",),
    "all": DRAFT_SOURCES,
}


async def _speculation(ours: LocalLLM, samples: Samples) -> None:
    """Tokens a second after the first on calls that repeat themselves, by source of drafts, and on
    talk that does not. Modes alternate call by call."""
    for call, turns in enumerate(CALLS[:N_CALLS]):
        for mode, drafts in MODES.items():
            speed, length = await _spoken(ours, drafts, f"{SYSTEM} ({mode})", turns)
            samples.setdefault(f"decode on calls, drafts {mode}, tok/s", []).append(speed)
            if math.isfinite(length):
                samples.setdefault(f"acceptance length, drafts {mode}", []).append(length)
        for mode in ("off", "all"):
            news = [NEWS[(5 * call + n) % len(NEWS)] for n in range(5)]
            speed, _ = await _spoken(ours, MODES[mode], f"{SYSTEM} {call} ({mode})", news)
            samples.setdefault(f"decode on news, drafts {mode}, tok/s", []).append(speed)


async def _spoken(
    ours: LocalLLM, drafts: Collection[DraftSource], system: str, turns: Sequence[str]
) -> tuple[float, float]:
    """Tokens a second and acceptance length over a call in which each turn is first answered
    eagerly, without its last word."""
    runtime = ours.runtime
    settings, runtime.settings = runtime.settings, replace(runtime.settings, drafts=drafts)
    before, runtime.metrics = runtime.metrics, LlmMetrics()
    async with ours.open(system) as conversation:
        for text in turns:
            eager = conversation.reply(text.rsplit(" ", 1)[0], held=True)
            await _first_token_ms(eager)
            eager.drop()
            reply = conversation.reply(text)
            await _first_token_ms(reply)
            reply.adopt()
            await asyncio.sleep(PAUSE_S)
    summary = runtime.metrics.summary()
    runtime.metrics, runtime.settings = before, settings
    tpots = summary.tpot_s.values
    return 1 / float(np.mean(tpots)), summary.acceptance_length


def _ratios(samples: Samples) -> dict[str, float]:
    """Medians of ours over medians of llama.cpp's: speeds (more is better), then times."""
    p50 = {what: float(np.median(values)) for what, values in samples.items()}

    def ratio(one: str, other: str) -> float:
        return round(p50[one] / p50[other], 3)

    plain = "decode on calls, drafts off, tok/s"
    speculative = ratio("decode on calls, drafts all, tok/s", plain)
    decode = ratio("decode, tok/s", "decode llama.cpp, tok/s")
    return {
        "prefill_vs_llamacpp": ratio("prefill, tok/s", "prefill llama.cpp, tok/s"),
        "decode_vs_llamacpp": decode,
        "decode_sampled_vs_llamacpp": ratio(
            "decode sampled, tok/s", "decode sampled llama.cpp, tok/s"
        ),
        "decode_speculative_vs_plain": speculative,
        "decode_speculative_vs_llamacpp": round(decode * speculative, 3),
        "ttft_later_turn_vs_llamacpp": ratio("ttft of turn 5, ms", "ttft of turn 5 llama.cpp, ms"),
        "speculative_tpot_vs_plain": ratio(
            "decode on news, drafts off, tok/s", "decode on news, drafts all, tok/s"
        ),
    }
