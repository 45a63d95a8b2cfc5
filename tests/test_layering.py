"""The arrows between the packages, read from the source with `ast`.

demos, benchmarks, voicepipe/cli.py, voicepipe/assemble.py
    -> stages, turn_detection, budgets (which never import each other)
    -> the rest of voicepipe (the core)
    -> standard library + numpy, and at the core's edges a package of the edge's own
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("voicepipe", "stages", "turn_detection", "budgets", "demos", "benchmarks")
MIDDLE = ("stages", "turn_detection", "budgets")
TOP = ("demos", "benchmarks", "voicepipe.cli", "voicepipe.assemble", "voicepipe.__main__")
CORE_EDGES = {
    "voicepipe.models": {"platformdirs"},
    "voicepipe.model_store": {"filelock"},
    "voicepipe.hub_download": {"huggingface_hub"},
    "voicepipe.call": {"websockets"},
    "voicepipe.server": {"websockets"},
    "voicepipe.transports.wav": {"soundfile", "soxr"},
    "voicepipe.machine": {"psutil"},
    "voicepipe.doctor": {"packaging", "sounddevice", "torch"},
}
"""Where the core touches the world outside, and through which package."""


@dataclass
class Module:
    """What one file imports: modules of this repository, and top-level packages from outside."""

    name: str
    own: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_in(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imported_names(node: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> list[str]:
    """Absolute dotted names; `from a import b` gives a.b, which may be a module or only in one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    origin = node.module or ""
    if node.level:
        parents = module.split(".")
        parents = parents[: len(parents) - node.level + is_package]
        origin = ".".join([*parents, origin] if origin else parents)
    return [f"{origin}.{alias.name}" for alias in node.names]


