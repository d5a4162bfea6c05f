"""Hits as JSON, quickly: what is constant about an image is kept until the index changes."""

from __future__ import annotations

import math
import threading
from functools import lru_cache

from pydantic_core import to_json

from mchindex.errors import StoreDamagedError
from mchindex.index.identity import Identity
from mchindex.index.queries import Queries
from mchindex.index.results import Found
from mchindex.server.names import file_name
from mchindex.storage.records import Row, row_metadata

KEPT = 50_000  # images
LONGEST = 2_000  # bytes of one that is kept


class Lines:
    """Writes hits."""

    def __init__(self, queries: Queries, identity: Identity) -> None:
        self._queries, self._identity = queries, identity
        self._lock = threading.Lock()
        self._version: tuple[int, int] | None = None
        self._kept: dict[int, tuple[bytes, int | None, int | None]] = {}
        self._box = lru_cache(maxsize=10_000)(self._box_text)
        self._names = [to_json(identity.region_name(number)) for number in range(256)]

    def write(self, found: Found) -> list[list[bytes]]:
        """The hits of each query, one text per hit."""
        keys = found.keys.tolist()
        records = self._records({key for line in keys for key in line if key >= 0})
        similar = found.similarities
        columns = (
            keys, found.regions.tolist(), found.distances.tolist(), found.scores.tolist(),
            [[math.nan] * len(line) for line in keys] if similar is None else similar.tolist(),
        )  # fmt: skip
        return [
            [self._line(records[key], *rest) for key, *rest in zip(*line, strict=True) if key >= 0]
            for line in zip(*columns, strict=True)
        ]

    def _line(
        self,
        record: tuple[bytes, int | None, int | None],
        region: int,
        distance: int,
        score: float,
        similarity: float,
    ) -> bytes:
        start, width, height = record
        similar = b"null" if math.isnan(similarity) else b"%a" % round(similarity, 4)
        return b'%b,"score":%a,"similarity":%b,"distance":%d,"region":%b,"box":%b}' % (
            start, round(score, 4), similar, distance, self._names[region],
            self._box(region, width, height),
        )  # fmt: skip

    def _records(self, keys: set[int]) -> dict[int, tuple[bytes, int | None, int | None]]:
        version = self._queries.version()  # before the records are read
        with self._lock:
            if version != self._version:
                self._kept, self._version = {}, version
            kept = self._kept
        found = {key: kept[key] for key in keys if key in kept}
        missing = [key for key in keys if key not in found]
        if missing:
            read = {key: _record(row) for key, row in self._queries.rows_by_key(missing).items()}
            found |= read
            if len(kept) < KEPT:
                kept |= {key: one for key, one in read.items() if len(one[0]) <= LONGEST}
        return found

    def _box_text(self, region: int, width: int | None, height: int | None) -> bytes:
        return to_json(self._identity.region_box(region, width, height))


def _record(row: Row) -> tuple[bytes, int | None, int | None]:
    """How the line of an image starts, and its sides."""
    try:
        row_metadata(row)
        metadata = (row.metadata or "{}").encode()
    except StoreDamagedError:  # `mch verify` reports it
        metadata = b"{}"
    start = b'{"id":%b,"name":%b,"width":%b,"height":%b,"metadata":%b' % (
        to_json(row.id), to_json(file_name(row.id, row.path)), to_json(row.width or None),
        to_json(row.height or None), metadata,
    )  # fmt: skip
    return start, row.width, row.height
