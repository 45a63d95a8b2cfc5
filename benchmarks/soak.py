"""Ten thousand turns of sixteen conversations on a tiny model: does anything leak?

`python -m benchmarks.soak [TURNS] [FILE.json]`. Replies are adopted, dropped, cancelled in the
middle, cut to what was heard or overtaken by a second one, at random. After every turn the cache's
books must balance, and a turn later no reply that was left may have grown. At the end nothing but
the system prompt's state may be in use, and no reply be alive.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import sys
from pathlib import Path

from benchmarks.document import publish, row
from stages.llm import LocalLLM, ReplyLength, Sampling
from stages.llm.generation import Generation
from tests import llm_tiny
from voicepipe.clock import process_time_s
from voicepipe.protocols import Conversation, Reply

N_TURNS = 10_000
N_CONVERSATIONS = 16
N_REPLY = 6
WORDS = ("hello", "the other one", "in a hell", "us", "then I'd rather", "what is it")
ENDS = ("adopt", "drop", "cancel", "truncate", "overtake")


def run(n_turns: int = N_TURNS, json_file: Path | None = None) -> str:
    """Talk, check, write `json_file` if given, return the table."""
    llm = LocalLLM(
        llm_tiny.model_file(),
        n_threads=1,
        precision="float32",
        context_tokens=256,
        kv_tokens=2048,
        length=ReplyLength(N_REPLY, N_REPLY),
        sampling=Sampling(temperature=0.7),
    )
    memory_mb: list[float] = []
    start_s = process_time_s()
    n_unfinished = asyncio.run(_talk(llm, n_turns, memory_mb))
    took_s = process_time_s() - start_s
    llm.close()
    settled = memory_mb[len(memory_mb) // 2 :]
    facts = {
        "turns": n_turns,
        "turns_per_s": round(n_turns / took_s, 1),
        "memory_growth_of_second_half_mb": round(settled[-1] - settled[0], 1),
        "replies_left_unfinished": n_unfinished,
        "replies_alive_at_the_end": _n_alive(),
        "blocks_in_use_at_the_end": llm.runtime.pool.n_referenced,
        "blocks_evicted": llm.runtime.pool.n_evicted,
    }
    config = {"conversations": N_CONVERSATIONS, "kv_blocks": llm.runtime.pool.n_blocks}
    return publish("soak", config, [row("memory, MB", memory_mb)], facts, json_file)


async def _talk(llm: LocalLLM, n_turns: int, memory_mb: list[float]) -> int:
    """How many replies were left before their end."""
    chance = random.Random(0)
    left = n_turns
    n_unfinished = 0

    async def converse() -> None:
        nonlocal left, n_unfinished
        before: Reply | None = None
        n_before, text_before = 0, ""
        while left > 0:
            async with llm.open(chance.choice(("You are brief.", "You are kind."))) as conversation:
                for _ in range(min(left, chance.randint(1, 60))):
                    left -= 1
                    reply = await _turn(conversation, chance)
                    await llm.runtime.engine.run(llm.runtime.pool.check)  # raises here
                    if before is not None:
                        assert before.stats.generated_tokens == n_before, "it goes on"
                        assert before.text == text_before, "it is still read"
                    before, text_before = reply, reply.text
                    n_before = reply.stats.generated_tokens
                    n_unfinished += n_before < N_REPLY
                    if left % 100 == 0:
                        memory_mb.append(resident_mb())

    async with asyncio.TaskGroup() as group:
        for _ in range(N_CONVERSATIONS):
            group.create_task(converse())
    return n_unfinished


async def _turn(conversation: Conversation, chance: random.Random) -> Reply:
    """One turn, and the reply that it began with, which is left."""
    text, end = chance.choice(WORDS), chance.choice(ENDS)
    if chance.random() < 0.3:
        conversation.extend(text[: chance.randint(1, len(text))])
        await asyncio.sleep(0)
    reply = conversation.reply(text, held=chance.random() < 0.5)
    n_wanted = chance.randint(0, 3) if end == "cancel" else 100
    async with reply as deltas:
        n = 0
        async for _ in deltas:
            n += 1
            if n >= n_wanted:
                break
    if end == "overtake":
        second = conversation.reply(text + " please")
        async with second as deltas:
            async for _ in deltas:
                pass
        reply.drop()
        second.adopt()
    elif end == "drop":
        reply.drop()
    else:
        reply.adopt()
    if end == "truncate":
        conversation.truncate(reply.text[: chance.randint(0, len(reply.text))])
    return reply


def _n_alive() -> int:
    """Replies that somebody still refers to."""
    gc.collect()
    return sum(type(each) is Generation for each in gc.get_objects())


def resident_mb() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


if __name__ == "__main__":
    arguments = sys.argv[1:]
    n_turns = int(arguments[0]) if arguments else N_TURNS
    print(run(n_turns, Path(arguments[1]) if len(arguments) > 1 else None))
