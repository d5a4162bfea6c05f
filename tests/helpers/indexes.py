"""A model that takes almost no time, pictures for it, and comparisons and damage of indexes."""

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from mchindex import MCHIndex, Stored
from mchindex.models import MCHModel, Policy, create_method
from mchindex.models.backbones import SmallNet
from mchindex.models.fine import FineHash

BITS = 32
SIDE = 8  # pixels per side of the backbone's input


class PixelRunner:
    """Takes the place of a network, which a forked process could not run: pixels are features."""

    name = "pixels"

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return pixels.reshape(len(pixels), -1).astype(np.float32)


@cache
def tiny_model(seed: int = 0) -> MCHModel:
    """A model with random weights whose policy keeps about half of the regions."""
    torch.manual_seed(seed)
    backbone = SmallNet(SIDE)
    method: Any = create_method("lsh", backbone.dim, BITS)
    method.mean.fill_(127.5)
    method.map.copy_(torch.randn(method.map.shape))
    policy: Any = Policy(method.feature_dim, BITS, width=4).eval()
    model = MCHModel(backbone, method, policy, device=torch.device("cpu"), engine="torch")
    model.extractor._run = PixelRunner()
    with torch.inference_mode():
        x = torch.from_numpy(
            np.random.default_rng(0).integers(0, 256, (64, backbone.dim)).astype(np.float32)
        )
        f, b = method.features(x), method.codes(x)
        policy.fit_scale(f)
        logits = policy.layers(policy.state(f[:32], f[32:], b[:32], b[32:]))
        policy.layers[-1].bias -= logits.median(0).values  # half of the regions are kept
    return model


@cache
def tiny_fine_model() -> MCHModel:
    """The same model with fine codes."""
    model, rng = tiny_model(), torch.Generator().manual_seed(0)
    fine = FineHash(model.backbone.dim, 32, 4)
    fine.mean.fill_(model.backbone.dim**-0.5)
    fine.rotation.copy_(torch.randn(fine.rotation.shape, generator=rng))
    fine.cells.copy_(torch.randint(0, 256, fine.cells.shape, generator=rng))
    model = replace(model, fine=fine)
    model.extractor._run = PixelRunner()
    return model


def drawn(seed: int, version: int = 0) -> NDArray[np.uint8]:
    """A small picture of noise, different for each seed and version."""
    return np.random.default_rng([seed, version]).integers(0, 256, (6, 8, 3), np.uint8)


def painted(seed: int, version: int = 0) -> Image.Image:
    return Image.fromarray(drawn(seed, version))


def codes_for(seed: int, version: int = 0, bits: int = BITS) -> NDArray[np.uint8]:
    """One to three codes for an image, around one of four centres, so that images are near."""
    rng = np.random.default_rng([seed, version])
    centre = np.random.default_rng(seed % 4).integers(0, 256, bits // 8, np.uint8)
    codes = np.repeat(centre[None], 1 + (seed + version) % 3, axis=0)
    flips = np.packbits(rng.random((len(codes), bits)) < 3 / bits, axis=1)
    return codes ^ flips


def content(index: MCHIndex) -> dict[Any, tuple[Any, ...]]:
    """All that can be read back of each image, by id."""
    return {stored.id: fields_of(stored) for stored in index.images()}


def fields_of(stored: Stored) -> tuple[Any, ...]:
    return (
        stored.path, stored.metadata, stored.size, stored.regions, stored.boxes,
        stored.keep.tobytes(), stored.codes.tobytes(),
    )  # fmt: skip


def answers(index: MCHIndex, queries: NDArray[np.uint8], k: int = 10, **limits: Any) -> list[Any]:
    return [
        ([(hit.id, hit.distance, hit.region) for hit in hits], hits.buckets, hits.candidates)
        for hits in index.search_codes(queries, k, **limits)
    ]


def fresh(images: Iterable[Stored], bits: int, numbers: Mapping[str, int]) -> MCHIndex:
    """A new index in memory with the same images in the same order, added in one call."""
    index = MCHIndex(bits=bits)
    ids: list[Any] = []
    codes: list[NDArray[np.uint8]] = []
    regions: list[int] = []
    for image in images:
        ids += [image.id] * len(image.codes)
        codes.append(image.codes)
        regions += [numbers[region] for region in image.regions]
    if ids:
        index.add_codes(ids, np.concatenate(codes), regions)
    return index


def assert_as_fresh(index: MCHIndex, seed: int = 0, queries: int = 8) -> None:
    """Asserts that searches find the same as in a new index of the same images."""
    images = list(index.images())
    assert len(index) == len(images)
    assert [image.id for image in images] == list(index)
    names = ["whole", *(f"region {i}" for i in range(1, 256))]
    names[: len(index.stats()["regions"])] = index.stats()["regions"]
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (queries, index.bits // 8), np.uint8)
    if images:
        some = [images[i].codes[0] for i in rng.integers(len(images), size=queries // 2)]
        codes[: len(some)] = some
    with fresh(images, index.bits, {name: i for i, name in enumerate(names)}) as other:
        assert len(other) == len(index)
        mine, theirs = answers(index, codes), answers(other, codes)
    # The new index has no model to name its regions.
    named = {f"region {i}": name for i, name in enumerate(names)} | {"whole": "whole"}
    assert mine == [([(i, d, named[r]) for i, d, r in hits], *rest) for hits, *rest in theirs]


def damage(folder: Path, *statements: str) -> None:
    """Changes the store of an index behind its back."""
    db = sqlite3.connect(folder / "index.sqlite", isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
