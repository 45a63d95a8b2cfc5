"""A vocabulary of all bytes and a few words, with the tags of tool calls."""

from __future__ import annotations

import functools

from stages.llm.tokenizer import Tokenizer, Vocabulary

WORDS = ('{"', "name", '": "', "book", '"}', "<tool_call>", "</tool_call>", "é".encode()[:1], "ok")
END, TOOL, TOOL_END = 256, 262, 263


@functools.cache
def small(*, control: bool = True) -> Tokenizer:
    """All bytes, an end token, and a few words; the tags are control tokens or plain ones."""
    words = [word if isinstance(word, bytes) else word.encode() for word in WORDS]
    spelled = [bytes([n]) for n in range(256)] + [b"", *words]
    tokens = [f"<{n}>" for n in range(256)] + ["<|end|>", *(str(word) for word in WORDS)]
    tags = {"<tool_call>": TOOL, "</tool_call>": TOOL_END}
    if control:
        spelled[TOOL] = spelled[TOOL_END] = b""
    vocabulary = Vocabulary(
        tokens=tokens,
        bytes_of=spelled,
        special={"<|end|>": END, **tags},
        control_ids=frozenset({END, TOOL, TOOL_END} if control else {END}),
        bos_id=None,
        eos_id=END,
        eos_ids=frozenset({END}),
        adds_bos=False,
        adds_space=False,
    )
    return Tokenizer(vocabulary, lambda text: list(text.encode()))
