"""Checks the codes given to `MCHIndex.add_codes` and turns them into rows of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mchindex.index.inputs import Metadata, check_id, metadata_json
from mchindex.storage.records import Id, Row, code_type


def rows_of_codes(
    ids: Any,
    codes: ArrayLike,
    regions: ArrayLike | None,
    metadata: Sequence[Metadata | None] | None,
    bits: int,
) -> list[Row]:
    """One row per distinct id, in order of first appearance. See `MCHIndex.add_codes`."""
    packed = _checked_codes(codes, bits)
    names, owners = _distinct(ids)
    if len(owners) != len(packed):
        raise ValueError(f"{len(owners)} ids and {len(packed)} codes were given")
    if metadata is not None and len(metadata) != len(names):
        raise ValueError(f"{len(metadata)} metadata entries for {len(names)} images were given")
    entries = np.zeros(len(packed), code_type(bits))
    entries["code"], entries["keep"] = packed, 1
    if regions is not None:
        entries["region"] = _checked_regions(regions, len(packed))
    if len(names) != len(owners):  # several codes per image: put those of an image together
        order = np.argsort(owners, kind="stable")
        entries, owners = entries[order], owners[order]
    ends = np.searchsorted(owners, np.arange(len(names) + 1)) * entries.itemsize
    raw, cuts = entries.tobytes(), ends.tolist()
    notes = [None] * len(names) if metadata is None else [metadata_json(m) for m in metadata]
    return [
        Row(name, raw[cuts[i] : cuts[i + 1]], metadata=notes[i]) for i, name in enumerate(names)
    ]


def _checked_codes(codes: ArrayLike, bits: int) -> NDArray[np.uint8]:
    array = np.asarray(codes)
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != bits // 8:
        raise ValueError(
            f"codes must be uint8 of shape (n, {bits // 8}), as np.packbits packs {bits} bits, "
            f"not {array.dtype} of shape {array.shape}"
        )
    return array


def _checked_regions(regions: ArrayLike, codes: int) -> NDArray[Any]:
    numbers = np.asarray(regions)
    if numbers.shape != (codes,) or numbers.dtype.kind not in "iu":
        raise ValueError(f"regions must be {codes} integers, one per code")
    if numbers.size and (numbers.min() < 0 or numbers.max() > 0xFF):
        raise ValueError("region numbers must be between 0 and 255")
    return numbers


def _distinct(ids: Any) -> tuple[list[Id], NDArray[np.int64]]:
    """The distinct ids in order of first appearance, and the position of each row's id in them."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.ndim == 1:
        names, first, owners = np.unique(ids, return_index=True, return_inverse=True)
        rank = np.empty(len(names), np.int64)
        order = np.argsort(first, kind="stable")
        rank[order] = np.arange(len(names))
        if len(names):
            check_id(names[-1])  # the largest
        return names[order].tolist(), rank[owners.reshape(-1)]
    if isinstance(ids, (str, bytes)) or getattr(ids, "ndim", 1) != 1:
        raise TypeError("ids must be a list or a one-dimensional array, one per code")
    place: dict[Id, int] = {}
    owners = np.array([place.setdefault(check_id(i), len(place)) for i in ids], np.int64)
    return list(place), owners
