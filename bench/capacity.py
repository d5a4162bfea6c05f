"""How much does a cluster need for so many images? A model, checked against what is measured.

    python bench/capacity.py --out bench/results/capacity.json

Two indexes of drawn codes are measured, as a shipped model makes them: some 64-bit codes and five
fine codes of 256 bits per image. A straight line through the two says what any number of images
needs on disk, in memory and of a core's time per query; the bytes that a query moves are those of
the larger one. The lines are then compared with a larger cluster. Shards are opened in this
process, one thread searches, and times are those of the processor, so that other work on the
machine counts little.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from common import progress, record, write_json
from kinds import Codes, clustered, flip
from mchindex.cluster import ClusterIndex
from mchindex.cluster.manifest import Manifest, shard_names
from mchindex.cluster.wire import encode
from mchindex.index.identity import FineIdentity, Identity
from mchindex.index.ranking import Query
from mchindex.regions import read_layout
from mchindex.storage.records import Row, code_type

BITS, FINE_BITS, CELLS, K = 64, 256, 4096, 10
CODES = 1.6  # per image, mean
LAYOUT = read_layout("corners", 0.5)
REGIONS = len(LAYOUT.names)
RANKS = ("code", "best")
PIECE = 20_000  # images drawn at a time


def facts(cells: Codes) -> dict[str, Any]:
    identity = Identity(BITS, "codes", None, LAYOUT.names, LAYOUT.boxes)
    return {
        "model": identity.to_json(), "fine": FineIdentity(FINE_BITS, "fine", cells).to_json()
    }  # fmt: skip


def opened(folder: Path, shards: int, cells: Codes) -> ClusterIndex:
    """A new cluster whose shards are in this process."""
    folder.mkdir()
    Manifest(shard_names(shards), facts=facts(cells)).write(folder)
    return ClusterIndex.open(folder, address=None)


def rows(images: int, codes: Codes, fine: Codes, rng: np.random.Generator) -> Iterator[Row]:
    """Images with one to three codes, and a fine code per region near one of the cells."""
    for start in range(0, images, PIECE):
        n = min(PIECE, images - start)
        own = np.repeat(codes[start : start + n, None], REGIONS, 1)
        flip(rng, own.reshape(-1, BITS // 8))
        cells = fine[rng.integers(0, len(fine), (n, REGIONS))]
        noise = rng.integers(0, 256, (2, n, REGIONS, FINE_BITS // 8), np.uint8)
        cells = cells ^ (noise[0] & noise[1])  # a quarter of the bits
        counts = rng.choice([1, 2, 3], n, p=[0.55, 0.3, 0.15])
        for i in range(n):
            entries = np.zeros(counts[i], code_type(BITS))
            entries["region"], entries["keep"] = range(counts[i]), 1
            entries["code"] = own[i, : counts[i]]
            yield Row(
                start + i, entries.tobytes(), f"/pictures/{start + i:09}.jpg", 100_000, None, None,
                640, 480, "{}", fine=cells[i].tobytes(),
            )  # fmt: skip


def seconds(search: Callable[[int], object], times: int) -> float:
    """Of the processor per call: the least of several rounds, after one that is not counted."""
    took = []
    for turn in range(times):
        began = time.process_time()
        search(turn)
        took.append(time.process_time() - began)
    return min(took[1:])


@contextlib.contextmanager
def counting(index: ClusterIndex, moved: list[int]) -> Iterator[None]:
    """Counts the bytes that would travel between a caller and the shards."""
    shards: Any = index._store._shards
    ask = shards.ask

    def counted(
        name: str, arguments: Mapping[int, Sequence[Any]], *, change: bool = False
    ) -> dict[int, Any]:
        answers: dict[int, Any] = ask(name, arguments, change=change)
        several = [(name, given) for given in arguments.values()]
        moved.append(sum(len(encode(x)) for x in [*several, *answers.values()]))
        return answers

    with mock.patch.object(shards, "ask", counted):
        yield


def measured(images: int, shards: int, batch: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    cells = rng.integers(0, 256, (CELLS, FINE_BITS // 8), np.uint8)
    codes, asked = clustered(rng, images, batch, BITS)
    projections = np.where(np.unpackbits(cells[rng.integers(0, CELLS, batch)], axis=1), 1, -1)
    query = Query(asked, projections + rng.normal(0, 1, projections.shape).astype(np.float32))
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder, "c"), shards, cells) as index:
        progress(f"adding {images:,} images to {shards} shards")
        index.add_records(rows(images, codes, cells, rng), (FINE_BITS, "fine"))
        stats = index.stats()
        found: dict[str, Any] = {
            "images": images, "shards": shards, "codes": stats["codes"],
            "disk": stats["bytes"], "memory": stats["memory"],
        }  # fmt: skip
        for rank in RANKS:
            moved: list[int] = []
            rounds = 12 if rank == "code" else 5

            def work(turn: int, rank: Any = rank) -> None:
                index.queries.search(query, K, (), rank=rank, threads=1)

            times = seconds(work, rounds)
            with counting(index, moved):
                work(0)
            found[f"{rank} core seconds per query"] = times / batch
            found[f"{rank} bytes per query and shard"] = sum(moved) / batch / shards
        return found


def predicted(
    few: Mapping[str, Any], many: Mapping[str, Any], images: int, shards: int
) -> dict[str, Any]:
    """What a cluster should need, from two indexes in one shard."""
    share = (images / shards - few["images"]) / (many["images"] - few["images"])
    found: dict[str, Any] = {"images": images, "shards": shards}
    for name in many.keys() - found.keys():
        if "bytes" in name:
            found[name] = many[name]
        else:
            found[name] = shards * (few[name] + share * (many[name] - few[name]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", type=int, nargs=2, default=[100_000, 300_000])
    parser.add_argument("--check", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    few, many = (measured(images, 1, options.batch) for images in options.fit)
    check = measured(options.check, options.shards, options.batch)
    expected = predicted(few, many, options.check, options.shards)
    billion = predicted(few, many, 10**9, 64)
    found = [
        {"what": "fit", **few}, {"what": "fit", **many},
        {"what": "measured", **check},
        {"what": "predicted", **expected}, {"what": "predicted", **billion},
    ]  # fmt: skip
    for row in found:
        print(row)
    if options.out:
        settings = {k: v for k, v in vars(options).items() if k != "out"}
        write_json(options.out, record(settings, 1, found))


if __name__ == "__main__":
    main()
