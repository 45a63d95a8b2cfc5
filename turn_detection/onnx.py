"""Opening an ONNX model on a fixed number of CPU threads, with one clear line when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from voicepipe.errors import ComponentError


def open_model(
    path: Path, *, what: str, inputs: Sequence[str], n_threads: int
) -> ort.InferenceSession:
    """A CPU session for the file `path`, or the only .onnx file in the folder `path`. Raises
    `ComponentError` when it is missing, broken, or another model (its inputs are not named
    `inputs`)."""
    if path.is_dir():
        path = next(iter(sorted(path.glob("*.onnx"))), path / "*.onnx")
    if not path.is_file():
        raise ComponentError(f"{what}: no file at {path}: run `voicepipe models fetch`")
    options = ort.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # the one line below says it all
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no other base
        reason = str(error).split("\n", 1)[0]
        raise ComponentError(
            f"{what}: cannot load {path} ({reason}): remove it and run `voicepipe models fetch`"
        ) from error
    names = [tensor.name for tensor in session.get_inputs()]
    if names != list(inputs):
        raise ComponentError(
            f"{what}: {path} is another model (inputs {', '.join(names)} instead of "
            f"{', '.join(inputs)}): run `voicepipe models fetch`"
        )
    return session
