"""Downloads files of one hub repository; a program of its own, so that a hub that hangs can be
killed from outside (`voicepipe.model_sources` watches the folder grow).

Run as `python -P hub_download.py REPO REVISION FOLDER PATH…`: every path lands below FOLDER, from
the hub's local cache when it is there. On an error the reason is the one line on stdout, and the
exit status tells a hub that cannot be reached (1) from one that answered no (2).
"""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

from huggingface_hub import get_session, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

UNREACHABLE = 1
REFUSED = 2


def download(repo: str, revision: str, folder: Path, paths: list[str]) -> None:
    cached = {path: _in_cache(repo, revision, path) for path in paths}
    get_session()  # reads the certificates, which can take a second
    folder.mkdir()  # tells the watcher that from here on only the network is slow
    for path, found in cached.items():
        if found is None:
            hf_hub_download(repo, path, revision=revision, local_dir=folder)
        else:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, target)


def _in_cache(repo: str, revision: str, path: str) -> str | None:
    try:
        return hf_hub_download(repo, path, revision=revision, local_files_only=True)
    except LocalEntryNotFoundError:
        return None


def main(repo: str, revision: str, folder: str, *paths: str) -> int:
    # Its retries are no news to the user: another source delivers.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        download(repo, revision, Path(folder), list(paths))
    except HfHubHTTPError as error:
        reason, status = str(error), REFUSED
    except Exception as error:  # noqa: BLE001  (whatever the hub's client raises is the answer)
        reason, status = f"{type(error).__name__}: {error}", UNREACHABLE
    else:
        return 0
    sys.stdout.write(reason.strip().splitlines()[0] + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
