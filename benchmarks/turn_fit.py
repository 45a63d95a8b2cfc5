"""Estimate the weights of `turn_detection.score.EndScore`: `python -m benchmarks.turn_fit`.

Maximum a posteriori on every other turn of the recorded calls: logistic loss over the 0.1 s grid of
each pause from 0.2 s on, every pause weighing the same and holds as much as ends together, and a
normal prior around weights set by hand. The prior is narrow because calls like these say little
about people: their hesitations follow words that end open, hardly ever words that could be all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from benchmarks.eot_bench import Floats
from benchmarks.turn_corpus import GRID_S, Ears, Pause, clips
from benchmarks.turns import TURN_KINDS
from turn_detection.wording import Ending, ending

NAMES = ("audio", "log_silence", "complete", "open", "unfinished")
PRIOR = np.array([0.5, 3.0, 2.04, -0.05, -3.3])
SPREAD = np.array([0.1, 0.1, 0.3, 0.3, 0.3])
FROM_S = 0.2


def features(p_audio: float, silence_s: float, text: str) -> list[float]:
    """What the weights are multiplied with, in the order of `NAMES`."""
    p = min(1 - 1e-3, max(1e-3, p_audio))
    end = ending(text)
    kinds = [float(end is kind) for kind in (Ending.COMPLETE, Ending.OPEN, Ending.UNFINISHED)]
    return [math.log(p / (1 - p)), math.log(silence_s), *kinds]


def fit(pauses: Sequence[Pause]) -> Floats:
    """The weights that `pauses` and the prior make most probable."""
    n_holds = sum(pause.hold for pause in pauses)
    share = {True: 0.5 / max(1, n_holds), False: 0.5 / max(1, len(pauses) - n_holds)}
    rows: list[list[float]] = []
    over: list[float] = []
    weights: list[float] = []
    for pause in pauses:
        grid = [(p, n * GRID_S) for n, p in enumerate(pause.p_audio, start=1)]
        grid = [(p, silence_s) for p, silence_s in grid if silence_s >= FROM_S - 1e-9]
        for p, silence_s in grid:
            rows.append(features(p, silence_s, pause.text))
            over.append(float(not pause.hold))
            weights.append(len(pauses) * share[pause.hold] / len(grid))
    x, y, w = np.array(rows), np.array(over), np.array(weights)

    def loss(weight: Floats) -> float:
        z = x @ weight
        fitting = w @ (y * np.logaddexp(0, -z) + (1 - y) * np.logaddexp(0, z))
        return float(fitting + 0.5 * np.sum(((weight - PRIOR) / SPREAD) ** 2))

    found: Floats = minimize(loss, PRIOR).x
    return found


def main() -> None:
    ears = Ears.load()
    turns = [clip for clip in clips() if clip.kind in TURN_KINDS]
    pauses = [pause for clip in turns[::2] for pause in ears.pauses(clip)]
    n_holds = sum(pause.hold for pause in pauses)
    print(f"{len(pauses) - n_holds} ends, {n_holds} holds")
    for name, value, prior in zip(NAMES, fit(pauses), PRIOR, strict=True):
        print(f"{name:12} {value:6.2f}   (prior {prior:.2f})")


if __name__ == "__main__":
    main()
