"""Tools as a local model knows them: what its chat template tells it, and what it may write."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence

from stages.llm.call_text import CLOSING, OPENING
from stages.llm.grammar import Grammar, GrammarTokens, SpeechGrammar, ToolCallGrammar
from stages.llm.template import ChatTemplate, Tool
from stages.llm.tokenizer import Tokenizer
from voicepipe.errors import UsageError
from voicepipe.protocols import ToolSpec

MAX_TOOL_SETS = 8
"""Of which templates and grammars are kept; more than an agent has."""


def as_openai(tools: Sequence[ToolSpec]) -> list[Tool]:
    """Tools as in OpenAI's API. Raises UsageError when two have one name."""
    names = [tool.name for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"two tools are called {twice[0]!r}: give each a name of its own")
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in tools
    ]


class ToolSet:
    """Some tools, for any number of conversations."""

    def __init__(
        self,
        key: str,
        template: ChatTemplate,
        calls: ToolCallGrammar,
        speech: SpeechGrammar,
    ) -> None:
        self.key = key
        """Stands for them."""
        self.template = template
        """Tells the model about them."""
        self._calls, self._speech = calls, speech

    def grammar(self, *, may_call: bool) -> Grammar:
        """For one reply."""
        return self._calls.copy() if may_call else self._speech.copy()


class Toolbox:
    """The tools of all conversations of one model. To be asked by one thread at a time."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template, self._tokenizer = template, tokenizer
        self._tokens: GrammarTokens | None = None
        self._known: OrderedDict[str, ToolSet] = OrderedDict()

    def of(self, tools: Sequence[ToolSpec]) -> ToolSet:
        """These tools, made ready at most once: for the first tools of a model that takes about
        0.3 s. Raises UsageError when they are wrong or llguidance is not installed, and
        ComponentError when the model knows no tools."""
        described = as_openai(tools)
        try:
            key = json.dumps(described)
        except (TypeError, ValueError) as error:
            raise UsageError(f"tools: a schema is not JSON: {error}") from error
        if key not in self._known:
            template = self._template.with_tools(described)
            template.check_calls(OPENING)
            if self._tokens is None:
                self._tokens = GrammarTokens(self._tokenizer, visible=(OPENING, CLOSING))
            schemas = {tool.name: tool.parameters for tool in tools}
            calls = ToolCallGrammar(self._tokens, schemas, opening=OPENING, closing=CLOSING)
            speech = SpeechGrammar(self._tokens)
            self._known[key] = ToolSet(key, template, calls, speech)
        self._known.move_to_end(key)
        while len(self._known) > MAX_TOOL_SETS:
            self._known.popitem(last=False)
        return self._known[key]
