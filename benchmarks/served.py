"""The demo conversation over the socket: does the report say what the client hears?

`python -m benchmarks.served` from a checkout. Starts `voicepipe serve` with the default models,
holds the recorded call with a client that knows the protocol alone and keeps a clock and a tape of
its own, and compares the waits on the client's tape with those in the session's report. Then two
clients at once: each must be answered to its own words.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.document import publish, row
from budgets import Tape, Track, build_report, find_gaps, measure_sides
from demos.recorded_call import CALL
from tests.ws_client import Heard, converse
from voicepipe.assemble import report_detectors
from voicepipe.errors import ComponentError
from voicepipe.transports import CallerTurn, load_call

MATCH_WITHIN_S = 0.5
"""Client and session began within that of each other."""


def run(json_file: Path | None = None) -> str:
    """Hold the calls, write `json_file` if given, return the table."""
    turns = [recorded.turn for recorded in load_call(CALL)]
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as url:
        alone = asyncio.run(converse(url, turns))
        differences = _differences_ms(alone, Path(folder))
        pair = asyncio.run(_two(url, turns))
    rows = [
        row("perceived by the client, ms", [ours for ours, _ in differences]),
        row("perceived by the report, ms", [theirs for _, theirs in differences]),
        row("difference, ms", [abs(ours - theirs) for ours, theirs in differences]),
    ]
    said = [_said(heard) for heard in pair]
    ratios = {
        "difference_max_ms": round(max(abs(a - b) for a, b in differences), 1),
        "answered_of_two_clients": [len(lines) for lines in said],
        "cross_talk": len(set(said[0]) & set(said[1])),
    }
    return publish("served", {"turns": len(turns)}, rows, ratios, json_file)


@contextmanager
def served(recordings: Path) -> Iterator[str]:
    """`voicepipe serve` with the default models; yields its address."""
    command = [
        "nice",
        "-n",
        "5",
        sys.executable,
        "-m",
        "voicepipe",
        "serve",
        "--port",
        "0",
        "--record",
    ]
    process = subprocess.Popen([*command, str(recordings)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"ws://\S+", process.stdout.readline())
        if found is None:
            raise ComponentError("served: the server did not start: see its message above")
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)


def _differences_ms(heard: Heard, recordings: Path) -> list[tuple[float, float]]:
    """(client, report) of every answer that both measured."""
    tape = Tape(Track(heard.caller, heard.sample_rate_hz), Track(heard.agent, heard.sample_rate_hz))
    detectors = report_detectors()
    ours, _ = find_gaps(measure_sides(tape, detectors))
    (session,) = build_report([recordings], detectors=detectors).accounts
    pairs = itertools.product(ours, session.gaps.values())
    return [
        (one.perceived_ms, other.perceived_ms)
        for one, other in pairs
        if abs(one.speech_end_s - other.speech_end_s) < MATCH_WITHIN_S
    ]


async def _two(url: str, turns: list[CallerTurn]) -> tuple[Heard, Heard]:
    """Two clients at once, with different halves of the call."""
    async with asyncio.TaskGroup() as group:
        one = group.create_task(converse(url, turns[1:4]))
        two = group.create_task(converse(url, turns[5:8]))
    return one.result(), two.result()


def _said(heard: Heard) -> list[str]:
    """What the server understood of the client, one text a turn."""
    return [
        str(message["text"])
        for message in heard.of_type("transcript")
        if message["role"] == "user" and message["final"]
    ]


if __name__ == "__main__":
    print(run(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
