from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.llm.gguf_config import gguf_config
from stages.llm.gguf_file import GgufFile
from stages.llm.json_config import json_config
from stages.llm.model_config import ModelConfig
from tests.llm_families import LLAMA3_SCALING, N_LAYERS, config, write_gguf
from voicepipe.errors import ComponentError

LLAMA_3_2_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
GEMMA_3_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}
NAMES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM")


def read(tmp_path: Path, values: object) -> ModelConfig:
    (tmp_path / "config.json").write_text(json.dumps(values))
    return json_config(tmp_path)


def refusal(tmp_path: Path, values: object) -> str:
    with pytest.raises(ComponentError) as error:
        read(tmp_path, values)
    message = str(error.value)
    assert "\n" not in message
    assert "config.json" in message
    return message


def test_llama_3_divides_low_frequencies_and_leaves_high_ones(tmp_path: Path) -> None:
    found = read(tmp_path, LLAMA_3_2_1B)
    assert found.family == "llama"
    assert found.attention_scale == pytest.approx(1 / 8)
    assert (found.n_heads, found.n_kv_heads, found.head_size) == (32, 8, 64)
    assert found.rope_base == 500_000.0
    assert found.rope_scale == 1.0
    factors = found.rope_factors
    assert len(factors) == 32
    wavelengths = [2 * math.pi * 500_000.0 ** (pair / 32) for pair in range(32)]
    for factor, wavelength in zip(factors, wavelengths, strict=True):
        if wavelength < 8192 / 4:
            assert factor == 1.0
        elif wavelength > 8192:
            assert factor == 32.0
        else:
            smooth = (8192 / wavelength - 1) / 3
            assert 1 / factor == pytest.approx((1 - smooth) / 32 + smooth)
    assert list(factors) == sorted(factors)
    assert 1.0 < factors[16] < 32.0


def test_a_multimodal_gemma_says_four_things_and_means_all(tmp_path: Path) -> None:
    found = read(tmp_path, GEMMA_3_4B)
    assert (found.family, found.n_layers, found.n_embed) == ("gemma3", 34, 2560)
    assert (found.n_heads, found.n_kv_heads, found.head_size) == (8, 4, 256)
    assert (found.n_vocabulary, found.n_context) == (262_208, 131_072)
    assert found.is_tied
    assert found.window == 1024
    assert [n for n in range(34) if not found.is_sliding(n)] == [5, 11, 17, 23, 29]
    assert (found.rope_base, found.rope_scale, found.rope_local_base) == (1e6, 8.0, 1e4)
    assert found.attention_scale == 1 / 16
    assert found.embed_scale == math.sqrt(2560)
    assert (found.activation, found.qk_norm, found.sandwich_norms) == ("gelu_tanh", True, True)


def test_qwen_has_biases_or_normalised_heads(tmp_path: Path) -> None:
    two, three = read(tmp_path, config("qwen2")), read(tmp_path, config("qwen3"))
    assert (two.attention_bias, two.qk_norm) == (True, False)
    assert (three.attention_bias, three.qk_norm) == (False, True)
    for found in (two, three):
        assert (found.activation, found.embed_scale, found.window) == ("silu", 1.0, 0)
        assert not any(map(found.is_sliding, range(N_LAYERS)))


