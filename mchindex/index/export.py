"""An index as a file of JSON lines, which other programs can read and another index can take in.

A header says what the codes are of, each line after it is an image, and the last one says how many
there were: by that a file that was cut is noticed. Nothing is held in memory but a line at a time.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from mchindex.catalogue import CONFIG, find, listed
from mchindex.errors import (
    ExportError,
    ModelMismatchError,
    NotAnIndexError,
    StoreDamagedError,
    StoreError,
)
from mchindex.index.facade import MODEL_FOLDER, MCHIndex
from mchindex.index.inputs import check_id
from mchindex.progress import Progress, Step, silent
from mchindex.regions import read_layout
from mchindex.storage.records import Id, Row, code_type, unpack_codes
from mchindex.storage.store import FILE, Store

FORMAT, VERSION = "mchindex-export", 1
LONGEST = 1 << 26  # bytes of a line
REGIONS = 256  # at most, where the layout is not known
SAMPLE = 1000  # images from which the width of the codes is guessed
_ENTRY = struct.Struct("<hf")  # what stands before a code in `code_type`
_ZIPPED = b"\x1f\x8b"


@dataclass(frozen=True)
class Header:
    """What the codes are of."""

    bits: int
    model: str | None = None  # by name
    fingerprint: str | None = None  # None: codes of the user's own
    names: tuple[str, ...] = ()  # of the regions
    boxes: tuple[tuple[float, ...], ...] = ()
    model_lost: bool = False  # the index was damaged: nobody knows any more

    def to_json(self) -> dict[str, Any]:
        facts = {
            "format": FORMAT, "version": VERSION, "bits": self.bits, "model": self.model,
            "fingerprint": self.fingerprint, "names": self.names, "boxes": self.boxes,
        }  # fmt: skip
        return facts | ({"model_lost": True} if self.model_lost else {})


@dataclass(frozen=True)
class Exported:
    images: int
    lost: int  # images that were damaged
    header: Header


@dataclass
class Imported:
    added: int = 0
    replaced: int = 0
    refused: list[str] = field(default_factory=list)  # wrong lines, with `partial` only
    cut: bool = False  # the end was missing, with `partial` only


# Out.


def export_index(folder: str | os.PathLike[str], out: IO[bytes]) -> Exported:
    """Writes all images of an index, as of one moment; of a damaged one what can be read."""
    store = _opened(Path(folder))
    try:
        with store.one_state():
            header = _facts(store)
            out.write(_line(header.to_json()))
            images = unreadable = 0
            for row in store.salvage():
                record = None if row is None else _record_of(row, header.bits)
                if record is None:
                    unreadable += 1
                else:
                    images += 1
                    out.write(_line(record))
            out.write(_line({"end": images}))
            return Exported(images, _lost(store, images, unreadable), header)
    finally:
        store.close()


@contextmanager
def created(file: str | os.PathLike[str], overwrite: bool = False) -> Iterator[IO[bytes]]:
    """A file for an export, zipped if its name ends in .gz. It appears when it is whole."""
    path = Path(file)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(new, "wb") as raw:
            if path.suffix.lower() == ".gz":
                # Without name and time: the same index gives the same file.
                with gzip.GzipFile("", "wb", 6, raw, mtime=0) as zipped:
                    yield zipped  # type: ignore[misc]
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _opened(folder: Path) -> Store:
    if not (folder / FILE).exists():
        raise NotAnIndexError(f"{folder} is not an index")
    return Store(folder)


def _facts(store: Store) -> Header:
    """What the index says of itself, or, where that is damaged, what its own model says."""
    try:
        facts = store.get("model")
    except StoreError:
        return _rescued_facts(store)
    if facts is None:
        raise NotAnIndexError(f"{store.name} has never been filled: there is nothing to export")
    boxes = tuple(tuple(box) for box in facts["boxes"])
    return Header(facts["bits"], facts["name"], facts["fingerprint"], tuple(facts["names"]), boxes)


def _rescued_facts(store: Store) -> Header:
    assert store.folder is not None
    try:
        config = json.loads((store.folder / MODEL_FOLDER / CONFIG).read_text("utf-8"))
        layout = read_layout(config.get("layout", "corners"), config["sigma"])
        return Header(
            config["bits"], None, config["fingerprint"], tuple(layout.names), tuple(layout.boxes)
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Header(_guessed_bits(store), model_lost=True)


def _guessed_bits(store: Store) -> int:
    """The smallest width that makes sense of all codes: a wrong one puts bits of codes where
    regions and probabilities belong, and few of those look like them."""
    blobs = [r.codes[:-4] for r in itertools.islice(store.salvage(), SAMPLE) if r is not None]
    for bits in range(8, 257, 8) if blobs else ():
        kind = code_type(bits)
        if any(len(blob) % kind.itemsize for blob in blobs):
            continue
        entries = np.frombuffer(b"".join(blobs), kind)
        if (entries["region"] >= 0).all() and (
            (entries["keep"] >= 0) & (entries["keep"] <= 1)
        ).all():
            return bits
    raise StoreDamagedError(f"{store.name} is damaged: no image in it can be read")


def _record_of(row: Row, bits: int) -> dict[str, Any] | None:
    try:
        _, entries = unpack_codes([row.key], [row.codes], bits)
    except StoreDamagedError:  # whole, but of another width
        return None
    return {
        "id": row.id,
        "path": row.path,
        "size": row.size,
        "time": row.time,
        "hash": None if row.hash is None else row.hash.hex(),
        "width": row.width,
        "height": row.height,
        "metadata": None if row.metadata is None else json.loads(row.metadata),
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


def _line(record: dict[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


def _lost(store: Store, images: int, unreadable: int) -> int:
    """A damaged page hides how many it held; the index over the ids often still knows."""
    try:
        missing = len(store) - images
    except StoreError:
        missing = 0
    return missing if missing > 0 else unreadable


# In.


def import_index(
    file: str | os.PathLike[str] | IO[bytes],
    folder: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    partial: bool = False,
    wait: float = 0.0,
    device: str | None = None,
    progress: Progress = silent,
) -> Imported:
    """Takes an export into an index, new or not; images that are there already are replaced.

    The file is read through before anything is written: it must be whole, and of the index's own
    model. `partial` takes what is sound of a file that is not whole. `model` is what fills a new
    index; without it the model is looked for by its fingerprint. `progress` is called with images
    done and images in all.
    """
    with _seekable(file) as (stream, name):
        reader = Reader(stream, name, partial)
        total = sum(1 for _ in reader.rows())
        fresh = not (Path(folder) / FILE).exists()
        chosen = _model_for(reader.header, model, name) if fresh else model
        bits = reader.header.bits if chosen is None else None
        with MCHIndex.open(folder, chosen, bits=bits, wait=wait, device=device) as index:
            _check(reader.header, index, name)

            def told() -> Iterator[Row]:
                for done, row in enumerate(reader.rows(), 1):
                    yield row
                    if done % 1000 == 0 or done == total:
                        progress(Step("importing", done, total, unit="images"))

            added, replaced = index.add_records(told())
    return Imported(added, replaced, reader.refused, reader.cut)


class Reader:
    """An export, read as often as one likes. Wrong lines are errors, or with `partial` noted."""

    def __init__(self, stream: IO[bytes], name: str, partial: bool = False) -> None:
        self._stream, self._name, self._partial = stream, name, partial
        self.refused: list[str] = []
        self.cut = self._torn = False
        self.header = self._header(next(self._lines(), (1, b""))[1])

    def rows(self) -> Iterator[Row]:
        self.refused.clear()
        self.cut = self._torn = False
        count, end = 0, None
        for number, line in itertools.islice(self._lines(), 1, None):
            if end is not None:
                self._refuse(number, "there is more behind the end")
                break
            try:
                record = json.loads(line, parse_constant=_no_constant)
                row = None if _is_end(record) else _row_of(record, self.header)
            except (ValueError, TypeError, RecursionError) as error:
                if not line.endswith(b"\n"):
                    break  # the last line, and not all of it
                self._refuse(number, _reason(error))
                continue
            if row is not None:
                count += 1
                yield row
                continue
            end = record["end"]
            if end != count + len(self.refused):  # what is refused was counted, too
                self._refuse(number, f"the end of {end} images, but there are {count}")
        self.cut = end is None or self._torn
        if self.cut and not self._partial:
            raise ExportError(
                f"{self._name} is cut short or damaged: {count:,} images can be read, and no end"
            )

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        self._stream.seek(0)
        zipped = self._stream.read(2) == _ZIPPED
        self._stream.seek(0)
        lines: Any = gzip.GzipFile(fileobj=self._stream) if zipped else self._stream
        for number in itertools.count(1):
            try:
                line = lines.readline(LONGEST)
            except (EOFError, zlib.error, gzip.BadGzipFile):
                self._torn = True  # what is behind is lost
                return
            if not line:
                return
            if len(line) == LONGEST:
                raise ExportError(f"{self._name}:{number}: a line of more than {LONGEST} bytes")
            yield number, line

    def _refuse(self, number: int, reason: str) -> None:
        where = f"{self._name}:{number}: {reason}"
        if not self._partial:
            raise ExportError(where)
        self.refused.append(where)

    def _header(self, line: bytes) -> Header:
        try:
            facts = json.loads(line)
            if facts["format"] != FORMAT:
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ExportError(f"{self._name} is not an export of mchindex") from None
        try:
            if facts["version"] > VERSION:
                raise ExportError(
                    f"{self._name} was written by a newer mchindex (version {facts['version']}): "
                    "update mchindex"
                )
            boxes = tuple(tuple(float(v) for v in box) for box in facts["boxes"])
            names = tuple(map(str, facts["names"]))
            bits, lost = facts["bits"], facts.get("model_lost", False)
            if len(names) != len(boxes) or bits not in range(8, 257, 8):
                raise ValueError
            return Header(bits, facts["model"], facts["fingerprint"], names, boxes, bool(lost))
        except ExportError:
            raise
        except (ValueError, KeyError, TypeError):
            raise ExportError(f"{self._name}:1: its header is damaged") from None


def _is_end(record: Any) -> bool:
    return isinstance(record, dict) and record.keys() == {"end"}


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON's")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}, column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return str(error) or type(error).__name__


def _row_of(record: Any, header: Header) -> Row:
    if not isinstance(record, dict):
        raise ValueError("an image is an object")
    missing = {"id", "codes"} - record.keys()
    if missing:
        raise ValueError(f"it has no {' and no '.join(sorted(missing))}")
    if record.get("path") == "":  # which the store takes for the id
        raise ValueError("'path' cannot be empty")
    hash_ = _typed(record, "hash", str)
    metadata = _typed(record, "metadata", dict)
    return Row(
        _id(record["id"]),
        _packed(record["codes"], header),
        _text(_typed(record, "path", str)),
        _whole(record, "size"),
        _whole(record, "time"),
        None if hash_ is None else bytes.fromhex(hash_),
        _whole(record, "width"),
        _whole(record, "height"),
        None if metadata is None else _text(json.dumps(metadata, ensure_ascii=False)),
    )


def _id(id: Any) -> Id:
    try:
        return check_id(id)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _typed(record: dict[str, Any], name: str, kind: type) -> Any:
    value = record.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise ValueError(f"{name!r} cannot be {json.dumps(value)[:40]}")
    return value


def _whole(record: dict[str, Any], name: str) -> int | None:
    value: int | None = _typed(record, name, int)
    if value is not None and not -(2**63) <= value < 2**63:
        raise ValueError(f"{name!r} is beyond 64 bits")
    return value


def _text(text: str | None) -> str | None:
    if text is not None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("its text is not valid Unicode") from None
    return text


def _packed(codes: Any, header: Header) -> bytes:
    if not isinstance(codes, list) or not codes:
        raise ValueError("an image has a list of codes, at least one")
    parts, regions = [], len(header.names) or REGIONS
    for entry in codes:
        if not isinstance(entry, dict) or not entry.keys() >= {"region", "keep", "code"}:
            raise ValueError("a code is an object with region, keep and code")
        region, keep = _whole(entry, "region"), entry["keep"]
        if region is None or not 0 <= region < regions:
            raise ValueError(f"there is no region {entry['region']!r}")
        if keep is None:
            keep = math.nan
        elif isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0 <= keep <= 1:
            raise ValueError("'keep' is a probability, 0 to 1")
        code = bytes.fromhex(_typed(entry, "code", str) or "")
        if len(code) * 8 != header.bits:
            raise ValueError(f"a code of {len(code) * 8} bits, not of {header.bits}")
        parts.append(_ENTRY.pack(region, keep) + code)
    return b"".join(parts)


@contextmanager
def _seekable(
    file: str | os.PathLike[str] | IO[bytes],
) -> Iterator[tuple[IO[bytes], str]]:
    """The file and its name. What can be read once only, a pipe, is put on the disk first."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened, _seekable(opened) as (stream, _):
            yield stream, os.fspath(file)
    elif file.seekable():
        yield file, "the export"
    else:
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(file, spool)
            yield spool, "the export"


