"""The target that everything is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from voicepipe.errors import UsageError


@dataclass(frozen=True, slots=True)
class Budget:
    """How soon the caller is to hear the reply: from the last voiced sample to the first audible
    one. 600 ms is where a gap in a conversation starts to feel reluctant."""

    target_ms: float = 600.0

    def __post_init__(self) -> None:
        if not 0.0 < self.target_ms < 60_000.0:
            raise UsageError(
                f"budget: a target of {self.target_ms} ms makes no sense: give 1 to 60000 ms"
            )
