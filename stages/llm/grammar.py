"""Which tokens may come next: replies that are JSON of a schema, tool calls that are valid calls.

The masks are llguidance's (https://github.com/guidance-ai/llguidance): about 10 us a token in free
text and 30 us inside JSON for a vocabulary of 49k.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Protocol, Self

import numpy as np
import torch

from stages.llm.tokenizer import Tokenizer
from voicepipe.errors import ComponentError, UsageError

Schema = Mapping[str, Any]
"""A JSON schema."""

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as Python's `json.dumps` and the `tojson` of chat templates set it: what models have
seen most, and with one form there is more that is forced."""

SPOKEN = "/[^{}`<>]*/"
"""Free text of models that have tools. It is to be spoken, so nothing is lost without characters
with which small models would write calls and results into it."""


class Grammar(Protocol):
    """Which tokens may come next. Made for one reply, in front of its first token."""

    def constrain(self, logits: torch.Tensor) -> None:
        """Set the logits [vocabulary] of tokens that may not come next to minus infinity."""
        ...

    def accept(self, token: int) -> bool:
        """Go on with `token`. False, and nothing changes, where it may not come next."""
        ...

    def rollback(self, n: int) -> None:
        """Take back the last `n` tokens accepted."""
        ...

    def forced(self, n: int) -> list[int]:
        """Up to `n` tokens that have no alternative."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether only the end of the reply may come next."""
        ...


class Matcher(Protocol):
    """llguidance's `LLMatcher`, which raises nothing but goes into a state of error."""

    def get_error(self) -> str: ...
    def deep_copy(self) -> Matcher: ...
    def is_stopped(self) -> bool: ...
    def compute_bitmask(self) -> bytes: ...
    def compute_ff_tokens(self) -> list[int]: ...
    def try_consume_tokens(self, tokens: list[int]) -> int: ...
    def rollback(self, num_tokens: int) -> bool: ...


class GrammarTokens:
    """A vocabulary as grammars need it; made once a model, in about 0.3 s.

    Control tokens may not be generated, except for what ends a reply, and for those among
    `visible`, which count as their text. Raises UsageError when llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, visible: Collection[str] = ()) -> None:
        try:
            import llguidance  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UsageError(
                "grammars (tool calls, JSON schemas) need llguidance, which is not installed: "
                "pip install 'voicepipe[grammar]'"
            ) from error
        if not tokenizer.eos_ids:
            raise ComponentError("grammar: no token of the model's vocabulary ends a reply")
        wrapper = llguidance.TokenizerWrapper(_Words(tokenizer, visible))
        ends = sorted(tokenizer.eos_ids)
        self._tokenizer = llguidance.LLTokenizer(wrapper, eos_token=ends)
        self._new_matcher = llguidance.LLMatcher

    def matcher(self, lark: str) -> Matcher:
        """Raises UsageError when the grammar is wrong."""
        matcher: Matcher = self._new_matcher(self._tokenizer, lark, log_level=0)
        if error := matcher.get_error():
            raise UsageError(f"grammar: {error.splitlines()[0]}: correct the schema")
        return matcher


class _Words:
    """The interface that llguidance asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, visible: Collection[str]) -> None:
        self._tokenizer = tokenizer
        ids = range(len(tokenizer))
        hidden = {n for n in tokenizer.control_ids if tokenizer.token(n) not in visible}
        self._hidden = hidden | tokenizer.eos_ids
        self.eos_token_id = min(tokenizer.eos_ids)
        self.special_token_ids = sorted(self._hidden)
        self.tokens = [tokenizer.bytes_of[n] or tokenizer.token(n).encode() for n in ids]

    def __call__(self, text: str) -> list[int]:
        """How the model would write a text that has no alternative."""
        ids: list[int] = []
        for piece in self._tokenizer.split_glue(text):
            if isinstance(piece, int) and piece not in self._hidden:
                ids.append(piece)
            else:
                plain = self._tokenizer.token(piece) if isinstance(piece, int) else piece
                ids += self._tokenizer.encode(plain)
        return ids