def _model_for(
    header: Header, model: str | os.PathLike[str] | None, name: str
) -> str | os.PathLike[str] | None:
    """What a new index is to be filled by; None: codes of the user's own."""
    if model is not None:
        own = _fingerprint(find(model))
        if own is not None and not header.model_lost and own != header.fingerprint:
            raise ModelMismatchError(
                f"{name} was filled by {_called(header)}, not by {os.fspath(model)} ({own})"
            )
        return model
    if header.model_lost:
        raise ExportError(f"{name} does not know its model any more: say which it was")
    if header.fingerprint is None:
        return None
    elsewhere = [] if header.model is None else [Path(header.model)]
    for known in listed(*elsewhere):
        if known.config["fingerprint"] == header.fingerprint:
            return known.name if known.ships else known.path
    raise ExportError(f"{name} was filled by {_called(header)}, which is not here: say where")


def _fingerprint(folder: Path) -> str | None:
    try:
        value: str = json.loads((folder / CONFIG).read_text("utf-8"))["fingerprint"]
        return value
    except (OSError, ValueError, KeyError, TypeError):
        return None  # opening the index says what is wrong


def _called(header: Header) -> str:
    known = header.fingerprint or "codes of one's own"
    return f"the model {header.model} ({known})" if header.model else f"another model ({known})"


def _check(header: Header, index: MCHIndex, name: str) -> None:
    """That the codes mean the same."""
    facts, layout = index.stats(), index.layout
    if header.bits != index.bits:
        raise ModelMismatchError(f"{name} holds codes of {header.bits} bits, not of {index.bits}")
    if header.model_lost:
        return
    if header.fingerprint != facts["fingerprint"]:
        other = facts["fingerprint"] or "codes of one's own"
        raise ModelMismatchError(
            f"{name} was filled by {_called(header)}, and {facts['path']} by another: {other}"
        )
    own = ((), ()) if layout is None else (layout.names, tuple(map(tuple, layout.boxes)))
    if (header.names, header.boxes) != own:
        raise ModelMismatchError(f"{name} has other regions than {facts['path']}")


__all__ = [
    "ExportError",
    "Exported",
    "Header",
    "Imported",
    "Reader",
    "created",
    "export_index",
    "import_index",
]
