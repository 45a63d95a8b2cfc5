"""The Llama decoder: what its GGUF metadata say, and the forward pass.

Written for one token at a time on a CPU, where each operation's overhead counts as much as its
work: gains are folded into the weights, projections that share an input are fused, rotary
embedding is one complex product over queries, keys and values (whose rotation is 1), and the
modules compile as TorchScript, which runs a whole step without taking Python's lock.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stages.llm.gguf_file import GgufFile
from voicepipe.errors import ComponentError

ARCHITECTURES = ("llama",)


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes and constants of a model of the Llama family."""

    n_layers: int
    n_embed: int
    n_ffn: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    n_context: int
    n_vocabulary: int
    rope_base: float
    rope_scale: float
    norm_eps: float

    @classmethod
    def of(cls, file: GgufFile) -> LlamaConfig:
        """Read from metadata. Raises ComponentError for other architectures."""
        name = file.metadata.get("general.architecture")
        if name not in ARCHITECTURES:
            raise ComponentError(
                f"model file {file.path}: architecture {name!r} is not supported: use a model of "
                f"the family {', '.join(ARCHITECTURES)} (e.g. smollm2-135m-instruct)"
            )

        def number(key: str, default: float | None = None) -> float:
            value = file.metadata.get(f"{name}.{key}", default)
            if not isinstance(value, int | float) or value <= 0:
                raise file.broken(f"{name}.{key} is {value!r}")
            return float(value)

        scaling = file.metadata.get(f"{name}.rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise ComponentError(
                f"model file {file.path}: rope scaling {scaling!r} is not supported: "
                "use a model without it"
            )
        n_heads, n_embed = int(number("attention.head_count")), int(number("embedding_length"))
        embedding = file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2 or embedding.shape[1] != n_embed:
            raise file.broken("token_embd.weight is missing or has the wrong shape")
        config = cls(
            n_layers=int(number("block_count")),
            n_embed=n_embed,
            n_ffn=int(number("feed_forward_length")),
            n_heads=n_heads,
            n_kv_heads=int(number("attention.head_count_kv", n_heads)),
            head_size=int(number("attention.key_length", n_embed / n_heads)),
            n_context=int(number("context_length")),
            n_vocabulary=embedding.shape[0],
            rope_base=number("rope.freq_base", 10_000.0),
            rope_scale=number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
            norm_eps=number("attention.layer_norm_rms_epsilon"),
        )
        rotated = int(number("rope.dimension_count", config.head_size))
        if config.n_heads % config.n_kv_heads or rotated != config.head_size:
            raise ComponentError(
                f"model file {file.path}: {n_heads} heads over {config.n_kv_heads} KV heads, "
                f"rotating {rotated} of {config.head_size}: this layout is not supported"
            )
        return config

    @property
    def n_rows(self) -> int:
        """Heads in the fused projection: queries, keys, values."""
        return self.n_heads + 2 * self.n_kv_heads


def rope_table(
    config: LlamaConfig, n_positions: int, dtype: torch.dtype, factors: torch.Tensor | None
) -> torch.Tensor:
    """Complex factors [n_positions, n_rows, head_size / 2] for neighbouring pairs of the fused
    projection: rotary embedding (Su et al. 2021) for queries and keys, queries also times
    1/sqrt(head_size), 1 for values. `factors` divide the frequencies (Llama 3.1)."""
    half = torch.arange(0, config.head_size, 2, dtype=torch.float64)
    frequency = config.rope_base ** (-half / config.head_size) / config.rope_scale
    if factors is not None:
        frequency = frequency / factors.double()
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angle), angle)
    table = torch.ones(n_positions, config.n_rows, len(half), dtype=torch.complex128)
    n_turned = config.n_heads + config.n_kv_heads
    table[:, :n_turned] = turn[:, None]
    table[:, : config.n_heads] *= config.head_size**-0.5
    return table.to(torch.complex128 if dtype == torch.float64 else torch.complex64)


def unit_rms(h: torch.Tensor, eps: float) -> torch.Tensor:
    """Each row of `h` [n, m] over its root mean square; the gain is in the weights that follow."""
    if h.size(0) == 1:
        row = h.view(-1)
        scale: float = (torch.dot(row, row).item() / row.size(0) + eps) ** -0.5
        return h * scale
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)


def _constant(tensor: torch.Tensor) -> torch.nn.Parameter:
    """A tensor as part of a module that never learns."""
    return torch.nn.Parameter(tensor, requires_grad=False)


