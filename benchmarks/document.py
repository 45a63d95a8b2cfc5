"""What every benchmark prints and writes: one table, one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from voicepipe.errors import ComponentError
from voicepipe.provenance import provenance

Row = dict[str, object]


def row(what: str, values: Sequence[float]) -> Row:
    """Percentiles of `values`, in their own unit (name it in `what`)."""
    if not values:
        return {"what": what, "n": 0, "p50": None, "p90": None, "p95": None}
    p50, p90, p95 = np.percentile(np.asarray(values), (50, 90, 95))
    return {
        "what": what,
        "n": len(values),
        "p50": round(float(p50), 2),
        "p90": round(float(p90), 2),
        "p95": round(float(p95), 2),
    }


def publish(
    bench: str, config: Mapping[str, object], rows: Sequence[Row], ratios: Mapping[str, object],
    json_file: Path | None,
) -> str:  # fmt: skip
    """Write the document of interfaces.md to `json_file`, if given; returns the table."""
    if json_file is not None:
        document = {
            "schema": "voicepipe.bench/1",
            "bench": bench,
            "machine": provenance(),
            "config": dict(config),
            "rows": list(rows),
            "ratios": dict(ratios),
        }
        try:
            json_file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ComponentError(
                f"{json_file}: cannot be written: {error.strerror}: choose a folder that can be"
            ) from error
    width = max(len(str(line["what"])) for line in rows)
    lines = [f"{'':{width}}     n     p50     p90     p95"]
    lines += [
        f"{line['what']:{width}} {line['n']:>5} "
        + " ".join(f"{'-' if line[p] is None else line[p]:>7}" for p in ("p50", "p90", "p95"))
        for line in rows
    ]
    return "\n".join([*lines, "", *(f"{name}: {value}" for name, value in ratios.items())])
