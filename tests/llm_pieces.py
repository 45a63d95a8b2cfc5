"""A small SentencePiece vocabulary in the way of Gemma's, in both formats."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

from gguf import GGUFWriter

CONTROL = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
BLANKS = ("\n", "\n\n", "▁▁", "▁▁▁")
TAGS = ("<table>",)
MERGED = (
    *("he", "ll", "hell", "hello", "▁t", "th", "▁the", "▁th", "in", "an", "▁a", "er", "us", "▁an"),
    *("▁user", "user", "us", "model", "mo", "del", "de", "the", "is", "▁is", "▁this", "▁i"),
)
UNIQUE = tuple(dict.fromkeys(MERGED))
SINGLE = ("▁", *string.ascii_letters, *string.digits, ".", ",", "!", "?", "'", "<", ">", "_", "|")
NORMAL, UNKNOWN, CONTROL_TYPE, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def vocabulary() -> list[tuple[str, int, float]]:
    """Token, type and score; earlier merges score higher."""
    return [
        ("<unk>", UNKNOWN, 0.0),
        *((token, CONTROL_TYPE, 0.0) for token in CONTROL),
        *((f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256)),
        *((token, USER_DEFINED, 0.0) for token in (*BLANKS, *TAGS)),
        *((token, NORMAL, -float(n)) for n, token in enumerate(UNIQUE)),
        *((token, NORMAL, -1000.0 - n) for n, token in enumerate(SINGLE)),
    ]


def write_fields(
    writer: GGUFWriter, *, template: str | None, adds_space: bool, adds_bos: bool
) -> None:
    """The fields of a GGUF file that are about text."""
    tokens, kinds, scores = zip(*vocabulary(), strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(adds_bos)
    writer.add_add_space_prefix(adds_space)
    if template is not None:
        writer.add_chat_template(template)


def write_gguf(
    path: Path, *, template: str | None = None, adds_space: bool = False, adds_bos: bool = True
) -> Path:
    """A file with a vocabulary and no model."""
    writer = GGUFWriter(path, "gemma3")
    write_fields(writer, template=template, adds_space=adds_space, adds_bos=adds_bos)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(folder: Path, *, template: str = "", adds_space: bool = False) -> Path:
    """tokenizer.json as transformers' GemmaConverter makes it (or, with `adds_space`, Llama 2's),
    and tokenizer_config.json."""
    folder.mkdir(exist_ok=True)
    pieces = vocabulary()
    ids = {token: n for n, (token, _, _) in enumerate(pieces)}
    merges = [
        (token[:cut], token[cut:], -score)
        for token, kind, score in pieces
        if kind in (NORMAL, USER_DEFINED) and len(token) > 1
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids and "<" not in token
    ]
    normalizer: Any = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoder: list[Any] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if adds_space:
        prepend = {"type": "Prepend", "prepend": "▁"}
        normalizer = {"type": "Sequence", "normalizers": [prepend, normalizer]}
        decoder.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    added = [*CONTROL, *BLANKS, *TAGS]
    values = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": ids[token],
                "content": token,
                "special": token in CONTROL,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for token in added
        ],
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<bos>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
            ],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [1], "tokens": ["<bos>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": decoder},
        "model": {
            "type": "BPE",
            "vocab": ids,
            "merges": [[left, right] for left, right, _ in sorted(merges, key=lambda m: m[2])],
            "unk_token": "<unk>",
            "byte_fallback": True,
            "fuse_unk": True,
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(values))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
