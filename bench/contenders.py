"""The contenders, and the `Worker` by which a benchmark runs each of them in its own process.

Separate processes, because two OpenMP runtimes in one process slow each other down, and because
the memory of a process then belongs to one contender. A worker builds its index once and stays
alive; the benchmark asks it for one measurement at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from common import Codes, Ids, rss, seconds

if TYPE_CHECKING:
    from mchindex import BucketTable

Regions = NDArray[np.int16]

BACKGROUND = ("merging", "indexing")  # what `BucketTable.stats` says runs in the background
IDLE = 0.2  # seconds without work after which a process counts as idle


@dataclass(frozen=True)
class Run:
    """What a contender needs to know about the run."""

    folder: str  # holds codes.npy, images.npy, queries.npy and perhaps regions.npy
    threads: int = 1
    build_limit: float = 900.0  # seconds
    lists: int = 1024  # number of lists of the inverted file
    most_codes: int = 1  # that an image has
    site: str = ""  # folder that holds the package mchindex of an earlier commit


@dataclass(frozen=True)
class Memory:
    """Bytes that an index takes."""

    rss: int  # growth of the process
    counted: int | None  # what the index itself reports, if it does


@dataclass
class Build:
    """What building an index took."""

    build_s: float
    before: int  # resident bytes of the process before the build
    built: Memory
    optimize_s: float | None  # ours only
    optimized: Memory
    searched: Memory | None = None  # after all searches


class BuildLimitError(Exception):
    """The build would take longer than the limit."""


class Contender(ABC):
    """One index. `knob` is its search-time parameter, `settings` the values that are measured."""

    title: ClassVar[str]
    knob: ClassVar[str] = ""
    settings: ClassVar[tuple[int, ...]] = (0,)
    ours: ClassVar[bool] = False
    module: ClassVar[str]  # imported before the build, which neither times nor weighs it
    data: tuple[Codes, Ids]
    regions: Regions | None = None  # of the codes; peers do not store them

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
        """(q, k): the ids of K distinct images per query, nearest first; -1 where missing."""

    def search_each(self, queries: Codes, k: int, setting: int) -> list[Ids]:
        """The same with one query per call; one array per query."""
        return [self.search(queries[i : i + 1], k, setting) for i in range(len(queries))]

    def after_build(self) -> None:
        """Further preparation, timed separately from the build."""
        return

    def settle(self) -> None:
        """Waits until the index does no work in the background."""
        return

    def bytes_counted(self) -> int | None:
        """The bytes that the index says it takes, or None if it does not say."""
        return None


def wait_until_idle() -> None:
    """Waits until this process hardly uses the processor while it sleeps."""
    used = IDLE
    while used >= 0.1 * IDLE:
        start = time.process_time()
        time.sleep(IDLE)
        used = time.process_time() - start


class Ours(Contender):
    strategy: ClassVar[Any] = "auto"
    ours, module = True, "mchindex"
    table: BucketTable

    def build(self, images: Ids, codes: Codes) -> None:
        self.table = self.library.BucketTable(bits=self.bits)
        self.table.add(images, codes, self.regions)

    def after_build(self) -> None:
        self.table.optimize(substring=self.strategy == "substring")

    def settle(self) -> None:
        stats = getattr(self.table, "stats", None)
        if stats is None:  # an earlier commit, which does not say what it does
            wait_until_idle()
            return
        while any(stats().get(work) for work in BACKGROUND):
            time.sleep(0.01)

    def bytes_counted(self) -> int:
        memory = self.table.memory()
        # A large table builds the substring index by itself; these strategies do not read it.
        unused = memory["substring"] if self.strategy in ("probe", "scan") else 0
        return memory["total"] - unused

    def search(self, queries: Codes, k: int, setting: int) -> Ids:
        return self.table.search(queries, k, strategy=self.strategy, threads=self.run.threads).ids


class OursAuto(Ours):
    title = "ours auto"


class OursBefore(Ours):
    """`auto` of an earlier commit, whose package is in `run.site`."""

    title = "ours before"

    def __init__(self, bits: int, run: Run) -> None:
        sys.path.insert(0, run.site)
        try:
            super().__init__(bits, run)
        finally:
            sys.path.remove(run.site)
        if Path(run.site) not in Path(str(self.library.__file__)).parents:
            raise ImportError(f"mchindex was imported from {self.library.__file__} before")


class OursProbe(Ours):
    title, strategy = "ours probe", "probe"


class OursSubstring(Ours):
    title, strategy = "ours substring", "substring"


class OursScan(Ours):
    title, strategy = "ours scan", "scan"


class Peer(Contender):
    """A library that returns rows, one per code.

    If images have up to c codes, its user fetches c * K rows, which belong to K images or more,
    maps them to images and drops the repeats; that is timed as part of the search.
    """

    def build(self, images: Ids, codes: Codes) -> None:
        self.images = images
        self.fill(codes)

    def search(self, queries: Codes, k: int, setting: int) -> Ids:
        if self.run.most_codes == 1:
            return self.rows(queries, k, setting)
        rows = self.rows(queries, min(k * self.run.most_codes, len(self.images)), setting)
        return nearest_images(rows, self.images, k)

    @abstractmethod
    def fill(self, codes: Codes) -> None: ...

    @abstractmethod
    def rows(self, queries: Codes, k: int, setting: int) -> Ids:
        """(q, k): the numbers of the nearest rows, nearest first; -1 where missing."""

    def fill_in_pieces(self, codes: Codes, add: Callable[[int, Codes], object]) -> None:
        """Adds a hundredth of the codes at a time; BuildLimitError once the limit is hopeless."""
        start, piece = time.perf_counter(), max(1000, len(codes) // 100)
        for at in range(0, len(codes), piece):
            add(at, codes[at : at + piece])
            done = min(1.0, (at + piece) / len(codes))
            spent = time.perf_counter() - start
            if exceeds(spent, done, self.run.build_limit):
                raise BuildLimitError(
                    f"build stopped: {done:.0%} took {spent:.0f} s, so the whole would take at "
                    f"least {spent / done:.0f} s; the limit is {self.run.build_limit:.0f} s"
                )


def exceeds(spent: float, done: float, limit: float) -> bool:
    """Whether a build of which the share `done` took `spent` seconds will exceed the limit.

    Graphs only get slower as they grow, so extrapolating gives a lower bound. The first few
    seconds do not count: starting up may distort them.
    """
    return spent > 0.03 * limit and spent / done > limit


def nearest_images(rows: Ids, images: Ids, k: int) -> Ids:
    """The first k distinct images of each line of row numbers; -1 where there are fewer.

    `images` holds the image of each row. A row number of -1 stands for no row.
    """
    return drop_repeats(np.where(rows < 0, -1, images[rows]), k)


def drop_repeats(ids: Ids, k: int) -> Ids:
    """The first k distinct ids of each line, in their order; -1 where there are fewer.

    Sorting (id, position) packed into one integer brings repeats together. Two plain sorts are
    several times faster than one stable argsort.
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
    """The baseline, in its default configuration, which uses heaps."""

    title = "faiss Flat"

    def make(self, faiss: Any) -> Any:
        return faiss.IndexBinaryFlat(self.bits)

    def turn(self, setting: int) -> None:
        pass


