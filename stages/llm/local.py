"""A language model on this machine: conversations over one engine, one cache, one model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from stages.llm.background import Background
from stages.llm.generation import Trunk
from stages.llm.local_conversation import NEXT_TURN_TOKENS, LocalConversation
from stages.llm.metrics import Summary
from stages.llm.prepare import Precision
from stages.llm.reply_text import ReplyLength
from stages.llm.runtime import DRAFT_SOURCES, DraftSource, Runtime, Settings
from stages.llm.sampling import Sampling
from voicepipe.errors import ComponentError
from voicepipe.protocols import Conversation, ToolSpec

MAX_PREFIXES = 8
"""System prompts whose state is kept; more than an agent has."""


class LocalLLM:
    """A model of the Llama, Qwen 2, Qwen 3 or Gemma 3 family, from a GGUF file (or a folder with
    one) or a Hugging Face folder.

    All conversations share the weights, one engine and a cache of `kv_tokens` tokens; one sequence
    has at most `context_tokens`, older turns are dropped in time. `n_threads` are used for
    prompts, at most `n_decode_threads` for single tokens: fewer while another stage needs a core.
    `drafts` of the next tokens are checked where that is faster: from the reply to an earlier
    transcript of the same turn, from what was said before, from the smaller model at `draft_path`,
    from the grammar of a call where it leaves no choice; what is said does not depend on them. In
    `kv_folder` the state of system prompts and prepared weights survive a restart.

    Raises ComponentError when a model is missing, broken or of an unsupported kind, or when there
    is no GPU for `device` "cuda".
    """

    def __init__(
        self,
        model_path: Path,
        *,
        n_threads: int = 2,
        n_decode_threads: int = 2,
        context_tokens: int = 2048,
        kv_tokens: int = 8192,
        sampling: Sampling | None = None,
        length: ReplyLength | None = None,
        precision: Precision = "int8",
        device: str = "cpu",
        drafts: Collection[DraftSource] = DRAFT_SOURCES,
        draft_path: Path | None = None,
        kv_folder: Path | None = None,
    ) -> None:
        settings = Settings(
            n_threads=n_threads,
            n_decode_threads=n_decode_threads,
            context_tokens=context_tokens,
            kv_tokens=kv_tokens,
            sampling=sampling or Sampling(),
            length=length or ReplyLength(),
            precision=precision,
            device=device,
            drafts=drafts,
            draft_path=draft_path,
            kv_folder=kv_folder,
        )
        self.runtime = Runtime(model_path, settings)
        self._prefixes: OrderedDict[tuple[int, ...], Trunk] = OrderedDict()

    def open(
        self, system: str, tools: Sequence[ToolSpec] = ()
    ) -> AbstractAsyncContextManager[Conversation]:
        """See `protocols.LanguageModel`. The first conversation with a system prompt and tools
        computes its state, later ones share it. What is generated is always a valid call. Entering
        raises ComponentError when they do not fit the context or the model's chat template knows no
        tools, and UsageError when tools are given and llguidance is not installed."""
        return self._open(system, tools)

    def metrics(self) -> Summary:
        """How it has served so far."""
        return self.runtime.metrics.summary()

    def close(self) -> None:
        """End the engine's thread; no conversation may be open."""
        self.runtime.engine.close()

    @asynccontextmanager
    async def _open(self, system: str, tools: Sequence[ToolSpec]) -> AsyncIterator[Conversation]:
        runtime = self.runtime
        tool_set = await runtime.tool_set(tools) if tools else None
        conversation = LocalConversation(runtime, system, tool_set)
        prefix = await self._prefix(conversation.ids_ahead(), conversation.n_reply_tokens)
        runtime.engine.between(partial(conversation.begin, prefix))
        try:
            async with Background(conversation.keep_ahead):
                yield conversation
        finally:
            runtime.engine.between(conversation.end)

    async def _prefix(self, ids: Sequence[int], n_reply: int) -> Trunk:
        """The state of `ids`, computed at most once for all conversations that begin so; a reply
        takes up to `n_reply` tokens."""
        runtime, key = self.runtime, tuple(ids)
        n_positions = runtime.model.n_positions
        if len(ids) + NEXT_TURN_TOKENS + n_reply > n_positions:
            raise ComponentError(
                f"language model: a system prompt of {len(ids)} tokens leaves no room in a context "
                f"of {n_positions}: shorten it or raise context_tokens"
            )
        trunk = self._prefixes.get(key)
        if trunk is None:
            trunk = self._prefixes[key] = Trunk(runtime.pool.new_sequence())
            runtime.engine.between(partial(runtime.scheduler.add_trunk, trunk))
            await runtime.restore(trunk, ids)
        if key in self._prefixes:
            self._prefixes.move_to_end(key)
        while len(self._prefixes) > MAX_PREFIXES:
            _, oldest = self._prefixes.popitem(last=False)
            runtime.engine.between(partial(runtime.scheduler.remove_trunk, oldest))
        await runtime.reach(trunk, ids)
        await runtime.save(trunk)
        return trunk
