"""The contenders, each in a process of its own, and the handle by which the parent drives them.

A process of its own: two OpenMP runtimes in one process slow each other down, and the
memory of a process is the contender's alone. It builds once and stays alive; the parent
asks it for one measurement at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from common import MOST_CODES, Codes, Ids, rss

if TYPE_CHECKING:
    from mchindex import BucketTable


@dataclass(frozen=True)
class Run:
    """What a contender needs to know of the run."""

    folder: str  # holds codes.npy, images.npy, queries.npy
    threads: int
    build_limit: float  # seconds
    lists: int  # of the inverted file
    several: bool  # images have several codes


class BuildLimitError(Exception):
    """The build would take longer than the limit."""


class Contender(ABC):
    """One index. `settings` are the values of its search-time knob, `knob`."""

    title: ClassVar[str]
    knob: ClassVar[str] = ""
    settings: ClassVar[tuple[int, ...]] = (0,)
    ours: ClassVar[bool] = False
    data: tuple[Codes, Ids]
    module: ClassVar[str]  # imported before the build: neither its time nor its memory counts

    def __init__(self, bits: int, run: Run) -> None:
        self.bits, self.run = bits, run
        self.library = import_module(self.module)

    @classmethod
    def label(cls, setting: int) -> str:
        return f"{cls.title} {cls.knob}={setting}" if cls.knob else cls.title

    @abstractmethod
    def build(self, images: Ids, codes: Codes) -> None: ...

    @abstractmethod
    def search(self, queries: Codes, k: int, setting: int) -> Ids:
        """The ids of K distinct images for each query, nearest first; -1 where missing."""

    def after_build(self) -> None:
        """More preparation, timed apart from the build."""
        return

    def bytes_counted(self) -> int | None:
        """The index's own count of its bytes, where it has one."""
        return None


class Ours(Contender):
    strategy: ClassVar[Any] = "auto"
    ours, module = True, "mchindex"
    table: BucketTable

    def build(self, images: Ids, codes: Codes) -> None:
        self.table = self.library.BucketTable(bits=self.bits)
        self.table.add(images, codes)

    def after_build(self) -> None:
        self.table.optimize(substring=self.strategy in ("auto", "substring"))

    def bytes_counted(self) -> int:
        memory = self.table.memory()
        # A large table builds the substring index unasked; these strategies do not read it.
        unused = memory["substring"] if self.strategy in ("probe", "scan") else 0
        return memory["total"] - unused

    def search(self, queries: Codes, k: int, setting: int) -> Ids:
        return self.table.search(queries, k, strategy=self.strategy, threads=self.run.threads).ids


class OursAuto(Ours):
    """`auto`; setting 0 asks all queries in one call, setting 1 one query a call."""

    title = "ours auto"
    settings = (0, 1)

    @classmethod
    def label(cls, setting: int) -> str:
        return f"{cls.title}, one query a call" if setting else cls.title

    def search(self, queries: Codes, k: int, setting: int) -> Ids:
        if not setting:
            return super().search(queries, k, 0)
        one = super().search
        return np.concatenate([one(queries[i : i + 1], k, 0) for i in range(len(queries))])


class OursProbe(Ours):
    title, strategy = "ours probe", "probe"


class OursSubstring(Ours):
    title, strategy = "ours substring", "substring"


class OursScan(Ours):
    title, strategy = "ours scan", "scan"


