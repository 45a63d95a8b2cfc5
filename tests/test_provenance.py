"""Where a number came from."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from voicepipe import models
from voicepipe.errors import UsageError
from voicepipe.provenance import git_commit, package_versions, provenance


def test_it_is_json_and_names_versions_hashes_and_threads() -> None:
    made = provenance(["silero-vad"], {"stt": 1, "llm": 2})
    read_back = json.loads(json.dumps(made))
    assert read_back["packages"]["numpy"] == np.__version__
    assert read_back["models"] == {"silero-vad": models.hashes("silero-vad")}
    assert read_back["threads"] == {"stt": 1, "llm": 2}
    assert read_back["cpu"]["usable"] >= 1
    assert read_back["memory_mb"] > 100
    assert read_back["voicepipe"]
    with pytest.raises(UsageError, match=r"known: whisper-tiny\.en"):
        provenance(["silero"])


def test_it_names_no_host_and_no_folder() -> None:
    text = json.dumps(provenance())
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4
    assert str(Path.home()) not in text or Path.home() == Path("/")
    assert os.getcwd() not in text


def test_the_packages_are_those_that_are_asked_for_and_installed() -> None:
    versions = package_versions()
    assert {"torch", "faster-whisper", "onnxruntime", "websockets"} <= set(versions)
    assert "voicepipe" not in versions
    assert "pip" not in versions


def test_the_commit_is_marked_when_files_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert git_commit(tmp_path) is None, "no checkout"
    for name in (
        "GIT_AUTHOR_NAME",
        "GIT_COMMITTER_NAME",
        "GIT_AUTHOR_EMAIL",
        "GIT_COMMITTER_EMAIL",
    ):
        monkeypatch.setenv(name, "toy@example.org")

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "--quiet")
    assert git_commit(tmp_path) is None, "no commit yet"
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "--quiet", "-m", "First")
    git("tag", "-a", "v1", "-m", "Version 1")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "file").write_text("b")
    assert git_commit(tmp_path) == f"{commit}-dirty"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert git_commit(tmp_path) is None, "no git"
