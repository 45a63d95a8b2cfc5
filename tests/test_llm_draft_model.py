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


@functools.cache
def drafter() -> DraftEngine:
    opened = open_model(llm_tiny.model_file())
    return DraftEngine(load_model(opened.weights, n_positions=256, precision="float64"), 256)
