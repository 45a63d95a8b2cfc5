"""Products with 8-bit weights, and the rotations that make them exact enough."""

from __future__ import annotations

import pytest
import torch

from stages.llm import transformer
from stages.llm.linear import FloatLinear, Int8Linear, saturates
from stages.llm.opening import open_model
from stages.llm.rotation import Rotation, hadamard, power_of_two_in
from stages.llm.step_plan import Rows
from stages.llm.transformer import Model, load_model
from voicepipe.models import path_of


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
@pytest.mark.parametrize("may_compile", [True, False])
def test_int8_keeps_the_real_models_predictions(
    may_compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one pass over a prompt, and token by token."""
    monkeypatch.setattr(transformer, "fits", lambda _: may_compile)
    opened = open_model(path_of("smollm2-135m-instruct"))
    ids = opened.template.system_ids("You are a helpful assistant on a phone call.")
    ids += opened.template.user_ids("What is the capital of France?", "system")
    ids += opened.template.reply_header_ids
    exact, int8 = (
        load_model(opened.weights, n_positions=64, precision=p) for p in ("float32", "int8")
    )

    def log_probs(model: Model, chunk: int) -> torch.Tensor:
        store = model.new_store(len(ids))
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            end = start + len(part)
            logits = model.step(store, [Rows(part, start, range(start, end), [(0, end)], 1)])
        return logits[0].log_softmax(0)

    wanted = log_probs(exact, len(ids))
    for chunk in (len(ids), 1):
        got = log_probs(int8, chunk)
        assert float((wanted.exp() * (wanted - got)).sum()) < 0.1
