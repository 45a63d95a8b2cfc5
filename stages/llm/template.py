"""A model's own chat template, cut into the glue around the words so that turns can be appended.

The template is rendered once with sentinel words; what lies between them is the same for every
conversation. Tokens are made of runs of plain text between special tokens, glue and words
together, so that appended turns have the ids that rendering everything afresh would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stages.llm.gguf_file import GgufFile
from stages.llm.tokenizer import Tokenizer
from voicepipe.errors import ComponentError

SYSTEM, USER, REPLY, USER_2 = "SystemSENTINEL", "UserSENTINEL", "ReplySENTINEL", "AgainSENTINEL"

Message = Mapping[str, str]
After = Literal["start", "system", "reply", "user"]


@dataclass(frozen=True, slots=True)
class Glue:
    """Text between two pieces of words: plain text that runs on from the words before it, ids from
    its first to its last special token, plain text that runs on into the words after it."""

    close: str
    ids: tuple[int, ...]
    open: str


class ChatTemplate:
    """The chat template of a GGUF file. Raises ComponentError when there is none or it fails."""

    def __init__(self, file: GgufFile, tokenizer: Tokenizer) -> None:
        source = file.metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise ComponentError(
                f"model file {file.path}: it has no chat template: use an instruct model"
            )
        self._tokenizer = tokenizer
        self._special = {
            "bos_token": tokenizer.token(tokenizer.bos_id),
            "eos_token": tokenizer.token(tokenizer.eos_id),
        }
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
            self._head, self._before, self._ahead_of_reply = self._split()
        except (TemplateError, TypeError, ValueError) as error:
            raise ComponentError(
                f"model file {file.path}: its chat template cannot be used ({error}): "
                "use another build of the model"
            ) from error

    def render(self, messages: Sequence[Message], *, generate: bool) -> str:
        """The whole conversation as the template writes it; `generate` adds the reply's header."""
        return self._template.render(
            messages=list(messages), add_generation_prompt=generate, **self._special
        )

    def system_ids(self, system: str) -> list[int]:
        """Ids from the start to the end of the system prompt; "" for none."""
        if not system.strip():
            return []
        run = self._head.open + system.strip() + self._before["system"].close
        return self._with_bos([*self._head.ids, *self._tokenizer.encode(run)])

    def user_ids(self, text: str, after: After, *, whole: bool = True) -> list[int]:
        """Ids of a user turn up to the end of its words. `whole=False`: more words will come."""
        glue = self._before[after]
        run = glue.open + text.strip() + (self._ahead_of_reply.close if whole else "")
        ids = [*glue.ids, *self._tokenizer.encode(run)]
        return self._with_bos(ids) if after == "start" else ids

    @property
    def reply_header_ids(self) -> list[int]:
        """Ids between the user's words and the reply."""
        glue = self._ahead_of_reply
        return [*glue.ids, *self._tokenizer.encode(glue.open)]

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self._tokenizer.bos_id
        if self._tokenizer.adds_bos and bos is not None and ids[:1] != [bos]:
            return [bos, *ids]
        return ids

    def _split(self) -> tuple[Glue, dict[After, Glue], Glue]:
        """Glue before the system prompt, before a user's words by what they follow, and before
        a reply."""
        system, user = {"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}
        reply, again = (
            {"role": "assistant", "content": REPLY},
            {"role": "user", "content": USER_2},
        )
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

    def _glue(self, text: str) -> Glue:
        pieces = self._tokenizer.split_glue(text)
        special = [n for n, piece in enumerate(pieces) if isinstance(piece, int)]
        if not special:
            return Glue("", (), text)
        first, last = special[0], special[-1]
        ids: list[int] = []
        for piece in pieces[first : last + 1]:
            ids += [piece] if isinstance(piece, int) else self._tokenizer.encode(piece)
        return Glue(_plain(pieces[:first]), tuple(ids), _plain(pieces[last + 1 :]))


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


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
