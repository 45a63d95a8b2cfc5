from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter

from stages.llm.model_config import Family
from stages.llm.opening import OpenedModel, open_model
from tests import llm_families, llm_pieces, llm_tiny
from tests.llm_families import FAMILIES, write_folder, write_gguf
from voicepipe.errors import ComponentError


def refusal(path: Path) -> str:
    with pytest.raises(ComponentError) as error:
        open_model(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def prompt(model: OpenedModel) -> list[int]:
    template = model.template
    ids = template.system_ids("Be kind.") + template.user_ids("hello the", "system")
    return ids + template.reply_header_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_opens_from_either_format(tmp_path: Path, family: Family) -> None:
    gguf = open_model(write_gguf(tmp_path / "m.gguf", family))
    folder = open_model(write_folder(tmp_path / "hf", family))
    assert prompt(gguf) == prompt(folder)
    assert gguf.weights.config.family == folder.weights.config.family == family
    assert gguf.weights.has("output_norm.weight")


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "llama")
    (tmp_path / "config.json").write_text("not looked at")
    assert open_model(tmp_path).weights.config.rope_pairs


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "list"])
def test_the_chat_template_is_found_wherever_it_is(tmp_path: Path, place: str) -> None:
    folder = write_folder(tmp_path / "hf", "llama")
    usual = open_model(folder)
    llm_families.write_tokenizer(folder, template="{{ broken")
    if place == "list":
        named = [
            {"name": "tool_use", "template": "{{ broken"},
            {"name": "default", "template": llm_tiny.CHATML},
        ]
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))
    elif place.endswith("json"):
        (folder / place).write_text(json.dumps({"chat_template": llm_tiny.CHATML}))
    else:
        (folder / place).write_text(llm_tiny.CHATML)
    assert prompt(open_model(folder)) == prompt(usual)


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "hf", "llama")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"bos_token": None}))
    assert "no chat template" in refusal(folder)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    assert "chat_template.jinja" in refusal(folder)


def test_a_path_that_is_no_model_says_what_to_do(tmp_path: Path) -> None:
    assert "voicepipe models fetch" in refusal(tmp_path / "none.gguf")
    assert "neither a .gguf file nor a config.json" in refusal(tmp_path)
    folder = write_folder(tmp_path / "hf", "llama")
    assert "name the folder" in refusal(folder / "model.safetensors")


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_folder_with_a_broken_file_names_it(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "hf", "qwen3", dtype=torch.bfloat16)
    whole = (folder / name).read_bytes()
    for n_bytes in (0, 1, len(whole) // 2, len(whole) - 1):
        (folder / name).write_bytes(whole[:n_bytes])
        assert name in refusal(folder)


def test_a_gguf_vocabulary_of_another_size_than_the_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(writer: GGUFWriter) -> None:
        llm_pieces.write_fields(writer, template=llm_tiny.CHATML, adds_space=False, adds_bos=True)

    monkeypatch.setattr(llm_tiny, "write_tokenizer", other)
    path = write_gguf(tmp_path / "m.gguf", "llama")
    assert f"{len(llm_pieces.vocabulary())} tokens, but embeddings for" in refusal(path)
