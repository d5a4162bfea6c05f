"""mchindex: images stored under several hash codes, found in the bucket of any of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from mchindex.adding import Added, Failure, Step
    from mchindex.hits import Answers, Hit, Hits
    from mchindex.images import ImageError
    from mchindex.index import MCHIndex, ModelMismatchError, Stored
    from mchindex.records import (
        NotAnIndexError,
        StoreBusyError,
        StoreDamagedError,
        StoreError,
        StoreVersionError,
    )

# Imported when first asked for: whoever needs the table alone waits for nothing else.
_LATER = {
    "adding": ("Added", "Failure", "Step"),
    "hits": ("Answers", "Hit", "Hits"),
    "images": ("ImageError",),
    "index": ("MCHIndex", "ModelMismatchError", "Stored"),
    "records": (
        "NotAnIndexError",
        "StoreBusyError",
        "StoreDamagedError",
        "StoreError",
        "StoreVersionError",
    ),
}
_HOME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mchindex' has no attribute {name!r}")
    return getattr(import_module(f"mchindex.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "Added",
    "Answers",
    "BucketTable",
    "Failure",
    "Hit",
    "Hits",
    "ImageError",
    "MCHIndex",
    "ModelMismatchError",
    "NotASnapshotError",
    "NotAnIndexError",
    "RangeResult",
    "SearchResult",
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotVersionError",
    "Step",
    "StoreBusyError",
    "StoreDamagedError",
    "StoreError",
    "StoreVersionError",
    "Stored",
    "__version__",
]
