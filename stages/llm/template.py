"""A model's own chat template, cut into the glue around the words so that turns can be appended.

The template is rendered once with sentinel words; what lies between them is the same for every
conversation. Tokens are made of runs of plain text between special tokens, glue and words
together, so that appended turns have the ids that rendering everything afresh would give. (Where a
template writes old replies otherwise than it has them begin, as Qwen 3 does with its empty thought,
appended turns keep the beginning.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jinja2 import TemplateError

from stages.llm.jinja import compile_template
from stages.llm.tokenizer import Tokenizer
from voicepipe.errors import ComponentError, UsageError

SYSTEM, USER, REPLY, USER_2 = "SystemSENTINEL", "UserSENTINEL", "ReplySENTINEL", "AgainSENTINEL"
RESULT, RESULT_2 = 'Result"SENTINEL', 'Other"SENTINEL'
"""With a quote, so that a template that writes results as JSON is found out."""

Message = Mapping[str, object]
"""`role` and `content`; also `tool_calls` of an assistant, as in OpenAI's API."""
Tool = Mapping[str, object]
"""A tool as in OpenAI's API: {"type": "function", "function": {"name", "description", …}}."""
After = Literal["start", "system", "reply", "user", "results"]


@dataclass(frozen=True, slots=True)
class Glue:
    """Text between two pieces of words: plain text that runs on from the words before it, ids from
    its first to its last special token, plain text that runs on into the words after it."""

    close: str
    ids: tuple[int, ...]
    open: str

    def alone(self) -> Glue:
        """Without what belongs to the words before it."""
        return replace(self, close="")


@dataclass(frozen=True, slots=True)
class Results:
    """The glue around tool results: before the first, between two, before the reply to them, and
    before a user's words."""

    first: Glue
    between: Glue
    header: Glue
    user: Glue
    is_json: bool
    """Results stand in quotes."""


