"""A model's weights, whatever file they come from: canonical names, floats, plain gains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

from stages.llm.gguf_blocks import READERS, Blocks, in_8_bits
from stages.llm.gguf_config import gguf_config
from stages.llm.gguf_file import GgufFile
from stages.llm.model_config import ModelConfig, tensor_shapes
from voicepipe.errors import ComponentError

IGNORED_GGUF = ("rope_freqs.weight",)
"""Part of the config."""


class Weights(Protocol):
    """The tensors that `tensor_shapes(config)` lists, by their GGUF names; all of them are there,
    in these shapes. RMS norms multiply by their gains as they are."""

    config: ModelConfig

    def has(self, name: str) -> bool:
        """Whether there is a tensor `name`."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor `name` in float32, the caller's own. Raises ComponentError when the file has
        none or it cannot be read."""
        ...

    def blocks(self, name: str) -> Blocks:
        """The matrix `name`, whose rows are whole blocks, as the file has it where that is in such
        blocks, or rounded to 8 bits."""
        ...


class GgufWeights:
    """`Weights` of a GGUF file. Raises ComponentError when the file is no complete model of a
    supported family."""

    def __init__(self, file: GgufFile) -> None:
        self.config: ModelConfig = gguf_config(file)
        self._file = file
        check_tensors(
            f"model file {file.path}",
            tensor_shapes(self.config),
            {name: info.shape for name, info in file.tensors.items() if name not in IGNORED_GGUF},
        )

    def has(self, name: str) -> bool:
        return name in self._file.tensors

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._file.tensor(name))

    def blocks(self, name: str) -> Blocks:
        info = self._file.tensors[name]
        read = READERS.get(info.kind)
        found = read(self._file.raw(name), info.shape) if read else None
        return found or in_8_bits(self.tensor(name))


def check_tensors(
    where: str, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises ComponentError unless `found` is exactly `wanted`: a missing tensor cannot be
    computed with, and one too many would be part of the model."""
    for name, shape in wanted.items():
        if name not in found:
            raise ComponentError(f"{where}: tensor {name} is missing: fetch the model again")
        if found[name] != shape:
            raise ComponentError(
                f"{where}: tensor {name} has shape {found[name]}, not {shape}: fetch the model "
                "again"
            )
    if unknown := found.keys() - wanted.keys():
        raise ComponentError(
            f"{where}: tensors {_some(unknown)} belong to no model of a supported family: use "
            "another model"
        )


def _some(names: Iterable[str]) -> str:
    """The first few of `names`, for a message."""
    first = sorted(names)
    return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")
