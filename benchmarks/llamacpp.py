"""llama.cpp in this process, through the `xllamacpp` wheel of the bench extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voicepipe.clock import process_time_s
from voicepipe.errors import UsageError


class LlamaCpp:
    """One loaded model. Raises UsageError when llama.cpp is not installed."""

    def __init__(self, file: Path, n_threads: int) -> None:
        try:
            import xllamacpp  # noqa: PLC0415 - only in the bench extra
        except ImportError as error:
            raise UsageError(
                "bench llm: xllamacpp is not installed: pip install 'voicepipe[bench]'"
            ) from error
        params = xllamacpp.CommonParams()
        params.model.path = str(file)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
        params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, 0
        self._server = xllamacpp.Server(params)

    def complete(
        self, prompt: Sequence[int], n: int, *, cached: bool, temperature: float = 0.0
    ) -> dict[str, float]:
        """Timings of a completion of `n` tokens, and `wall_ms` of the whole call."""
        start_s = process_time_s()
        answer: dict[str, Any] = self._server.handle_completions(
            {
                "prompt": list(prompt),
                "n_predict": n,
                "temperature": temperature,
                "cache_prompt": cached,
                "ignore_eos": True,
            }
        )
        return {**answer["timings"], "wall_ms": (process_time_s() - start_s) * 1000}
