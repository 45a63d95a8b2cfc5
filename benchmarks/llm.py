"""The local language model against llama.cpp: same file, same threads, alternating runs.

`voicepipe bench llm`; llama.cpp comes as `xllamacpp` from the `bench` extra.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from hashlib import pbkdf2_hmac
from pathlib import Path
from typing import Any

import numpy as np

from stages.llm import LocalLLM, ReplyLength
from stages.llm.decoder import Decoder
from voicepipe.clock import process_time_s
from voicepipe.errors import UsageError
from voicepipe.models import path_of
from voicepipe.provenance import provenance

MODEL = "smollm2-135m-instruct"
N_THREADS = 2
N_ROUNDS = 7
N_PROMPT = 256
N_GENERATED = 48
THINKING_S = 0.4
"""How long a caller listens or speaks between two things that the model could prepare."""
HASH_ROUNDS = 2_000_000
SYSTEM = "You are a helpful assistant on a phone call. Give short, direct answers in one sentence."
TURNS = (
    "Hello, who am I talking to?",
    "I would like to book a table for two people tomorrow evening.",
    "Make that seven thirty, please.",
    "Do you also have something vegetarian on the menu?",
    "Great, and is there parking nearby?",
)

Samples = dict[str, list[float]]


def run(json_file: Path | None = None) -> str:
    """Measure and return a table; `json_file` gets it in the form `voicepipe.bench/1`."""
    folder = path_of(MODEL)
    file = next(folder.glob("*.gguf"))
    ours = LocalLLM(file, n_threads=N_THREADS, length=ReplyLength(N_GENERATED, N_GENERATED))
    try:
        samples = asyncio.run(_measure(ours, _Theirs(file)))
    finally:
        ours.close()
    rows = [_row(what, values) for what, values in sorted(samples.items())]
    ratios = _ratios(samples)
    result = {
        "schema": "voicepipe.bench/1",
        "bench": "llm",
        "machine": provenance([MODEL]),
        "config": {
            "model": MODEL,
            "threads": N_THREADS,
            "rounds": N_ROUNDS,
            "prompt_tokens": N_PROMPT,
            "generated_tokens": N_GENERATED,
        },
        "rows": rows,
        "ratios": ratios,
    }
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return _table(rows, ratios)


class _Theirs:
    """llama.cpp in this process. Raises UsageError when it is not installed."""

    def __init__(self, file: Path) -> None:
        try:
            import xllamacpp  # noqa: PLC0415 - only in the bench extra
        except ImportError as error:
            raise UsageError(
                "bench llm: xllamacpp is not installed: pip install 'voicepipe[bench]'"
            ) from error
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = N_THREADS
        params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, 0
        self._server = xllamacpp.Server(params)

    def complete(self, prompt: list[int], n: int, *, cached: bool) -> dict[str, float]:
        """Timings of a greedy completion of `n` tokens, and `wall_ms` of the whole call."""
        start_s = process_time_s()
        answer: dict[str, Any] = self._server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": n,
                "temperature": 0.0,
                "cache_prompt": cached,
                "ignore_eos": True,
            }
        )
        return {**answer["timings"], "wall_ms": (process_time_s() - start_s) * 1000}


async def _measure(ours: LocalLLM, theirs: _Theirs) -> Samples:
    samples: Samples = {}
    decoder = ours.decoder
    prompt = decoder.tokenizer.encode(" ".join(TURNS * 8))[:N_PROMPT]
    system = decoder.template.render([{"role": "system", "content": SYSTEM}], generate=False)
    theirs.complete(prompt, N_GENERATED, cached=False)
    for _ in range(N_ROUNDS):
        prefill, decode = _speed(decoder, prompt)
        timings = theirs.complete(prompt, N_GENERATED, cached=False)
        told = await _conversation(ours, decoder.tokenizer.encode_glue(system), theirs)
        told |= {
            "prefill, tok/s": prefill,
            "prefill llama.cpp, tok/s": timings["prompt_per_second"],
            "decode, tok/s": decode,
            "decode llama.cpp, tok/s": timings["predicted_per_second"],
        }
        with ThreadPoolExecutor(1) as other:  # another stage keeps a core busy meanwhile
            busy = other.submit(_hash_for_a_while)
            told["decode beside a busy core, tok/s"] = _speed(decoder, prompt[:32])[1]
            busy.result()
        for what, value in told.items():
            samples.setdefault(what, []).append(value)
    return samples


def _speed(decoder: Decoder, prompt: list[int]) -> tuple[float, float]:
    """Tokens a second of prefilling `prompt` and of generating after it."""
    cache, ids = decoder.new_cache(), list(prompt)
    start_s = process_time_s()
    while (logits := decoder.advance(cache, ids)) is None:
        pass
    prefilled_s = process_time_s()
    for _ in range(N_GENERATED):
        ids.append(int(logits.argmax()))
        following = decoder.advance(cache, ids)
        assert following is not None, "one token is one step"
        logits = following
    return (
        len(prompt) / (prefilled_s - start_s),
        N_GENERATED / (process_time_s() - prefilled_s),
    )


async def _conversation(ours: LocalLLM, head_ids: list[int], theirs: _Theirs) -> dict[str, float]:
    """Milliseconds until the first word, turn by turn, in a conversation of both."""
    told: dict[str, float] = {}
    template, ids = ours.decoder.template, list(head_ids)
    async with ours.open(SYSTEM) as conversation:
        for n, text in enumerate(TURNS):
            if n == 3:  # most of the words are known before the turn ends
                conversation.extend(text.rsplit(" ", 2)[0])
                await asyncio.sleep(THINKING_S)
                what = "ttft of a turn known but for two words, ms"
            else:
                what = f"ttft of turn {n + 1}, ms"
            start_s = process_time_s()
            reply = conversation.reply(text)
            async with reply as deltas:
                async for _ in deltas:
                    told.setdefault(what, (process_time_s() - start_s) * 1000)
            ids += template.user_ids(text, "reply" if n else "system") + template.reply_header_ids
            if n == len(TURNS) - 1:
                timings = theirs.complete(ids, 1, cached=True)
                told["ttft of turn 5 llama.cpp, ms"] = timings["wall_ms"]
            start_s = process_time_s()
            reply.adopt()
            told["adopt a reply, ms"] = (process_time_s() - start_s) * 1000
            ids += ours.decoder.tokenizer.encode(reply.text)
            if n == len(TURNS) - 2:
                theirs.complete(ids, 1, cached=True)
            await asyncio.sleep(THINKING_S)
    return told


def _hash_for_a_while() -> None:
    """A second or so of one core, without Python's lock."""
    pbkdf2_hmac("sha256", b"voicepipe", b"bench", HASH_ROUNDS)