class FlatCount(Flat):
    """Flat with counting instead of heaps, which is faster at large K."""

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
    """Exact search over the caller's array, without an index."""

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
        if len(queries) == 1:  # a result of another type, without counts
            keys[0, : len(found.keys)] = found.keys
        else:
            keys[:, : found.keys.shape[1]] = found.keys
            keys[np.arange(k) >= found.counts[:, None]] = -1
        return keys


BEFORE: dict[str, type[Contender]] = {"before": OursBefore}
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


def _memory(contender: Contender, before: int) -> Memory:
    return Memory(rss() - before, contender.bytes_counted())


def build(contender: Contender, folder: Path) -> Build:
    """Builds a contender from the arrays in a folder."""
    codes, images = np.load(folder / "codes.npy"), np.load(folder / "images.npy")
    contender.data = codes, images  # kept alive: memory before and after must both include them
    regions = folder / "regions.npy"
    contender.regions = np.load(regions) if contender.ours and regions.exists() else None
    before = rss()
    build_s = seconds(lambda: contender.build(images, codes))
    built = _memory(contender, before)
    optimize_s = seconds(contender.after_build)
    contender.settle()
    if not contender.ours:
        return Build(build_s, before, built, None, built)
    return Build(build_s, before, built, optimize_s, _memory(contender, before))


def _serve(pipe: Connection, kind: type[Contender], bits: int, run: Run) -> None:
    """The worker's process: answers messages until it receives None.

    ("build",) -> Build; ("memory", bytes before) -> Memory; ("settle",) -> None;
    ("ids", k, setting, start, count, single) -> ids;
    ("time", k, setting, start, count, single) -> seconds by the clock and of the processor.
    """
    folder = Path(run.folder)
    queries = np.load(folder / "queries.npy")
    queries = np.concatenate([queries, queries])  # a batch may start at any query
    contender: Contender | None = None
    while message := pipe.recv():
        try:
            what, *args = message
            answer: Any
            contender = contender or kind(bits, run)
            if what == "build":
                answer = build(contender, folder)
            elif what == "memory":
                answer = _memory(contender, *args)
            elif what == "settle":
                contender.settle()
                answer = None
            else:
                k, setting, at, count, single = args
                batch = queries[at : at + count]
                search = contender.search_each if single else contender.search
                start, busy = time.perf_counter(), time.process_time()
                found = search(batch, k, setting)
                wall, busy = time.perf_counter() - start, time.process_time() - busy
                answer = (wall, busy)
                if what == "ids":
                    answer = np.concatenate(found) if single else found
            pipe.send((answer, None))
        except Exception as error:
            text = str(error) if isinstance(error, BuildLimitError) else repr(error)
            pipe.send((None, text))


class FailedError(Exception):
    """A contender could not do what it was asked to; the message says why."""


class Worker:
    """A contender's process, as the benchmark sees it."""

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
        """The answer to a message of `_serve`.

        FailedError if the contender raises, its process dies, or `limit` seconds pass without an
        answer; in the last case the process is killed.
        """
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