class ChatTemplate:
    """A chat template, and the tools it tells the model about. Raises ComponentError, which names
    `where` it is from, when it fails, or cannot tell about tools."""

    def __init__(
        self, source: str, tokenizer: Tokenizer, where: str, tools: Sequence[Tool] = ()
    ) -> None:
        self._source, self._tokenizer, self._where = source, tokenizer, where
        self._tools = list(tools)
        self._special = {
            "bos_token": tokenizer.token(tokenizer.bos_id),
            "eos_token": tokenizer.token(tokenizer.eos_id),
        }
        self._has_system = True
        try:
            self._template = compile_template(source)
            self._has_system = self._knows_system()
            self._head, self._before, self._header = self._split()
        except Exception as error:  # a template is a program: it may raise anything
            raise ComponentError(
                f"{where}: its chat template cannot be used ({_first_line(error)}): use another "
                "build of the model"
            ) from error
        self._results: Results | None = None
        if tools:
            self._results = self._split_results()
            self._before["results"] = self._results.user

    def with_tools(self, tools: Sequence[Tool]) -> ChatTemplate:
        """This template for conversations in which the model may call `tools`. Raises UsageError
        for what is no tool."""
        for tool in tools:
            _name(tool)
        return ChatTemplate(self._source, self._tokenizer, self._where, tools)

    def render(self, messages: Sequence[Message], *, generate: bool) -> str:
        """The whole conversation as the template writes it; `generate` adds the reply's header.
        Replies are spoken, so a model that can think first is told not to."""
        return self._template.render(
            messages=list(messages) if self._has_system else _system_in_user(messages),
            tools=self._tools or None,
            add_generation_prompt=generate,
            enable_thinking=False,
            **self._special,
        )

    def system_ids(self, system: str) -> list[int]:
        """Ids from the start to the end of the system prompt; "" for none."""
        if not system.strip():
            return []
        return self._from_start([self._head, system.strip(), self._before["system"].close])

    def user_ids(self, text: str, after: After, *, whole: bool = True) -> list[int]:
        """Ids of a user turn up to the end of its words. `whole=False`: more words will come."""
        close = self._header.close if whole else ""
        parts: list[Glue | str] = [self._before[after].alone(), text.strip(), close]
        return self._from_start(parts) if after == "start" else self._ids(parts)

    @property
    def reply_header_ids(self) -> list[int]:
        """Ids between the user's words and the reply."""
        return self._ids([self._header.alone()])

    def check_calls(self, opening: str) -> None:
        """Raises ComponentError unless the model was told of tools, and that calls of them begin
        with `opening`."""
        call = {"function": {"name": RESULT, "arguments": {}}, "type": "function"}
        called = {**_message("assistant", ""), "tool_calls": [call]}
        try:
            if opening not in self.render([_message("user", USER), called], generate=False):
                raise ValueError("it writes them otherwise")
        except Exception as error:  # a template is a program: it may raise anything
            raise ComponentError(
                f"{self._where}: its chat template has no calls of tools that begin with {opening} "
                f"({_first_line(error)}): use a model that has (e.g. Qwen 2.5 or Qwen 3)"
            ) from error

    def result_ids(self, results: Sequence[str], *, reply: bool = True) -> list[int]:
        """Ids from a reply that called tools, over their `results` in order, to where the next
        reply begins, or without `reply` to the end of their words. Only after `with_tools`."""
        if self._results is None or not results:
            raise ValueError("results of tools that no model was told of")
        glue = self._results
        parts: list[Glue | str] = [glue.first.alone()]
        for result in results:
            text = json.dumps(result, ensure_ascii=False)[1:-1] if glue.is_json else result
            parts += [text, glue.between]
        return self._ids([*parts[:-1], glue.header if reply else glue.user.close])

    def _from_start(self, parts: Sequence[Glue | str]) -> list[int]:
        ids, bos = self._ids(parts, starts=True), self._tokenizer.bos_id
        if self._tokenizer.adds_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def _ids(self, parts: Sequence[Glue | str], *, starts: bool = False) -> list[int]:
        """Ids of glue and words, one run of plain text from special token to special token."""
        ids: list[int] = []
        run = ""
        for part in parts:
            if isinstance(part, str):
                run += part
                continue
            run += part.close
            if part.ids:
                ids += self._tokenizer.encode(run, starts=starts)
                ids += part.ids
                run, starts = "", True
            run += part.open
        return ids + self._tokenizer.encode(run, starts=starts)

    # -- finding the glue ----------------------------------------------------------------------

    def _knows_system(self) -> bool:
        """Whether there is a system role; otherwise its text begins the first user turn."""
        try:
            self.render([_message("system", SYSTEM), _message("user", USER)], generate=True)
        except TemplateError:
            return False
        return True

    def _split(self) -> tuple[Glue, dict[After, Glue], Glue]:
        """Glue before the system prompt, before a user's words by what they follow, and before
        a reply."""
        system, user = _message("system", SYSTEM), _message("user", USER)
        reply, again = _message("assistant", REPLY), _message("user", USER_2)
        full = self.render([system, user, reply, again], generate=False)
        start, after_system, _, after_reply, _ = _between(full, SYSTEM, USER, REPLY, USER_2)
        _, _, header = _between(self.render([system, user], generate=True), SYSTEM, USER)
        bare, _, _, _ = _between(
            self.render([user, reply, again], generate=False), USER, REPLY, USER_2
        )
        try:
            twice = self.render([system, user, again], generate=False)
            _, _, after_user, _ = _between(twice, SYSTEM, USER, USER_2)
        except TemplateError:  # it insists on replies: an empty one
            after_user = header + after_reply
        before: dict[After, Glue] = {
            "start": self._glue(bare),
            "system": self._glue(after_system),
            "reply": self._glue(after_reply),
            "user": self._glue(after_user),
        }
        return self._glue(start), before, self._glue(header)

    def _split_results(self) -> Results:
        """Raises ComponentError when the template leaves out the tools or their results."""
        called = [_message("system", SYSTEM), _message("user", USER), _message("assistant", REPLY)]
        results = [_message("tool", RESULT), _message("tool", RESULT_2)]
        try:
            text = self.render([*called, *results], generate=True)
            is_json = RESULT not in text
            sentinels = (RESULT, RESULT_2)
            if is_json:
                sentinels = (json.dumps(RESULT)[1:-1], json.dumps(RESULT_2)[1:-1])
            _, first, between, header = _between(text, REPLY, *sentinels)
            more = self.render([*called, *results, _message("user", USER_2)], generate=False)
            _, _, _, user, _ = _between(more, REPLY, *sentinels, USER_2)
            if missing := [name for name in map(_name, self._tools) if name not in text]:
                raise ValueError(f"it does not mention {missing[0]}")
        except Exception as error:  # a template is a program: it may raise anything
            raise ComponentError(
                f"{self._where}: its chat template cannot tell the model about tools "
                f"({_first_line(error)}): use a model that can call tools (e.g. Qwen 2.5 or "
                "Qwen 3), or give no tools"
            ) from error
        before = [self._glue(text) for text in (first, between, header, user)]
        return Results(before[0], before[1], before[2], before[3], is_json)

    def _glue(self, text: str) -> Glue:
        pieces = self._tokenizer.split_glue(text)
        special = [n for n, piece in enumerate(pieces) if isinstance(piece, int)]
        if not special:
            return Glue("", (), text)
        first, last = special[0], special[-1]
        ids = self._tokenizer.encode_pieces(pieces[first : last + 1])
        return Glue(_plain(pieces[:first]), tuple(ids), _plain(pieces[last + 1 :]))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _system_in_user(messages: Sequence[Message]) -> list[Message]:
    """`messages` without a system role: its text begins the first user turn, as in Gemma's
    template."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return list(messages)
    system, user, *others = messages
    return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *others]


def _name(tool: Tool) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise UsageError(f"a tool without a function name: {tool!r}: see OpenAI's `tools`")
    return name


def _plain(pieces: Sequence[int | str]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))


def _between(text: str, *sentinels: str) -> list[str]:
    """The pieces of `text` before, between and after the sentinels, each found exactly once."""
    pieces = []
    for sentinel in sentinels:
        before, found, text = text.partition(sentinel)
        if not found or sentinel in text:
            raise ValueError(f"it does not write each message once and in order ({sentinel})")
        pieces.append(before)
    return [*pieces, text]


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
