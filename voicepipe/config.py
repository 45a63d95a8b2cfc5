"""The effective configuration: defaults, overlaid by a TOML file, overlaid by the command line."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from voicepipe.errors import UsageError
from voicepipe.session import DEFAULT_APOLOGY, DEFAULT_SYSTEM


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What an agent is made of. Stages are named by URI, `scheme:name`."""

    stt: str = "whisper:tiny.en"
    llm: str = "local:smollm2-135m-instruct"
    tts: str = "piper:en_US-joe-medium"
    turn: str = "smart-turn:v3.2-cpu"
    system: str = DEFAULT_SYSTEM
    apology: str = DEFAULT_APOLOGY
    """Said when a stage fails in a turn the caller waits for; "" means silence."""
    target_ms: float = 600.0
    seed: int = 0
    stt_threads: int = 1
    llm_threads: int = 2
    tts_threads: int = 1
    llm_device: str = "cpu"
    """Where a `local:` language model computes: "cpu" or "cuda"."""
    llm_draft: str = ""
    """A smaller model of the same vocabulary that drafts for a `local:` one, by name or path."""
    llm_warm_up: bool = True
    """Whether a call begins with a request of one token to the endpoint of `openai:`."""


def load_config(file: Path | None, given: Mapping[str, object]) -> AgentConfig:
    """Defaults, then `file`, then what of `given` is not None. Raises UsageError for a file that
    cannot be read, an unknown key (lists the known) or a value of the wrong type."""
    settings: dict[str, object] = {}
    if file is not None:
        try:
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"{file}: cannot be read as TOML: {error}") from error
    where = str(file) if file else "command line"
    settings |= {key: value for key, value in given.items() if value is not None}
    return AgentConfig(**_checked(settings, where))  # type: ignore[arg-type]


def _checked(settings: Mapping[str, object], where: str) -> dict[str, object]:
    """`settings` with every key known and every value of its field's type."""
    defaults = {f.name: f.default for f in dataclasses.fields(AgentConfig)}
    checked: dict[str, object] = {}
    for key, given in settings.items():
        if key not in defaults:
            known = ", ".join(sorted(defaults))
            raise UsageError(f"{where}: unknown setting {key!r}; known settings: {known}")
        wanted = type(defaults[key])
        value = float(given) if wanted is float and type(given) is int else given
        if type(value) is not wanted:
            raise UsageError(f"{where}: {key} must be {wanted.__name__}, got {value!r}")
        if key.endswith("_threads") and isinstance(value, int) and value < 1:
            raise UsageError(f"{where}: {key} must be at least 1, got {value!r}")
        checked[key] = value
    return checked