class Peer(Contender):
    """A peer knows rows, not images: a user fetches 6K rows and drops the repeats."""

    def build(self, images: Ids, codes: Codes) -> None:
        self.images = images
        self.fill(codes)

    def search(self, queries: Codes, k: int, setting: int) -> Ids:
        if not self.run.several:
            return self.rows(queries, k, setting)
        rows = self.rows(queries, min(k * MOST_CODES, len(self.images)), setting)
        return drop_repeats(np.where(rows < 0, -1, self.images[rows]), k)

    @abstractmethod
    def fill(self, codes: Codes) -> None: ...

    @abstractmethod
    def rows(self, queries: Codes, k: int, setting: int) -> Ids: ...

    def fill_in_pieces(self, codes: Codes, add: Any) -> None:
        """Adds a hundredth at a time and gives up once the limit is out of reach.

        Graphs only get slower as they grow, so the time so far, extrapolated, is a lower bound.
        """
        start, piece = time.perf_counter(), max(1000, len(codes) // 100)
        for at in range(0, len(codes), piece):
            add(at, codes[at : at + piece])
            done = min(1.0, (at + piece) / len(codes))
            spent = time.perf_counter() - start
            if spent > 0.03 * self.run.build_limit and spent / done > self.run.build_limit:
                raise BuildLimitError(
                    f"build stopped: {done:.0%} took {spent:.0f} s, the whole at least "
                    f"{spent / done:.0f} s, over the limit of {self.run.build_limit:.0f} s"
                )


def drop_repeats(ids: Ids, k: int) -> Ids:
    """The first k distinct ids of each row, in their order; -1 where there are fewer.

    Sorting (id, position) packed into one integer puts repeats side by side; two plain
    sorts are several times faster than a stable argsort.
    """
    shift = int(ids.shape[1]).bit_length()
    packed = np.sort((ids << shift) | np.arange(ids.shape[1]), axis=1)
    owner, position = packed >> shift, packed & ((1 << shift) - 1)
    repeat = np.zeros(owner.shape, dtype=bool)
    repeat[:, 1:] = owner[:, 1:] == owner[:, :-1]
    position[repeat | (owner < 0)] = ids.shape[1]
    first = np.sort(position, axis=1)[:, :k]
    padded = np.concatenate([ids, np.full((len(ids), 1), -1)], axis=1)
    return np.take_along_axis(padded, first, axis=1)


class FaissPeer(Peer):
    module = "faiss"
    index: Any

    def fill(self, codes: Codes) -> None:
        self.library.omp_set_num_threads(self.run.threads)
        self.index = self.make(self.library)
        if not self.index.is_trained:
            self.index.train(codes)
        self.put(codes)

    @abstractmethod
    def make(self, faiss: Any) -> Any: ...

    def put(self, codes: Codes) -> None:
        self.index.add(codes)

    def turn(self, setting: int) -> None:
        setattr(self.index, self.knob, setting)

    def rows(self, queries: Codes, k: int, setting: int) -> Ids:
        self.turn(setting)
        found: Ids = self.index.search(queries, k)[1]
        return found


class Flat(FaissPeer):
    """The baseline, as it comes: with heaps."""

    title = "faiss Flat"

    def make(self, faiss: Any) -> Any:
        return faiss.IndexBinaryFlat(self.bits)

    def turn(self, setting: int) -> None:
        pass


class FlatCount(Flat):
    """The same with counting in place of heaps, which is faster at large K."""

    title = "faiss Flat, counting"

    def turn(self, setting: int) -> None:
        self.index.use_heap = False


class Hash(FaissPeer):
    title, knob, settings = "faiss Hash", "nflip", (0, 2, 4)

    def make(self, faiss: Any) -> Any:
        return faiss.IndexBinaryHash(self.bits, min(16, self.bits // 2))


class MultiHash(FaissPeer):
    title, knob, settings = "faiss MultiHash", "nflip", (0, 1, 2)

    def make(self, faiss: Any) -> Any:
        width = min(16, self.bits // 2)
        return faiss.IndexBinaryMultiHash(self.bits, self.bits // width, width)


class Ivf(FaissPeer):
    title, knob, settings = "faiss IVF", "nprobe", (1, 4, 16, 64)

    def make(self, faiss: Any) -> Any:
        self.quantizer = faiss.IndexBinaryFlat(self.bits)  # the index does not own it
        return faiss.IndexBinaryIVF(self.quantizer, self.bits, self.run.lists)


class Hnsw(FaissPeer):
    title, knob, settings = "faiss HNSW", "efSearch", (16, 64, 256)

    def make(self, faiss: Any) -> Any:
        return faiss.IndexBinaryHNSW(self.bits, 16)

    def put(self, codes: Codes) -> None:
        self.fill_in_pieces(codes, lambda _, part: self.index.add(part))

    def turn(self, setting: int) -> None:
        self.index.hnsw.efSearch = setting


class UsearchExact(Peer):
    """Searches the caller's array: nothing is built."""

    title, module = "usearch exact", "usearch.index"

    def fill(self, codes: Codes) -> None:
        self.codes = codes.copy()

    def rows(self, queries: Codes, k: int, setting: int) -> Ids:
        search, threads = self.library.search, self.run.threads
        found = search(self.codes, queries, k, "hamming", exact=True, threads=threads)
        return np.atleast_2d(np.asarray(found.keys)).astype(np.int64)


class UsearchHnsw(Peer):
    title, module = "usearch HNSW", "usearch.index"
    knob, settings = "expansion", (64, 256)

    def fill(self, codes: Codes) -> None:
        make = self.library.Index
        self.index = make(ndim=self.bits, metric="hamming", dtype="b1", connectivity=16)

        def add(at: int, part: Codes) -> None:
            self.index.add(np.arange(at, at + len(part)), part, threads=self.run.threads)

        self.fill_in_pieces(codes, add)

    def rows(self, queries: Codes, k: int, setting: int) -> Ids:
        self.index.expansion_search = setting
        found = self.index.search(queries, k, threads=self.run.threads)
        keys = np.full((len(queries), k), -1, dtype=np.int64)
        if len(queries) == 1:  # another type then, without counts
            keys[0, : len(found.keys)] = found.keys
        else:
            keys[:, : found.keys.shape[1]] = found.keys
            keys[np.arange(k) >= found.counts[:, None]] = -1
        return keys


OURS: dict[str, type[Contender]] = {
    "auto": OursAuto,
    "probe": OursProbe,
    "substring": OursSubstring,
    "scan": OursScan,
}
PEERS: dict[str, type[Contender]] = {
    "flat": Flat,
    "flat-count": FlatCount,
    "hash": Hash,
    "multihash": MultiHash,
    "ivf": Ivf,
    "hnsw": Hnsw,
    "usearch": UsearchExact,
    "usearch-hnsw": UsearchHnsw,
}


def _memory(contender: Contender, before: int) -> dict[str, int | None]:
    return {"rss": rss() - before, "counted": contender.bytes_counted()}


def _build(contender: Contender, folder: Path) -> dict[str, Any]:
    codes, images = np.load(folder / "codes.npy"), np.load(folder / "images.npy")
    contender.data = codes, images  # kept: the memory before and after must both include them
    before = rss()
    start = time.perf_counter()
    contender.build(images, codes)
    seconds = time.perf_counter() - start
    plain = _memory(contender, before)
    start = time.perf_counter()
    contender.after_build()
    prepare = time.perf_counter() - start
    return {
        "build_s": seconds,
        "before": before,
        "built": plain,
        "optimize_s": prepare if contender.ours else None,
        "optimized": _memory(contender, before) if contender.ours else plain,
    }


def _serve(pipe: Connection, kind: type[Contender], bits: int, run: Run) -> None:
    """The worker: answers ("build",), ("time", …), ("ids", …), ("memory", …) until None."""
    folder = Path(run.folder)
    queries = np.load(folder / "queries.npy")
    queries = np.concatenate([queries, queries])  # so that a batch may start anywhere
    contender: Contender | None = None
    while message := pipe.recv():
        try:
            what, *args = message
            answer: Any
            contender = contender or kind(bits, run)
            if what == "build":
                answer = _build(contender, folder)
            elif what == "memory":
                answer = _memory(contender, *args)
            else:
                k, setting, at, count = args
                batch = queries[at : at + count]
                start, busy = time.perf_counter(), time.process_time()
                ids = contender.search(batch, k, setting)
                seconds, busy = time.perf_counter() - start, time.process_time() - busy
                answer = (seconds, busy) if what == "time" else ids
            pipe.send((answer, None))
        except Exception as error:
            text = str(error) if isinstance(error, BuildLimitError) else repr(error)
            pipe.send((None, text))


class FailedError(Exception):
    """A contender could not do what it was asked; the text says why, for the table."""


class Worker:
    """The parent's end of a contender's process."""

    def __init__(self, kind: type[Contender], bits: int, run: Run) -> None:
        self.kind, self.bits, self.run = kind, bits, run
        self.start()

    def start(self) -> None:
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(self.run.threads)  # inherited by the child
        spawn = multiprocessing.get_context("spawn")
        self.pipe, end = spawn.Pipe()
        self.process = spawn.Process(
            target=_serve, args=(end, self.kind, self.bits, self.run), daemon=True
        )
        self.process.start()
        end.close()

    def ask(self, *message: Any, limit: float | None = None) -> Any:
        """The answer; FailedError if the worker fails, dies or needs more than `limit` seconds."""
        self.pipe.send(message)
        if not self.pipe.poll(limit):
            self.stop(kill=True)
            raise FailedError(f"stopped: no answer within {limit:.0f} s")
        try:
            answer, error = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise FailedError(f"died with exit code {self.process.exitcode}") from None
        if error:
            raise FailedError(error)
        return answer

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def stop(self, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        elif self.alive:
            self.pipe.send(None)
        self.process.join()
        self.pipe.close()