class Layer(torch.nn.Module):
    """One transformer layer; changes `h` and the cache in place."""

    def __init__(
        self,
        config: LlamaConfig,
        qkv: torch.nn.Module,
        out: torch.nn.Module,
        gate_up: torch.nn.Module,
        down: torch.nn.Module,
        mix: torch.Tensor,
    ) -> None:
        super().__init__()
        self.qkv, self.out, self.gate_up, self.down = qkv, out, gate_up, down
        self.mix = _constant(mix)
        self.n_heads, self.n_kv, self.n_rows = config.n_heads, config.n_kv_heads, config.n_rows
        self.size, self.n_ffn, self.eps = config.head_size, config.n_ffn, config.norm_eps

    def forward(
        self, h: torch.Tensor, rope: torch.Tensor, kv: torch.Tensor, position: int
    ) -> torch.Tensor:
        n = h.size(0)
        end = position + n
        rows = self.qkv(unit_rms(h, self.eps)).view(n, self.n_rows, self.size // 2, 2)
        rows = torch.view_as_real(torch.view_as_complex(rows) * rope).view(n, -1, self.size)
        keys_values = rows.narrow(1, self.n_heads, 2 * self.n_kv)
        kv.narrow(1, position, n).copy_(keys_values.transpose(0, 1))
        past = kv.narrow(1, 0, end)
        keys, values = past.narrow(0, 0, self.n_kv), past.narrow(0, self.n_kv, self.n_kv)
        queries = rows.narrow(1, 0, self.n_heads)
        h.add_(self.out(self.attend(queries, keys, values)))
        gate_up = self.gate_up(unit_rms(h, self.eps))
        x = torch.nn.functional.silu(gate_up.narrow(1, 0, self.n_ffn))
        x = x.mul_(gate_up.narrow(1, self.n_ffn, self.n_ffn))
        if self.mix.size(0) > 1:
            x = torch.mm(x.view(-1, self.mix.size(0)), self.mix).view(n, -1)
        return h.add_(self.down(x))

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Causal attention of the last n positions, [n, n_heads * size]; queries are scaled."""
        n, end = queries.size(0), keys.size(1)
        grouped = queries.view(n, self.n_kv, -1, self.size)
        if n == 1:
            scores = torch.bmm(grouped.squeeze(0), keys.transpose(1, 2))
            return torch.bmm(torch.softmax(scores, -1), values).view(1, -1)
        stacked = grouped.permute(1, 2, 0, 3).reshape(self.n_kv, -1, self.size)
        scores = torch.bmm(stacked, keys.transpose(1, 2)).view(self.n_heads, n, end)
        future = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores.narrow(2, end - n, n).masked_fill_(future, float("-inf"))
        weights = torch.softmax(scores, -1).view(self.n_kv, -1, end)
        heads = torch.bmm(weights, values).view(self.n_heads, n, self.size)
        return heads.transpose(0, 1).reshape(n, -1)


class Llama(torch.nn.Module):
    """The whole decoder. `forward` computes hidden states, `logits` scores for chosen rows."""

    def __init__(
        self,
        embedding: torch.Tensor,
        layers: list[Layer],
        head: torch.nn.Module,
        rope: torch.Tensor,
        eps: float,
    ) -> None:
        super().__init__()
        self.layers, self.head, self.eps = torch.nn.ModuleList(layers), head, eps
        self.embedding, self.rope = _constant(embedding), _constant(rope)
        self.is_double = rope.dtype == torch.complex128

    def forward(self, ids: torch.Tensor, kv: list[torch.Tensor], position: int) -> torch.Tensor:
        """Hidden states [n, n_embed] of tokens `ids` [n] at `position` onwards; `kv` has the
        state of everything before, and of these afterwards."""
        h = torch.nn.functional.embedding(ids, self.embedding)
        h = h.double() if self.is_double else h.float()
        rope = self.rope.narrow(0, position, ids.size(0))
        for n, layer in enumerate(self.layers):
            h = layer(h, rope, kv[n], position)
        return h

    @torch.jit.export
    def logits(self, h: torch.Tensor) -> torch.Tensor:
        """Scores [n, n_vocabulary] of the tokens that follow the rows of `h` [n, n_embed]."""
        return self.head(unit_rms(h, self.eps))  # type: ignore[no-any-return]
