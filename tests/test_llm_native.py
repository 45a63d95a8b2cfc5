from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import stat
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm import LocalLLM, native_build
from stages.llm.gguf_blocks import BLOCK, Blocks, in_8_bits
from stages.llm.model_config import Family, ModelConfig, tensor_shapes
from stages.llm.native_backend import NativeBackend, NativeLinear
from stages.llm.native_build import load_native, native_library
from stages.llm.native_net import Interleaved, fits
from stages.llm.reply_text import ReplyLength
from stages.llm.runtime import DRAFT_SOURCES, DraftSource
from stages.llm.sampling import Sampling
from stages.llm.transformer import Model, load_model
from tests import llm_families, llm_tiny
from tests.llm_rows import IDS, Placed, dirty_store, slot_orders
from voicepipe.machine import c_compiler
from voicepipe.models import path_of

LIBRARY = native_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C compiler, or no AVX2")
N_POSITIONS = 64
FAMILIES = st.sampled_from(llm_families.FAMILIES)


def library() -> ctypes.CDLL:
    assert LIBRARY is not None
    return LIBRARY


# -- products --------------------------------------------------------------------------------------


def random_matrix(m: int, n: int, *, in_4_bits: bool, seed: int = 3) -> Blocks:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(m, n // BLOCK, generator=generator).half()
    if not in_4_bits:
        quants = torch.randint(-127, 128, (m, n), generator=generator).to(torch.int8)
        return Blocks(quants, scales)
    quants = torch.randint(0, 16, (m, n), generator=generator).to(torch.uint8)
    return Blocks(quants, scales, torch.randn(m, n // BLOCK, generator=generator).half() * 8)


def floats(blocks: Blocks) -> torch.Tensor:
    """The matrix in float64."""
    lines = blocks.quants.double().view(len(blocks.quants), -1, BLOCK)
    lines = lines * blocks.scales.double()[:, :, None]
    if blocks.least is not None:
        lines = lines + blocks.least.double()[:, :, None]
    return lines.view(blocks.quants.shape)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """`x` with each block in 8 bits, in float64."""
    lines = x.view(len(x), -1, BLOCK)
    scales = lines.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(scales > 0, 127 / lines.abs().amax(-1, keepdim=True), 0.0)
    return ((lines * inverse).round().double() * scales.double()).view(x.shape)


@settings(max_examples=60, deadline=None)
@given(
    st.booleans(), st.integers(1, 40), st.integers(1, 6), st.integers(1, 9), st.integers(0, 1000)
)
def test_products_are_exact_but_for_the_rounding_of_the_inputs(
    in_4_bits: bool, m: int, n_blocks: int, n_rows: int, seed: int
) -> None:
    matrix = random_matrix(m, n_blocks * BLOCK, in_4_bits=in_4_bits, seed=seed)
    x = torch.randn(n_rows, n_blocks * BLOCK, generator=torch.Generator().manual_seed(seed))
    linear = NativeLinear(library(), Interleaved(matrix))
    y = linear(x)
    expected = rounded(x) @ floats(matrix).T
    size = (rounded(x).abs() @ floats(matrix).abs().T).clamp_min(1e-9)
    assert ((y[:, :m].double() - expected).abs() / size).max() < 1e-5
    alone = torch.cat([linear(x[n : n + 1].contiguous()) for n in range(n_rows)])
    assert torch.equal(y, alone), "a row's result depends on the rows beside it"


@pytest.mark.parametrize("in_4_bits", [False, True])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_values_do_not_overflow(in_4_bits: bool, sign: int) -> None:
    n = 4 * BLOCK
    quants = torch.full((8, n), 15 if in_4_bits else 127 * sign)
    ones = torch.ones(8, n // BLOCK).half()
    least = -ones * 8 if in_4_bits else None
    matrix = Blocks(quants.to(torch.uint8 if in_4_bits else torch.int8), ones, least)
    x = torch.full((1, n), 127.0 * sign)
    y = NativeLinear(library(), Interleaved(matrix))(x)
    torch.testing.assert_close(y.double(), x.double() @ floats(matrix).T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [0.0, 1e-40, 1e30])
def test_values_of_any_size_are_multiplied(value: float) -> None:
    matrix = random_matrix(8, BLOCK, in_4_bits=False)
    y = NativeLinear(library(), Interleaved(matrix))(torch.full((1, BLOCK), value))
    expected = torch.full((1, BLOCK), value, dtype=torch.float64) @ floats(matrix).T
    torch.testing.assert_close(y.double(), expected, rtol=0.02, atol=1e-36)


def test_rounding_to_8_bits_is_as_good_as_8_bits() -> None:
    weight = torch.randn(16, 4 * BLOCK, generator=torch.Generator().manual_seed(1))
    weight[3], weight[4, :BLOCK] = 0.0, 1e-9
    error = (floats(in_8_bits(weight)) - weight).abs()
    assert (
        error / weight.view(16, -1, BLOCK).abs().amax(-1).amax(-1)[:, None].clamp_min(1)
    ).max() < 0.005


# -- the decoder -----------------------------------------------------------------------------------


class RandomWeights:
    """`Weights` of a config, drawn."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        generator = torch.Generator().manual_seed(5)
        self._tensors: dict[str, torch.Tensor] = {}
        for name, shape in tensor_shapes(config).items():
            drawn = torch.randn(shape, generator=generator)
            if name.endswith("norm.weight"):
                self._tensors[name] = 1 + drawn / 4
            else:
                self._tensors[name] = drawn / shape[-1] ** 0.5 * (4 if "embd" in name else 1)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name].clone()

    def blocks(self, name: str) -> Blocks:
        return in_8_bits(self.tensor(name))


@functools.cache
def config_of(family: Family, group: int = 2, head_size: int = 32) -> ModelConfig:
    is_gemma = family == "gemma3"
    return ModelConfig(
        family=family,
        n_layers=3,
        n_embed=64,
        n_ffn=96,
        n_heads=2 * group,
        n_kv_heads=2,
        head_size=head_size,
        n_context=256,
        n_vocabulary=len(llm_tiny.vocabulary()),
        norm_eps=1e-5,
        rope_base=10_000.0,
        attention_scale=head_size**-0.5,
        rope_pairs=family == "llama",
        window=7 if is_gemma else 0,
        sliding_layers=(True, False, True) if is_gemma else (),
        attention_bias=family == "qwen2",
        is_tied=family == "llama",
        attention_softcap=1.0 if is_gemma else 0.0,
        final_softcap=2.0 if is_gemma else 0.0,
    )


@functools.cache
def native(config: ModelConfig, n_threads: int = 2) -> Model:
    backend = NativeBackend(library(), RandomWeights(config), N_POSITIONS)
    return Model(
        config, backend, n_positions=N_POSITIONS, n_threads=n_threads, n_decode_threads=n_threads
    )


@functools.cache
def whole(config: ModelConfig) -> torch.Tensor:
    model = native(config)
    return model.step(dirty_store(model), [Placed(list(range(48))).rows(IDS, 48)])


@pytest.mark.parametrize("family", llm_families.FAMILIES)
@pytest.mark.parametrize(("group", "head_size"), [(1, 32), (2, 16), (3, 48), (5, 64)])
def test_scores_are_those_of_the_definition(family: Family, group: int, head_size: int) -> None:
    config = config_of(family, group, head_size)
    assert fits(config)
    exact = load_model(RandomWeights(config), n_positions=N_POSITIONS, precision="float64")
    expected = exact.step(dirty_store(exact), [Placed(list(range(48))).rows(IDS, 48)])
    error = (whole(config).double() - expected).norm(dim=1) / expected.norm(dim=1)
    assert error.mean() < 0.035, "more than 8 bits explain"


@settings(max_examples=80, deadline=None)
@given(
    FAMILIES, st.integers(1, 5), slot_orders(), st.lists(st.integers(1, 40), min_size=1),
    st.integers(1, 4),
)  # fmt: skip
def test_nothing_but_the_tokens_matters_to_the_last_bit(
    family: Family, group: int, slots: list[int], chunks: list[int], n_threads: int
) -> None:
    config = config_of(family, group)
    model = native(config, n_threads)
    store, sequence = dirty_store(model), Placed(slots)
    logits, at = [], 0
    for n in [*chunks, len(IDS)]:
        if ids := IDS[at : at + n]:
            logits.append(model.step(store, [sequence.rows(ids, len(ids))]))
        at += n
    assert torch.equal(torch.cat(logits), whole(config))


@settings(max_examples=60, deadline=None)
@given(FAMILIES, st.lists(st.integers(1, 24), min_size=2, max_size=4), st.integers(1, 3))
def test_sequences_of_one_step_do_not_see_each_other(
    family: Family, lengths: list[int], n_threads: int
) -> None:
    config = config_of(family)
    model = native(config, n_threads)
    store = dirty_store(model)
    batch, first = [], 0
    for n in lengths:
        batch.append(Placed(list(range(first, first + n))).rows(IDS[:n], n))
        first += n
    logits = model.step(store, batch)
    assert torch.equal(logits, torch.cat([whole(config)[:n] for n in lengths]))


def test_only_the_scores_asked_for_come() -> None:
    model = native(config_of("llama"))
    store, sequence = dirty_store(model), Placed(list(range(48)))
    assert model.step(store, [sequence.rows(IDS[:9], 0)]).shape == (
        0,
        len(llm_tiny.vocabulary()),
    )
    assert torch.equal(
        model.step(store, [sequence.rows(IDS[9:], 2)]), whole(config_of("llama"))[-2:]
    )


def test_what_does_not_fit_runs_on_torch() -> None:
    config = config_of("llama", 1, 24)
    assert not fits(config)
    model = load_model(RandomWeights(config), n_positions=N_POSITIONS)
    assert model.kernel is not None
    assert model.kernel.kernel.kind != "compiled"


@pytest.mark.models
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_no_word_of_the_real_model(temperature: float) -> None:
    texts = ["Count from one to twelve.", "Count from one to twelve.", "Say: one two three four."]
    length = ReplyLength(soft_tokens=40, max_tokens=40)
    sampling = Sampling(temperature=temperature, repetition_penalty=1.0, seed=3)
    file = next(path_of("smollm2-135m-instruct").glob("*.gguf"))

    async def said(drafts: Collection[DraftSource]) -> tuple[list[str], int]:
        llm = LocalLLM(
            file,
            length=length,
            sampling=sampling,
            context_tokens=512,
            kv_tokens=1024,
            drafts=drafts,
        )
        replies, n_accepted = [], 0
        async with llm.open("You are a voice assistant.") as conversation:
            for text in texts:
                reply = conversation.reply(text)
                async with reply as deltas:
                    replies.append("".join([delta async for delta in deltas]))
                reply.adopt()
                n_accepted += reply.stats.accepted_tokens
        llm.close()
        return replies, n_accepted

    plain, _ = asyncio.run(said(()))
    drafted, n_accepted = asyncio.run(said(DRAFT_SOURCES))
    assert drafted == plain
    assert n_accepted > 0 or temperature > 0


# -- building --------------------------------------------------------------------------------------


def test_it_compiles_without_a_warning() -> None:
    compiler = c_compiler()
    assert compiler is not None
    flags = (*native_build.FLAGS, "-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    main = native_build.SOURCES / native_build.MAIN
    done = subprocess.run([compiler, *flags, main], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_native(tmp_path) is not None
    (built,) = tmp_path.iterdir()
    monkeypatch.setattr(native_build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert load_native(tmp_path) is not None
    assert list(tmp_path.iterdir()) == [built]


def test_a_broken_build_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_native(tmp_path / "good")
    (built,) = (tmp_path / "good").iterdir()
    broken = tmp_path / "broken" / built.name
    broken.parent.mkdir()
    broken.write_bytes(b"no library")
    assert load_native(broken.parent) is not None
    assert "compiling it again" in caplog.text


def test_old_builds_go(tmp_path: Path) -> None:
    for n in range(9):
        (tmp_path / f"decoder-{n}.so").write_bytes(b"")
    load_native(tmp_path)
    assert len(list(tmp_path.glob("decoder-*.so"))) == native_build.MAX_KEPT


@pytest.mark.parametrize("script", ["echo 'decoder.c:1: no such luck' >&2; exit 1", "exit 0"])
def test_a_compiler_that_fails_costs_one_line_and_speed(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{compiler.parent}:/bin:/usr/bin")
    assert load_native(tmp_path / "built") is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "\n" not in record.getMessage()
    assert list((tmp_path / "built").glob("*.so")) == []


def test_without_a_compiler_or_avx2_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load_native(tmp_path) is None
    monkeypatch.undo()
    monkeypatch.setattr(native_build, "CAPABLE", ())
    assert load_native(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
