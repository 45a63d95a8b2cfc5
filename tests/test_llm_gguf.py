from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.llm import LocalLLM
from stages.llm.gguf_blocks import READERS
from stages.llm.gguf_file import GgufFile, gguf_at
from tests import llm_tiny
from tests.llm_quants import KINDS
from voicepipe.errors import ComponentError


def one_line(error: pytest.ExceptionInfo[ComponentError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_tensors_and_metadata_are_what_was_written() -> None:
    file = GgufFile(llm_tiny.model_file())
    assert file.metadata["llama.block_count"] == llm_tiny.N_LAYERS
    assert file.metadata["tokenizer.ggml.tokens"] == list(llm_tiny.vocabulary())
    for name, tensor in llm_tiny.weights().items():
        np.testing.assert_array_equal(file.tensor(name), tensor)


def write_tensor(path: Path, stored: NDArray[np.uint8], of: GGMLQuantizationType) -> GgufFile:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("t", stored, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_blocks_mean_what_ggml_says(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stages.llm.gguf_file.VALUES_AT_ONCE", 512)  # several pieces and threads
    values_of, _ = KINDS[kind]
    of = GGMLQuantizationType[kind]
    n_values, _ = GGML_QUANT_SIZES[of]
    blocks = random_blocks(kind, 24)
    read = write_tensor(tmp_path / "q.gguf", blocks.reshape(12, -1), of).tensor("t")
    expected = [value for block in blocks for value in values_of(block.tobytes())]
    assert read.shape == (12, 2 * n_values)
    np.testing.assert_allclose(read.ravel(), np.array(expected, np.float32), rtol=1e-5, atol=1e-5)


def random_blocks(kind: str, n: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(0)
    n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    blocks = rng.integers(0, 256, (n, n_bytes), dtype=np.uint8)
    for at in KINDS[kind][1]:
        scales = rng.normal(size=(n, 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks


@pytest.mark.parametrize("kind", READERS)
def test_blocks_are_read_as_they_are(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    blocks = random_blocks(kind.name, 24)
    if kind == GGMLQuantizationType.Q8_0:
        blocks[:, 2:][blocks[:, 2:] == 128] = 127
    file = write_tensor(tmp_path / "q.gguf", blocks.reshape(12, -1), kind)
    expected = file.tensor("t")
    read = READERS[kind](file.raw("t"), expected.shape)
    assert read is not None
    values = read.quants.float().view(*read.scales.shape, -1) * read.scales.float()[..., None]
    if read.least is not None:
        values += read.least.float()[..., None]
    tolerance = 2e-3 if kind == GGMLQuantizationType.Q4_K else 1e-6
    tolerance *= float(np.abs(expected).max())
    np.testing.assert_allclose(values.view(expected.shape), expected, atol=tolerance, rtol=0)


def test_a_value_that_does_not_fit_seven_bits_is_for_rounding_anew() -> None:
    blocks = random_blocks("Q8_0", 4)
    blocks[2, 9] = 128
    assert READERS[GGMLQuantizationType.Q8_0](blocks, (4, 32)) is None


@pytest.mark.parametrize(("kind", "n_bits"), [("F32", 24), ("F16", 11), ("BF16", 8)])
def test_floats_are_rounded_to_their_kind_and_no_further(
    tmp_path: Path, kind: str, n_bits: int
) -> None:
    of = GGMLQuantizationType[kind]
    original = np.random.default_rng(0).uniform(1.0, 2.0, (70, 96)).astype(np.float32)
    read = write_tensor(tmp_path / "q.gguf", quantize(original, of), of).tensor("t")
    assert np.abs(read - original).max() <= 2.0**-n_bits


def test_an_unsupported_kind_of_tensor_says_so(tmp_path: Path) -> None:
    of = GGMLQuantizationType.Q8_K
    n_bytes = GGML_QUANT_SIZES[of][1]
    file = write_tensor(tmp_path / "q.gguf", np.zeros((2, n_bytes), np.uint8), of)
    with pytest.raises(ComponentError) as error:
        file.tensor("t")
    assert "type Q8_K" in one_line(error)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ComponentError) as error:
        LocalLLM(tmp_path / "none.gguf")
    assert "none.gguf" in one_line(error)
    assert "voicepipe models fetch" in one_line(error)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04 a zip file", bytes(4000)])
def test_another_kind_of_file_says_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(ComponentError) as error:
        GgufFile(tmp_path / "bad.gguf")
    one_line(error)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_says_so(tmp_path: Path, share: float) -> None:
    whole = llm_tiny.model_file().read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ComponentError) as error:
        LocalLLM(tmp_path / "cut.gguf", precision="float32")
    one_line(error)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 8000), value=st.integers(0, 255))
def test_a_flipped_byte_never_does_worse_than_an_error(at: int, value: int) -> None:
    data = bytearray(llm_tiny.model_file().read_bytes())
    data[at] = value
    path = llm_tiny.model_file().with_name("flipped.gguf")
    path.write_bytes(data)
    with suppress(ComponentError):
        file = GgufFile(path)
        for name in file.tensors:
            file.tensor(name)


def test_a_folder_stands_for_the_one_file_in_it(tmp_path: Path) -> None:
    with pytest.raises(ComponentError, match="found none"):
        gguf_at(tmp_path)
    only = llm_tiny.write(tmp_path / "a.gguf")
    assert gguf_at(tmp_path) == gguf_at(only) == only
    llm_tiny.write(tmp_path / "b.gguf")
    with pytest.raises(ComponentError, match=r"a\.gguf, b\.gguf"):
        gguf_at(tmp_path)


def test_an_unsupported_architecture_names_the_supported(tmp_path: Path) -> None:
    path = llm_tiny.write(tmp_path / "m.gguf", architecture="mamba")
    with pytest.raises(ComponentError) as error:
        LocalLLM(path)
    assert "'mamba'" in one_line(error)
    assert "llama" in one_line(error)


@pytest.mark.parametrize("name", ["blk.1.attn_k.weight", "output_norm.weight", "token_embd.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    path = llm_tiny.write(tmp_path / "m.gguf", without=name)
    with pytest.raises(ComponentError) as error:
        LocalLLM(path)
    assert name in one_line(error)


def test_an_unsupported_tokenizer_says_so(tmp_path: Path) -> None:
    path = llm_tiny.write(tmp_path / "m.gguf", pre="tekken")
    with pytest.raises(ComponentError) as error:
        LocalLLM(path)
    assert "'tekken'" in one_line(error)


@pytest.mark.parametrize(
    "template",
    [None, "{{ nonsense", "{{ raise_exception('no') }}", "always the same", "{{ messages.x.y }}"],
)
def test_an_unusable_chat_template_says_so(tmp_path: Path, template: str | None) -> None:
    path = llm_tiny.write(tmp_path / "m.gguf", template=template)
    with pytest.raises(ComponentError) as error:
        LocalLLM(path)
    assert "chat template" in one_line(error)


def test_a_template_runs_in_a_sandbox(tmp_path: Path) -> None:
    escape = "{{ ''.__class__.__mro__[1].__subclasses__() }}" + llm_tiny.CHATML
    path = llm_tiny.write(tmp_path / "m.gguf", template=escape)
    with pytest.raises(ComponentError) as error:
        LocalLLM(path)
    assert "unsafe" in one_line(error)
