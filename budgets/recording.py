"""Session directories as they are found: complete, killed mid-write, older or newer than we are."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from budgets.tape import BadTape, Tape, read_tape
from voicepipe.budget import Budget
from voicepipe.errors import UsageError
from voicepipe.events import Event, from_json

EVENTS = "events.jsonl"
BACKCHANNEL = "backchannel"
"""The kind of a caller's line that asks for nothing."""

LATEST_S = 1e7
"""A time after 115 days is damage: it is read as not known."""

_FIELDS: dict[str, dict[str, type]] = {
    cls.__name__: {
        f.name: {"bool": bool, "int": int, "float": float}.get(str(f.type), str)
        for f in dataclasses.fields(cls)
    }
    for cls in Event.__subclasses__()
}


@dataclass(frozen=True, slots=True)
class Line:
    """What the caller really said, where that is known."""

    text: str
    kind: str = ""
    speech_start_s: float = math.nan
    speech_end_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Recording:
    """One session. `tape` is None when there is no sound to measure; `losses` says, one line each,
    what could not be read."""

    name: str
    events: Sequence[Event]
    config: Mapping[str, object]
    tape: Tape | None
    losses: Sequence[str] = field(default_factory=tuple)

    @property
    def target_ms(self) -> float:
        """The target it ran with; the default one when it does not say."""
        for found in _deep(self.config, "target_ms"):
            if type(found) in (int, float) and 0 < found < 60_000:
                return float(found)
        return Budget().target_ms

    @property
    def truth(self) -> list[Line]:
        """The caller's lines in order; empty when not known."""
        given = self.config.get("truth")
        lines = [_line(row) for row in given] if isinstance(given, list) else []
        return [line for line in lines if line.text]


def find_sessions(paths: Sequence[Path]) -> list[Path]:
    """Session directories in `paths`: each either is one or contains some, at any depth.

    Raises UsageError for a path that does neither.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path}: no such directory: give a session directory or one of many")
        here = [path] if (path / EVENTS).is_file() else []
        inside = here or sorted(file.parent for file in path.rglob(EVENTS) if file.is_file())
        if not inside:
            raise UsageError(f"{path}: no {EVENTS} in it or below it: is it a session directory?")
        found += inside
    return list(dict.fromkeys(found))


def load(directory: Path, name: str = "") -> Recording:
    """Reads what is there. Raises UsageError when the events cannot be read at all."""
    losses: list[str] = []
    events = _read_events(directory / EVENTS, losses)
    config = _read_config(directory / "config.json", losses)
    tape = None
    try:
        tape = read_tape(directory / "call.wav")
        if tape.damage:
            losses.append(tape.damage)
    except BadTape as error:
        losses.append(f"{error}; perceived latency needs it")
    return Recording(name or directory.name, events, config, tape, tuple(losses))


def _read_events(path: Path, losses: list[str]) -> list[Event]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    events: list[Event] = []
    unknown: Counter[str] = Counter()
    n_broken = 0
    for line in lines[:-1]:
        event = _event(line, unknown) if line.strip() else None
        if event is not None:
            events.append(event)
        elif line.strip():
            n_broken += 1
    n_broken -= unknown.total()
    tail = lines[-1]
    if tail.strip():  # a whole line ends in a newline
        event = _event(tail, unknown)
        if event is None:
            losses.append(f"{EVENTS}: its last line was cut off: the session did not end by itself")
        else:
            events.append(event)
    if n_broken:
        losses.append(f"{EVENTS}: {_count(n_broken, 'line')} could not be read")
    for name, n in sorted(unknown.items()):
        losses.append(f"{EVENTS}: {_count(n, 'event')} of unknown type {name} skipped")
    return events


def _event(line: bytes, unknown: Counter[str]) -> Event | None:
    """None for what is no event, or none that we know (then counted in `unknown`)."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    name = row.get("type")
    if not isinstance(name, str):
        return None
    if name not in _FIELDS:
        unknown[name[:40]] += 1
        return None
    wanted = _FIELDS[name]
    if not all(_fits(row[key], wanted[key]) for key in row if key in wanted):
        return None
    fields = {key: _bounded(value) for key, value in row.items() if key in wanted}
    try:
        return from_json({"type": name, **fields})
    except ValueError:
        return None


def _fits(value: object, wanted: type) -> bool:
    if wanted is float:
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return type(value) is wanted


def _bounded(value: object) -> object:
    if isinstance(value, float) and not abs(value) < LATEST_S:
        return math.nan
    return value


def _read_config(path: Path, losses: list[str]) -> dict[str, object]:
    try:
        config = json.loads(path.read_bytes())
    except OSError:
        losses.append("config.json: missing: the default target is assumed")
        return {}
    except (ValueError, RecursionError):
        losses.append("config.json: no valid JSON: the default target is assumed")
        return {}
    if not isinstance(config, dict):
        losses.append("config.json: no JSON object: the default target is assumed")
        return {}
    return config


def _line(row: object) -> Line:
    if isinstance(row, str):
        return Line(row)
    if not isinstance(row, Mapping):
        return Line("")
    times = {
        key: float(row[key])
        for key in ("speech_start_s", "speech_end_s")
        if isinstance(row.get(key), int | float)
    }
    return Line(str(row.get("text") or ""), str(row.get("kind") or ""), **times)


def _deep(config: Mapping[str, Any], key: str) -> Iterator[Any]:
    """Values of `key` in the config, the outermost first."""
    if key in config:
        yield config[key]
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _deep(value, key)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
