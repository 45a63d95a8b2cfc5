"""What all conversations of one local model share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, cast, get_args

import torch

from stages.llm.draft_model import DraftConversation, DraftEngine
from stages.llm.drafts import check_same_vocabulary
from stages.llm.energy import EnergyMeter
from stages.llm.engine import Engine
from stages.llm.generation import Trunk
from stages.llm.kv_pool import BLOCK_TOKENS, BlockPool
from stages.llm.kv_store import KvStore
from stages.llm.kv_tier import LoadPolicy, Tier, keep_evicted, restore_prefix, save_prefix
from stages.llm.metrics import LlmMetrics
from stages.llm.opening import OpenedModel, open_model
from stages.llm.packed_cache import PackedCache
from stages.llm.prepare import Precision
from stages.llm.reply_text import ReplyLength
from stages.llm.sampling import Sampling
from stages.llm.scheduler import Scheduler
from stages.llm.suffix import ReplyMemory
from stages.llm.template import ChatTemplate
from stages.llm.tokenizer import Tokenizer
from stages.llm.tools import Toolbox, ToolSet
from stages.llm.transformer import Device, Model, load_model
from voicepipe.errors import UsageError
from voicepipe.protocols import ToolSpec

log = logging.getLogger(__name__)

DraftSource = Literal["earlier-reply", "suffix", "model", "forced"]
DRAFT_SOURCES: tuple[DraftSource, ...] = ("earlier-reply", "suffix", "model", "forced")
"""Where drafts of the next tokens come from, see drafts.py."""

HOST_BYTES = 64 << 20
DISK_BYTES = 512 << 20
"""What evicted state and known prefixes may take in memory and on disk."""

SAVED_AT_ONCE = 8
"""Blocks written in one job: whoever needs the engine waits for it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a local model runs; see `LocalLLM`."""

    n_threads: int = 2
    n_decode_threads: int = 2
    context_tokens: int = 2048
    kv_tokens: int = 8192
    sampling: Sampling = field(default_factory=Sampling)
    length: ReplyLength = field(default_factory=ReplyLength)
    precision: Precision = "int8"
    device: str = "cpu"
    drafts: Collection[DraftSource] = DRAFT_SOURCES
    draft_path: Path | None = None
    kv_folder: Path | None = None

    def __post_init__(self) -> None:
        if min(self.n_threads, self.n_decode_threads) < 1:
            raise UsageError(
                f"{self.n_threads} and {self.n_decode_threads} threads: give at least 1 each"
            )
        if self.device not in get_args(Device):
            raise UsageError(
                f"unknown device {self.device!r}; known: {', '.join(get_args(Device))}"
            )
        if unknown := sorted(set(self.drafts) - set(DRAFT_SOURCES)):
            raise UsageError(
                f"unknown draft source {unknown[0]!r}; known: {', '.join(DRAFT_SOURCES)}"
            )


class Runtime:
    """A loaded model, its cache, its engine, and what it has learned."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.settings = settings
        opened = open_model(path)
        self.tokenizer: Tokenizer = opened.tokenizer
        self.template: ChatTemplate = opened.template
        self.model = _loaded(path, opened, settings)
        n_blocks = max(settings.kv_tokens, self.model.n_positions) // BLOCK_TOKENS
        self._store: KvStore = self.model.new_store(n_blocks * BLOCK_TOKENS)
        self._tier = Tier(HOST_BYTES, settings.kv_folder, DISK_BYTES)
        self.pool = BlockPool(
            n_blocks,
            salt=_salt(path, settings.precision, self.model),
            copy=self._store.copy,
            on_evict=keep_evicted(self._tier, self._store),
        )
        compute = partial(self.model.step, self._store)
        self.scheduler = Scheduler(compute, self.model.costs, self.pool)
        self.engine = Engine("llm", self.scheduler.step)
        self.drafter = _drafter(settings, self.tokenizer)
        self.replies = ReplyMemory()
        self._toolbox = Toolbox(self.template, self.tokenizer)
        self.metrics = LlmMetrics(energy=EnergyMeter.of_this_machine())
        self._load_policy = LoadPolicy(self.model.costs().of(BLOCK_TOKENS) / BLOCK_TOKENS)

    async def tool_set(self, tools: Sequence[ToolSpec]) -> ToolSet:
        """See `Toolbox.of`."""
        found: list[ToolSet] = []
        await self.engine.run(lambda: found.append(self._toolbox.of(tools)))
        return found[0]

    async def reach(
        self, trunk: Trunk, ids: Sequence[int], enough: Callable[[], bool] = bool
    ) -> None:
        """Work until `trunk` holds `ids`, or it is `enough`. Raises what went wrong."""
        has_aim = False

        def aim() -> None:
            nonlocal has_aim
            trunk.aim(ids)
            has_aim = True

        self.engine.between(aim)
        await self.engine.until(lambda: (has_aim and trunk.is_ready) or enough())
        if has_aim and trunk.error is not None:
            raise trunk.error

    async def prepare_draft(
        self, drafter: DraftConversation, ids: Sequence[int], enough: Callable[[], bool]
    ) -> None:
        """Have the small model know `ids`, unless it is `enough`."""
        more = [True]

        def advance() -> None:
            more[0] = drafter.prepare(ids)

        while more[0] and not enough():
            await self.engine.run(advance)

    async def restore(self, trunk: Trunk, ids: Sequence[int]) -> None:
        """Put into `trunk`, which holds a beginning of `ids`, what is known of them: in the cache,
        or stored by an earlier process where loading is faster than computing."""

        def load() -> None:
            found = restore_prefix(self._tier, self.pool, self._store, ids, self._load_policy)
            if len(found.ids) > len(trunk.sequence.ids):
                trunk.replace(found)
            else:
                found.release()

        await self.engine.run(load)

    async def save(self, trunk: Trunk) -> None:
        """Have what `trunk` holds known to later processes."""
        n_left = [1]

        def store() -> None:
            n_left[0] = save_prefix(
                self._tier, self._store, trunk.sequence, max_blocks=SAVED_AT_ONCE
            )

        while self.settings.kv_folder is not None and n_left[0]:
            await self.engine.run(store)


def _loaded(path: Path, opened: OpenedModel, settings: Settings) -> Model:
    folder = settings.kv_folder
    model = load_model(
        opened.weights,
        n_positions=settings.context_tokens,
        precision=settings.precision,
        device=cast(Device, settings.device),
        n_threads=settings.n_threads,
        n_decode_threads=settings.n_decode_threads,
        cache=PackedCache(folder, path) if folder else None,
    )
    model.warm_up()
    log.info("%s: computes with %s", path.name, model.kernel or settings.device)
    return model


def _drafter(settings: Settings, tokenizer: Tokenizer) -> DraftEngine | None:
    if settings.draft_path is None:
        return None
    opened = open_model(settings.draft_path)
    check_same_vocabulary(_tokens(tokenizer), _tokens(opened.tokenizer))
    return DraftEngine(_loaded(settings.draft_path, opened, settings), settings.kv_tokens)


def _tokens(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.token(n) for n in range(len(tokenizer))]


def _salt(path: Path, precision: Precision, model: Model) -> bytes:
    """Names the model and how it computes: state of one must never serve another."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    kernel = model.kernel.kernel.kind if model.kernel else ""
    return repr((stats, precision, kernel, torch.__version__)).encode()
