"""Types of the compiled engine. `make check` compares this file with the extension."""

from collections.abc import Callable, Iterable, Sequence, Set
from os import PathLike
from typing import Any, Literal, SupportsIndex, TypedDict, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

__version__: str

_Ids = ArrayLike | Set[int]
_Strategy = Literal["auto", "probe", "substring", "scan"]

class _Segment(TypedDict):
    images: int
    codes: int
    buckets: int
    groups: int
    removed: int
    substring: bool

class _Stats(TypedDict):
    images: int
    codes: int
    buckets: int
    segments: list[_Segment]
    memory: dict[str, int]
    answered: dict[str, int]
    large_buckets_counted: int
    buckets_collected: int
    merging: bool
    indexing: bool
    cpu_path: str

@final
class SearchResult:
    """The result of `BucketTable.search`: one row per query."""

    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def distances(self) -> NDArray[np.int32]: ...
    @property
    def regions(self) -> NDArray[np.int16]: ...
    @property
    def counts(self) -> NDArray[np.int64]: ...
    @property
    def buckets(self) -> NDArray[np.int64]: ...
    @property
    def radius(self) -> NDArray[np.int32]: ...
    @property
    def candidates(self) -> NDArray[np.int64]: ...
    @property
    def exact(self) -> NDArray[np.bool_]: ...
    @property
    def masks(self) -> NDArray[np.uint8] | None: ...
    def pack(self) -> bytes: ...
    @staticmethod
    def merge(parts: Sequence[bytes], k: SupportsIndex | None = None) -> SearchResult: ...
    def __len__(self) -> int: ...

@final
class RangeResult:
    """The result of `BucketTable.within`: the hits of query i are rows lims[i]:lims[i + 1]."""

    @property
    def lims(self) -> NDArray[np.int64]: ...
    @property
    def ids(self) -> NDArray[np.int64]: ...
    @property
    def distances(self) -> NDArray[np.int32]: ...
    @property
    def regions(self) -> NDArray[np.int16]: ...
    def __len__(self) -> int: ...

@final
class Filter:
    """A set of images that searches may return, made by `BucketTable.filter`.

    Any number of threads may use it at the same time, also while others change the table.
    """

    def __len__(self) -> int: ...
    def __contains__(self, id: object) -> bool: ...

@final
class BucketTable:
    """A table of hash buckets in which an image may have several codes.

    Codes are packed as np.packbits packs them; images are int64 ids. Searching while another
    thread adds or removes is safe: a search sees the table as it was at one moment.
    """

    def __init__(self, bits: SupportsIndex = 64) -> None: ...
    @property
    def bits(self) -> int: ...
    @property
    def n_codes(self) -> int: ...
    @property
    def n_buckets(self) -> int: ...
    def __len__(self) -> int: ...
    def __contains__(self, id: object) -> bool: ...
    def add(self, ids: ArrayLike, codes: ArrayLike, regions: ArrayLike | None = None) -> None: ...
    def remove(self, ids: _Ids) -> int: ...
    def filter(self, ids: _Ids) -> Filter: ...
    def search(
        self,
        codes: ArrayLike,
        k: SupportsIndex = 10,
        max_radius: SupportsIndex | None = None,
        max_buckets: SupportsIndex | None = None,
        allowed: _Ids | Filter | None = None,
        strategy: _Strategy = "auto",
        threads: SupportsIndex = 0,
        masks: bool = False,
    ) -> SearchResult: ...
    def within(
        self,
        codes: ArrayLike,
        radius: SupportsIndex,
        allowed: _Ids | Filter | None = None,
        strategy: _Strategy = "auto",
        threads: SupportsIndex = 0,
        max_hits: SupportsIndex = 67108864,
    ) -> RangeResult: ...
    def optimize(self, substring: bool = False) -> None: ...
    def memory(self) -> dict[str, int]: ...
    def stats(self) -> _Stats: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    @staticmethod
    def load(path: str | PathLike[str], mmap: bool = False, verify: bool = True) -> BucketTable: ...
    @staticmethod
    def build(
        path: str | PathLike[str],
        chunks: Iterable[tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]],
        bits: SupportsIndex = 64,
        *,
        layout: Literal["auto", "wide", "plain"] = "auto",
        memory: SupportsIndex = 1073741824,
        resume: bool = True,
        progress: Callable[[str, int, int | None], object] | None = None,
    ) -> None: ...

@final
class RankResult:
    """The result of `FineTable.rank`: one row per query."""

    @property
    def keys(self) -> NDArray[np.int64]: ...
    @property
    def scores(self) -> NDArray[np.float32]: ...
    @property
    def similarities(self) -> NDArray[np.float32]: ...
    @property
    def regions(self) -> NDArray[np.int16]: ...
    @property
    def distances(self) -> NDArray[np.int32]: ...
    @property
    def looked_at(self) -> NDArray[np.int64]: ...

@final
class FineTable:
    """The fine codes of images, one per region, by which images are ranked.

    Any number of threads may use a table at the same time.
    """

    def __init__(
        self,
        bits: SupportsIndex,
        fine_bits: SupportsIndex,
        regions: SupportsIndex,
        cells: ArrayLike | None = None,
    ) -> None: ...
    @property
    def bits(self) -> int: ...
    @property
    def fine_bits(self) -> int: ...
    @property
    def regions(self) -> int: ...
    @property
    def n_cells(self) -> int: ...
    def __len__(self) -> int: ...
    def memory(self) -> int: ...
    def add(
        self,
        keys: ArrayLike,
        fine: ArrayLike,
        counts: ArrayLike,
        codes: ArrayLike,
        cells: ArrayLike | None = None,
    ) -> None: ...
    def content(self) -> dict[str, NDArray[Any]]: ...
    def remove(self, keys: _Ids) -> int: ...
    def rank(
        self,
        queries: ArrayLike,
        k: SupportsIndex = 10,
        codes: ArrayLike | None = None,
        weights: Sequence[float] = ...,
        candidates: tuple[ArrayLike, ArrayLike] | None = None,
        near: SupportsIndex = 0,
        probes: SupportsIndex = 0,
        allowed: _Ids | Filter | None = None,
        threads: SupportsIndex = 0,
        near_costs: ArrayLike | None = None,
    ) -> RankResult: ...
    def near_costs(
        self,
        queries: ArrayLike,
        near: SupportsIndex,
        probes: SupportsIndex,
        allowed: _Ids | Filter | None = None,
        threads: SupportsIndex = 0,
    ) -> NDArray[np.uint32]: ...
    def read(self, keys: _Ids) -> NDArray[np.uint8]: ...

def cpu_paths() -> list[str]: ...
def cpu_path() -> str: ...
def use_cpu_path(name: str) -> None: ...
def probe_masks(
    bits: SupportsIndex, radius: SupportsIndex, limit: SupportsIndex | None = None
) -> NDArray[np.uint8]: ...
def bucket_ranks(masks: ArrayLike) -> NDArray[np.int64]: ...
