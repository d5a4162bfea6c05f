"""The contenders of `answers.py`: our ranks, and peers on floats or on one long code per image.

Each runs in a process of its own, see contenders.py. The folder of a run holds what its contenders
index: floats or codes in codes.npy, and queries in queries.npy.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from answer_data import Images, Queries
from common import Codes, Ids
from contenders import Contender, FaissPeer, Flat, Run, UsearchHnsw

PIECES = 32  # of a vector, of one byte each, that IVF-PQ keeps
BUILDERS = len(os.sched_getaffinity(0))  # threads that build a peer's index


class Modes(Contender):
    """Our tables; a setting is one of MODES. They share a process, so that their speeds compare."""

    MODES: ClassVar[tuple[tuple[str, int], ...]] = (
        ("best", 1), ("best", 2), ("exhaustive", 1), ("fine", 1), ("code", 1),
    )  # fmt: skip
    title, knob = "ours", "mode"
    settings = tuple(range(len(MODES)))
    ours, module = True, "mchindex.index.ranking"

    @classmethod
    def label(cls, setting: int) -> str:
        rank, threads = cls.MODES[setting]
        return f"ours, {rank}" + (f", {threads} threads" if threads > 1 else "")

    def build(self, images: Ids, codes: Codes) -> None:
        folder = Path(self.run.folder)
        stored = {name: np.load(folder / f"{name}.npy") for name in ("cells", "counts", "semantic")}
        core = self.library
        bits, regions, width = stored["semantic"].shape[1] * 8, codes.shape[1], codes.shape[2]
        self.fine = core.FineTable(bits, width * 8, regions, stored["cells"])
        self.fine.add(images, codes, stored["counts"], stored["semantic"])
        self.buckets = core.BucketTable(bits)
        self.buckets.add(np.repeat(images, stored["counts"]), stored["semantic"])

    def after_build(self) -> None:
        self.buckets.optimize(substring=True)

    def bytes_counted(self) -> int:
        total: int = self.fine.memory() + self.buckets.memory()["total"]
        return total

    def search(self, queries: Any, k: int, setting: int) -> Ids:
        rank, threads = self.MODES[setting]
        asked = self.library.Query(queries["code"], queries["fine"])
        keys: Ids
        if rank == "code":
            keys = self.buckets.search(asked.codes, k, threads=threads).ids
        elif rank == "exhaustive":
            weights = self.library.WEIGHTS["best"]
            keys = self.fine.rank(asked.fine, k, asked.codes, weights, threads=threads).keys
        else:
            budget = self.library.Budget(None, None, None, threads)
            keys = self.library.ranked(self.buckets, self.fine, asked, k, rank, budget).keys
        return keys


class Floats(FaissPeer):
    """An index of floats: `bits` is their number per image."""

    def fill(self, codes: Codes) -> None:
        self.library.omp_set_num_threads(BUILDERS)
        self.index = self.make(self.library)
        if not self.index.is_trained:
            self.index.train(codes)
        self.put(codes)
        self.library.omp_set_num_threads(self.run.threads)

    def bytes_counted(self) -> int:
        return len(self.library.serialize_index(self.index))


class Cosine(Floats):
    title = "float cosine, flat"

    def make(self, faiss: Any) -> Any:
        return faiss.IndexFlatIP(self.bits)

    def turn(self, setting: int) -> None:
        pass


class IvfPq(Floats):
    title, knob, settings = "faiss IVF-PQ", "nprobe", (8, 64)

    def build(self, images: Ids, codes: Codes) -> None:
        self.lists = max(1, round(math.sqrt(len(codes))))
        super().build(images, codes)

    def make(self, faiss: Any) -> Any:
        self.quantizer = faiss.IndexFlatIP(self.bits)  # the index does not own it
        metric = faiss.METRIC_INNER_PRODUCT
        return faiss.IndexIVFPQ(self.quantizer, self.bits, self.lists, PIECES, 8, metric)


class Hnsw(Floats):
    title, knob, settings = "faiss HNSW", "efSearch", (32, 128)

    def make(self, faiss: Any) -> Any:
        return faiss.IndexHNSWFlat(self.bits, 16, faiss.METRIC_INNER_PRODUCT)

    def put(self, codes: Codes) -> None:
        self.fill_in_pieces(codes, lambda _, part: self.index.add(part))

    def turn(self, setting: int) -> None:
        self.index.hnsw.efSearch = setting


class Usearch(UsearchHnsw):
    title, knob, settings = "usearch", "expansion", (64, 256)

    def fill(self, codes: Codes) -> None:
        make = self.library.Index
        self.index = make(ndim=self.bits, metric="cos", dtype="f32", connectivity=16)

        def add(at: int, part: Codes) -> None:
            self.index.add(np.arange(at, at + len(part)), part, threads=BUILDERS)

        self.fill_in_pieces(codes, add)

    def bytes_counted(self) -> int:
        return int(self.index.serialized_length)


class Binary(Flat):
    title = "faiss IndexBinaryFlat"

    def bytes_counted(self) -> int:
        return len(self.library.serialize_index_binary(self.index))


OURS: dict[str, type[Contender]] = {"ours": Modes}
FLOATS: dict[str, type[Contender]] = {
    "cosine": Cosine, "ivf-pq": IvfPq, "hnsw": Hnsw, "usearch": Usearch,
}  # fmt: skip
BINARY: dict[str, type[Contender]] = {"binary": Binary}


def write_runs(
    folder: Path, images: Images, queries: Queries, cells: Codes, threads: int, limit: float
) -> dict[str, tuple[type[Contender], int, Run]]:
    """Writes what the contenders index, and returns each with the width of a row and its run."""
    ids = np.arange(len(images))
    asked = np.empty(
        len(queries),
        [("code", "u1", queries.codes.shape[1]), ("fine", "f4", queries.fine.shape[1])],
    )
    asked["code"], asked["fine"] = queries.codes, queries.fine
    content: dict[str, dict[str, Any]] = {
        "ours": {
            "codes": images.fine, "queries": asked, "cells": cells, "counts": images.counts,
            "semantic": images.codes,
        },
        "floats": {"codes": np.float32(images.floats), "queries": queries.floats},
        "binary": {
            "codes": np.ascontiguousarray(images.fine[:, 0]),
            "queries": np.packbits(queries.fine > 0, axis=1),
        },
    }  # fmt: skip
    out: dict[str, tuple[type[Contender], int, Run]] = {}
    for name, kinds in (("ours", OURS), ("floats", FLOATS), ("binary", BINARY)):
        place = folder / name
        place.mkdir()
        for file, array in (content[name] | {"images": ids}).items():
            np.save(place / f"{file}.npy", array)
        width = {"ours": 8 * images.codes.shape[1], "floats": queries.floats.shape[1],
                 "binary": queries.fine.shape[1]}[name]  # fmt: skip
        run = Run(str(place), threads, limit, 0)
        out |= {key: (kind, width, run) for key, kind in kinds.items()}
    return out