def read_module(path: Path, root: Path, known: set[str]) -> Module:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    module = Module(module_name(path, root))
    tree = ast.parse(source, str(path))
    at_top = set(imports_at_module_level(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and names_type_checking(node):
            module.complaints.append(f"{module.name}:{node.lineno}: TYPE_CHECKING")
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for name in imported_names(node, module.name, path.stem == "__init__"):
            own = longest_known(name, known)
            if own:
                module.own.add(own)
            else:
                module.foreign.add(name.partition(".")[0])
            if node not in at_top:
                note = lines[node.lineno - 1 : node.end_lineno]
                module.complaints += lazy_complaints(module.name, node, own, note)
    module.own.discard(module.name)
    return module


def imports_at_module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def names_type_checking(node: ast.Name | ast.Attribute) -> bool:
    return (node.id if isinstance(node, ast.Name) else node.attr) == "TYPE_CHECKING"


def longest_known(name: str, known: set[str]) -> str:
    """The module of this repository that provides the dotted name, or ""."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def lazy_complaints(module: str, node: ast.stmt, own: str, lines: list[str]) -> list[str]:
    """A lazy import is for a heavy package at the edge of a stage, or for a command that loads
    only what it runs; it says so on its line."""
    where = f"{module}:{node.lineno}: import inside a block or function"
    if own and not is_in(module, *TOP):
        return [f"{where}: {own} of this repository"]
    if not is_in(module, *TOP, *MIDDLE, *CORE_EDGES):
        return [f"{where} in the core"]
    if not any("noqa: PLC0415" in line for line in lines):
        return [f"{where} without a note that it is lazy on purpose"]
    return []


def arrow_complaints(module: Module) -> Iterator[str]:
    if is_in(module.name, *TOP):
        return
    middle = next((package for package in MIDDLE if is_in(module.name, package)), "")
    for other in sorted(module.own):
        if is_in(other, *TOP):
            yield f"{module.name} imports {other}, which is above it"
        elif is_in(other, *MIDDLE) and not is_in(other, middle or "none"):
            kind = "its neighbour" if middle else "a stage's package, from the core"
            yield f"{module.name} imports {other}, {kind}"
    if middle:
        return
    allowed = {"numpy", *CORE_EDGES.get(module.name, ())}
    for package in sorted(module.foreign - allowed - sys.stdlib_module_names):
        yield f"{module.name} imports {package}: the core has only numpy"


def cycles(modules: dict[str, Module]) -> Iterator[str]:
    """Every circle of imports, once, found by depth-first search."""
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> Iterator[str]:
        if name in path:
            yield "circular import: " + " -> ".join([*path[path.index(name) :], name])
        elif name not in done:
            path.append(name)
            for other in sorted(modules[name].own):
                yield from visit(other)
            path.pop()
            done.add(name)

    for name in sorted(modules):
        yield from visit(name)


def violations(root: Path) -> list[str]:
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    known = {module_name(path, root) for path in paths}
    modules = {module.name: module for module in (read_module(path, root, known) for path in paths)}
    found = [complaint for module in modules.values() for complaint in module.complaints]
    for module in modules.values():
        found += arrow_complaints(module)
    return [*found, *cycles(modules)]


def test_the_arrows_point_downwards() -> None:
    assert violations(ROOT) == []


def test_every_edge_of_the_core_exists() -> None:
    """An entry that nothing needs any more would hide the next mistake."""
    for name in CORE_EDGES:
        path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        module = read_module(path, ROOT, set())
        assert CORE_EDGES[name] <= module.foreign, f"{name} does not import all of its packages"


CLEAN = {
    "voicepipe/__init__.py": "from voicepipe.session import Session",
    "voicepipe/session.py": "import asyncio\nimport numpy as np\nfrom voicepipe import frames",
    "voicepipe/frames.py": "from dataclasses import dataclass",
    "voicepipe/models.py": "import platformdirs",
    "voicepipe/assemble.py": "from stages.llm import local\nimport turn_detection",
    "voicepipe/cli.py": "def run():\n    import budgets  # noqa: PLC0415 (only when asked)",
    "stages/__init__.py": "",
    "stages/llm/__init__.py": "from . import local",
    "stages/llm/local.py": "import torch\nfrom voicepipe.frames import dataclass",
    "stages/llm/heavy.py": "def load():\n    import big  # noqa: PLC0415 (seconds to import)",
    "turn_detection/__init__.py": "import onnxruntime\nimport voicepipe.frames",
    "budgets/__init__.py": "",
    "demos/__init__.py": "from voicepipe.cli import run\nimport stages",
}


def plant(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


def test_a_clean_tree_has_no_violations(tmp_path: Path) -> None:
    plant(tmp_path, CLEAN)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("voicepipe/turn.py", "import stages.llm.local", "voicepipe.turn imports stages.llm.local"),
        ("voicepipe/turn.py", "from budgets import x", "voicepipe.turn imports budgets"),
        (
            "voicepipe/turn.py",
            "from demos import x",
            "voicepipe.turn imports demos, which is above",
        ),
        ("voicepipe/turn.py", "import torch", "voicepipe.turn imports torch: the core has only"),
        ("voicepipe/models.py", "import torch", "voicepipe.models imports torch"),
        (
            "voicepipe/a/b.py",
            "from ..assemble import x",
            "voicepipe.a.b imports voicepipe.assemble",
        ),
        ("stages/tts.py", "import turn_detection", "imports turn_detection, its neighbour"),
        (
            "turn_detection/vad.py",
            "from stages.llm import local",
            "stages.llm.local, its neighbour",
        ),
        ("budgets/x.py", "from voicepipe.cli import run", "imports voicepipe.cli, which is above"),
        (
            "stages/llm/b.py",
            "from voicepipe.assemble import x",
            "voicepipe.assemble, which is above",
        ),
        (
            "voicepipe/frames.py",
            "from voicepipe.session import x",
            "circular import: voicepipe.frames -> voicepipe.session -> voicepipe.frames",
        ),
        ("stages/llm/local.py", "from stages.llm import x", "circular import: stages.llm ->"),
        (
            "stages/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING: pass",
            "TYPE_CHECKING",
        ),
        ("stages/a.py", "import typing\nif typing.TYPE_CHECKING: pass", "TYPE_CHECKING"),
        ("voicepipe/turn.py", "def f():\n    import json  # noqa: PLC0415", "function in the core"),
        ("voicepipe/turn.py", "if True:\n    import json", "function in the core"),
        ("stages/a.py", "def f():\n    import torch", "without a note that it is lazy"),
        (
            "stages/a.py",
            "def f():\n    from stages import llm  # noqa: PLC0415",
            "stages.a:2: import inside a block or function: stages.llm of this repository",
        ),
    ],
)
def test_a_planted_violation_is_found(
    tmp_path: Path, file: str, source: str, complaint: str
) -> None:
    plant(tmp_path, {**CLEAN, file: source})
    found = violations(tmp_path)
    assert any(complaint in line for line in found), found
