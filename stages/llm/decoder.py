"""Model steps: everything that runs on the engine's thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from stages.llm.gguf_file import GgufFile
from stages.llm.kv import KvCache
from stages.llm.llama import LlamaConfig
from stages.llm.load import DTYPES, Precision, load_llama
from stages.llm.opening import gguf_text
from stages.llm.sampling import Sampling, choose

PREFILL_CHUNK = 32
"""Tokens of one prefill step: as fast a token as longer ones on the CPUs measured, and the longest
that anybody has to wait for the engine."""

WARM_UP_LENGTHS = (PREFILL_CHUNK, 3, 3, 1, 1, 1)
"""TorchScript profiles the first runs of a shape and compiles at the second."""


class Decoder:
    """A loaded model with its tokenizer and chat template. Blocking; one thread at a time."""

    def __init__(
        self,
        path: Path,
        *,
        n_positions: int,
        precision: Precision,
        n_threads: int,
        n_decode_threads: int,
    ) -> None:
        file = GgufFile(path)
        self.config = LlamaConfig.of(file)
        self.tokenizer, self.template = gguf_text(file)
        self.n_positions = min(n_positions, self.config.n_context)
        self._dtype = DTYPES[precision]
        self._n_threads, self._n_decode_threads = n_threads, n_decode_threads
        self._model = load_llama(
            file, self.config, n_positions=self.n_positions, precision=precision
        )

    def warm_up(self) -> None:
        """Run the shapes that matter until torch has compiled them."""
        cache = self.new_cache()
        n_vocabulary = self.config.n_vocabulary
        for n in WARM_UP_LENGTHS:
            if n < self.n_positions:
                self._forward(cache, [n % n_vocabulary] * n)
                cache.truncate(0)

    def new_cache(self) -> KvCache:
        c = self.config
        n_rows = 2 * c.n_kv_heads
        return KvCache(c.n_layers, n_rows, self.n_positions, c.head_size, self._dtype)

    def advance(self, cache: KvCache, ids: Sequence[int]) -> torch.Tensor | None:
        """Bring `cache`, which holds a prefix of `ids`, up to PREFILL_CHUNK tokens further towards
        all of `ids`. At the end, and never before, returns logits [vocabulary] after the last."""
        start = len(cache.ids)
        chunk = ids[start : start + PREFILL_CHUNK]
        is_last = start + len(chunk) == len(ids)
        return self._forward(cache, chunk, want_logits=is_last)

    def align(self, cache: KvCache, ids: Sequence[int]) -> int:
        """Forget what `cache` holds beyond its common prefix with `ids`, and the last of `ids` in
        any case, since something must be computed to go on. Returns the tokens that are left."""
        n = min(cache.n_common(ids), len(ids) - 1)
        cache.truncate(n)
        return n

    def choose(
        self, logits: torch.Tensor, sampling: Sampling, position: int, recent: Sequence[int]
    ) -> int:
        with torch.inference_mode():
            return choose(logits, sampling, position, recent)

    def _forward(
        self, cache: KvCache, ids: Sequence[int], *, want_logits: bool = True
    ) -> torch.Tensor | None:
        n_threads = self._n_threads if len(ids) > 1 else self._n_decode_threads
        if torch.get_num_threads() != n_threads:
            torch.set_num_threads(n_threads)
        position = len(cache.ids)
        with torch.inference_mode():
            hidden = self._model(torch.tensor(ids), cache.layers, position)
            cache.ids.extend(ids)
            if not want_logits:
                return None
            logits: torch.Tensor = self._model.logits(hidden[-1:])  # type: ignore[operator]
            return logits[0]
