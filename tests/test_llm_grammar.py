from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.drafts import ForcedDraft
from stages.llm.gguf_file import GgufFile
from stages.llm.gguf_tokenizer import gguf_tokenizer
from stages.llm.grammar import (
    CompiledGrammar,
    GrammarTokens,
    JsonSchemaGrammar,
    SpeechGrammar,
    ToolCallGrammar,
)
from stages.llm.sampling import Sampling
from stages.llm.tokenizer import Tokenizer
from stages.llm.verify import Verifier
from tests import llm_tiny
from tests.llm_bytes import END, TOOL, TOOL_END, small
from voicepipe.errors import UsageError

TABLE = {
    "type": "object",
    "properties": {"people": {"type": "integer"}, "when": {"enum": ["today", "tomorrow"]}},
    "required": ["people", "when"],
    "additionalProperties": False,
}
NOTE = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 12}}}
CALL = (
    '<tool_call>\n{"name": "book_table", "arguments": {"people": 4, "when": "today"}}\n</tool_call>'
)


@functools.cache
def tiny() -> Tokenizer:
    return gguf_tokenizer(GgufFile(llm_tiny.model_file()))


@functools.cache
def tokens_of(tokenizer: Tokenizer) -> GrammarTokens:
    return GrammarTokens(tokenizer, visible=("<tool_call>", "</tool_call>"))


@functools.cache
def tool_calls(tokenizer: Tokenizer) -> ToolCallGrammar:
    return ToolCallGrammar(tokens_of(tokenizer), {"book_table": TABLE, "take_note": NOTE})


def allowed(grammar: CompiledGrammar, tokenizer: Tokenizer) -> set[int]:
    logits = torch.zeros(len(tokenizer))
    grammar.constrain(logits)
    return {int(n) for n in (logits == 0).nonzero()}


def accepts(grammar: CompiledGrammar, ids: Sequence[int]) -> bool:
    return all(grammar.accept(token) for token in ids)


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    names = {TOOL: b"<tool_call>", TOOL_END: b"</tool_call>"} if tokenizer is not tiny() else {}
    spelled = b"".join(names.get(n, tokenizer.bytes_of[n]) for n in ids)
    return spelled.decode("utf-8", errors="replace")


def generate(
    tokenizer: Tokenizer,
    grammar: CompiledGrammar,
    seed: int,
    *,
    n: int = 160,
    drafted: bool = False,
) -> list[int]:
    """A reply of a model that has no idea, but tends to end and to close what is open."""
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
    verifier, draft = Verifier(sampling, grammar, tokenizer.eos_ids), ForcedDraft(grammar)
    ids: list[int] = []
    while len(ids) < n and not (ids and ids[-1] in tokenizer.eos_ids):
        drafts = draft.propose(5).ids if drafted else ()
        with torch.inference_mode():
            logits = torch.zeros(1 + len(drafts), len(tokenizer))
            logits[:, [*tokenizer.eos_ids, ord('"')]] = 5.0
            logits[:, min(TOOL, len(tokenizer) - 1)] = 7.0
        ids += verifier.verify(logits, drafts, position=len(ids), generated=())
    return ids


@pytest.mark.parametrize("tokenizer", [small(), small(control=False), tiny()])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_whatever_the_model_does_the_reply_is_json_of_the_schema(
    tokenizer: Tokenizer, seed: int
) -> None:
    grammar = JsonSchemaGrammar(tokens_of(tokenizer), TABLE)
    ids = generate(tokenizer, grammar, seed)
    if ids[-1] in tokenizer.eos_ids:
        assert grammar.is_over
        value = json.loads(text_of(tokenizer, ids[:-1]))
        assert isinstance(value.pop("people"), int)
        assert value.pop("when") in ("today", "tomorrow")
        assert not value
    else:
        assert len(ids) >= 160


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_forced_tokens_are_drafts_that_are_never_wrong_and_change_nothing(seed: int) -> None:
    plain = generate(small(), JsonSchemaGrammar(tokens_of(small()), TABLE), seed)
    drafted = generate(small(), JsonSchemaGrammar(tokens_of(small()), TABLE), seed, drafted=True)
    assert drafted[: len(plain)] == plain[: len(drafted)]
    grammar = JsonSchemaGrammar(tokens_of(small()), TABLE)
    for token in plain[:-1]:
        if forced := grammar.forced(1):
            assert forced == [token]
        assert grammar.accept(token)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_whatever_the_model_does_a_call_that_it_ends_is_valid(seed: int) -> None:
    tools: dict[str, dict[str, Any]] = {
        "book_table": TABLE,
        "wait": {"type": "object", "additionalProperties": False},
    }
    grammar = ToolCallGrammar(tokens_of(small()), tools)
    text = text_of(small(), generate(small(), grammar, seed, drafted=True))
    _, *calls = text.split("<tool_call>")
    for n, call in enumerate(calls, 1):
        body, closed, _ = call.partition("</tool_call>")
        if closed or n < len(calls):
            called = json.loads(body)
            assert called["arguments"].keys() == tools[called["name"]].get("properties", {}).keys()


