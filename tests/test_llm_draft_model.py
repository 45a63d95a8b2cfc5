"""A small model drafts for a large one: nothing changes but the number of steps."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from stages.llm import LocalLLM, ReplyLength, Sampling
from stages.llm.costs import StepCosts
from stages.llm.draft_model import DraftEngine, ReplyDrafter
from stages.llm.opening import open_model
from stages.llm.transformer import load_model
from tests import llm_tiny
from voicepipe.clock import run_virtual
from voicepipe.errors import ComponentError
from voicepipe.protocols import ReplyStats

TURNS = ("hello the other one", "in a hell", "then I'd rather hello")


def said(draft_path: Path | None, temperature: float) -> tuple[list[str], list[ReplyStats], int]:
    """The replies of a call, their counts, and the draft model's blocks in use afterwards."""
    llm = LocalLLM(
        llm_tiny.model_file(),
        n_threads=1,
        precision="float64",
        context_tokens=256,
        length=ReplyLength(12, 12),
        sampling=Sampling(temperature=temperature, repetition_penalty=1.1),
        drafts=["model"],
        draft_path=draft_path,
    )

    async def main() -> tuple[list[str], list[ReplyStats]]:
        texts, stats = [], []
        async with llm.open("You are brief.") as conversation:
            for text in TURNS:
                reply = conversation.reply(text)
                async with reply as deltas:
                    async for _ in deltas:
                        pass
                reply.adopt()
                texts.append(reply.text)
                stats.append(reply.stats)
        return texts, stats

    texts, stats = run_virtual(main())
    drafter = llm.runtime.drafter
    llm.close()
    return texts, stats, drafter.n_blocks_in_use if drafter else 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_model_changes_nothing_that_is_said(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DraftEngine, "token_s", 1e-9)  # here it is as slow as its target
    monkeypatch.setattr(DraftEngine, "start_s", lambda *_: 0.0)
    monkeypatch.setattr(StepCosts, "of", lambda _, n_rows: 1.0 + n_rows / 100)
    plain, _, _ = said(None, temperature)
    drafted, stats, n_blocks = said(llm_tiny.model_file(), temperature)
    assert drafted == plain
    assert sum(each.drafted_tokens for each in stats) > 0
    assert all(each.accepted_tokens == each.drafted_tokens for each in stats), (
        "it is the same model"
    )
    assert n_blocks == 0


def test_a_draft_model_of_another_vocabulary_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = llm_tiny.model_file()
    theirs = ("<|bos|>", "<|im_end|>", "<|im_start|>", *llm_tiny.vocabulary()[3:])
    monkeypatch.setattr(llm_tiny, "vocabulary", lambda: theirs)
    other = llm_tiny.write(tmp_path / "other.gguf")
    monkeypatch.setattr(llm_tiny, "model_file", lambda: ours)
    with pytest.raises(ComponentError, match="same family"):
        said(other, 0.0)


def test_rejected_drafts_leave_no_trace_in_its_state() -> None:
    engine = drafter()
    conversation = engine.conversation()
    ids = [*range(3, 40)]
    expected = conversation.logits(ids).clone()
    conversation.logits([*ids[:20], *range(60, 80)])
    assert (conversation.logits(ids) - expected).abs().max() < 1e-9
    conversation.close()
    assert engine.n_blocks_in_use == 0


def test_a_reply_that_outlives_its_conversation_has_no_drafts_and_holds_nothing() -> None:
    engine = drafter()
    conversation = engine.conversation()
    reply = ReplyDrafter(engine, conversation, [*range(3, 40)], Sampling())
    assert len(reply.next_tokens(2)) == 2
    conversation.close()
    assert reply.next_tokens(2) == []
    assert engine.n_blocks_in_use == 0


def test_a_second_conversation_computes_nothing_that_the_first_one_has() -> None:
    engine = drafter()
    first, second = engine.conversation(), engine.conversation()
    system = [*range(3, 40)]
    expected = first.logits([*system, 41]).clone()
    assert second.n_missing([*system, 41]) == 38
    second.prepare([*system[:20], 50])
    assert second.n_missing([*system, 41]) <= 38 - 16
    assert (second.logits([*system, 41]) - expected).abs().max() < 1e-9
    for conversation in (first, second):
        conversation.close()
    assert engine.n_blocks_in_use == 0


def test_when_its_cache_is_full_who_computed_longest_ago_starts_again() -> None:
    engine = drafter()  # of 16 blocks
    prompts = [[start, *range(3, 100)] for start in range(3, 7)]
    conversations = [engine.conversation() for _ in prompts]
    logits = [
        one.logits(prompt).clone() for one, prompt in zip(conversations, prompts, strict=True)
    ]
    missing = [one.n_missing(ids) for one, ids in zip(conversations, prompts, strict=True)]
    assert missing == [98, 98, 0, 0]
    assert (conversations[0].logits(prompts[0]) - logits[0]).abs().max() < 1e-9
    for conversation in conversations:
        conversation.close()
    assert engine.n_blocks_in_use == 0


def test_catching_up_is_part_of_what_a_guess_costs() -> None:
    engine = drafter()
    conversation = engine.conversation()
    prompt = [*range(3, 100)]
    reply = ReplyDrafter(engine, conversation, prompt, Sampling())
    assert reply.start_s == engine.start_s(96) > 5 * engine.token_s
    reply.next_tokens(2)
    assert reply.start_s == 0
    reply.extend([5])
    assert reply.start_s == engine.start_s(1)
    conversation.close()


@functools.cache
def drafter() -> DraftEngine:
    opened = open_model(llm_tiny.model_file())
    return DraftEngine(load_model(opened.weights, n_positions=256, precision="float64"), 256)
