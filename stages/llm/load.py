"""From a GGUF file to a decoder that is ready to run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Literal

import torch

from stages.llm.gguf_file import GgufFile
from stages.llm.linear import FloatLinear, Int8Linear, int8_engine
from stages.llm.llama import Layer, Llama, LlamaConfig, rope_table
from stages.llm.rotation import Rotation, hadamard, power_of_two_in

log = logging.getLogger(__name__)

Precision = Literal["int8", "float32", "float64"]
DTYPES = {"int8": torch.float32, "float32": torch.float32, "float64": torch.float64}


def load_llama(
    file: GgufFile, config: LlamaConfig, *, n_positions: int, precision: Precision
) -> torch.nn.Module:
    """The decoder of `file` for sequences of up to `n_positions` tokens, compiled where torch can.

    `int8` keeps weights in 8 bits and rotates the residual stream (see rotation.py); the float
    precisions compute what the file says. Raises ComponentError for missing or misshapen tensors.
    """
    if precision == "int8" and int8_engine() is None:
        log.warning("this build of torch has no int8 kernels: computing in float32, slower")
        precision = "float32"
    with torch.inference_mode():
        weights = _Weights(file, config, precision)
        layers = [weights.layer(n) for n in range(config.n_layers)]
        factors = weights.optional("rope_freqs.weight")
        rope = rope_table(config, n_positions, DTYPES[precision], factors)
        model = Llama(weights.embedding(), layers, weights.head(), rope, config.norm_eps)
    return _compiled(model.eval())


class _Weights:
    """Tensors of a file as the modules want them: fused, gains folded in, rotated for int8."""

    def __init__(self, file: GgufFile, config: LlamaConfig, precision: Precision) -> None:
        self._file, self._config, self._dtype = file, config, DTYPES[precision]
        self._rotation = Rotation(config.n_embed) if precision == "int8" else None
        self._linear: Callable[[torch.Tensor], torch.nn.Module] = (
            Int8Linear if precision == "int8" else FloatLinear
        )
        block = power_of_two_in(config.n_ffn) if precision == "int8" else 1
        self._mix = hadamard(block).to(self._dtype)

    def layer(self, n: int) -> Layer:
        c = self._config
        kv_width = c.n_kv_heads * c.head_size

        def get(name: str, rows: int, columns: int) -> torch.Tensor:
            return self._matrix(f"blk.{n}.{name}.weight", rows, columns)

        qkv = torch.cat(
            [
                get("attn_q", c.n_heads * c.head_size, c.n_embed),
                get("attn_k", kv_width, c.n_embed),
                get("attn_v", kv_width, c.n_embed),
            ]
        )
        gate_up = torch.cat(
            [get("ffn_gate", c.n_ffn, c.n_embed), get("ffn_up", c.n_ffn, c.n_embed)]
        )
        down = get("ffn_down", c.n_embed, c.n_ffn)
        if len(self._mix) > 1:
            down = (down.view(-1, len(self._mix)) @ self._mix).view(down.shape)
        return Layer(
            c,
            self._linear(self._reading(qkv, self._vector(f"blk.{n}.attn_norm.weight"))),
            self._linear(self._writing(get("attn_output", c.n_embed, c.n_heads * c.head_size))),
            self._linear(self._reading(gate_up, self._vector(f"blk.{n}.ffn_norm.weight"))),
            self._linear(self._writing(down)),
            self._mix,
        )

    def embedding(self) -> torch.Tensor:
        """[n_vocabulary, n_embed]; half precision beside int8 weights, to save memory."""
        c = self._config
        table = self._matrix("token_embd.weight", c.n_vocabulary, c.n_embed)
        return table if self._rotation is None else self._rotation.of_rows(table).half()

    def head(self) -> torch.nn.Module:
        c = self._config
        tied = "output.weight" not in self._file.tensors
        name = "token_embd.weight" if tied else "output.weight"
        weight = self._matrix(name, c.n_vocabulary, c.n_embed)
        return self._linear(self._reading(weight, self._vector("output_norm.weight")))

    def optional(self, name: str) -> torch.Tensor | None:
        return torch.from_numpy(self._file.tensor(name)) if name in self._file.tensors else None

    def _reading(self, weight: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        """`weight` for an input that is the normalised residual stream."""
        weight = weight * gain
        return weight if self._rotation is None else self._rotation.of_rows(weight)

    def _writing(self, weight: torch.Tensor) -> torch.Tensor:
        """`weight` whose output is added to the residual stream."""
        return weight if self._rotation is None else self._rotation.of_columns(weight)

    def _matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        return self._tensor(name, (rows, columns))

    def _vector(self, name: str) -> torch.Tensor:
        return self._tensor(name, (self._config.n_embed,))

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        array = self._file.tensor(name)
        if array.shape != shape:
            raise self._file.broken(f"tensor {name} has shape {array.shape}, not {shape}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a read-only array, which we never write
            return torch.from_numpy(array).to(self._dtype)


def _compiled(model: torch.nn.Module) -> torch.nn.Module:
    """`model` as TorchScript: 1.7 times as fast at one token, and without Python's lock, so that a
    busy event loop slows it little. Where this Python has no TorchScript, `model` itself."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated in favour of compilers that need gcc
            return torch.jit.script(model)
    except Exception as error:  # noqa: BLE001 - whatever it is, the model runs without
        log.warning("decoder runs uncompiled, slower: %s", str(error).splitlines()[0])
        return model
