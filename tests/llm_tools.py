"""Tools, and a tiny random model that likes to call them."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Collection
from pathlib import Path

from stages.llm import LocalLLM, ReplyLength, Sampling
from stages.llm.runtime import DRAFT_SOURCES, DraftSource
from tests import llm_tiny
from voicepipe.protocols import ToolSpec

TAGS = ("<tool_call>", "</tool_call>")
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools' }}{% for tool in tools %}{{ '\n' + tool.function.name }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function.name }}{% endfor %}"
    "{{ '<|im_end|>\n\n' if m.role == 'tool' else '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TABLE = ToolSpec(
    "book_table",
    "Reserves a table.",
    {
        "type": "object",
        "properties": {
            "people": {"enum": [1, 2, 3, 4]},
            "name": {"type": "string", "maxLength": 8},
            "when": {"enum": ["today", "tomorrow"]},
        },
        "required": ["people", "name", "when"],
        "additionalProperties": False,
    },
)
HANG_UP = ToolSpec(
    "hang_up", "Ends the call.", {"type": "object", "properties": {}, "additionalProperties": False}
)
TOOLS = (TABLE, HANG_UP)


@functools.cache
def model_file(tag_type: int = 3) -> Path:
    """The tags are control tokens (3) or tokens that spell themselves (4)."""
    path = Path(tempfile.mkdtemp(prefix="voicepipe-tools-")) / "tools.gguf"
    favoured = {TAGS[0]: 15.0, '"': 13.0, "<|im_end|>": 13.0}
    favoured |= dict.fromkeys(("hello", "Ġthe", "us", "in", "Ġa"), 14.0)
    return llm_tiny.write_with(path, TAGS, favoured, template=TEMPLATE, tag_type=tag_type)


def caller(
    path: Path | None = None,
    *,
    drafts: Collection[DraftSource] = DRAFT_SOURCES,
    context_tokens: int = 2048,
    length: ReplyLength | None = None,
    seed: int = 0,
) -> LocalLLM:
    """A model that has no idea, and now and then calls a tool all the same."""
    return LocalLLM(
        path or model_file(),
        n_threads=1,
        precision="float64",
        context_tokens=context_tokens,
        length=length or ReplyLength(12, 12),
        sampling=Sampling(5.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=seed),
        drafts=drafts,
    )
