"""The model store against real clients: pip on local wheels, the hub's client on a local server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.toy_model import (
    BIG,
    FROM_HUB,
    FROM_PARTS,
    FROM_PIP,
    SMALL,
    pinned,
    toy,
    with_toy,
)
from voicepipe import models
from voicepipe.clock import process_time_s
from voicepipe.errors import ComponentError, UsageError
from voicepipe.model_catalogue import MODELS, Archives, Model, Piece
from voicepipe.model_sources import HUB_REFUSED, Hub, SourceFailed, append_member, deliver_archives
from voicepipe.model_store import ModelStore


def write_wheel(folder: Path, package: str, members: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{package}/{name}", content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        archive.writestr(f"{info}/RECORD", "")
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('imported')")
    return wheel


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index, with the toy whole and in two parts."""
    folder = tmp_path / "wheels"
    write_wheel(folder, "vp_toy", {"data/big.bin": BIG, "data/small.json": SMALL})
    cut = len(BIG) // 3
    write_wheel(folder, "vp_toy_part1", {"data/a.bin": BIG[:cut], "data/small.json": SMALL})
    write_wheel(folder, "vp_toy_part2", {"data/b.bin": BIG[cut:]})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@dataclass
class FakeHub:
    """As much of the hub's protocol as its client needs. `hang` names the method that never
    gets its answer's body; `paths` is every request seen."""

    content: dict[str, bytes] = field(default_factory=dict)
    hang: str = ""
    requests: list[str] = field(default_factory=list)
    end: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    hub = FakeHub({"/some/toy/resolve/main/en/big.bin": BIG})
    hub.content["/some/toy/resolve/main/en/inner/small.json"] = SMALL

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer("HEAD")

        def do_GET(self) -> None:
            self.answer("GET")

        def answer(self, method: str) -> None:
            hub.requests.append(f"{method} {self.path}")
            content = hub.content.get(self.path)
            if hub.hang == method == "HEAD":
                hub.end.wait(30)
                return
            self.send_response(200 if content is not None else 404)
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{hashlib.sha256(content or b"").hexdigest()}"')
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if method == "GET" and content is not None:
                if hub.hang == "GET":
                    self.wfile.write(content[: len(content) // 2])
                    hub.end.wait(30)
                    return
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    yield hub
    hub.end.set()
    server.shutdown()
    thread.join()
    server.server_close()


def only_the_toy_in(root: Path) -> bool:
    """Nothing of an attempt is left beside the model."""
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    files -= {".locks/toy.lock"}
    return files == {"toy/big.bin", "toy/inner/small.json"}


def test_archives_are_joined_verified_and_moved_in(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "cache", [toy(FROM_PARTS)])
    assert not store.is_present("toy")
    folder = store.path_of("toy")
    assert folder == tmp_path / "cache" / "toy"
    assert (folder / "big.bin").read_bytes() == BIG
    assert (folder / "inner" / "small.json").read_bytes() == SMALL
    assert store.is_present("toy")
    assert only_the_toy_in(store.root)
    shutil.rmtree(wheels)
    assert store.path_of("toy") == folder, "a model that is there needs no source"


def test_a_changed_file_is_an_error_and_removed_and_fetched_again(
    tmp_path: Path, wheels: Path
) -> None:
    store = with_toy(tmp_path / "cache")
    broken = store.path_of("toy") / "big.bin"
    broken.write_bytes(BIG[:-1] + b"x")
    with pytest.raises(ComponentError, match=r"toy: .*big\.bin did not have the pinned SHA-256"):
        store.path_of("toy")
    assert not broken.exists()
    assert store.path_of("toy") == broken.parent
    assert broken.read_bytes() == BIG


def test_a_truncated_file_is_wrong_too(tmp_path: Path) -> None:
    store = with_toy(tmp_path / "cache", BIG[:1000])
    assert not store.is_present("toy")
    with pytest.raises(ComponentError, match="was removed"):
        store.path_of("toy")
    assert not (store.root / "toy" / "big.bin").exists()
    with pytest.raises(ComponentError, match="run: voicepipe models fetch toy"):
        store.verify("toy")


def test_fetch_replaces_what_is_wrong_and_keeps_what_is_right(tmp_path: Path, wheels: Path) -> None:
    store = with_toy(tmp_path / "cache", b"")
    right = store.root / "toy" / "inner" / "small.json"
    before = right.stat().st_ino
    assert (store.fetch("toy") / "big.bin").read_bytes() == BIG
    assert right.stat().st_ino == before


def test_an_archive_with_other_bytes_is_refused_in_one_line(tmp_path: Path, wheels: Path) -> None:
    write_wheel(wheels, "vp_toy_part2", {"data/b.bin": bytes(len(BIG) - len(BIG) // 3)})
    store = ModelStore(tmp_path / "cache", [toy(FROM_PARTS)])
    with pytest.raises(ComponentError) as caught:
        store.path_of("toy")
    assert "PyPI vp-toy-part1==1.0 and 1 more: big.bin has the wrong SHA-256" in str(caught.value)
    assert "\n" not in str(caught.value)
    left = {path.name for path in store.root.rglob("*") if path.is_file()}
    assert left == {"toy.lock"}, "not even the files that were right"


def test_an_archive_that_is_longer_than_pinned_is_not_unpacked(
    tmp_path: Path, wheels: Path
) -> None:
    write_wheel(wheels, "vp_toy", {"data/big.bin": bytes(50_000_000)})
    store = ModelStore(tmp_path / "cache", [toy(FROM_PIP)])
    with pytest.raises(ComponentError, match=rf"big\.bin is longer than {len(BIG)} bytes"):
        store.path_of("toy")


def test_a_missing_member_and_a_missing_package_say_so(tmp_path: Path, wheels: Path) -> None:
    write_wheel(wheels, "vp_toy", {"data/other.bin": b""})
    store = ModelStore(tmp_path / "cache", [toy(FROM_PIP)])
    with pytest.raises(ComponentError, match=r"vp_toy/data/big\.bin"):
        store.path_of("toy")
    shutil.rmtree(wheels)
    wheels.mkdir()
    with pytest.raises(ComponentError, match=r"No matching distribution found for vp-toy==1"):
        store.path_of("toy")


def test_a_truncated_archive_is_damaged(tmp_path: Path, wheels: Path) -> None:
    wheel = wheels / "vp_toy-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:-200])
    with pytest.raises(ComponentError) as caught:
        ModelStore(tmp_path / "cache", [toy(FROM_PIP)]).path_of("toy")
    assert "\n" not in str(caught.value)
    assert "vp_toy" in str(caught.value)


NOISE = hashlib.sha256(b"noise").digest() * 8
LZMA_OF_NOTHING = bytes.fromhex("090405005d00001000") + NOISE


def archive_bytes(kind: str) -> bytes:
    held = io.BytesIO()
    if kind == ".tgz":
        with tarfile.open(fileobj=held, mode="w:gz") as tar:
            entry = tarfile.TarInfo("a.bin")
            entry.size = len(NOISE)
            tar.addfile(entry, io.BytesIO(NOISE))
    else:
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr("a.bin", NOISE)
            wheel.writestr("b.bin", LZMA_OF_NOTHING, zipfile.ZIP_STORED)
            wheel.writestr("\u00e9", b"")
    return held.getvalue()


@pytest.mark.parametrize(
    ("kind", "member", "values"),
    [(".whl", "a.bin", (1, 12, 255)), (".whl", "b.bin", (14, 255)), (".tgz", "a.bin", (255,))],
)
def test_no_damage_to_an_archive_escapes_as_another_error(
    tmp_path: Path, kind: str, member: str, values: tuple[int, ...]
) -> None:
    """Every byte in turn is changed, also in the headers that zipfile trusts: to the numbers of
    compression methods (12 and 14), to the flag of encryption (1); and every cut is tried."""
    whole = archive_bytes(kind)
    archive = tmp_path / f"toy{kind}"
    out = tmp_path / "out.bin"
    damaged = [
        whole[:at] + bytes([value]) + whole[at + 1 :]
        for at in range(len(whole))
        for value in values
    ]
    n_refused = 0
    for content in [*damaged, *(whole[:cut] for cut in range(len(whole)))]:
        archive.write_bytes(content)
        out.unlink(missing_ok=True)
        try:
            append_member(archive, member, out, limit_bytes=1000)
        except SourceFailed:
            n_refused += 1
        assert out.stat().st_size <= 1000
    assert n_refused > len(whole)


def test_two_processes_fetch_at_once(tmp_path: Path, wheels: Path) -> None:
    """Both get the whole model; the second waits for the first instead of writing over it."""
    program = (
        "import sys; from pathlib import Path; from tests.toy_model import toy, FROM_PIP;"
        "from voicepipe.model_store import ModelStore;"
        "print(ModelStore(Path(sys.argv[1]), [toy(FROM_PIP)]).path_of('toy'))"
    )
    root = tmp_path / "cache"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [child.communicate()[0].strip() for child in both] == [str(root / "toy")] * 2
    assert [child.returncode for child in both] == [0, 0]
    assert (root / "toy" / "big.bin").read_bytes() == BIG
    assert only_the_toy_in(root)


def test_what_a_killed_process_left_is_swept(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "cache", [toy(FROM_PIP)])
    debris = store.root / ".fetching" / "toy" / "staged" / "big.bin"
    debris.parent.mkdir(parents=True)
    debris.write_bytes(b"half")
    store.fetch("toy")
    assert only_the_toy_in(store.root)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ComponentError) as caught:
        ModelStore(tmp_path / "file" / "cache", [toy(FROM_PIP)]).path_of("toy")
    assert "cannot write below" in str(caught.value)
    assert "VOICEPIPE_MODELS" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(tmp_path: Path, wheels: Path) -> None:
    """A limit on file sizes stands in for the full disk: the write fails half-way all the same."""
    program = (
        "import resource, sys; from pathlib import Path;"
        "from tests.toy_model import toy, FROM_PIP;"
        "from voicepipe.model_store import ModelStore;"
        "from voicepipe.errors import ComponentError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: ModelStore(Path(sys.argv[1]), [toy(FROM_PIP)]).path_of('toy')\n"
        "except ComponentError as error: print(error)"
    )
    root = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=False
    )
    assert "File too large" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1
    assert not list(root.rglob("*.bin"))


def test_a_complete_cache_needs_no_permission_to_write(tmp_path: Path) -> None:
    store = with_toy(tmp_path / "cache")
    (store.root / ".locks").write_bytes(b"no folder, so no lock can be taken")
    assert store.path_of("toy") == store.root / "toy"


def test_the_hub_delivers(tmp_path: Path, hub_server: FakeHub) -> None:
    store = ModelStore(tmp_path / "cache", [toy(FROM_HUB)])
    assert (store.path_of("toy") / "big.bin").read_bytes() == BIG
    assert only_the_toy_in(store.root)


def test_the_hubs_own_cache_is_used_before_the_network(
    tmp_path: Path, hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of HF_HOME is filled by the hub's client itself."""
    fill = "import sys; from huggingface_hub import hf_hub_download as get\n"
    fill += "for path in sys.argv[1:]: get('some/toy', path)"
    subprocess.run(
        [sys.executable, "-c", fill, "en/big.bin", "en/inner/small.json"],
        check=True,
        env={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    hub_server.requests.clear()
    store = ModelStore(tmp_path / "cache", [toy(FROM_HUB)])
    assert (store.path_of("toy") / "big.bin").read_bytes() == BIG
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    store = ModelStore(tmp_path / "offline", [toy(FROM_HUB)])
    assert (store.path_of("toy") / "big.bin").read_bytes() == BIG
    assert not [request for request in hub_server.requests if "some/toy" in request]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_hub_that_hangs_is_left_for_the_next_source_and_not_asked_again(
    tmp_path: Path, wheels: Path, hub_server: FakeHub, method: str
) -> None:
    hub_server.hang = method
    store = ModelStore(
        tmp_path / "cache", [toy(FROM_HUB, FROM_PIP)], hub=Hub(first_byte_s=1.5, stall_s=1.5)
    )
    assert (store.path_of("toy") / "big.bin").read_bytes() == BIG
    assert hub_server.requests
    hub_server.requests.clear()
    shutil.rmtree(store.root / "toy")
    assert (store.path_of("toy") / "big.bin").read_bytes() == BIG
    assert hub_server.requests == [], "the hub was asked again in the same process"


def test_the_patience_with_a_hub_is_a_few_seconds(tmp_path: Path, hub_server: FakeHub) -> None:
    hub_server.hang = "HEAD"
    begun_s = process_time_s()
    with pytest.raises(ComponentError, match="sent nothing for 4 s"):
        ModelStore(tmp_path / "cache", [toy(FROM_HUB)]).path_of("toy")
    assert process_time_s() - begun_s < 30


def test_a_hub_with_other_bytes_is_refused_and_the_next_source_is_tried(
    tmp_path: Path, wheels: Path, hub_server: FakeHub
) -> None:
    hub_server.content["/some/toy/resolve/main/en/big.bin"] = BIG[:-1] + b"x"
    store = ModelStore(tmp_path / "cache", [toy(FROM_HUB, FROM_PIP)])
    assert (store.path_of("toy") / "big.bin").read_bytes() == BIG
    with pytest.raises(ComponentError, match=r"Hugging Face hub some/toy: big\.bin has the wrong"):
        ModelStore(tmp_path / "other", [toy(FROM_HUB)]).path_of("toy")


def test_a_hub_without_the_file_is_still_asked_for_others(
    tmp_path: Path, hub_server: FakeHub
) -> None:
    missing = hub_server.content.pop("/some/toy/resolve/main/en/big.bin")
    store = ModelStore(tmp_path / "cache", [toy(FROM_HUB)])
    with pytest.raises(ComponentError, match="404"):
        store.path_of("toy")
    hub_server.content["/some/toy/resolve/main/en/big.bin"] = missing
    assert (store.path_of("toy") / "big.bin").read_bytes() == BIG


def test_the_hubs_client_reports_refusal_by_its_exit_status(hub_server: FakeHub) -> None:
    from_source = Path(models.__file__).with_name("hub_download.py").read_text()
    assert f"REFUSED = {HUB_REFUSED}\n" in from_source


def test_npm_is_named_when_it_is_needed_and_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    from_npm = Archives("npm", (Piece("toy@1.0", "package/big.bin", "big.bin"),))
    with pytest.raises(SourceFailed, match=r"needs the command npm: install Node\.js"):
        deliver_archives(from_npm, {"big.bin": pinned("big.bin", BIG)}, ["big.bin"], tmp_path)


def test_an_unknown_model_lists_the_known_ones(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, [toy(FROM_PIP)])
    for ask in (store.path_of, store.fetch, store.verify, store.is_present):
        with pytest.raises(UsageError, match="unknown model 'to'; known: toy"):
            ask("to")


def test_a_path_of_the_users_own_is_handed_back(tmp_path: Path) -> None:
    own = tmp_path / "model.gguf"
    with pytest.raises(UsageError, match="no such model file or folder"):
        models.path_of(str(own))
    own.write_bytes(b"")
    assert models.path_of(str(own)) == own


def test_the_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOICEPIPE_MODELS", str(tmp_path))
    assert models.run_models_command("path", []) == str(tmp_path)
    assert not models.is_present("whisper-base")
    monkeypatch.setenv("VOICEPIPE_MODELS", "")
    assert models.cache_root().name == "models"
    assert models.cache_root().parent.name == "voicepipe"


def test_the_commands_print_what_they_did(tmp_path: Path, wheels: Path) -> None:
    store = ModelStore(tmp_path / "cache", [toy(FROM_PIP)])
    assert "absent" in models.run_models_command("list", [], store)
    assert "no models" in models.run_models_command("verify", [], store)
    assert models.run_models_command("fetch", ["toy"], store) == f"toy: {store.root / 'toy'}"
    assert models.run_models_command("path", ["toy"], store) == str(store.root / "toy")
    assert models.run_models_command("verify", [], store) == "toy: ok"
    assert "present" in models.run_models_command("list", ["toy"], store)
    with pytest.raises(UsageError, match="unknown models command 'remove'; known: list, fetch"):
        models.run_models_command("remove", [], store)
    with pytest.raises(UsageError, match="unknown model 'nope'"):
        models.run_models_command("fetch", ["toy", "nope"], store)


def test_the_list_names_every_licence_that_is_not_permissive(tmp_path: Path) -> None:
    listed = models.run_models_command("list", [], ModelStore(tmp_path))
    for model in models.known():
        assert model.name in listed
        assert model.licence in listed
    for word in ("piper-tts", "espeak-ng", "GPL-3.0", "permissive alternative", "soxr"):
        assert word in listed


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_catalogue_is_consistent(model: Model) -> None:
    """Every file has a hash, a size and at least one source that does not need the hub."""
    names = [file.name for file in model.files]
    assert len(set(names)) == len(names)
    for file in model.files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert file.n_bytes > 0
    from_archives = {
        name
        for source in model.sources
        if isinstance(source, Archives)
        for name in source.file_names
    }
    assert from_archives == set(names)
    for source in model.sources:
        assert set(source.file_names) <= set(names)
        if isinstance(source, Archives) and source.client == "pip":
            assert all("==" in piece.requirement for piece in source.pieces)


@pytest.mark.models
def test_the_default_models_are_what_they_should_be() -> None:
    for model in models.known():
        if model.default:
            folder = models.path_of(model.name)
            assert models.is_present(model.name)
            assert set(models.hashes(model.name)) == {file.name for file in model.files}
            for path in folder.rglob("*.json"):
                assert json.loads(path.read_text())
