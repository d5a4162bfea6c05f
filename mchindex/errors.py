"""All exceptions that mchindex defines, under one base class.

Some also derive from a built-in exception that callers may want to catch, such as `ValueError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


class MCHError(Exception):
    """Base class of the exceptions that mchindex defines."""


class ImageError(MCHError):
    """An image could not be read. The message names the image and the reason."""


class MissingExtraError(MCHError, ImportError):
    """What was asked for needs packages that are not installed. The message says which command
    installs them."""

    def __init__(self, reason: str, extra: str = "train") -> None:
        self.reason, self.extra = reason, extra
        super().__init__(f"{reason}: run pip install 'mchindex[{extra}]'")

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingExtraError, (self.reason, self.extra)


class MissingDecoderError(ImageError, MissingExtraError):
    """An image cannot be read because the extra that reads its format is not installed."""

    def __init__(self, extra: str, name: str | None = None) -> None:
        self.reason = f'its format needs an extra: pip install "mchindex[{extra}]"'
        text = self.reason if name is None else f"{name}: {self.reason}"
        ImportError.__init__(self, text, name=name)
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingDecoderError, (self.extra, self.name)


class StoreError(MCHError):
    """An index on disk cannot be used. Base class of the errors about indexes."""


class NotAnIndexError(StoreError):
    """The path does not hold an index."""


class StoreVersionError(StoreError):
    """The index was written by a newer version of mchindex."""


class StoreDamagedError(StoreError):
    """Stored data does not match its checksum, or SQLite cannot read it."""


class StoreBusyError(StoreError):
    """Another process is writing to the index."""


class StaleWriteError(StoreError):
    """A change comes from a writer that another has followed since."""

    answers: Mapping[int, Any] = MappingProxyType({})  # of the shards that made their changes


class ShardUnavailableError(StoreError):
    """Shards of a cluster did not answer in time. `shards` are their numbers."""

    answers: Mapping[int, Any] = MappingProxyType({})  # of the other shards

    def __init__(self, shards: Sequence[int], reason: str) -> None:
        self.shards, self.reason = tuple(shards), reason
        several = "s" if len(self.shards) > 1 else ""
        super().__init__(f"shard{several} {', '.join(map(str, shards))} did not answer: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.shards, self.reason)


class ShardsMovedError(StoreError):
    """A rebalance has replaced the shards of a cluster: try again with the new ones."""


class ModelMismatchError(StoreError):
    """The index was filled by a different model."""


class ExportError(MCHError, ValueError):
    """A file is not an export, or is incomplete. The message says where."""


class ModelError(MCHError):
    """A model directory cannot be used: it is missing, damaged or too new."""


class DatasetError(MCHError, ValueError):
    """A data set cannot be used. The message says what is missing or wrong."""


class NoFineCodesError(MCHError, ValueError):
    """What was asked for needs fine codes, and images in the index have none."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}; MCHIndex.add with again=True gives them some")

    def __reduce__(self) -> tuple[type[NoFineCodesError], tuple[str]]:
        return NoFineCodesError, (self.reason,)


class UnknownWordError(MCHError, ValueError):
    """A search names a word that the model does not know."""

    def __init__(self, word: str, near: list[str]) -> None:
        self.word, self.near = word, near  # near: known words that are spelt like it
        super().__init__(f"{self.reason}; MCHIndex.words() lists the words that it knows")

    @property
    def reason(self) -> str:
        like = f", but it knows {', '.join(self.near)}" if self.near else ""
        return f"the model does not know the word {self.word!r}{like}"

    def __reduce__(self) -> tuple[type[UnknownWordError], tuple[str, list[str]]]:
        return UnknownWordError, (self.word, self.near)


class ServiceError(MCHError):
    """A service could not be reached, or did not do what was asked. `status` is that of its answer;
    None if there was none."""

    def __init__(self, status: int | None, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.reason)


class ServiceRefusedError(ServiceError, ValueError):
    """A service does not allow what was asked. The message says what it allows."""


class TrainingError(MCHError):
    """Training cannot start or continue with the given options."""


class OutputExistsError(TrainingError):
    """The output directory already holds a trained model."""


class UnfinishedTrainingError(TrainingError):
    """The output directory holds an interrupted training run."""


class SnapshotError(MCHError):
    """A snapshot file cannot be used. Base class of the errors below."""


class NotASnapshotError(SnapshotError):
    """The file is not a snapshot."""


class SnapshotVersionError(SnapshotError):
    """The snapshot was written by a newer version of mchindex."""


class SnapshotDamagedError(SnapshotError):
    """The snapshot's content does not match its checksums, or points outside the file."""
