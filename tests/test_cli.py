"""The command line as a user meets it: exit codes, one line for each failure, real sessions."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
from websockets.asyncio.client import connect

SCRIPTED = ["--stt=scripted:", "--llm=scripted:", "--tts=scripted:", "--turn=scripted:"]


def voicepipe(*args: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "voicepipe", *args],
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.startswith("voicepipe: ")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["models", "path", "nonsense"], 2, "whisper-tiny.en"),
        (["report", "/does/not/exist"], 2, "no such directory"),
        (["config", "--config", "/does/not/exist.toml"], 2, "cannot be read"),
        (["demo", "--caller", "/does/not/exist.wav"], 2, "/does/not/exist.wav"),
        (["demo", *SCRIPTED[1:], "--stt=whispr:tiny.en"], 2, "whisper:"),
        (["demo", *SCRIPTED[1:], "--stt=whisper:huge"], 2, "whisper-tiny.en"),
        (["demo", *SCRIPTED[:1], *SCRIPTED[2:], "--llm=local:/no/model.gguf"], 3, "/no/model.gguf"),
        (["demo", *SCRIPTED[:1], *SCRIPTED[2:], "--llm=openai:http://h/v1"], 2, "#model"),
        (["demo", *SCRIPTED[:2], *SCRIPTED[3:], "--tts=kokoro:nobody"], 2, "af_heart"),
        (["serve", *SCRIPTED, "--host", "0.0.0.0"], 2, "not loopback"),
        (["bench", "overhead", "--device", "cpu"], 2, "only llm does"),
    ],
)
def test_a_failure_is_one_line_with_its_exit_code(
    args: Sequence[str], code: int, says: str
) -> None:
    done = voicepipe(*args)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert one_line(done.stderr)
    assert "Traceback" not in done.stderr


def test_debug_shows_where_it_failed() -> None:
    done = voicepipe("report", "/does/not/exist", "--log-level=debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_config_prints_what_will_run() -> None:
    done = voicepipe("config", *SCRIPTED, "--target-ms", "450")
    config = json.loads(done.stdout)
    assert config["settings"]["target_ms"] == 450
    assert config["provenance"]["models"] == {}


def test_demo_records_and_reports_a_call(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    spoken = np.concatenate([rng.normal(0, 0.1, 12_800), np.zeros(3200)])
    soundfile.write(tmp_path / "caller.wav", spoken, 16_000)
    done = voicepipe(
        "demo", *SCRIPTED, "--caller", str(tmp_path / "caller.wav"), "--out", str(tmp_path / "out")
    )
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "out").iterdir()
    names = {path.name for path in directory.iterdir()}
    assert names == {"call.wav", "events.jsonl", "config.json", "report.json", "report.html"}
    report = json.loads((directory / "report.json").read_text())
    assert report["schema"] == "voicepipe.report/1"
    assert report["n_turns"] == 1
    assert "What is this?" in done.stdout
    assert str(directory) in done.stdout
    again = voicepipe("report", str(directory), "--gate", "cutoffs=0")
    assert again.returncode == 0
    missed = voicepipe("report", str(directory), "--gate", "p50=1")
    assert missed.returncode == 1


def test_serve_says_where_it_listens_and_stops_on_a_signal() -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "voicepipe", "serve", *SCRIPTED, "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        found = re.search(r"ws://127\.0\.0\.1:(\d+)/ws", server.stdout.readline())
        assert found is not None
        port = int(found[1])

        async def greet() -> str:
            async with connect(f"ws://127.0.0.1:{port}/ws") as client:
                return json.loads(await client.recv())["type"]  # type: ignore[no-any-return]

        assert asyncio.run(greet()) == "ready"
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = voicepipe("serve", *SCRIPTED, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 3
    assert "in use" in done.stderr
    assert one_line(done.stderr)
