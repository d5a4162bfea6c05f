"""What is in the index: its facts, its images page by page, and one image in full."""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from PIL import Image

from mchindex import __version__, json_text
from mchindex.errors import StoreDamagedError
from mchindex.index.facade import MCHIndex
from mchindex.server.guard import Access
from mchindex.server.names import file_name
from mchindex.server.problems import ProblemError, no_image
from mchindex.server.settings import Settings
from mchindex.storage.records import Id, Row, row_metadata, unpack_codes

VALUES = 50  # of a key of the metadata that are listed


class Contents:
    """Reads what is in the index."""

    def __init__(self, index: MCHIndex, settings: Settings) -> None:
        self._index, self._settings, self._queries = index, settings, index.queries
        self._lock = threading.Lock()
        self._facets: tuple[tuple[int, int], list[dict[str, Any]]] | None = None

    def info(self, access: Access) -> dict[str, Any]:
        index, limits = self._index, self._settings.limits
        stats = index.stats()
        fine = bool(stats["images"]) and stats["fine_images"] == stats["images"]
        layout = index.layout
        return {
            "version": __version__,
            **{name: stats[name] for name in ("images", "codes", "buckets", "bits", "fine_bits")},
            "model": stats["model"],
            "rank_modes": ["best", "fine", "code"] if fine else ["code"],
            "words": self._queries.words is not None,
            "regions": []
            if layout is None
            else [
                {"name": name, "box": box}
                for name, box in zip(layout.names, layout.boxes, strict=True)
            ],
            "metadata": self._metadata(),
            "access": {
                "write": access.write,
                "delete": access.delete,
                "key_required": self._settings.has_key,
            },
            "limits": {
                "bytes": limits.bytes,
                "request": limits.request,
                "pixels": Image.MAX_IMAGE_PIXELS or 0,
                "k": limits.k,
                "offset": limits.offset,
                "batch": limits.batch,
                "like": limits.like,
                "ids": limits.ids,
                "seconds": limits.seconds,
            },
        }

    def _metadata(self) -> list[dict[str, Any]]:
        """The keys of the metadata, read again when the index has changed."""
        with self._lock:
            version = self._queries.version()
            if self._facets is None or self._facets[0] != version:
                found = [
                    {
                        "name": f.name,
                        "kind": f.kind,
                        "values": f.values,
                        "min": f.low,
                        "max": f.high,
                    }
                    for f in self._queries.facets(VALUES)
                ]
                self._facets = version, found
            return self._facets[1]

    def images(self, limit: int, cursor: str | None, filter: str | None) -> dict[str, Any]:
        conditions = None if filter is None else read_filter(filter)
        rows = self._queries.page(read_cursor(cursor), limit + 1, conditions)
        more = len(rows) > limit
        rows = rows[:limit]
        return {
            "images": [listed(row) for row in rows],
            "next": write_cursor(rows[-1].key) if more else None,
            "total": self._index.count(conditions),
        }

    def row(self, id: Id) -> Row:
        """The record of an image. Raises a 404 problem."""
        row = self._queries.row(id)
        if row is None and isinstance(id, str) and _is_number(id):  # a URL has only text
            row = self._queries.row(int(id))
        if row is None:
            raise no_image(id)
        return row

    def image(self, id: Id) -> dict[str, Any]:
        row = self.row(id)
        identity = self._index.identity
        _, entries = unpack_codes([row.key], [row.codes], identity.bits, any_region=True)
        counts = self._queries.in_bucket(entries["code"].copy())
        regions = [
            {
                "region": identity.region_name(int(entry["region"])),
                "box": identity.region_box(int(entry["region"]), row.width, row.height),
                "code": entry["code"].tobytes().hex(),
                "images_in_bucket": count,
                "keep": round(float(entry["keep"]), 4),
            }
            for entry, count in zip(entries, counts, strict=True)
        ]
        fine = self._queries.has_fine(row.id)
        return {**listed(row), "path": row.path, "regions": regions, "fine": fine}

    def words(self, prefix: str, limit: int) -> dict[str, Any]:
        """The words that start with `prefix`, short ones first: "ca" gives "car" before
        "cabbage butterfly"."""
        words = self._queries.words
        found = [] if words is None else sorted(words.starting(prefix.strip()), key=len)
        return {"words": found[:limit]}


def listed(row: Row) -> dict[str, Any]:
    """An image of a list."""
    return {
        "id": row.id,
        "name": file_name(row.id, row.path),
        "width": row.width or None,
        "height": row.height or None,
        "bytes": row.size,
        "modified": modified(row),
        "metadata": _metadata_of(row),
    }


def modified(row: Row) -> str | None:
    """When the file of an image was last changed."""
    if row.time is None:
        return None
    return datetime.fromtimestamp(row.time / 1e9, UTC).isoformat(timespec="seconds")


def _metadata_of(row: Row) -> dict[str, Any]:
    try:
        return row_metadata(row)
    except StoreDamagedError:  # `mch verify` reports it
        return {}


def read_filter(text: str) -> Mapping[str, Any]:
    """The filter in a URL, as JSON."""
    try:
        filter = json_text.loads(text)
    except ValueError as error:
        raise ProblemError(422, "invalid", f"filter must be JSON: {error}") from None
    if not isinstance(filter, dict):
        raise ProblemError(422, "invalid", 'filter must be an object, such as {"album": "2024"}')
    return filter


def write_cursor(place: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([place]).encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> int:
    """The place after which a list goes on; 0 is its start."""
    if text is None:
        return 0
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
        (place,) = json.loads(data)
        if type(place) is not int or not 0 <= place < 2**63:
            raise ValueError
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise ProblemError(
            422, "invalid", "cursor must be the next of an earlier answer, or left out"
        ) from None
    return place


def _is_number(text: str) -> bool:
    return len(text) < 20 and text.lstrip("-").isascii() and text.lstrip("-").isdigit()
