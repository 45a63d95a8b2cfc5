"""The doctor: one finding for each part of a machine, and an advice for each one that is not ok."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.toy_model import BIG, with_toy
from voicepipe import doctor as parts
from voicepipe.doctor import Finding, as_text, doctor
from voicepipe.model_store import ModelStore


def test_this_machine_can_run_voicepipe(tmp_path: Path) -> None:
    text, ok = doctor(with_toy(tmp_path), recordings=tmp_path)
    assert ok, text
    for subject in ("python", "packages", "processor", "memory", "model toy", "gpu", "disk"):
        assert f"  {subject} " in text
    assert text.splitlines()[-1].startswith("0 broken, ")
    assert max(len(line) for line in text.splitlines()) <= parts.WIDTH


def test_a_wrong_model_is_broken_and_the_whole_is_not_ok(tmp_path: Path) -> None:
    text, ok = doctor(with_toy(tmp_path, BIG[:-1] + b"x"), recordings=tmp_path)
    assert not ok
    assert "BROKEN  model toy" in text
    assert "voicepipe models fetch toy" in " ".join(text.split())


def test_an_absent_model_matters_only_when_the_demo_needs_it(tmp_path: Path) -> None:
    findings = parts.model_findings(ModelStore(tmp_path))
    assert {finding.subject for finding in findings} == {
        "model whisper-tiny.en",
        "model smollm2-135m-instruct",
        "model piper-en_US-joe-medium",
        "model english-lexicon",
        "model smart-turn-v3.2-cpu",
        "model silero-vad",
    }
    assert {finding.state for finding in findings} == {"poor"}
    assert all("voicepipe models fetch" in finding.advice for finding in findings)


@pytest.mark.parametrize(
    ("requirement", "installed", "state", "advice"),
    [
        ("numpy>=2.0", "2.4", "ok", ""),
        ("numpy>=2.0", "1.26", "poor", "pip install 'numpy>=2.0'"),
        ("numpy>=2.0", None, "broken", "pip install 'numpy>=2.0'"),
        ("torch<3,>=2.13", "2.13.0+cpu", "ok", ""),
        ("jiwer>=4; extra == 'bench'", None, "ok", ""),
        ("jiwer>=4; extra == 'bench'", "3.0", "poor", "pip install 'jiwer>=4'"),
    ],
)
def test_packages_are_held_against_what_is_asked_for(
    requirement: str, installed: str | None, state: str, advice: str
) -> None:
    def version_of(name: str) -> str | None:
        return "1.4" if name == "piper-tts" else installed

    last = parts.package_findings([requirement], version_of)[-1]
    assert (last.state, last.advice) == (state, advice)


def test_a_missing_piper_engine_is_fine_and_the_extra_and_its_licence_are_named() -> None:
    last = parts.package_findings([], lambda name: None)[-1]
    assert last.state == "ok"
    assert "other languages than English" in last.text
    assert "voicepipe[piper]" in last.advice
    assert "GPL" in last.advice


def test_python_must_be_new_enough() -> None:
    assert parts.python_finding((3, 10, 9)).state == "broken"
    assert parts.python_finding((3, 11, 0)).state == "ok"
    assert parts.python_finding((4, 0, 0)).state == "ok"


def test_a_small_machine_is_told_what_to_set() -> None:
    assert parts.processor_finding(2, "Toy", frozenset()).state == "ok"
    small = parts.processor_finding(1, "Toy", frozenset())
    assert small.state == "poor"
    assert "llm_threads" in small.advice
    assert parts.memory_finding(3_000_000_000, 4_000_000_000).state == "ok"
    assert parts.memory_finding(1_000_000_000, 4_000_000_000).state == "poor"


def test_an_old_processor_is_told_why_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "AVX2" in parts.processor_finding(4, "Toy", frozenset({"sse2"})).advice
    assert parts.processor_finding(4, "Toy", frozenset({"avx2"})).state == "ok"
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert parts.processor_finding(4, "Toy", frozenset({"asimd"})).state == "ok"


def test_a_machine_without_a_compiler_is_told_what_it_misses() -> None:
    assert parts.compiler_finding("/usr/bin/cc").state == "ok"
    missing = parts.compiler_finding(None)
    assert missing.state == "poor"
    assert "gcc" in missing.advice


def test_every_finding_that_is_not_ok_has_an_advice(tmp_path: Path) -> None:
    for finding in (parts.audio_finding(), parts.gpu_finding(), parts.disk_finding(tmp_path)):
        assert finding.state == "ok" or finding.advice


def test_the_text_counts_and_wraps() -> None:
    text = as_text(
        [
            Finding("a", "ok", "good"),
            Finding("longer", "poor", "so so", "do this"),
            Finding("b", "broken", "word " * 60, "do that"),
        ]
    )
    assert text.splitlines()[:3] == [
        "ok      a       good",
        "poor    longer  so so",
        "                -> do this",
    ]
    assert text.splitlines()[-1] == "1 broken, 1 limited, 1 ok"
    assert max(len(line) for line in text.splitlines()) <= parts.WIDTH