@pytest.mark.parametrize("tokenizer", [small(), small(control=False)])
@pytest.mark.parametrize("text", ["Hello.", f"One moment. {CALL}", f"{CALL}\n{CALL} Done, ok."])
def test_free_text_and_calls_may_be_generated(tokenizer: Tokenizer, text: str) -> None:
    spelled, tagged = tokenizer.encode(text), tokenizer.encode_glue(text)
    for ids in (spelled, tagged):
        grammar = tool_calls(tokenizer).copy()
        assert accepts(grammar, ids)
        assert END in allowed(grammar, tokenizer)


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "cancel"',
        '{"name": "book_table", "arguments": {"people": "four"',
        '{"name": "book_table", "arguments": {"when"',
        '{"name": "book_table", "arguments": {"people": 4, "when": "never"',
        "Hello",
        '{"name": "take_note", "arguments": {}}</think>',
    ],
)
def test_after_the_opening_tag_only_calls_of_the_tools_are_possible(call: str) -> None:
    ids = small().encode_glue("Well, <tool_call>" + call)
    grammar = tool_calls(small()).copy()
    assert not accepts(grammar, ids)


def test_in_free_text_everything_that_is_spoken_is_allowed() -> None:
    grammar = tool_calls(small()).copy()
    assert accepts(grammar, small().encode("Well"))
    text = set(range(32, 127)) - set(b"{}`>") | {TOOL, END, 265}
    assert text <= allowed(grammar, small()), "also what begins a tag that is spelled out"
    assert not {TOOL_END, *b"{}`>"} & allowed(grammar, small())
    assert not accepts(grammar, small().encode("<b"))
    hidden = JsonSchemaGrammar(GrammarTokens(small()), {"type": "string"})
    assert not {TOOL, TOOL_END} & allowed(hidden, small())


def test_a_reply_that_begins_with_a_brace_is_calls_alone() -> None:
    call = '{"name": "book_table", "arguments": {"people": 4, "when": "today"}}'
    grammar = tool_calls(small()).copy()
    assert accepts(grammar, small().encode(call))
    assert allowed(grammar, small()) == {END, ord("\n")}
    assert accepts(grammar, small().encode("\n" + call))
    assert not accepts(tool_calls(small()).copy(), small().encode('{"name": "cancel"'))
    assert not accepts(tool_calls(small()).copy(), small().encode("{ok"))


@pytest.mark.parametrize("control", [True, False])
def test_where_there_is_no_call_its_tag_does_not_come(control: bool) -> None:
    tokenizer = small(control=control)
    grammar = SpeechGrammar(tokens_of(tokenizer))
    assert accepts(grammar, tokenizer.encode("Well, é"))
    assert {END, *b"a.\n"} <= allowed(grammar, tokenizer)
    assert not {TOOL, *b"<>{}`"} & allowed(grammar, tokenizer)


def test_a_call_is_closed_by_the_tag_that_the_model_knows() -> None:
    grammar = tool_calls(small()).copy()
    call = '<tool_call>{"name": "book_table", "arguments": {"people": 4, "when": "today"}}\n'
    assert accepts(grammar, small().encode_glue(call))
    assert grammar.forced(3) == [TOOL_END]
    assert allowed(grammar, small()) == {TOOL_END}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rolling_back_restores_what_was_allowed(data: st.DataObject) -> None:
    ids = small().encode_glue(f"Hi. {CALL} ok")
    grammar = tool_calls(small()).copy()
    n_before = data.draw(st.integers(0, len(ids)))
    assert accepts(grammar, ids[:n_before])
    before, n_more = allowed(grammar, small()), 0
    for token in ids[n_before : n_before + data.draw(st.integers(0, 20))]:
        n_more += grammar.accept(token)
    grammar.rollback(n_more)
    assert allowed(grammar, small()) == before
    assert accepts(grammar, ids[n_before:])


def test_a_token_that_may_not_come_next_changes_nothing() -> None:
    grammar = JsonSchemaGrammar(tokens_of(small()), TABLE)
    assert not grammar.accept(ord("x"))
    assert accepts(grammar, small().encode('{"people": 4, "when": "today"}'))
    assert grammar.is_over
    assert allowed(grammar, small()) == {END}
    assert not grammar.accept(ord("x"))


def test_a_copy_goes_its_own_way() -> None:
    grammar = JsonSchemaGrammar(tokens_of(small()), {"enum": ["a", "b"]})
    assert accepts(grammar.copy(), small().encode('"a"'))
    assert accepts(grammar, small().encode('"b"'))


def test_logits_beyond_the_vocabulary_are_padding() -> None:
    logits = torch.zeros(len(small()) + 7)
    tool_calls(small()).copy().constrain(logits)
    assert bool(torch.isinf(logits[len(small()) :]).all())


@pytest.mark.parametrize(
    "schema", [{"type": "strin"}, {"$ref": "#/$defs/nowhere"}, {"enum": [object()]}]
)
def test_a_wrong_schema_is_refused(schema: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError, match="grammar"):
        JsonSchemaGrammar(tokens_of(small()), schema)
    with pytest.raises(UsageError, match="grammar"):
        ToolCallGrammar(tokens_of(small()), {"f": schema})


def test_no_tools_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one tool"):
        ToolCallGrammar(tokens_of(small()), {})


def test_references_inside_the_schema_of_a_tool_are_understood() -> None:
    schema = {
        "type": "object",
        "properties": {"day": {"$ref": "#/$defs/day"}},
        "$defs": {"day": {"enum": ["monday"]}},
    }
    grammar = ToolCallGrammar(tokens_of(small()), {"f": schema})
    call = '<tool_call>{"name": "f", "arguments": {"day": "monday"}}</tool_call>'
    assert accepts(grammar, small().encode_glue(call))


def test_without_llguidance_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"pip install 'voicepipe\[grammar\]'"):
        GrammarTokens(small())
