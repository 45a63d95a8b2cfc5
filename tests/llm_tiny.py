"""A tiny random Llama in a GGUF file, and what it computes, written out independently in numpy."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

N_LAYERS, N_EMBED, N_FFN, N_HEADS, N_KV, HEAD = 2, 32, 96, 4, 2, 8
N_CONTEXT = 512
ROPE_BASE, EPS = 10_000.0, 1e-5
SPECIAL = ("<|bos|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ t", "Ġt he", "i n", "a n", "Ġ a", "e r", "u s")
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Array = NDArray[np.float64]


@functools.cache
def vocabulary() -> tuple[str, ...]:
    merged = tuple(merge.replace(" ", "") for merge in MERGES)
    return (*SPECIAL, *sorted(ByteLevel.alphabet()), *merged)


@functools.cache
def weights(seed: int = 7) -> dict[str, NDArray[np.float32]]:
    """Random weights by GGUF name; the residual stream gets an outlier channel, as real ones."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        return np.asarray(rng.normal(size=(rows, columns)) * scale / columns**0.5, np.float32)

    def gain() -> NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, N_EMBED).astype(np.float32)

    tensors = {
        "token_embd.weight": matrix(len(vocabulary()), N_EMBED, 4.0),
        "output_norm.weight": gain(),
    }
    for n in range(N_LAYERS):
        tensors |= {
            f"blk.{n}.attn_norm.weight": gain(),
            f"blk.{n}.attn_q.weight": matrix(N_HEADS * HEAD, N_EMBED, 2.0),
            f"blk.{n}.attn_k.weight": matrix(N_KV * HEAD, N_EMBED, 2.0),
            f"blk.{n}.attn_v.weight": matrix(N_KV * HEAD, N_EMBED),
            f"blk.{n}.attn_output.weight": matrix(N_EMBED, N_HEADS * HEAD),
            f"blk.{n}.ffn_norm.weight": gain(),
            f"blk.{n}.ffn_gate.weight": matrix(N_FFN, N_EMBED),
            f"blk.{n}.ffn_up.weight": matrix(N_FFN, N_EMBED),
            f"blk.{n}.ffn_down.weight": matrix(N_EMBED, N_FFN),
        }
    return tensors


def write(
    path: Path,
    *,
    architecture: str = "llama",
    template: str | None = CHATML,
    pre: str = "smollm",
    adds_bos: bool = False,
    without: str = "",
    n_context: int = N_CONTEXT,
) -> Path:
    """Write the model to `path`; `without` leaves out one tensor."""
    writer = _begun(path, architecture, n_context)
    write_tokenizer(writer, template=template, pre=pre, adds_bos=adds_bos)
    return _ended(writer, path, {k: v for k, v in weights().items() if k != without})


def write_with(
    path: Path,
    tags: Sequence[str],
    favoured: Mapping[str, float],
    *,
    template: str,
    tag_type: int = 3,
    n_context: int = 4 * N_CONTEXT,
) -> Path:
    """The model with more special tokens of type `tag_type`, and some tokens that it likes to say:
    a channel of the residual stream is the same for all, and adds that much to their logits."""
    writer = _begun(path, "llama", n_context)
    write_tokenizer(writer, template=template, tags=tags, tag_type=tag_type)
    tensors = dict(weights())
    rows = np.random.default_rng(3).normal(size=(len(tags), N_EMBED)) * 4 / N_EMBED**0.5
    embeddings = np.concatenate([tensors["token_embd.weight"], rows.astype(np.float32)])
    embeddings[:, 0] = 2.0
    for token, score in favoured.items():
        embeddings[[*vocabulary(), *tags].index(token), 0] += score
    return _ended(writer, path, tensors | {"token_embd.weight": embeddings})


def _begun(path: Path, architecture: str, n_context: int) -> GGUFWriter:
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(n_context)
    writer.add_embedding_length(N_EMBED)
    writer.add_feed_forward_length(N_FFN)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPS)
    return writer


def _ended(writer: GGUFWriter, path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> Path:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokenizer(
    writer: GGUFWriter,
    *,
    template: str | None = CHATML,
    pre: str = "smollm",
    adds_bos: bool = False,
    tags: Sequence[str] = (),
    tag_type: int = 3,
) -> None:
    """The fields of a GGUF file that are about text; `tags` are special tokens after all others."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*vocabulary(), *tags])
    n_words = len(vocabulary()) - len(SPECIAL)
    writer.add_token_types([3] * len(SPECIAL) + [1] * n_words + [tag_type] * len(tags))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(adds_bos)
    if template is not None:
        writer.add_chat_template(template)


@functools.cache
def model_file() -> Path:
    """One tiny model for all tests of a run."""
    return write(Path(tempfile.mkdtemp(prefix="voicepipe-tiny-")) / "tiny.gguf")


def reference_logits(ids: list[int]) -> Array:
    """Logits [len(ids), vocabulary], token by token and head by head as in the papers."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights().items()}
    h = w["token_embd.weight"][ids]
    n = len(ids)
    for layer in range(N_LAYERS):
        p = f"blk.{layer}."
        x = _norm(h, w[p + "attn_norm.weight"])
        q, k, v = (x @ w[p + f"attn_{part}.weight"].T for part in "qkv")
        mixed = np.zeros((n, N_HEADS * HEAD))
        for head in range(N_HEADS):
            shared = head // (N_HEADS // N_KV)
            hq = _rope(q[:, head * HEAD : (head + 1) * HEAD])
            hk = _rope(k[:, shared * HEAD : (shared + 1) * HEAD])
            hv = v[:, shared * HEAD : (shared + 1) * HEAD]
            for t in range(n):
                scores = hq[t] @ hk[: t + 1].T / HEAD**0.5
                share = np.exp(scores - scores.max())
                mixed[t, head * HEAD : (head + 1) * HEAD] = share / share.sum() @ hv[: t + 1]
        h = h + mixed @ w[p + "attn_output.weight"].T
        x = _norm(h, w[p + "ffn_norm.weight"])
        gate = x @ w[p + "ffn_gate.weight"].T
        up = x @ w[p + "ffn_up.weight"].T
        h = h + (gate / (1 + np.exp(-gate)) * up) @ w[p + "ffn_down.weight"].T
    return np.asarray(_norm(h, w["output_norm.weight"]) @ w["token_embd.weight"].T)


def _norm(x: Array, gain: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * gain)


def _rope(x: Array) -> Array:
    """Pairs of neighbours turn, as in GGUF files of the llama family."""
    turned = np.empty_like(x)
    for position in range(len(x)):
        for pair in range(HEAD // 2):
            angle = position * ROPE_BASE ** (-2 * pair / HEAD)
            a, b = x[position, 2 * pair], x[position, 2 * pair + 1]
            turned[position, 2 * pair] = a * np.cos(angle) - b * np.sin(angle)
            turned[position, 2 * pair + 1] = a * np.sin(angle) + b * np.cos(angle)
    return turned
