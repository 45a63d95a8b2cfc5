"""llama.cpp in a process of its own, through the `xllamacpp` wheel of the bench extra.

Of its own because both sides use the same OpenMP library, whose settings are ours in this process
(see stages/__init__.py) and must not be llama.cpp's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from voicepipe.clock import process_time_s
from voicepipe.errors import ComponentError, UsageError

OURS = ("GOMP_SPINCOUNT",)
"""Settings that it does not inherit."""


class LlamaCpp:
    """One loaded model. Raises UsageError when llama.cpp is not installed."""

    def __init__(self, file: Path, n_threads: int) -> None:
        if find_spec("xllamacpp") is None:
            raise UsageError(
                "bench llm: xllamacpp is not installed: pip install 'voicepipe[bench]'"
            )
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.llamacpp", str(file), str(n_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def complete(
        self, prompt: Sequence[int], n: int, *, cached: bool, temperature: float = 0.0
    ) -> dict[str, float]:
        """Timings of a completion of `n` tokens, and `wall_ms` of the whole call in its process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {
            "prompt": list(prompt),
            "n_predict": n,
            "temperature": temperature,
            "cache_prompt": cached,
            "ignore_eos": True,
        }
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ComponentError("bench llm: llama.cpp ended: see its message above")
        timings: dict[str, float] = json.loads(answer)
        return timings

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _serve(file: str, n_threads: int) -> None:
    """Answer each line of standard input, a request, with a line of timings."""
    import xllamacpp  # noqa: PLC0415 - only in the bench extra

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = n_threads
    params.n_ctx, params.n_parallel, params.verbosity = 2048, 1, 0
    server = xllamacpp.Server(params)
    for line in sys.stdin:
        start_s = process_time_s()
        answer: dict[str, Any] = server.handle_completions(json.loads(line))
        wall_ms = (process_time_s() - start_s) * 1000
        print(json.dumps({**answer["timings"], "wall_ms": wall_ms}), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
