"""What works on this machine, and what to do about the rest: `voicepipe doctor`."""

from __future__ import annotations

import platform
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from voicepipe import machine
from voicepipe.config import AgentConfig
from voicepipe.errors import ComponentError
from voicepipe.model_store import ModelStore
from voicepipe.models import default_store
from voicepipe.provenance import installed_version

LEAST_PYTHON = (3, 11)
ROOM_FOR_RECORDINGS_BYTES = 1_000_000_000
"""About four hours of calls: two channels of 16-bit samples at 16 kHz are 64 kB a second."""
NEEDED_MEMORY_BYTES = 2_500_000_000
"""What the whole pipeline takes at its peak with the default models."""
WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """One line of the report. `poor` works with a limit, `broken` does not; both have an advice."""

    subject: str
    state: Literal["ok", "poor", "broken"]
    text: str
    advice: str = ""


def doctor(store: ModelStore | None = None, recordings: Path | None = None) -> tuple[str, bool]:
    """Look at everything; returns the text to print and whether nothing is broken."""
    store = store or default_store()
    findings = [
        python_finding(sys.version_info[:3]),
        *package_findings(metadata.requires("voicepipe") or [], installed_version),
        processor_finding(machine.n_usable_cpus(), machine.cpu_model(), machine.cpu_flags()),
        compiler_finding(machine.c_compiler()),
        memory_finding(machine.memory_free_bytes(), machine.memory_limit_bytes()),
        *model_findings(store),
        audio_finding(),
        gpu_finding(),
        disk_finding(recordings or Path.cwd()),
    ]
    return as_text(findings), not any(finding.state == "broken" for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    width = max(len(finding.subject) for finding in findings)
    indent = " " * (width + 10)
    lines = []
    for finding in findings:
        state = finding.state.upper() if finding.state == "broken" else finding.state
        for start, text in (
            (f"{state:8}{finding.subject:{width + 2}}", finding.text),
            (f"{indent}-> ", finding.advice),
        ):
            if text:
                lines.append(textwrap.fill(start + text, WIDTH, subsequent_indent=indent))
    n_broken = sum(finding.state == "broken" for finding in findings)
    n_poor = sum(finding.state == "poor" for finding in findings)
    verdict = f"{n_broken} broken, {n_poor} limited, {len(findings) - n_broken - n_poor} ok"
    return "\n".join([*lines, "", verdict])


def python_finding(version: Sequence[int]) -> Finding:
    text = ".".join(str(part) for part in version)
    if tuple(version[:2]) < LEAST_PYTHON:
        least = ".".join(str(part) for part in LEAST_PYTHON)
        return Finding("python", "broken", text, f"voicepipe needs Python {least} or newer")
    return Finding("python", "ok", f"{text} on {platform.platform(terse=True)}")


def package_findings(
    requirements: Sequence[str], version_of: Callable[[str], str | None]
) -> list[Finding]:
    """One line for what is required and installed, one for each package that is not as it should
    be. A package of an extra may be absent."""
    good, findings = [], []
    for requirement in map(Requirement, requirements):
        optional = requirement.marker is not None and "extra" in str(requirement.marker)
        version = version_of(requirement.name)
        if requirement.name == "voicepipe" or (optional and version is None):
            continue
        if version is None:
            advice = f"pip install '{requirement.name}{requirement.specifier}'"
            findings.append(Finding(requirement.name, "broken", "not installed", advice))
        elif not requirement.specifier.contains(version, prereleases=True):
            advice = f"pip install '{requirement.name}{requirement.specifier}'"
            text = f"{version} is not {requirement.specifier}"
            findings.append(Finding(requirement.name, "poor", text, advice))
        else:
            good.append(f"{requirement.name} {version}")
    if version_of("piper-tts") is None:
        text = "not installed; only Piper voices of other languages than English need it"
        advice = "for those: pip install 'voicepipe[piper]' (GPL-3.0)"
        findings.append(Finding("piper-tts", "ok", text, advice))
    return [Finding("packages", "ok", ", ".join(good) or "none"), *findings]


def processor_finding(n_cpus: int, model: str, flags: frozenset[str]) -> Finding:
    config = AgentConfig()
    threads = f"threads: stt {config.stt_threads}, llm {config.llm_threads}"
    text = f"{n_cpus} usable, {model}; {threads}, tts {config.tts_threads}"
    if n_cpus < config.llm_threads:
        advice = f"set stt_threads, llm_threads and tts_threads to {n_cpus} in a --config file"
        return Finding("processor", "poor", text, f"{advice}; replies will be late")
    if platform.machine() in {"x86_64", "AMD64"} and flags and "avx2" not in flags:
        return Finding("processor", "poor", text, "no AVX2: int8 models run several times slower")
    return Finding("processor", "ok", text)


def compiler_finding(compiler: str | None) -> Finding:
    if compiler is None:
        advice = "apt install gcc (or your system's C compiler) and start again"
        return Finding("compiler", "poor", "none: local language models run much slower", advice)
    return Finding("compiler", "ok", compiler)


def memory_finding(n_free: int, n_limit: int) -> Finding:
    text = f"{n_free / 1e9:.1f} GB free of {n_limit / 1e9:.1f} GB"
    if n_free < NEEDED_MEMORY_BYTES:
        need = f"{NEEDED_MEMORY_BYTES / 1e9:.1f} GB"
        return Finding("memory", "poor", text, f"the default models need {need}: close something")
    return Finding("memory", "ok", text)


def model_findings(store: ModelStore) -> list[Finding]:
    """The default models, and whichever others are there, with their hashes checked."""
    findings = []
    for model in store.models:
        subject = f"model {model.name}"
        if not store.is_present(model.name):
            if model.default:
                advice = (
                    f"comes by itself when it is needed, or: voicepipe models fetch {model.name}"
                )
                findings.append(Finding(subject, "poor", "absent", advice))
            continue
        try:
            store.verify(model.name)
        except ComponentError as error:
            findings.append(Finding(subject, "broken", "wrong content", str(error)))
        else:
            findings.append(Finding(subject, "ok", f"verified, {model.licence}"))
    return findings


def audio_finding() -> Finding:
    """Devices are for talking at this machine only; everything else works without them."""
    try:
        import sounddevice  # noqa: PLC0415 (importing it already needs PortAudio)
    except OSError:
        packages = {"Linux": "apt install libportaudio2", "Darwin": "brew install portaudio"}
        advice = packages.get(platform.system(), "install PortAudio")
        text = "PortAudio is not installed: no microphone conversation"
        return Finding("audio", "poor", text, f"{advice} (or your system's name for it)")
    devices = sounddevice.query_devices()
    n_inputs = sum(device["max_input_channels"] > 0 for device in devices)
    n_outputs = sum(device["max_output_channels"] > 0 for device in devices)
    text = f"{n_inputs} input and {n_outputs} output devices"
    if not n_inputs or not n_outputs:
        return Finding("audio", "poor", text, "connect a microphone and a speaker to talk here")
    return Finding("audio", "ok", text)


def gpu_finding() -> Finding:
    try:
        import torch  # noqa: PLC0415 (seconds to import, and only this line needs it)
    except (ImportError, OSError) as error:
        text = f"torch cannot be loaded: {str(error).splitlines()[0]}"
        return Finding("gpu", "broken", text, "pip install --force-reinstall torch")
    if not torch.cuda.is_available():
        return Finding("gpu", "ok", "none; models run on the processor")
    properties = torch.cuda.get_device_properties(0)
    return Finding("gpu", "ok", f"{properties.name}, {properties.total_memory / 1e9:.0f} GB")


def disk_finding(folder: Path) -> Finding:
    n_free = shutil.disk_usage(folder).free
    text = f"{n_free / 1e9:.1f} GB free for recordings here"
    if n_free < ROOM_FOR_RECORDINGS_BYTES:
        return Finding("disk", "poor", text, "record elsewhere (--out) or free some space")
    return Finding("disk", "ok", text)
