"""Attention state on disk: one file a block, in a folder that several processes may share."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from stages.llm.kv_blocks import KEY_BYTES
from voicepipe.clock import wall_time_s

log = logging.getLogger(__name__)

HEADER = struct.Struct(f"<8s{KEY_BYTES}sQ16s")
"""Format, key of the block, bytes of state, checksum of the state; the state follows."""

FORMAT = b"vpkv0001"

SCANNED_SHARE = 16
"""The folder is measured anew whenever this part of its limit was written: others write, too."""

KEPT_SHARE = 7 / 8
"""Of the limit, what is left when it was exceeded, so that it is not exceeded again at once."""

STALE_S = 3600.0
"""The age at which an unfinished file is nobody's any more."""


class DiskBlocks:
    """Blocks of state by key, at most `max_bytes` in `folder`, least recently used removed first.

    A file appears whole or not at all and is checked when it is read; a broken one is removed and
    counts as absent. When the folder cannot be used or the disk is full there is one warning, and
    from then on nothing is found or saved. Several processes may exceed the limit by a sixteenth
    of it each.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.is_usable = max_bytes > 0
        self._folder = folder
        self._n_bytes = 0
        self._n_unscanned = max_bytes
        self._has_warned = False
        try:
            if self.is_usable:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._give_up(error)

    def has(self, key: bytes) -> bool:
        return self.is_usable and self._path(key).exists()

    def load(self, key: bytes) -> bytes | None:
        """The state of a block; None when it is absent or broken."""
        if not self.is_usable:
            return None
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up(error)
            return None
        state = _unpacked(key, content)
        if state is None:
            self._warn(f"{path} is broken and was removed; what it held is computed again")
            with contextlib.suppress(OSError):
                path.unlink()
        return state

    def save(self, key: bytes, state: bytes) -> None:
        """Keep a block; it is the most recently used."""
        n_bytes = HEADER.size + len(state)
        if not self.is_usable or n_bytes > self.max_bytes:
            return
        try:
            self._make_room(n_bytes)
            self._write(
                self._path(key), HEADER.pack(FORMAT, key, len(state), _sum(key, state)), state
            )
        except OSError as error:
            self._give_up(error)

    def touch(self, keys: Sequence[bytes]) -> None:
        """A chain of blocks, from its first, was just used. Its last is the first to be removed:
        without those before it a block is of no use."""
        now_ns = int(wall_time_s() * 1e9)
        for n, key in enumerate(keys):
            used_ns = now_ns - 1000 * n
            with contextlib.suppress(OSError):
                os.utime(self._path(key), ns=(used_ns, used_ns))

    def _path(self, key: bytes) -> Path:
        return self._folder / f"{key.hex()}.kv"

    def _write(self, path: Path, *parts: bytes) -> None:
        handle, unfinished = tempfile.mkstemp(suffix=".tmp", dir=self._folder)
        try:
            with open(handle, "wb") as file:
                file.writelines(parts)
            os.replace(unfinished, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def _make_room(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        self._n_unscanned += n_bytes
        if self._n_bytes > self.max_bytes or self._n_unscanned > self.max_bytes // SCANNED_SHARE:
            self._trim(n_bytes)

    def _trim(self, n_new: int) -> None:
        """Measure the folder; if it exceeds the limit with `n_new` bytes more, remove files."""
        files = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if path.suffix == ".kv":
                    files.append((status.st_mtime_ns, status.st_size, path))
                elif path.suffix == ".tmp" and status.st_mtime < wall_time_s() - STALE_S:
                    path.unlink()
        n_bytes = n_new + sum(size for _, size, _ in files)
        if n_bytes > self.max_bytes:
            for _, size, path in sorted(files):
                if n_bytes <= max(n_new, self.max_bytes * KEPT_SHARE):
                    break
                path.unlink(missing_ok=True)
                n_bytes -= size
        self._n_bytes, self._n_unscanned = n_bytes, 0

    def _give_up(self, error: OSError) -> None:
        self.is_usable = False
        self._warn(f"{self._folder} is not used any more: {error.strerror or error}")

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("KV cache on disk: %s", message)


def _sum(key: bytes, state: bytes) -> bytes:
    return blake2b(state, digest_size=16, key=key).digest()


def _unpacked(key: bytes, content: bytes) -> bytes | None:
    if len(content) < HEADER.size:
        return None
    kind, of_key, n_bytes, checksum = HEADER.unpack_from(content)
    state = content[HEADER.size :]
    is_right = (kind, of_key, n_bytes) == (FORMAT, key, len(state)) and checksum == _sum(key, state)
    return state if is_right else None