class CompiledGrammar:
    """`Grammar` from text in llguidance's dialect of Lark. Raises UsageError when that is wrong."""

    def __init__(self, tokens: GrammarTokens, lark: str) -> None:
        self._matcher = tokens.matcher(lark)

    def copy(self) -> Self:
        """The same for another reply; cheaper than compiling it again. Copy one that is new."""
        twin = object.__new__(type(self))
        twin._matcher = self._matcher.deep_copy()
        return twin

    @property
    def is_over(self) -> bool:
        return self._matcher.is_stopped()

    def constrain(self, logits: torch.Tensor) -> None:
        allowed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        forbidden = np.unpackbits(~allowed, bitorder="little").view(np.bool_)
        n = min(len(forbidden), len(logits))
        logits[n:] = -torch.inf
        if logits.is_cpu:
            np.copyto(logits.numpy()[:n], -np.inf, where=forbidden[:n])
        else:
            mask = torch.from_numpy(forbidden[:n]).to(logits.device)
            logits[:n].masked_fill_(mask, -torch.inf)

    def accept(self, token: int) -> bool:
        n_accepted = self._matcher.try_consume_tokens([token])
        self._check()
        return n_accepted == 1

    def rollback(self, n: int) -> None:
        if n:
            self._matcher.rollback(n)
            self._check()

    def forced(self, n: int) -> list[int]:
        return self._matcher.compute_ff_tokens()[:n]

    def _check(self) -> None:
        if error := self._matcher.get_error():
            raise ComponentError(f"grammar: {error.splitlines()[0]}: simplify the schema")


class JsonSchemaGrammar(CompiledGrammar):
    """A reply that is one JSON value of `schema`, its keys in the schema's order."""

    def __init__(self, tokens: GrammarTokens, schema: Schema) -> None:
        super().__init__(tokens, f"start: {_json(schema)}")


class ToolCallGrammar(CompiledGrammar):
    """Free text, and calls of `tools` (the schema of the arguments, an object, by name).

    Once `opening` is generated a call must follow, `{"name": ..., "arguments": ...}`, and then
    `closing`, white space in between as Qwen and Hermes have it. Where the tags are control tokens
    they must be `visible` in `tokens`. Small models forget the tags: a reply may also be calls
    alone. Free text is `SPOKEN`. Raises UsageError for a schema that is wrong.
    """

    def __init__(
        self,
        tokens: GrammarTokens,
        tools: Mapping[str, Schema],
        *,
        opening: str = "<tool_call>",
        closing: str = "</tool_call>",
    ) -> None:
        if not tools:
            raise UsageError("grammar: tool calls need at least one tool")
        rules = [
            r'start: call ("\n" call)* | called* TEXT',
            f"TEXT: {SPOKEN}",
            f"opened[lazy]: TEXT {json.dumps(opening)}",
            rf'called: opened "\n"? call "\n"? {json.dumps(closing)}',
            "call: " + " | ".join(f"call{n}" for n in range(len(tools))),
        ]
        for n, (name, schema) in enumerate(tools.items()):
            head = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
            rules += [f'call{n}: {head} arguments{n} "}}"', f"arguments{n}: {_json(schema)}"]
        super().__init__(tokens, "\n".join(rules))


class SpeechGrammar(CompiledGrammar):
    """`SPOKEN` text, and no call."""

    def __init__(self, tokens: GrammarTokens) -> None:
        super().__init__(tokens, f"start: TEXT\nTEXT: {SPOKEN}")


def _json(schema: Schema) -> str:
    try:
        return "%json " + json.dumps({**schema, "x-guidance": SPACING})
    except (TypeError, ValueError) as error:
        raise UsageError(f"grammar: the schema is not JSON: {error}") from error
