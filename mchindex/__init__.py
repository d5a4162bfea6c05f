"""mchindex: an image search engine that stores each image under several hash codes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mchindex._core import BucketTable, RangeResult, SearchResult, __version__
from mchindex.errors import (
    DatasetError,
    ExportError,
    ImageError,
    MCHError,
    MissingDecoderError,
    MissingExtraError,
    ModelError,
    ModelMismatchError,
    NotAnIndexError,
    NotASnapshotError,
    ServiceError,
    ServiceRefusedError,
    SnapshotDamagedError,
    SnapshotError,
    SnapshotVersionError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreVersionError,
    TrainingError,
)

if TYPE_CHECKING:
    from mchindex.client import connect, connect_async
    from mchindex.index.adding import Added, Commit, Failure
    from mchindex.index.facade import MCHIndex, Stored
    from mchindex.index.results import Answers, Hit, Hits
    from mchindex.progress import Step

# Imported on first use, so that a program that needs only the table starts quickly.
_LATER = {
    "client": ("connect", "connect_async"),
    "index.adding": ("Added", "Commit", "Failure"),
    "index.facade": ("MCHIndex", "Stored"),
    "index.results": ("Answers", "Hit", "Hits"),
    "progress": ("Step",),
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
    "Commit",
    "DatasetError",
    "ExportError",
    "Failure",
    "Hit",
    "Hits",
    "ImageError",
    "MCHError",
    "MCHIndex",
    "MissingDecoderError",
    "MissingExtraError",
    "ModelError",
    "ModelMismatchError",
    "NotASnapshotError",
    "NotAnIndexError",
    "RangeResult",
    "SearchResult",
    "ServiceError",
    "ServiceRefusedError",
    "SnapshotDamagedError",
    "SnapshotError",
    "SnapshotVersionError",
    "Step",
    "StoreBusyError",
    "StoreDamagedError",
    "StoreError",
    "StoreVersionError",
    "Stored",
    "TrainingError",
    "__version__",
    "connect",
    "connect_async",
]
