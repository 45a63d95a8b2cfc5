"""A model on disk, opened: its weights, its tokenizer and its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.llm.gguf_file import GgufFile
from stages.llm.gguf_tokenizer import gguf_tokenizer
from stages.llm.json_config import read_json
from stages.llm.json_tokenizer import json_tokenizer
from stages.llm.safetensors_weights import SafetensorsWeights
from stages.llm.template import ChatTemplate
from stages.llm.tokenizer import Tokenizer
from stages.llm.weights import GgufWeights, Weights
from voicepipe.errors import ComponentError


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """Everything that a model's files say. Weights are read when they are asked for."""

    weights: Weights
    tokenizer: Tokenizer
    template: ChatTemplate


def open_model(path: Path) -> OpenedModel:
    """The model at `path`: a GGUF file, a folder with one, or a Hugging Face folder (config.json,
    *.safetensors, tokenizer.json). Raises ComponentError when it is missing, broken or of an
    unsupported kind."""
    if path.is_dir() and not any(path.glob("*.gguf")):
        if not (path / "config.json").exists():
            raise ComponentError(
                f"model folder {path}: it has neither a .gguf file nor a config.json with "
                "*.safetensors: name the folder or the file that does"
            )
        return _open_folder(path)
    if path.suffix == ".safetensors":
        raise ComponentError(f"model file {path}: name the folder that it is in")
    file = GgufFile(path)
    weights = GgufWeights(file)
    tokenizer, template = gguf_text(file)
    if len(tokenizer) != weights.config.n_vocabulary:
        raise file.broken(
            f"{len(tokenizer)} tokens, but embeddings for {weights.config.n_vocabulary}"
        )
    return OpenedModel(weights, tokenizer, template)


def gguf_text(file: GgufFile) -> tuple[Tokenizer, ChatTemplate]:
    """Tokenizer and chat template of a GGUF file. Raises ComponentError as `open_model`."""
    tokenizer = gguf_tokenizer(file)
    where = f"model file {file.path}"
    source = file.metadata.get("tokenizer.chat_template")
    return tokenizer, ChatTemplate(_instructed(source, where), tokenizer, where)


def _open_folder(folder: Path) -> OpenedModel:
    weights = SafetensorsWeights(folder)
    tokenizer = json_tokenizer(folder, weights.config.n_vocabulary)
    where = f"model folder {folder}"
    template = ChatTemplate(_instructed(_folder_template(folder), where), tokenizer, where)
    return OpenedModel(weights, tokenizer, template)


def _folder_template(folder: Path) -> object:
    """The source of the chat template, which has had three places over time."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ComponentError(
                f"model file {path}: cannot be read ({error}): fetch the model again"
            ) from error
    path = folder / "chat_template.json"
    settings = read_json(path if path.exists() else folder / "tokenizer_config.json")
    found = settings.get("chat_template")
    if not isinstance(found, list):
        return found
    named = {t.get("name"): t.get("template") for t in found if isinstance(t, Mapping)}
    return named.get("default")


def _instructed(source: object, where: str) -> str:
    if not isinstance(source, str):
        raise ComponentError(f"{where}: it has no chat template: use an instruct model")
    return source
