from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.decoder import PREFILL_CHUNK, Decoder
from stages.llm.kv import KvCache
from stages.llm.linear import FloatLinear, Int8Linear, saturates
from stages.llm.load import Precision
from stages.llm.rotation import Rotation, hadamard, power_of_two_in
from tests import llm_tiny
from voicepipe.models import path_of

N_VOCABULARY = len(llm_tiny.vocabulary())
IDS = [int(n) for n in np.random.default_rng(1).integers(0, N_VOCABULARY, 90)]


@functools.cache
def tiny(precision: Precision) -> Decoder:
    return Decoder(
        llm_tiny.model_file(),
        n_positions=256,
        precision=precision,
        n_threads=1,
        n_decode_threads=1,
    )


def logits_after(decoder: Decoder, cache: KvCache, ids: list[int]) -> torch.Tensor:
    while (logits := decoder.advance(cache, ids)) is None:
        pass
    return logits


def cold_logits(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    return logits_after(decoder, decoder.new_cache(), ids)


@pytest.mark.parametrize("n", [1, 2, PREFILL_CHUNK, PREFILL_CHUNK + 1, 90])
def test_logits_are_those_of_the_definition(n: int) -> None:
    expected = llm_tiny.reference_logits(IDS[:n])[-1]
    np.testing.assert_allclose(cold_logits(tiny("float64"), IDS[:n]), expected, atol=1e-9)
    np.testing.assert_allclose(cold_logits(tiny("float32"), IDS[:n]), expected, atol=2e-4)


def test_token_by_token_equals_all_at_once() -> None:
    decoder = tiny("float64")
    cache = decoder.new_cache()
    for n in range(1, 60):
        logits = logits_after(decoder, cache, IDS[:n])
    np.testing.assert_allclose(logits, cold_logits(decoder, IDS[:59]), atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 80), st.lists(st.integers(0, N_VOCABULARY - 1)))))
def test_an_aligned_cache_gives_the_logits_of_a_cold_one(
    edits: list[tuple[int, list[int]]],
) -> None:
    decoder, ids = tiny("float64"), IDS[:5]
    cache = decoder.new_cache()
    for keep, more in edits:
        ids = (ids[:keep] + more)[:200] or IDS[:1]
        n_kept = decoder.align(cache, ids)
        assert n_kept < len(ids)
        logits = logits_after(decoder, cache, ids)
        np.testing.assert_allclose(logits, cold_logits(decoder, ids), atol=1e-9)


def test_a_copied_prefix_goes_its_own_way() -> None:
    decoder = tiny("float64")
    original, fork = decoder.new_cache(), decoder.new_cache()
    logits_after(decoder, original, IDS[:50])
    fork.adopt_prefix(original, 40)
    forked = logits_after(decoder, fork, IDS[:40] + IDS[60:80])
    np.testing.assert_allclose(forked, cold_logits(decoder, IDS[:40] + IDS[60:80]), atol=1e-9)
    after = logits_after(decoder, original, IDS[:51])
    np.testing.assert_allclose(after, cold_logits(decoder, IDS[:51]), atol=1e-9)


def test_int8_stays_close_to_float() -> None:
    wanted = torch.softmax(cold_logits(tiny("float32"), IDS), -1)
    got = torch.softmax(cold_logits(tiny("int8"), IDS), -1)
    assert float((wanted * (wanted / got).log()).sum()) < 0.05


@pytest.mark.parametrize("n", [32, 576, 896, 96])
def test_a_rotation_is_orthogonal_and_spreads_an_outlier(n: int) -> None:
    rotation = Rotation(n)
    x = torch.zeros(2, n)
    x[:, 0], x[1, 1] = 100.0, 1.0
    rotated = rotation.of_rows(x)
    torch.testing.assert_close(rotated @ rotated.T, x @ x.T)
    assert float(rotated[0].abs().max()) < 90.0


def test_rotating_rows_and_columns_cancel() -> None:
    rotation = Rotation(96)
    reading, writing = torch.randn(8, 96), torch.randn(96, 5)
    product = rotation.of_rows(reading) @ rotation.of_columns(writing)
    torch.testing.assert_close(product, reading @ writing)


def test_a_hadamard_matrix_is_its_own_inverse() -> None:
    torch.testing.assert_close(hadamard(16) @ hadamard(16), torch.eye(16, dtype=torch.float64))
    assert [power_of_two_in(n) for n in (1536, 96, 7, 4096)] == [128, 32, 1, 128]


@pytest.mark.parametrize("n", [1, 2, 9])
def test_int8_products_are_right_and_rows_do_not_disturb_each_other(n: int) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(48, 128), torch.randn(n, 128)
    x[0] *= 1000  # an outlier token, as the first of a sequence often is
    exact, ours = FloatLinear(weight)(x), Int8Linear(weight)(x)
    error = (ours - exact).norm(dim=1) / exact.norm(dim=1)
    assert float(error.max()) < 0.03


def test_full_range_activations_are_only_used_where_they_do_not_overflow() -> None:
    x, layer = torch.ones(1, 64), Int8Linear(torch.ones(8, 64))
    torch.testing.assert_close(layer(x), torch.full((1, 8), 64.0), atol=0.5, rtol=0)
    assert layer.reduce_range is saturates()


@pytest.mark.models
def test_int8_keeps_the_real_models_predictions() -> None:
    file = next(path_of("smollm2-135m-instruct").glob("*.gguf"))
    int8, exact = (
        Decoder(file, n_positions=64, precision=p, n_threads=2, n_decode_threads=1)
        for p in ("int8", "float32")
    )
    template = exact.template
    ids = template.system_ids("You are a helpful assistant on a phone call.")
    ids += template.user_ids("What is the capital of France?", "system")
    ids += template.reply_header_ids
    wanted = torch.log_softmax(cold_logits(exact, ids), -1)
    got = torch.log_softmax(cold_logits(int8, ids), -1)
    assert float((wanted.exp() * (wanted - got)).sum()) < 0.1
