"""Exports an index to a file of JSON lines, which other programs and other indexes can read.

The first line, the header, says what the codes are. Each line after it is an image. The last line
has the number of images, so that a truncated file is detected. Only some lines at a time are held
in memory.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import numpy as np

from mchindex import json_text
from mchindex.catalogue import read_config
from mchindex.errors import NotAnIndexError, StoreDamagedError, StoreError
from mchindex.files import replaceable, replacing
from mchindex.index.adding import groups
from mchindex.index.backup import MODEL_FOLDER
from mchindex.index.identity import FineIdentity, Identity
from mchindex.regions import read_layout
from mchindex.storage.records import Row, code_type, unpack_codes
from mchindex.storage.rescue import salvage, salvage_fine
from mchindex.storage.store import Store

FORMAT, VERSION = "mchindex-export", 2  # an export without fine codes has version 1
TOGETHER = 1000  # images whose fine codes are read at a time
SAMPLE = 1000  # images from which the width of the codes is guessed
REASONS = 1000  # images for which the reason is kept why they could not be written, at most
LONGEST_NAME = 1000  # characters of a model's name or fingerprint, at most
MOST_FINE_BITS = 1024  # per fine code that a `FineTable` takes


class FineKind(NamedTuple):
    """What the fine codes of an export are."""

    bits: int
    fingerprint: str  # of what made them, see `FineIdentity`

    @classmethod
    def from_json(cls, facts: Any) -> FineKind | None:
        """Raises ValueError if it is invalid."""
        if facts is None:
            return None
        if not isinstance(facts, dict) or facts.keys() != set(cls._fields):
            raise ValueError("'fine' must be null or an object with bits and fingerprint")
        bits, fingerprint = facts["bits"], facts["fingerprint"]
        if type(bits) is not int or bits not in range(8, MOST_FINE_BITS + 1, 8):
            raise ValueError(f"fine codes have a multiple of 8 bits, up to {MOST_FINE_BITS}")
        if not isinstance(fingerprint, str) or len(fingerprint) > LONGEST_NAME:
            raise ValueError("the fingerprint of 'fine' must be text")
        return cls(bits, fingerprint)


@dataclass(frozen=True)
class Header:
    """The first line of an export."""

    identity: Identity
    model_lost: bool = False  # the index was damaged and no longer knew its model
    fine: FineKind | None = None  # None: there are no fine codes

    @property
    def fine_size(self) -> int:
        """The bytes of the fine codes of an image."""
        regions = max(1, len(self.identity.regions))
        return 0 if self.fine is None else regions * self.fine.bits // 8

    def to_json(self) -> dict[str, Any]:
        facts = self.identity.to_json()
        facts = {
            "format": FORMAT, "version": 1 if self.fine is None else VERSION,
            "bits": facts["bits"], "model": facts["name"], "fingerprint": facts["fingerprint"],
            "names": facts["names"], "boxes": facts["boxes"],
        }  # fmt: skip
        if self.fine is not None:
            facts["fine"] = self.fine._asdict()
        if self.identity.precision != "float":
            facts |= {
                "precision": self.identity.precision,
                "int8_graph": self.identity.int8_graph,
            }
        return facts | ({"model_lost": True} if self.model_lost else {})

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> Header:
        """Reads what `to_json` wrote. Raises ValueError or KeyError if it is invalid."""
        for name in ("model", "fingerprint"):
            text = facts[name]
            if text is not None and not (isinstance(text, str) and len(text) <= LONGEST_NAME):
                raise ValueError(f"{name!r} must be text or null")
        if type(facts["bits"]) is not int:
            raise ValueError("'bits' must be an integer")
        names, boxes = facts["names"], facts["boxes"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("'names' must be a list of text")
        if not isinstance(boxes, list) or not all(map(_is_box, boxes)):
            raise ValueError("'boxes' must be a list of four numbers each")
        lost = facts.get("model_lost", False)
        if not isinstance(lost, bool):
            raise ValueError("'model_lost' must be true or false")
        json_text.dumps([facts["model"], facts["fingerprint"], names])  # only valid Unicode
        identity = Identity.from_json(facts | {"name": facts["model"]})
        _ = identity.layout  # raises ValueError for regions that cannot be
        fine = FineKind.from_json(facts.get("fine"))
        return cls(identity, lost, None if lost else fine)


@dataclass(frozen=True)
class Exported:
    """The result of `export_index`."""

    images: int
    lost: int  # images that could not be read, or not be written
    header: Header
    fine_lost: int = 0  # images that were written without their fine codes, which are damaged
    # Those that were read, but cannot be written as JSON, and why; at most `REASONS` of them.
    reasons: list[str] = field(default_factory=list)


def export_index(folder: str | os.PathLike[str], out: IO[bytes]) -> Exported:
    """Writes all images of an index as of one moment, or what can be read if it is damaged."""
    with closing(Store.existing(folder)) as store, store.one_state():
        header = _header(store)
        out.write(_line(header.to_json()))
        images = skipped = with_fine = without_fine = 0
        reasons: list[str] = []
        for group in groups(salvage(store), TOGETHER):
            fine = _fine(store, header, [row.key for row in group if row is not None])
            for row in group:
                try:
                    line = None if row is None else _line(_record(row, header, fine.get(row.key)))
                except StoreDamagedError:  # intact, but of another width
                    line = None
                except _BAD_RECORD as error:
                    line = None
                    if len(reasons) < REASONS:
                        reasons.append(f"{row.id!r:.200}: {error}")  # type: ignore[union-attr]
                if row is None or line is None:
                    skipped += 1
                else:
                    images += 1
                    out.write(line)
                    with_fine += fine.get(row.key) is not None
                    without_fine += row.key in fine and fine[row.key] is None
        out.write(_line({"end": images}))
        lost = _lost(store, images, skipped)
        if not lost:  # otherwise the images that were lost may be those with fine codes
            without_fine = max(without_fine, _fine_expected(store) - with_fine)
        return Exported(images, lost, header, without_fine, reasons)


@contextmanager
def created(file: str | os.PathLike[str], overwrite: bool = False) -> Iterator[IO[bytes]]:
    """A file for an export, compressed if its name ends in .gz. It appears when it is complete.

    If `file` is a link, what it links to is written. A folder, a device or a pipe is not replaced.
    """
    if os.path.lexists(file) and not overwrite:
        raise FileExistsError(f"{os.fspath(file)} already exists")
    with replacing(replaceable(file)) as raw:
        if os.fspath(file).lower().endswith(".gz"):
            # Without name and time, so that the same index gives the same file.
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped:
                yield zipped  # type: ignore[misc]
        else:
            yield raw


def _fine(store: Store, header: Header, keys: list[int]) -> dict[int, bytes | None]:
    """The fine codes of images that have any; None for those that are damaged."""
    return {} if header.fine is None else salvage_fine(store, keys, header.fine_size)


def _fine_expected(store: Store) -> int:
    """How many images should have fine codes, as far as the store can still say."""
    try:
        return store.fine_images()
    except StoreError:
        return 0


def _header(store: Store) -> Header:
    """The header from what the index records about itself or, if that is damaged, its model."""
    try:
        identity = Identity.of_store(store)
    except StoreError:
        return _rescued_header(store)
    if identity is None:
        raise NotAnIndexError(f"{store.name} has never been filled: there is nothing to export")
    return Header(identity, fine=_fine_kind(store))


def _fine_kind(store: Store) -> FineKind | None:
    """What the fine codes are; None if there are none or the index no longer knows."""
    try:
        fine = FineIdentity.of_store(store) if _fine_expected(store) else None
    except StoreError:
        return None
    return None if fine is None else FineKind(fine.bits, fine.fingerprint)


def _rescued_header(store: Store) -> Header:
    assert store.folder is not None
    try:
        config = read_config(store.folder / MODEL_FOLDER)
        layout = read_layout(config.get("layout", "corners"), config["sigma"])
        return Header(
            Identity(config["bits"], config["fingerprint"], None, layout.names, layout.boxes),
            fine=_fine_kind(store),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Header(Identity(_guessed_bits(store)), model_lost=True)


def _guessed_bits(store: Store) -> int:
    """The smallest code width for which the records of a sample look valid.

    With a wrong width, bits of codes are read as regions and probabilities, and most of these are
    out of range.
    """
    blobs = [r.codes[:-4] for r in itertools.islice(salvage(store), SAMPLE) if r is not None]
    for bits in range(8, 257, 8) if blobs else ():
        kind = code_type(bits)
        if any(len(blob) % kind.itemsize for blob in blobs):
            continue
        entries = np.frombuffer(b"".join(blobs), kind)
        if (entries["region"] >= 0).all() and (
            (entries["keep"] >= 0) & (entries["keep"] <= 1)
        ).all():
            return bits
    raise StoreDamagedError(f"{store.name} is damaged: none of its images can be read")


# Reading a record whose checksum is right raises these if mchindex would not have written it.
_BAD_RECORD = (ValueError, TypeError, AttributeError, OverflowError)


def _record(row: Row, header: Header, fine: bytes | None) -> dict[str, Any]:
    """Raises StoreDamagedError or one of `_BAD_RECORD`."""
    _, entries = unpack_codes([row.key], [row.codes], header.identity.bits)
    for name in ("size", "time", "width", "height"):
        if not isinstance(getattr(row, name), (int, type(None))):
            raise TypeError(f"its {name} is not an integer")
    record: dict[str, Any] = {
        "id": row.id,
        "path": row.path,
        "size": row.size,
        "time": row.time,
        "hash": None if row.hash is None else row.hash.hex(),
        "width": row.width,
        "height": row.height,
        "metadata": None if row.metadata is None else _metadata(row.metadata),
        "codes": [
            {"region": region, "keep": keep if math.isfinite(keep) else None, "code": code.hex()}
            for region, keep, code in zip(
                entries["region"].tolist(),
                entries["keep"].tolist(),
                map(bytes, entries["code"]),
                strict=True,
            )
        ],
    }
    if fine is not None and header.fine is not None:
        width = header.fine.bits // 8
        record["fine"] = [fine[at : at + width].hex() for at in range(0, len(fine), width)]
    return record


def _metadata(text: str) -> dict[str, Any]:
    try:
        value = json_text.loads(text)
        json_text.dumps(value)  # half a surrogate pair can be read, but not written
    except ValueError as error:
        raise ValueError(f"its metadata are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("its metadata are not an object")
    return value


def _line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _lost(store: Store, images: int, skipped: int) -> int:
    """The number of images that were not written.

    A damaged page may hide how many rows it held, but the store counts its images.
    """
    try:
        missing = len(store) - images
    except StoreError:
        missing = 0
    return missing if missing > 0 else skipped


def _is_box(box: Any) -> bool:
    return (
        isinstance(box, list)
        and len(box) == 4
        and all(type(side) in (int, float) and 0 <= side <= 1 for side in box)
    )


__all__ = ["Exported", "FineKind", "Header", "created", "export_index"]