def _row(what: str, values: list[float]) -> dict[str, object]:
    return {
        "what": what,
        "n": len(values),
        "p50": round(float(np.percentile(values, 50)), 2),
        "p95": round(float(np.percentile(values, 95)), 2),
    }


def _ratios(samples: Samples) -> dict[str, float]:
    """Medians of ours over medians of llama.cpp's: speeds (more is better), then a time."""
    p50 = {what: float(np.median(values)) for what, values in samples.items()}
    return {
        "prefill_vs_llamacpp": round(p50["prefill, tok/s"] / p50["prefill llama.cpp, tok/s"], 3),
        "decode_vs_llamacpp": round(p50["decode, tok/s"] / p50["decode llama.cpp, tok/s"], 3),
        "ttft_later_turn_vs_llamacpp": round(
            p50["ttft of turn 5, ms"] / p50["ttft of turn 5 llama.cpp, ms"], 3
        ),
    }


def _table(rows: list[dict[str, object]], ratios: dict[str, float]) -> str:
    lines = [f"{'':44}{'p50':>10}{'p95':>10}"]
    lines += [f"{row['what']:44}{row['p50']:>10}{row['p95']:>10}" for row in rows]
    lines += [f"{name:44}{ratio:>10}" for name, ratio in ratios.items()]
    return "\n".join(lines)
