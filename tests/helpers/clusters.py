"""Indexes with fine codes but without a model, as one process has them and in shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mchindex.cluster import ClusterIndex
from mchindex.cluster.manifest import Manifest, shard_names
from mchindex.index import MCHIndex
from mchindex.index.identity import FineIdentity, Identity
from mchindex.index.ranking import Query
from mchindex.index.results import Answers, Hits
from mchindex.inference.words import WordQuery
from mchindex.regions import read_layout
from mchindex.storage.records import Row, code_type
from mchindex.storage.store import Store

PATIENCE = 300.0  # seconds that a shard may take on a busy machine
BITS, FINE_BITS = 16, 32
_LAYOUT = read_layout("corners", 0.5)
REGIONS = len(_LAYOUT.names)
_CELLS = np.random.default_rng(5).integers(0, 256, (4, FINE_BITS // 8), np.uint8)
FINE = FineIdentity(FINE_BITS, "fine", _CELLS)
KIND = (FINE.bits, FINE.fingerprint)


def facts() -> dict[str, Any]:
    identity = Identity(BITS, "codes", None, _LAYOUT.names, _LAYOUT.boxes)
    return {"model": identity.to_json(), "fine": FINE.to_json()}


def one_index(folder: Path) -> MCHIndex:
    folder.mkdir(parents=True)
    store = Store(folder)
    with store.writer():
        store.set(**facts())
    store.close()
    return MCHIndex.open(folder)


def cluster(folder: Path, shards: int, address: str | None = None, **options: Any) -> ClusterIndex:
    folder.mkdir(parents=True)
    Manifest(shard_names(shards), options.pop("replicas", 0), facts=facts()).write(folder)
    return ClusterIndex.open(folder, address=address, timeout=PATIENCE, **options)


def row(id: Any, seed: int, spread: int, fine: bool = True) -> Row:
    """An image with one to three codes of few values, so that there are many ties."""
    rng = np.random.default_rng([seed, spread])
    regions = rng.permutation(REGIONS)[: 1 + seed % 3]
    entries = np.zeros(len(regions), code_type(BITS))
    entries["region"] = np.sort(regions)
    entries["keep"] = 1
    entries["code"] = code_of(rng, len(regions), spread)
    few = rng.integers(0, 2**spread, (REGIONS, FINE_BITS // 8), np.uint8)
    metadata = f'{{"kind": {seed % 3}, "seed": {seed}}}'
    return Row(
        id, entries.tobytes(), f"/pictures/{id}", 10, None, None, 60, 40, metadata,
        fine=few.tobytes() if fine else None,
    )  # fmt: skip


def code_of(rng: np.random.Generator, n: int, spread: int) -> NDArray[np.uint8]:
    return rng.integers(0, 2**spread, (n, BITS // 8), np.uint8)


def query_of(seed: int, n: int, spread: int) -> Query:
    rng = np.random.default_rng([seed, 99])
    fine = rng.normal(size=(n, FINE_BITS)).astype(np.float32)
    return Query(code_of(rng, n, spread), np.round(fine, 1))  # rounded: more ties


def words_of(seed: int, wanted: Sequence[bool]) -> WordQuery:
    rng = np.random.default_rng([seed, 98])
    n = len(wanted)
    vectors = np.round(rng.normal(size=(n, FINE_BITS)), 1).astype(np.float32)
    curves = np.tile(np.array([[3.0, -1.0]], np.float32), (n, 1))
    return WordQuery(vectors, curves, np.array(wanted), 0.5)


def told(answers: Answers | Hits) -> list[Any]:
    """All that an answer says, but for how much work it was."""
    several = [answers] if isinstance(answers, Hits) else list(answers)
    return [
        (
            [hit.to_dict() for hit in hits], hits.buckets, hits.radius, hits.exact,
            hits.limited_by, hits.codes, hits.rank, hits.partial,
        )
        for hits in several
    ]  # fmt: skip
