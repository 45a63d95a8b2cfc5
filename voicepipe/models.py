"""The model store: from a model's name to a folder with its files, fetched once and verified.

`path_of("whisper-tiny.en")` is all that a stage needs. The files live in `$VOICEPIPE_MODELS` or in
the platform's cache folder; nothing is handed out before the SHA-256 of every file was compared
with the pinned one in this process.
"""

from __future__ import annotations

import functools
import os
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import platformdirs

from voicepipe.errors import UsageError
from voicepipe.model_catalogue import LICENCE_NOTES, MODELS, Model
from voicepipe.model_store import CACHE_VARIABLE, ModelStore, megabytes


def cache_root() -> Path:
    """`$VOICEPIPE_MODELS`, else the user's cache folder on this platform."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("voicepipe") / "models"


def state_root() -> Path:
    """Where what models have computed may be kept: with the models."""
    return cache_root() / "computed"


@functools.cache
def _store_at(root: Path) -> ModelStore:
    return ModelStore(root)


def default_store() -> ModelStore:
    """One store for each root, so that a process verifies, and misses the hub, only once."""
    return _store_at(cache_root())


def path_of(name: str) -> Path:
    """`ModelStore.path_of` of the default store: a folder, ready to be loaded from."""
    return default_store().path_of(name)


def fetch(name: str) -> Path:
    """`ModelStore.fetch` of the default store."""
    return default_store().fetch(name)


def verify(name: str) -> None:
    """`ModelStore.verify` of the default store."""
    default_store().verify(name)


def is_present(name: str) -> bool:
    """`ModelStore.is_present` of the default store."""
    return default_store().is_present(name)


def known() -> tuple[Model, ...]:
    """Every model of the catalogue."""
    return MODELS


def hashes(name: str) -> dict[str, str]:
    """The pinned SHA-256 of each file of a model, for the provenance of a run."""
    return {file.name: file.sha256 for file in default_store().model(name).files}


def run_models_command(action: str, names: Sequence[str], store: ModelStore | None = None) -> str:
    """What `voicepipe models ACTION NAME…` prints. Without a name, `list` shows every model,
    `fetch` brings those that the demo needs, `verify` checks those that are there and `path` is
    the cache folder."""
    store = store or default_store()
    actions: dict[str, Callable[[ModelStore, Sequence[str]], str]] = {
        "list": _list,
        "fetch": _fetch,
        "verify": _verify,
        "path": _path,
    }
    if action not in actions:
        raise UsageError(f"unknown models command {action!r}; known: {', '.join(actions)}")
    return actions[action](store, names)


def _list(store: ModelStore, names: Sequence[str]) -> str:
    models = [store.model(name) for name in names] or list(store.models)
    width = max(len(model.name) for model in models)
    lines = [f"Models in {store.root} (* = what the demo needs)", ""]
    for model in models:
        state = "present" if store.is_present(model.name) else "absent"
        size = megabytes(model.n_bytes)
        star = "*" if model.default else " "
        lines.append(f"{star} {model.name:{width}}  {size:>8}  {state:7}  {model.licence}")
        lines.append(f"  {'':{width}}  {model.what}; from {model.upstream}")
        if model.note:
            lines.append(f"  {'':{width}}  note: {model.note}")
    return "\n".join([*lines, "", "Licences that are not permissive:", *_bullets(LICENCE_NOTES)])


def _bullets(notes: Sequence[str]) -> list[str]:
    columns = shutil.get_terminal_size((100, 24)).columns
    fill = functools.partial(
        textwrap.fill, width=columns, initial_indent="- ", subsequent_indent="  "
    )
    return [fill(note) for note in notes]


def _fetch(store: ModelStore, names: Sequence[str]) -> str:
    wanted = names or [model.name for model in store.models if model.default]
    for name in wanted:
        store.model(name)  # a misspelt name is reported before the first download
    return "\n".join(f"{name}: {store.fetch(name)}" for name in wanted)


def _verify(store: ModelStore, names: Sequence[str]) -> str:
    wanted = names or [model.name for model in store.models if store.is_present(model.name)]
    for name in wanted:
        store.verify(name)
    return "\n".join(f"{name}: ok" for name in wanted) or f"no models in {store.root}"


def _path(store: ModelStore, names: Sequence[str]) -> str:
    return "\n".join(str(store.path_of(name)) for name in names) or str(store.root)
