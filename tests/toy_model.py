"""A model of two small files, for tests of the store and of what asks it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from voicepipe.model_catalogue import Archives, HubRepo, Model, ModelFile, Piece
from voicepipe.model_store import ModelStore

BIG = bytes(range(256)) * 512
SMALL = b'{"hello": "world"}'


def pinned(name: str, content: bytes) -> ModelFile:
    return ModelFile(name, hashlib.sha256(content).hexdigest(), len(content))


FROM_PIP = Archives(
    "pip",
    (
        Piece("vp-toy==1.0", "vp_toy/data/big.bin", "big.bin"),
        Piece("vp-toy==1.0", "vp_toy/data/small.json", "inner/small.json"),
    ),
)
FROM_PARTS = Archives(
    "pip",
    (
        Piece("vp-toy-part1==1.0", "vp_toy_part1/data/a.bin", "big.bin"),
        Piece("vp-toy-part2==1.0", "vp_toy_part2/data/b.bin", "big.bin"),
        Piece("vp-toy-part1==1.0", "vp_toy_part1/data/small.json", "inner/small.json"),
    ),
)
FROM_HUB = HubRepo(
    "some/toy", (("big.bin", "en/big.bin"), ("inner/small.json", "en/inner/small.json"))
)


def toy(*sources: Archives | HubRepo) -> Model:
    return Model(
        name="toy",
        what="a model for tests",
        licence="MIT",
        upstream="some/toy",
        files=(pinned("big.bin", BIG), pinned("inner/small.json", SMALL)),
        sources=sources,
    )


def with_toy(root: Path, big: bytes = BIG) -> ModelStore:
    """A store in which the toy already lies, right or wrong."""
    (root / "toy" / "inner").mkdir(parents=True)
    (root / "toy" / "big.bin").write_bytes(big)
    (root / "toy" / "inner" / "small.json").write_bytes(SMALL)
    return ModelStore(root, [toy(FROM_PIP)])
