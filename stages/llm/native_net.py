"""A model as the compiled decoder takes it: interleaved weights, and structs that point at them.

The structs mirror those of native/products.h and native/decoder.c.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_void_p

import torch

from stages.llm.gguf_blocks import BLOCK, Blocks
from stages.llm.model_config import ModelConfig
from stages.llm.rope import as_neighbours, rope_table
from stages.llm.weights import Weights

LANES = 8
"""Outputs that are computed at once."""


class CMatrix(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("quants", "scales", "least", "bias")),
        *((name, c_int32) for name in ("n_groups", "n_in")),
    ]


class CLayer(ctypes.Structure):
    _fields_ = [
        *((name, CMatrix) for name in ("query", "key", "value", "out", "gate", "up", "down")),
        *((name, c_void_p) for name in ("attention_gain", "ffn_gain", "query_gain", "key_gain")),
        *((name, c_void_p) for name in ("post_attention_gain", "post_ffn_gain", "turns")),
        ("slides", c_int32),
    ]


class CNet(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("n_layers", "n_embed", "n_ffn", "n_heads", "n_kv", "size")),
        *((name, c_int32) for name in ("window", "is_gelu")),
        *((name, c_float) for name in ("eps", "attention_cap", "final_cap")),
        ("layers", POINTER(CLayer)),
        ("gain", c_void_p),
        ("head", CMatrix),
    ]


def fits(config: ModelConfig) -> bool:
    """Whether all inputs of the model's products are whole blocks."""
    sizes = (config.n_embed, config.n_ffn, config.n_heads * config.head_size)
    return all(size % BLOCK == 0 for size in sizes) and config.head_size % 16 == 0


class Interleaved:
    """A matrix in the order in which eight outputs at once read it."""

    def __init__(self, blocks: Blocks, bias: torch.Tensor | None = None) -> None:
        m, n = blocks.quants.shape
        padding = -m % LANES
        quants = torch.nn.functional.pad(blocks.quants, (0, 0, 0, padding))
        lanes = quants.view(-1, LANES, n // BLOCK, BLOCK // 4, 4).permute(0, 2, 3, 1, 4)
        if blocks.least is None:
            self._quants = lanes.contiguous()
        else:
            low, high = lanes[:, :, : BLOCK // 8], lanes[:, :, BLOCK // 8 :]
            self._quants = (low | (high << 4)).contiguous()
        self._scales = _by_block(blocks.scales, padding)
        self._least = None if blocks.least is None else _by_block(blocks.least, padding)
        self._bias = None if bias is None else torch.nn.functional.pad(bias.float(), (0, padding))
        self.n_outputs = m + padding
        self.n_in = n

    @property
    def struct(self) -> CMatrix:
        """Valid as long as this."""
        return CMatrix(
            _pointer(self._quants),
            _pointer(self._scales),
            _pointer(self._least),
            _pointer(self._bias),
            self.n_outputs // LANES,
            self.n_in,
        )


class NativeNet:
    """All weights of a model that `fits`, ready for steps up to `n_positions`."""

    def __init__(self, weights: Weights, n_positions: int) -> None:
        self.config = config = weights.config
        self._weights = weights
        self._kept: list[object] = []
        """What the structs point at."""
        embedding = weights.tensor("token_embd.weight") * config.embed_scale
        self.embedding = embedding.half()
        turns = [
            self._floats(torch.view_as_real(rope_table(config, n, torch.float32, sliding=slides)))
            for n, slides in ((n_positions, False), (n_positions, True))
        ]
        layers = [self._layer(n, turns[config.is_sliding(n)]) for n in range(config.n_layers)]
        self._layers = (CLayer * len(layers))(*layers)
        head = Interleaved(
            weights.blocks("token_embd.weight" if config.is_tied else "output.weight")
        )
        self._kept.append(head)
        self.n_scores = head.n_outputs
        """Columns of the logits, those of padding included."""
        self.struct = CNet(
            *(config.n_layers, config.n_embed, config.n_ffn, config.n_heads, config.n_kv_heads),
            *(config.head_size, config.window, config.activation == "gelu_tanh"),
            *(config.norm_eps, config.attention_softcap, config.final_softcap),
            self._layers,
            self._gain("output_norm.weight"),
            head.struct,
        )

    def _layer(self, n: int, turns: int | None) -> CLayer:
        c, at = self.config, f"blk.{n}."
        has_post = c.sandwich_norms
        return CLayer(
            query=self._heads(at + "attn_q"),
            key=self._heads(at + "attn_k"),
            value=self._matrix(at + "attn_v", has_bias=c.attention_bias),
            out=self._matrix(at + "attn_output"),
            gate=self._matrix(at + "ffn_gate"),
            up=self._matrix(at + "ffn_up"),
            down=self._matrix(at + "ffn_down"),
            attention_gain=self._gain(at + "attn_norm.weight"),
            ffn_gain=self._gain(at + "ffn_norm.weight"),
            query_gain=self._head_gain(at + "attn_q_norm.weight") if c.qk_norm else None,
            key_gain=self._head_gain(at + "attn_k_norm.weight") if c.qk_norm else None,
            post_attention_gain=(
                self._gain(at + "post_attention_norm.weight") if has_post else None
            ),
            post_ffn_gain=self._gain(at + "post_ffw_norm.weight") if has_post else None,
            turns=turns,
            slides=c.is_sliding(n),
        )

    def _matrix(self, name: str, *, has_bias: bool = False) -> CMatrix:
        bias = self._weights.tensor(name + ".bias") if has_bias else None
        return self._interleaved(self._weights.blocks(name + ".weight"), bias)

    def _heads(self, name: str) -> CMatrix:
        """A matrix whose outputs turn."""
        blocks = self._weights.blocks(name + ".weight")
        bias = self._weights.tensor(name + ".bias") if self.config.attention_bias else None
        if not self.config.rope_pairs:
            order = as_neighbours(torch.arange(len(blocks.quants)), self.config.head_size)
            blocks, bias = blocks.rows(order), None if bias is None else bias[order]
        return self._interleaved(blocks, bias)

    def _interleaved(self, blocks: Blocks, bias: torch.Tensor | None) -> CMatrix:
        matrix = Interleaved(blocks, bias)
        self._kept.append(matrix)
        return matrix.struct

    def _gain(self, name: str) -> int | None:
        return self._floats(self._weights.tensor(name))

    def _head_gain(self, name: str) -> int | None:
        gain = self._weights.tensor(name)
        return self._floats(
            gain if self.config.rope_pairs else as_neighbours(gain, self.config.head_size)
        )

    def _floats(self, tensor: torch.Tensor) -> int | None:
        tensor = tensor.float().contiguous()
        self._kept.append(tensor)
        return _pointer(tensor)


def _by_block(columns: torch.Tensor, padding: int) -> torch.Tensor:
    """[m, n_blocks] as [groups, n_blocks, 8]."""
    padded = torch.nn.functional.pad(columns, (0, 0, 0, padding))
    return padded.view(-1, LANES, columns.shape[1]).transpose(1, 2).contiguous()


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
