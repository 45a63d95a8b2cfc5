"""Settings: defaults, a file over them, the command line over that; every mistake is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from voicepipe.config import AgentConfig, load_config
from voicepipe.errors import UsageError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = written(tmp_path, 'llm = "scripted:"\ntarget_ms = 500\nllm_threads = 1\n')
    config = load_config(file, {"llm": "openai:http://h/v1#m", "stt": None})
    assert config.llm == "openai:http://h/v1#m"
    assert config.target_ms == 500.0
    assert config.llm_threads == 1
    assert config.stt == AgentConfig().stt


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("llm =", "cannot be read as TOML"),
        ('lllm = "scripted:"', "unknown setting 'lllm'; known settings: apology, llm,"),
        ("llm = 3", "llm must be str, got 3"),
        ('seed = "x"', "seed must be int, got 'x'"),
        ("seed = true", "seed must be int, got True"),
        ("tts_threads = 0", "tts_threads must be at least 1, got 0"),
        ("[llm]\nname = 1", "llm must be str"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(written(tmp_path, text), {})
    assert says in str(caught.value)
    assert "agent.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read"):
        load_config(tmp_path / "none.toml", {})
