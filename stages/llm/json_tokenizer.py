"""The tokenizer of a Hugging Face model folder: tokenizer.json, run by the `tokenizers` package.

Two things are taken out of it first: added tokens, because plain text must not make them, and the
space that some put before every text, because words are also encoded as a continuation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

from tokenizers import Tokenizer as TokenizersTokenizer

from stages.llm.byte_level import token_bytes
from stages.llm.json_config import Json, read_json
from stages.llm.sentencepiece import SPACE, is_blank, piece_bytes
from stages.llm.tokenizer import TURN_ENDS, Tokenizer, Vocabulary
from voicepipe.errors import ComponentError


def json_tokenizer(folder: Path, n_vocabulary: int) -> Tokenizer:
    """The tokenizer of the model in `folder`, for `n_vocabulary` ids: models may have more than
    there are tokens. Raises ComponentError when a file is missing, broken or not supported."""
    path = folder / "tokenizer.json"
    values, settings = read_json(path), read_json(folder / "tokenizer_config.json")
    try:
        parts = _Parts(values, settings, n_vocabulary)
        bpe = TokenizersTokenizer.from_str(parts.plain_json())
        return Tokenizer(
            parts.vocabulary(bpe, _turn_end_ids(folder)),
            lambda text: bpe.encode(text, add_special_tokens=False).ids,
        )
    except ComponentError:
        raise
    except Exception as error:  # the Rust side raises nothing narrower
        raise ComponentError(
            f"model file {path}: this tokenizer cannot be used ({error}): use a model whose "
            "tokenizer is byte-level or SentencePiece BPE"
        ) from error


def _turn_end_ids(folder: Path) -> Iterator[int]:
    """What the model's files call the ends of a reply."""
    for name in ("config.json", "generation_config.json"):
        if (folder / name).exists():
            value = read_json(folder / name).get("eos_token_id")
            ids = value if isinstance(value, list) else [value]
            yield from (n for n in ids if isinstance(n, int))


class _Parts:
    """What is read from the two files. Raises ValueError for what is unsound."""

    def __init__(self, values: Json, settings: Json, n_vocabulary: int) -> None:
        model = _mapping(values.get("model"), "model")
        if model.get("type") != "BPE":
            raise ValueError(f"a {model.get('type')!r} model")
        self._values, self._settings = values, settings
        self._ids = {
            token: n for token, n in _mapping(model.get("vocab"), "vocab").items() if _is_id(n)
        }
        self._tokens = [""] * n_vocabulary
        self._added: dict[str, int] = {}
        self._control: set[int] = set()
        added = values.get("added_tokens")
        for item in added if isinstance(added, list) else []:
            entry = _mapping(item, "added_tokens")
            token, n = entry.get("content"), entry.get("id")
            if not isinstance(token, str) or not _is_id(n):
                raise ValueError(f"added token {token!r} with id {n!r}")
            if n < n_vocabulary:
                self._added[token] = n
                if entry.get("special") is True:
                    self._control.add(n)
        for token, n in (self._ids | self._added).items():
            if n < n_vocabulary:
                self._tokens[n] = token
        self._adds_space = False

    def plain_json(self) -> str:
        """tokenizer.json for plain text alone. White space that the model knows stays added."""
        added = self._values.get("added_tokens")
        kept = [
            entry
            for entry in (added if isinstance(added, list) else [])
            if is_blank(entry["content"]) and entry["content"] in self._ids
        ]
        plain = {**self._values, "added_tokens": kept, "truncation": None, "padding": None}
        for name in ("normalizer", "pre_tokenizer"):
            plain[name] = self._without_space(self._values.get(name))
        return json.dumps(plain)

    def vocabulary(self, bpe: TokenizersTokenizer, turn_end_ids: Iterator[int]) -> Vocabulary:
        bytes_of = piece_bytes(self._tokens) if self._is_pieces() else token_bytes(self._tokens)
        unknown = _mapping(self._values["model"], "model").get("unk_token")
        if isinstance(unknown, str) and unknown in self._ids:
            self._control.add(self._ids[unknown])
        self._control |= {n for n, token in enumerate(self._tokens) if not token}
        special = {token: n for token, n in self._added.items() if not is_blank(token)}
        for token, n in special.items():
            bytes_of[n] = token.encode("utf-8", errors="replace")
        for n in self._control:
            bytes_of[n] = b""
        bos_id, eos_id = self._named("bos_token"), self._named("eos_token")
        ends = {self._added.get(token) for token in TURN_ENDS} & self._control
        ends |= {n for n in (eos_id, *turn_end_ids) if n is not None}
        with_special = bpe.encode("", add_special_tokens=True).ids
        return Vocabulary(
            tokens=self._tokens,
            bytes_of=bytes_of,
            special=special,
            control_ids=frozenset(self._control),
            bos_id=bos_id,
            eos_id=eos_id,
            eos_ids=frozenset(n for n in ends if n is not None),
            adds_bos=bos_id is not None and with_special[:1] == [bos_id],
            adds_space=self._adds_space,
        )

    def _is_pieces(self) -> bool:
        """Whether tokens are pieces of text, rather than bytes in GPT-2's letters."""
        if SPACE in json.dumps(self._values.get("decoder"), ensure_ascii=False):
            return True
        if '"ByteLevel"' not in json.dumps(self._values.get("decoder")):
            raise ValueError("neither byte-level nor SentencePiece")
        return False

    def _named(self, key: str) -> int | None:
        """The id of a token that tokenizer_config.json names."""
        value = self._settings.get(key)
        token = value.get("content") if isinstance(value, Mapping) else value
        return self._added.get(token) if isinstance(token, str) else None

    def _without_space(self, part: object) -> object:
        """A normaliser or pre-tokenizer that puts no space before the text; notes if it did."""
        if not isinstance(part, Mapping):
            return part
        kind = part.get("type")
        if kind == "Prepend":
            self._adds_space = True
            return None
        if kind == "Metaspace":
            prepends = part.get("prepend_scheme", "always") != "never"
            self._adds_space |= prepends and part.get("add_prefix_space", True) is True
            return {**part, "prepend_scheme": "never", "add_prefix_space": False}
        if kind == "ByteLevel" and part.get("add_prefix_space") is True:
            self._adds_space = True
            return {**part, "add_prefix_space": False}
        for key in ("normalizers", "pretokenizers"):
            if isinstance(inner := part.get(key), list):
                kept = [self._without_space(item) for item in inner]
                return {**part, key: [item for item in kept if item is not None]}
        return part


def _mapping(value: object, name: str) -> Json:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is missing")
    return value


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
