"""Everything on the way to a GPU that is not the GPU: shapes, padding, slots and the arithmetic."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.cuda_backend import CudaBackend
from stages.llm.cuda_plan import ROW_BUCKETS, Shape, contexts, padded, shape_of, visible
from stages.llm.gather_net import GatherNet
from stages.llm.model_config import Family
from stages.llm.prepare import Preparation
from stages.llm.safetensors_weights import SafetensorsWeights
from stages.llm.transformer import Model, Rows, load_model
from tests import llm_families
from tests.llm_rows import IDS, N_SLOTS, Placed, slot_orders
from voicepipe.errors import ComponentError

FAMILIES = st.sampled_from(llm_families.FAMILIES)
EQUAL = 1e-12


@functools.cache
def weights_of(family: Family) -> SafetensorsWeights:
    folder = Path(tempfile.mkdtemp(prefix="voicepipe-cuda-"))
    return SafetensorsWeights(llm_families.write_folder(folder / "model", family))


@functools.cache
def gathering(family: Family) -> Model:
    """The model as on a GPU, on the CPU."""
    weights = weights_of(family)
    tensors = Preparation(weights.config, "float64").prepared(weights)
    net = GatherNet(weights.config, tensors, 64, torch.device("cpu"))
    return Model(weights.config, CudaBackend(net, 64), n_positions=64)


@functools.cache
def expected(family: Family) -> torch.Tensor:
    """Logits after each of IDS."""
    model = load_model(weights_of(family), n_positions=64, precision="float64")
    rows = [Placed(list(range(len(IDS)))).rows(IDS, len(IDS))]
    return model.step(model.new_store(len(IDS)), rows)


@settings(max_examples=40, deadline=None)
@given(FAMILIES, slot_orders(), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_padded_and_gathered_steps_compute_the_same(
    family: Family, slots: list[int], chunks: list[int]
) -> None:
    model = gathering(family)
    store, sequence = model.new_store(N_SLOTS), Placed(slots)
    logits, at = [], 0
    for n in [*chunks, len(IDS)]:
        if ids := IDS[at : at + n]:
            logits.append(model.step(store, [sequence.rows(ids, len(ids))]))
        at += n
    torch.testing.assert_close(torch.cat(logits), expected(family), rtol=0, atol=EQUAL)


@settings(max_examples=20, deadline=None)
@given(FAMILIES, st.lists(st.integers(1, 20), min_size=2, max_size=4))
def test_sequences_in_one_step_do_not_notice_each_other(family: Family, ns: list[int]) -> None:
    model = gathering(family)
    store = model.new_store(N_SLOTS)
    batch, wanted = [], []
    for which, n in enumerate(ns):
        sequence = Placed(list(range(24 * which, 24 * which + 24)))
        model.step(store, [sequence.rows(IDS[:4], 0)])
        batch.append(sequence.rows(IDS[4 : 4 + n], 1))
        wanted.append(expected(family)[3 + n])
    logits = model.step(store, batch)
    torch.testing.assert_close(logits, torch.stack(wanted), rtol=0, atol=EQUAL)


def test_a_step_takes_the_smallest_shape_that_holds_it() -> None:
    def rows(n: int, position: int) -> Rows:
        return Rows([1] * n, position, range(n), [(0, position + n)], 0)

    assert contexts(2000) == [256, 512, 1024, 2000]
    assert contexts(100) == [100]
    assert shape_of([rows(1, 255)], 2000) == Shape(1, 256)
    assert shape_of([rows(1, 256)], 2000) == Shape(1, 512)
    assert shape_of([rows(3, 1995), rows(2, 0)], 2000) == Shape(8, 2000)
    assert shape_of([rows(ROW_BUCKETS[-1], 0)], 2000) == Shape(32, 256)
    assert shape_of([rows(ROW_BUCKETS[-1] + 1, 0)], 2000) is None


def test_padding_is_at_the_scratch_slot_and_sees_only_itself() -> None:
    batch = [Rows([7, 8], 1, [5, 30], [(4, 2), (30, 1)], 1), Rows([9], 0, [12], [(12, 1)], 1)]
    inputs = padded(batch, Shape(4, 5), 99)
    assert inputs.row_inputs.tolist() == [
        [7, 8, 9, 0],
        [1, 2, 0, 0],
        [5, 30, 12, 99],
        [2, 3, 1, 1],
    ]
    assert inputs.table.tolist() == [
        [4, 5, 30, 99, 99],
        [4, 5, 30, 99, 99],
        [12, 99, 99, 99, 99],
        [99, 99, 99, 99, 99],
    ]


def test_a_row_sees_what_is_before_it_and_in_its_window() -> None:
    seen = visible(torch.tensor([1, 4]), 5, 0)
    assert seen.int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 1, 1, 0]]
    assert visible(torch.tensor([1, 4]), 5, 2).int().tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 1, 0]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_asking_for_a_gpu_that_is_not_there_says_so() -> None:
    with pytest.raises(ComponentError, match=r"sees no GPU: check `nvidia-smi`, or use device cpu"):
        load_model(weights_of("llama"), n_positions=64, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("family", llm_families.FAMILIES)
def test_replayed_graphs_compute_the_same(family: Family) -> None:
    model = load_model(weights_of(family), n_positions=64, precision="float64", device="cuda")
    store, sequence = model.new_store(N_SLOTS), Placed(list(range(N_SLOTS)))
    logits = [model.step(store, [sequence.rows(IDS[:33], 33)])]
    for n, ids in enumerate((IDS[33:34], IDS[34:37], IDS[37:42], IDS[42:])):
        logits.append(model.step(store, [sequence.rows(ids, len(ids))]))
        assert logits[-1].shape[0] == (1, 3, 5, 6)[n]
    torch.testing.assert_close(torch.cat(logits), expected(family), rtol=0, atol=1e-9)
