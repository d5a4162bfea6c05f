"""The record of an image in the store: what it holds, and its checksums.

The codes have a checksum of their own, so that they can be read without the rest of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mchindex import json_text
from mchindex.errors import StoreDamagedError

Id: TypeAlias = str | int
LAST_REGION = 255  # the largest number of a region that a table can hold
COLUMNS = "key, id, path, size, time, hash, width, height, metadata, codes, crc"


class Row(NamedTuple):
    """An image as it is stored."""

    id: Id
    codes: bytes  # entries of `code_type`; as read from the store, `pack_codes` of them
    path: str | None = None
    size: int | None = None
    time: int | None = None
    hash: bytes | None = None
    width: int | None = None
    height: int | None = None
    metadata: str | None = None
    key: int = -1  # assigned by the store
    fine: bytes | None = None  # the fine codes of all regions; not read back with the record


@dataclass(frozen=True, slots=True)
class Known:
    """The stored fields that decide whether an image must be encoded again."""

    key: int
    size: int | None
    time: int | None
    hash: bytes | None
    metadata: str | None
    fine: bool = False  # whether it has fine codes


def code_type(bits: int) -> np.dtype[Any]:
    """An entry: a region's number, the probability with which it was kept, and its code."""
    return np.dtype([("region", "<i2"), ("keep", "<f4"), ("code", "u1", (bits // 8,))])


def pack_codes(key: int, entries: bytes) -> bytes:
    """Entries of `code_type`, followed by the CRC-32 of the key and the entries."""
    return entries + crc32(entries, key & 0xFFFFFFFF).to_bytes(4, "little")


def pack_fine(key: int, codes: bytes) -> bytes:
    """Fine codes, followed by a CRC-32 that differs from that of the image's other codes."""
    return codes + crc32(codes, ~key & 0xFFFFFFFF).to_bytes(4, "little")


def unpack_fine(
    keys: Sequence[int], blobs: Sequence[bytes], regions: int, bits: int
) -> NDArray[np.uint8]:
    """Fine codes, (images, regions, bits // 8). Raises StoreDamagedError if any are damaged."""
    for key, blob in zip(keys, blobs, strict=True):
        if not is_intact_fine(key, blob, regions * bits // 8):
            raise StoreDamagedError(f"the fine codes of image number {key} are damaged")
    joined = b"".join([blob[:-4] for blob in blobs])
    return np.frombuffer(joined, np.uint8).reshape(len(blobs), regions, bits // 8)


def unpack_codes(
    keys: Sequence[int], blobs: Sequence[bytes], bits: int, *, any_region: bool = False
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The image key of each entry, and the entries. Raises StoreDamagedError if any is damaged.

    That includes a region that no table can hold, unless `any_region` is true.
    """
    kind = code_type(bits)
    images = np.array(keys, np.int64)
    intact = [is_intact(key, blob) for key, blob in zip(keys, blobs, strict=True)]
    if not all(intact):
        damaged = keys[intact.index(False)]
        raise StoreDamagedError(f"the codes of image number {damaged} are damaged")
    counts, rest = np.divmod(np.fromiter(map(len, blobs), np.int64, len(blobs)) - 4, kind.itemsize)
    if rest.any():
        raise StoreDamagedError(
            f"the codes of image number {images[rest.argmax()]} do not have {bits} bits each"
        )
    entries = np.frombuffer(b"".join([b[:-4] for b in blobs]), kind)
    owners, regions = np.repeat(images, counts), entries["region"]
    wrong = (regions < 0) | (regions > LAST_REGION)
    if not any_region and wrong.any():
        at = wrong.argmax()
        raise StoreDamagedError(
            f"the codes of image number {owners[at]} cannot be searched: region {regions[at]} is "
            f"not from 0 to {LAST_REGION}"
        )
    return owners, entries


def is_intact(key: int, blob: Any) -> bool:
    """Whether packed codes, of any width, match their checksum."""
    if type(blob) is not bytes or type(key) is not int or len(blob) < 5:
        return False
    return int.from_bytes(blob[-4:], "little") == crc32(blob[:-4], key & 0xFFFFFFFF)


def is_intact_fine(key: int, blob: Any, size: int) -> bool:
    """Whether packed fine codes have `size` bytes and match their checksum."""
    return type(blob) is bytes and len(blob) == size + 4 and blob == pack_fine(key, blob[:-4])


_NONE = (None,) * (len(Row._fields) - 4)  # all but id, codes, key and fine codes
_NOTHING = repr(_NONE)


def row_crc(key: int, id: Id, *rest: Any) -> int:
    words = _NOTHING if rest == _NONE else repr(rest)  # faster for images that have only codes
    return crc32(f"{key}|{id!r}|{words}".encode("utf-8", "surrogatepass"))


def read_row(values: tuple[Any, ...]) -> Row:
    key, id_, *rest, codes, crc = values
    if not isinstance(key, int) or crc != row_crc(key, id_, *rest):
        raise StoreDamagedError(f"the record of image number {key} is damaged")
    path, *others = rest
    return Row._make((id_, codes, str(id_) if path == "" else path, *others, key, None))


def row_values(row: Row, key: int) -> tuple[Any, ...]:
    """The values of `COLUMNS`."""
    id_, codes, path, *others = row[:-2]
    if not _PLAIN.issuperset(map(type, row)):
        id_, codes, path, *others = map(_plain, row[:-2])
    if path is not None and path == id_:
        path = ""
    return (key, id_, path, *others, pack_codes(key, codes), row_crc(key, id_, path, *others))


_PLAIN = {str, int, bytes, type(None)}


def _plain(value: Any) -> Any:
    """A value of a subclass, such as a member of a StrEnum, as SQLite will give it back."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, bytes):
        return bytes(value)
    if value is None:
        return None
    raise TypeError(f"a record cannot hold {type(value).__name__}")


def row_metadata(row: Row) -> dict[str, Any]:
    """The metadata of an image; none are an empty mapping.

    Raises StoreDamagedError for metadata that are not JSON, or nested too deeply.
    """
    try:
        metadata = json_text.loads(row.metadata) if row.metadata else {}
        if isinstance(metadata, dict):
            return metadata
        reason = "they are not a mapping"
    except ValueError as error:
        reason = str(error)
    raise StoreDamagedError(
        f"the metadata of image {row.id!r} cannot be read ({reason}): replace them or remove the "
        "image"
    )
