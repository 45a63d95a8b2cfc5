"""All layers and the output projection: from token ids to hidden states to scores."""

from __future__ import annotations

import torch

from stages.llm.attention import Seen
from stages.llm.layer import Layer, constant, unit_rms
from stages.llm.model_config import ModelConfig
from stages.llm.rope import head_kinds, rope_table


class DecoderNet(torch.nn.Module):
    """The arithmetic of a model; which slots a step reads and writes is in its arguments (see
    `step_plan.StepPlan`)."""

    __constants__ = ("softcap", "slides", "is_double")

    def __init__(
        self,
        config: ModelConfig,
        embedding: torch.Tensor,
        layers: list[Layer],
        head: torch.nn.Module,
        n_positions: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.layers, self.head = torch.nn.ModuleList(layers), head
        self.embedding = constant(embedding)
        self.rope = constant(rope_table(config, n_positions, dtype, sliding=False))
        self.slides = any(config.sliding_layers)
        self.local_rope = constant(
            rope_table(config, n_positions if self.slides else 1, dtype, sliding=True)
        )
        self.kinds = constant(head_kinds(config))
        self.sliding = [config.is_sliding(n) for n in range(config.n_layers)]
        self.eps = constant(torch.full((1, 1), config.norm_eps, dtype=dtype))
        self.softcap = config.final_softcap
        self.is_double = dtype == torch.float64

    def forward(
        self,
        kv: list[torch.Tensor],
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
        ids: torch.Tensor,
        position: int,
        positions: torch.Tensor,
        first_slot: int,
        slots: torch.Tensor,
        seen: Seen,
        local_seen: Seen,
    ) -> torch.Tensor:
        """Hidden states [n, n_embed] of the rows `ids` [n]; their keys and values are in the store
        afterwards. `local_seen` is for sliding layers."""
        h = torch.nn.functional.embedding(ids, self.embedding)
        h = h.double() if self.is_double else h.float()
        rope = self.turns(self.rope, ids.size(0), position, positions)
        local_rope = rope
        if self.slides:
            local_rope = self.turns(self.local_rope, ids.size(0), position, positions)
        for n, layer in enumerate(self.layers):
            state = kv[n], keys[n], values[n]
            if self.slides and self.sliding[n]:
                h = layer(h, local_rope, state, first_slot, slots, local_seen)
            else:
                h = layer(h, rope, state, first_slot, slots, seen)
        return h

    def turns(
        self, table: torch.Tensor, n: int, position: int, positions: torch.Tensor
    ) -> torch.Tensor:
        """Complex factors [n, heads of the fused projection, head_size / 2] of the rows."""
        if position >= 0:
            return table.narrow(0, position, n).index_select(1, self.kinds)
        return table.index_select(0, positions).index_select(1, self.kinds)

    @torch.jit.export
    def logits(self, h: torch.Tensor) -> torch.Tensor:
        """Scores [n, n_vocabulary] of the tokens that follow the rows of `h` [n, n_embed]."""
        scores: torch.Tensor = self.head(unit_rms(h, self.eps))
        if self.softcap > 0.0:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        return scores