def test_transformers_5_writes_the_same_model_otherwise(tmp_path: Path) -> None:
    old = config("gemma3")
    new = {**old, "layer_types": ["sliding_attention", "full_attention"] * (N_LAYERS // 2)}
    for key in ("rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"):
        del new[key]
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
    }
    assert read(tmp_path, new) == read(tmp_path, old)

    old = config("llama", rope_scaling=LLAMA3_SCALING)
    new = {key: value for key, value in old.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {**LLAMA3_SCALING, "rope_theta": 50_000.0}
    assert read(tmp_path, new) == read(tmp_path, old)


@pytest.mark.parametrize(
    "names", [["MistralForCausalLM"], ["GPT2LMHeadModel"], [], None, "LlamaForCausalLM ", 3]
)
def test_an_unsupported_architecture_lists_the_supported(tmp_path: Path, names: object) -> None:
    message = refusal(tmp_path, {**LLAMA_3_2_1B, "architectures": names})
    assert all(name in message for name in NAMES)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"rope_scaling": {**LLAMA3_SCALING, "high_freq_factor": 1.0}}, "impossible"),
        ({"rope_scaling": "much"}, "'much'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"partial_rotary_factor": 0.5}, "in part"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"num_hidden_layers": 10**12}, "n_layers is 1000000000000"),
        ({"num_hidden_layers": -1}, "n_layers is -1"),
        ({"num_hidden_layers": "16"}, "num_hidden_layers is '16'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": 0}, "n_heads is 0"),
        ({"num_key_value_heads": 5}, "32 heads cannot share 5"),
        ({"head_dim": 63}, "no pairs"),
        ({"head_dim": 10**9}, "head_size"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": 0}, "norm_eps is 0"),
        ({"rope_theta": -5.0}, "-5.0"),
        ({"query_pre_attn_scalar": 0}, "zero"),
        ({"vocab_size": None}, "vocab_size is None"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(tmp_path, {**LLAMA_3_2_1B, **changes})


def test_a_window_that_qwen_would_use_is_refused(tmp_path: Path) -> None:
    assert "use_sliding_window" in refusal(tmp_path, config("qwen2", use_sliding_window=True))


def test_a_text_config_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "text_config" in refusal(tmp_path, {**GEMMA_3_4B, "text_config": [1]})


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"null", b"[" * 100_000])
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ComponentError, match=r"config\.json"):
        json_config(tmp_path)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ComponentError, match=r"config\.json"):
        json_config(tmp_path)


json_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "full_attention"]), st.integers()),
)


@settings(max_examples=60, deadline=None)
@given(
    start=st.sampled_from([LLAMA_3_2_1B, GEMMA_3_4B, config("qwen3"), config("gemma3")]),
    data=st.data(),
)
def test_a_corrupted_config_never_does_worse_than_an_error(
    tmp_path_factory: pytest.TempPathFactory, start: dict[str, Any], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("hf")
    values = json.loads(json.dumps(start))
    part = values.get("text_config", values)
    for key in data.draw(st.lists(st.sampled_from(sorted(part)), min_size=1, max_size=3)):
        part[key] = data.draw(json_values)
    text = json.dumps(values).encode()
    cut = data.draw(st.integers(0, len(text)) | st.just(len(text)))
    (folder / "config.json").write_bytes(text[:cut])
    with suppress(ComponentError):
        json_config(folder)


def test_a_gguf_llama_3_has_its_factors_in_a_tensor(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", rope_factors=(1.0, 1.0, 2.0, 8.0))
    found = gguf_config(GgufFile(path))
    assert found.rope_factors == (1.0, 1.0, 2.0, 8.0)
    assert found.rope_pairs


def test_a_gguf_with_factors_for_another_head_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", rope_factors=(1.0, 2.0))
    with pytest.raises(ComponentError, match=r"rope_freqs\.weight"):
        gguf_config(GgufFile(path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 3}, "3 heads cannot share 2"),
        ({"max_position_embeddings": 0}, "n_context is 0"),
        ({"rms_norm_eps": -1.0}, "norm_eps"),
        ({"hidden_size": 64}, "token_embd"),
        ({"num_key_value_heads": [2, 2, 1, 2]}, "head_count_kv"),
    ],
)
def test_absurd_gguf_metadata_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen2", metadata=changes)
    with pytest.raises(ComponentError) as error:
        gguf_config(GgufFile(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_gguf_values_by_layer_count_as_one_when_they_are_equal(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "qwen2", metadata={"num_key_value_heads": [2, 2, 2, 2]})
    assert gguf_config(GgufFile(path)).n_kv_heads == 2


def test_gguf_gemma_slides_as_its_pattern_says(tmp_path: Path) -> None:
    by_layer = {"sliding_window_pattern": [True, True, True, False]}
    path = write_gguf(tmp_path / "a.gguf", "gemma3", metadata=by_layer)
    assert gguf_config(GgufFile(path)).sliding_layers == (True, True, True, False)
    path = write_gguf(tmp_path / "b.gguf", "gemma3")
    assert gguf_config(GgufFile(path)).sliding_layers == (True, False, True, False)
    path = write_gguf(tmp_path / "c.gguf", "gemma3", metadata={"sliding_window_pattern": None})
    assert gguf_config(GgufFile(path)).sliding_layers == (True,) * 4  # every sixth is full
