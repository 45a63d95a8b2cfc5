"""A folder of models, shared by any number of processes, in which every byte is accounted for."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock

from voicepipe.errors import ComponentError, UsageError
from voicepipe.model_catalogue import MODELS, Archives, Model, ModelFile, Source
from voicepipe.model_sources import Hub, SourceFailed, deliver_archives

CACHE_VARIABLE = "VOICEPIPE_MODELS"

log = logging.getLogger(__name__)


class ModelStore:
    """Models below one folder. Any number of processes may share the folder.

    Every method that takes a name raises `UsageError` for one that is not in the catalogue, and
    `ComponentError` with one line when the model cannot be had or its files are not the pinned
    ones; a wrong file is removed.
    """

    def __init__(
        self, root: Path, models: Sequence[Model] = MODELS, hub: Hub | None = None
    ) -> None:
        self.root = root
        self.models = tuple(models)
        self._hub = hub or Hub()
        self._verified: dict[Path, tuple[int, ...]] = {}

    def model(self, name: str) -> Model:
        for model in self.models:
            if model.name == name:
                return model
        known = ", ".join(model.name for model in self.models)
        raise UsageError(f"unknown model {name!r}; known: {known}")

    def path_of(self, name: str) -> Path:
        """The folder with the model's verified files; what is absent is fetched first.

        A name with a path separator is a file or folder of the user's own, handed back as it is:
        nothing is pinned for it.
        """
        if os.sep in name:
            own = Path(name).expanduser()
            if not own.exists():
                raise UsageError(f"no such model file or folder: {own}")
            return own
        model = self.model(name)
        if self._absent(model):
            return self.fetch(name)
        self.verify(name)
        return self.root / name

    def is_present(self, name: str) -> bool:
        """Whether every file is there in its full size (its hash is for `verify` to say)."""
        model = self.model(name)
        return not any(self._is_incomplete(model, file) for file in model.files)

    def verify(self, name: str) -> None:
        """Compare every file with its pinned hash, once for each state of the file."""
        model = self.model(name)
        folder = self.root / name
        if absent := self._absent(model):
            raise ComponentError(
                f"model {name}: {absent[0]} is not in {folder}; run: voicepipe models fetch {name}"
            )
        wrong = [file for file in model.files if not self._is_right(folder / file.name, file)]
        if wrong:
            with self._disk(model):
                for file in wrong:
                    (folder / file.name).unlink(missing_ok=True)
            raise ComponentError(
                f"model {name}: {folder / wrong[0].name} did not have the pinned SHA-256"
                f" {wrong[0].sha256[:12]}... and was removed; run: voicepipe models fetch {name}"
            )

    def fetch(self, name: str) -> Path:
        """Make the model complete and right, from whichever source delivers; returns its folder.

        Files that are already right are kept, wrong ones replaced. A second process that wants the
        same model waits and finds it done.
        """
        model = self.model(name)
        with self._disk(model), self._lock(model):
            folder = self.root / name
            lacking = [file for file in model.files if not self._is_right(folder / file.name, file)]
            if lacking:
                _announce(f"fetching model {name} ({megabytes(model.n_bytes)})")
                with self._scratch(model) as scratch:
                    self._gather(model, lacking, scratch)
        return folder

    def _gather(self, model: Model, lacking: Sequence[ModelFile], scratch: Path) -> None:
        """Collect the files in `scratch`, source by source, and move them in when all are right."""
        folder, staged = self.root / model.name, scratch / "staged"
        staged.mkdir()
        reasons = []
        for source in model.sources:
            wanted = {
                file.name
                for file in lacking
                if file.name in source.file_names and not (staged / file.name).is_file()
            }
            if wanted:
                reasons += self._try_source(model, source, wanted, staged)
        if any(not (staged / file.name).is_file() for file in lacking):
            raise ComponentError(
                f"model {model.name}: cannot be fetched ({'; '.join(reasons)});"
                f" check the network, or put its files into {folder}"
            )
        for file in lacking:
            (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged / file.name, folder / file.name)
            self._is_right(folder / file.name, file)

    def _try_source(
        self, model: Model, source: Source, wanted: set[str], staged: Path
    ) -> list[str]:
        """Returns what went wrong; the files that are right stay in `staged`, others do not."""
        files = {file.name: file for file in model.files}
        reasons = []
        try:
            if isinstance(source, Archives):
                deliver_archives(source, files, wanted, staged)
            else:
                self._hub.deliver(source, wanted, staged)
        except SourceFailed as failure:
            reasons.append(f"{source.label}: {failure}")
        for name in sorted(wanted):
            path = staged / name
            if path.is_file() and not self._is_right(path, files[name]):
                path.unlink()
                reasons.append(f"{source.label}: {name} has the wrong SHA-256")
        return reasons

    def _absent(self, model: Model) -> list[str]:
        folder = self.root / model.name
        return [file.name for file in model.files if not (folder / file.name).is_file()]

    def _is_incomplete(self, model: Model, file: ModelFile) -> bool:
        path = self.root / model.name / file.name
        return not path.is_file() or path.stat().st_size != file.n_bytes

    def _is_right(self, path: Path, file: ModelFile) -> bool:
        """Hash the file, unless this process has already done so in its present state."""
        if not path.is_file():
            return False
        found = path.stat()
        state = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._verified.get(path) == state:
            return True
        if found.st_size != file.n_bytes:
            return False
        with path.open("rb") as content:
            right = hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
        if right:
            self._verified[path] = state
        return right

    @contextmanager
    def _scratch(self, model: Model) -> Iterator[Path]:
        """A folder on the same file system, for whoever holds the model's lock; what a killed
        process left in it goes first."""
        scratch = self.root / ".fetching" / model.name
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _lock(self, model: Model) -> filelock.BaseFileLock:
        (self.root / ".locks").mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(self.root / ".locks" / f"{model.name}.lock")

    @contextmanager
    def _disk(self, model: Model) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ComponentError(
                f"model {model.name} ({megabytes(model.n_bytes)}): cannot write below {self.root}"
                f" ({error.strerror or error}); free space or permit it, or set {CACHE_VARIABLE}"
                " to another folder"
            ) from error


def _announce(text: str) -> None:
    """Above the progress bars of the clients on a terminal; else for whoever reads the log."""
    if sys.stderr.isatty():
        sys.stderr.write(f"voicepipe: {text}\n")
    else:
        log.info(text)


def megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.0f} MB"
