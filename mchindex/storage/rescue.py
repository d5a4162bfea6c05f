"""Reading what is left of a damaged store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from mchindex.errors import StoreDamagedError, StoreError
from mchindex.storage.records import COLUMNS, Row, is_intact, is_intact_fine, read_row
from mchindex.storage.schema import FILE
from mchindex.storage.store import Store

TOGETHER = 1000  # keys read with one query, as long as nothing is damaged


def salvage(store: Store) -> Iterator[Row | None]:
    """Yields each image, or None for one that cannot be read."""
    end = 1 + _last_key(store)
    for low in range(1, end, TOGETHER):
        yield from _between(store, low, min(low + TOGETHER, end))


def _between(store: Store, low: int, high: int) -> Iterator[Row | None]:
    """The images with keys from `low` up to `high`; halves the range where a page is damaged."""
    query = f"SELECT {COLUMNS} FROM images WHERE key >= ? AND key < ? ORDER BY key"
    try:
        with store.reading() as db:
            rows = db.execute(query, (low, high)).fetchall()
    except StoreError:
        if high - low <= 1:
            yield None
        else:
            middle = (low + high) // 2
            yield from _between(store, low, middle)
            yield from _between(store, middle, high)
        return
    for values in rows:
        try:
            row = read_row(values)
        except StoreDamagedError:
            yield None
        else:
            yield row if is_intact(row.key, row.codes) else None


def salvage_fine(store: Store, keys: Sequence[int], size: int) -> dict[int, bytes | None]:
    """The fine codes of images, `size` bytes each, by key; None for those that are damaged.

    Images that have no fine codes are left out.
    """
    try:
        blobs = store.fine(keys)
    except StoreError:
        if len(keys) <= 1:
            return dict.fromkeys(keys)
        middle = len(keys) // 2
        low, high = keys[:middle], keys[middle:]
        return salvage_fine(store, low, size) | salvage_fine(store, high, size)
    return {
        key: blob[:-4] if is_intact_fine(key, blob, size) else None for key, blob in blobs.items()
    }


def _last_key(store: Store) -> int:
    """The largest key there may be, from the best source that can still be read."""
    with contextlib.suppress(StoreError):
        return store.state().key
    with contextlib.suppress(StoreError), store.reading() as db:
        return int(db.execute("SELECT max(key) FROM images").fetchone()[0] or 0)
    assert store.folder is not None
    return (store.folder / FILE).stat().st_size // 20  # no row is shorter
