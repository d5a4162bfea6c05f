"""Measures a cluster on this machine beside one process.

    python bench/cluster.py search --out bench/results/cluster_search.json
    python bench/cluster.py add --pictures FOLDER --out bench/results/cluster_add.json

`search`: images by codes in one index and in shards, for each kind of data (see kinds.py; the
`small clusters` are of 20 codes); batches of queries, one after the other, and single queries.
The two take turns, and the figures are medians. `add`: the same pictures, added to both in turns,
`--block` at a time; memory is that of the driver and of the largest encoder.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import progress, record, write_json
from kinds import KINDS, Codes, flip
from mchindex.cluster import ClusterIndex
from mchindex.index import MCHIndex
from ray_nodes import Nodes

BITS = 64
SMALL = "small clusters"
IN_TURN = 20  # searches by one index, before the other's turn


def drawn(kind: str, images: int, queries: int) -> tuple[Codes, Codes]:
    """Codes to store, and others to look for."""
    rng = np.random.default_rng(0)
    if kind != SMALL:
        return KINDS[kind](rng, images, queries, BITS)
    centres = rng.integers(0, 256, (images // 20, BITS // 8), np.uint8)
    codes = centres[rng.integers(0, len(centres), images + queries)]
    flip(rng, codes)
    return codes[:images], codes[images:]


def search(
    kind: str, images: int, shards: int, batch: int, rounds: int, address: str
) -> dict[str, Any]:
    codes, asked = drawn(kind, images, rounds * batch)
    queries = asked.reshape(rounds, batch, BITS // 8)
    with tempfile.TemporaryDirectory() as folder:
        one = MCHIndex.open(Path(folder, "one.mch"), bits=BITS)
        many = ClusterIndex.open(
            Path(folder, "many"), bits=BITS, shards=shards, address=address, timeout=600
        )
        took = {}
        for name, index in (("one", one), ("cluster", many)):
            progress(f"adding {images:,} images to {name}")
            began = time.perf_counter()
            index.add_codes(np.arange(images), codes)
            took[name] = time.perf_counter() - began
        times: dict[str, list[float]] = {f"{n} {w}": [] for n in took for w in ("batch", "query")}
        for start in range(0, rounds, IN_TURN):
            some = queries[start : start + IN_TURN]
            for what, asked_now in (("batch", some), ("query", some[:, :1])):
                answers = []
                for name, index in (("one", one), ("cluster", many)):
                    found = []
                    for given in asked_now:
                        began = time.perf_counter()
                        found.append(index.search_codes(given, 10, rank="code"))
                        if start:  # at first, connections are made
                            times[f"{name} {what}"].append(time.perf_counter() - began)
                    answers.append(found)
                for first, second in zip(*answers, strict=True):
                    for column in ("keys", "distances", "buckets"):
                        np.testing.assert_array_equal(
                            getattr(first.found, column), getattr(second.found, column)
                        )
        median = {name: float(np.median(own)) for name, own in times.items()}
        many.close()
        one.close()
    return {
        "data": kind, "images": images, "shards": shards, "batch": batch,
        "add_seconds": took,
        "queries_per_second": {n: batch / median[f"{n} batch"] for n in took},
        "throughput_ratio": median["one batch"] / median["cluster batch"],
        "milliseconds_per_single_query": {n: 1000 * median[f"{n} query"] for n in took},
    }  # fmt: skip


def add(pictures: Path, most: int, block: int, cores: int, address: str) -> dict[str, Any]:
    files = sorted(path for path in pictures.rglob("*") if path.suffix in (".jpg", ".png"))[:most]
    took = {"one": 0.0, "cluster": 0.0}
    memory = _Memory()
    with tempfile.TemporaryDirectory() as folder:
        many = ClusterIndex.open(Path(folder, "many"), address=address, encoders=cores)
        one = MCHIndex.open(Path(folder, "one.mch"))
        _ = one.model, many.model  # loaded before the clock starts
        for start in range(0, len(files), block):
            some = files[start : start + block]
            for name, index in (("one", one), ("cluster", many)):
                with memory if index is many else contextlib.nullcontext():
                    began = time.perf_counter()
                    index.add(some, progress=False)
                    took[name] += time.perf_counter() - began
            progress(f"{start + len(some):,} pictures: {took}")
        assert list(one) == list(many)
        many.close()
        one.close()
    rates = {name: len(files) / seconds for name, seconds in took.items()}
    return {
        "pictures": len(files), "block": block, "images_per_second": rates,
        "ratio": rates["cluster"] / rates["one"], "megabytes": memory.quarters(),
    }  # fmt: skip


class _Memory:
    """The resident memory of the encoders and of this process, over the time within its context."""

    def __init__(self) -> None:
        self._over, self._seen = threading.Event(), list[tuple[float, float]]()

    def __enter__(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            encoders = [_resident(p) for p in Path("/proc").iterdir() if _is_encoder(p)]
            self._seen.append((_resident(Path("/proc/self")), max(encoders, default=0.0)))

    def quarters(self) -> dict[str, list[float]]:
        """The largest values in each quarter of the time."""
        parts = np.array_split(np.array(self._seen), 4)
        return {
            "driver": [round(float(part[:, 0].max())) for part in parts if len(part)],
            "largest encoder": [round(float(part[:, 1].max())) for part in parts if len(part)],
        }


def _is_encoder(process: Path) -> bool:
    try:
        return (process / "cmdline").read_bytes().startswith(b"ray::Encoder")
    except OSError:
        return False


def _resident(process: Path) -> float:
    try:
        lines = (process / "status").read_text().splitlines()
        return next(int(x.split()[1]) / 1024 for x in lines if x.startswith("VmRSS"))
    except (OSError, StopIteration):
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["search", "add"])
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--most", type=int, default=20_000)
    parser.add_argument("--block", type=int, default=2500)
    parser.add_argument("--data", nargs="+", default=["uniform", SMALL, "clustered"])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.rounds <= IN_TURN:
        parser.error(f"--rounds must be more than {IN_TURN}: the first ones are not counted")
    if options.what == "add" and options.pictures is None:
        parser.error("add needs --pictures")
    if options.pictures is not None:
        options.pictures = options.pictures.absolute()
    if options.out:
        options.out = options.out.absolute()
    # Ray's processes would import the sources of a clone rather than what is installed.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        found = measured(options)
    for row in found:
        print(row)
    if options.out:
        settings = {k: v for k, v in vars(options).items() if k not in ("out", "pictures")}
        write_json(options.out, record(settings, 0, found))


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    with Nodes(options.cores) as nodes:
        if options.what == "search":
            return [
                search(
                    kind, options.images, options.shards, options.batch, options.rounds,
                    nodes.address,
                )
                for kind in options.data
            ]  # fmt: skip
        return [add(options.pictures, options.most, options.block, options.cores, nodes.address)]


if __name__ == "__main__":
    main()
