"""mchindex: images stored under several hash codes, found in the bucket of any of them."""

from mchindex._core import (
    BucketTable,
    NotASnapshotError,
    RangeResult,
    SearchResult,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotVersionError,
    __version__,
)

__all__ = [
    "BucketTable",
    "NotASnapshotError",
    "RangeResult",
    "SearchResult",
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotVersionError",
    "__version__",
]
