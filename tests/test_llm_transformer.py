from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.gguf_file import GgufFile
from stages.llm.model_config import Family
from stages.llm.prepare import Precision
from stages.llm.safetensors_weights import SafetensorsWeights
from stages.llm.transformer import Model, Rows, load_model
from stages.llm.weights import GgufWeights
from tests import llm_families, llm_tiny
from tests.llm_rows import IDS, N_SLOTS, Placed, dirty_store, slot_orders
from voicepipe.errors import UsageError

EQUAL = 1e-12
"""In float64, of logits around 10; sums are taken in another order."""
FAMILIES = st.sampled_from(llm_families.FAMILIES)


@functools.cache
def model_of(family: Family, precision: Precision = "float64") -> Model:
    folder = Path(tempfile.mkdtemp(prefix="voicepipe-transformer-"))
    weights = SafetensorsWeights(llm_families.write_folder(folder / "model", family))
    return load_model(weights, n_positions=64, precision=precision, n_threads=1)


@functools.cache
def whole(family: Family, n: int) -> torch.Tensor:
    """Logits after each of the first `n` of IDS, computed at once."""
    model = model_of(family)
    return model.step(dirty_store(model), [Placed(list(range(n))).rows(IDS[:n], n)])


def assert_equal(logits: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=0, atol=EQUAL)


@pytest.mark.parametrize("n", [1, 2, 33, 90])
def test_logits_are_those_of_the_definition(n: int) -> None:
    weights = GgufWeights(GgufFile(llm_tiny.model_file()))
    ids = (IDS * 2)[:n]
    for precision, tolerance in (("float64", 1e-9), ("float32", 2e-4)):
        model = load_model(weights, n_positions=128, precision=precision)  # type: ignore[arg-type]
        logits = model.step(dirty_store(model), [Placed(list(range(n))).rows(ids, n)])
        np.testing.assert_allclose(logits, llm_tiny.reference_logits(ids), atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(FAMILIES, slot_orders(), st.lists(st.integers(1, 20), min_size=1))
def test_prompts_in_chunks_over_any_slots_give_the_logits_of_the_whole(
    family: Family, slots: list[int], chunks: list[int]
) -> None:
    model = model_of(family)
    store, sequence = dirty_store(model), Placed(slots)
    logits, at = [], 0
    for n in [*chunks, len(IDS)]:
        ids = IDS[at : at + n]
        if ids:
            logits.append(model.step(store, [sequence.rows(ids, len(ids))]))
        at += n
    assert_equal(torch.cat(logits), whole(family, len(IDS)))


@settings(max_examples=60, deadline=None)
@given(FAMILIES, slot_orders(), st.data())
def test_sequences_in_one_step_do_not_notice_each_other(
    family: Family, slots: list[int], data: st.DataObject
) -> None:
    model = model_of(family)
    store = dirty_store(model)
    n_sequences = data.draw(st.integers(1, 4))
    room = N_SLOTS // n_sequences
    sequences = [Placed(slots[n * room : (n + 1) * room]) for n in range(n_sequences)]
    lengths = st.lists(st.integers(0, 7), min_size=n_sequences, max_size=n_sequences)
    for ns in data.draw(st.lists(lengths, min_size=1, max_size=3)):
        batch, expected = [], []
        for sequence, n in zip(sequences, ns, strict=True):
            if n:
                at = len(sequence.ids)
                n_logits = data.draw(st.integers(0, n))
                batch.append(sequence.rows(IDS[at : at + n], n_logits))
                expected.append(whole(family, len(IDS))[at + n - n_logits : at + n])
        if batch:
            assert_equal(model.step(store, batch), torch.cat(expected))


@settings(max_examples=40, deadline=None)
@given(FAMILIES, st.integers(0, 40), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_forks_read_what_they_share_once_and_get_the_logits_of_their_own(
    family: Family, n_shared: int, ns: list[int]
) -> None:
    model = model_of(family)
    store = dirty_store(model)
    prefix = Placed(list(range(N_SLOTS)))
    if n_shared:
        model.step(store, [prefix.rows(IDS[:n_shared], 0)])
    batch, expected = [], []
    for fork, n in enumerate(ns):
        own = n_shared + 6 * fork
        sequence = Placed([*range(n_shared), *range(own, own + 6)], ids=IDS[:n_shared])
        batch.append(sequence.rows(IDS[n_shared : n_shared + n], n))
        expected.append(whole(family, len(IDS))[n_shared : n_shared + n])
    assert_equal(model.step(store, batch), torch.cat(expected))


def test_a_sliding_layer_sees_its_window_and_no_more() -> None:
    model = model_of("gemma3")
    assert model.config.is_sliding(0)
    assert not model.config.is_sliding(1)
    states = []
    for first in (IDS[0], IDS[0] + 1):
        store = dirty_store(model)
        model.step(store, [Placed(list(range(48))).rows([first, *IDS[1:]], 0)])
        states.append(store.layers)
    for layer, n_changed in ((0, 1), (1, llm_families.WINDOW), (2, 48)):
        change = (states[0][layer] - states[1][layer])[:, :48].abs().amax((0, 2))
        assert (change > 0).tolist() == [n < n_changed for n in range(48)]


def test_state_can_be_copied_and_taken_out_and_put_back() -> None:
    model = model_of("qwen3")
    store = dirty_store(model)
    model.step(store, [Placed(list(range(32))).rows(IDS[:32], 0)])
    store.copy(16, 64, 16)
    state = store.read(0, 16)
    assert len(state) == 16 * store.bytes_per_token
    store.write(40, state)
    moved = Placed([*range(40, 56), *range(64, 80), *range(80, 96)], ids=IDS[:32])
    logits = model.step(store, [moved.rows(IDS[32:], 16)])
    assert_equal(logits, whole("qwen3", 48)[32:])
    with pytest.raises(UsageError, match="do not fit"):
        store.write(90, state)


@pytest.mark.parametrize("family", llm_families.FAMILIES)
def test_int8_stays_close_to_float(family: Family) -> None:
    rows = [Placed(list(range(48))).rows(IDS, 48)]
    model = model_of(family, "int8")
    ours = torch.log_softmax(model.step(dirty_store(model), rows).double(), -1)
    exact = torch.log_softmax(whole(family, 48), -1)
    divergence = (exact.exp() * (exact - ours)).sum(-1)
    assert float(divergence.mean()) < 0.05


@pytest.mark.parametrize(
    "rows",
    [
        Rows([], 0, [], [], 0),
        Rows([1, 2], 0, [0], [(0, 2)], 0),
        Rows([1], 0, [0], [(0, 1)], 2),
        Rows([1], 5, [5], [(0, 5)], 1),
        Rows([1], 64, [0], [(0, 65)], 1),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(rows: Rows) -> None:
    model = model_of("llama")
    with pytest.raises(UsageError, match=r"tokens|positions"):
        model.step(model.new_store(N_SLOTS), [rows])
