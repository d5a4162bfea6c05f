"""Imports an exported file into an index."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mchindex import json_text
from mchindex.catalogue import find, listed, read_config
from mchindex.errors import ExportError, ModelMismatchError
from mchindex.files import open_file
from mchindex.index.export import FORMAT, VERSION, Header
from mchindex.index.facade import MCHIndex
from mchindex.index.identity import Identity
from mchindex.index.inputs import check_id
from mchindex.progress import Progress, Step, silent
from mchindex.storage.records import Id, Row
from mchindex.storage.store import Store

LONGEST = 1 << 26  # bytes of a line, at most
LINE_LEVELS = json_text.DEEPEST + 1  # levels of nesting of a line, one more than of its metadata
CHECKED = 10_000  # lines between two steps of the progress
REASONS = 1000  # invalid lines for which the reason is kept, at most
LONGEST_REASON = 300  # characters
REGIONS = 256  # regions, at most, if the layout is not known
_ENTRY = struct.Struct("<hf")  # what precedes a code in `code_type`
_ZIPPED = b"\x1f\x8b"
_DESCRIPTOR = re.compile(r"/dev/(?:stdin|fd/(\d{1,6}))|/proc/self/fd/(\d{1,6})")


@dataclass
class Imported:
    """The result of `import_index`."""

    added: int = 0
    replaced: int = 0
    without_fine: int = 0  # images in the index that have no fine codes, if others have some
    # With `partial` only:
    refused: list[str] = field(default_factory=list)  # the first `REASONS` invalid lines, and why
    cut: bool = False  # the end was missing
    invalid: int = 0  # the number of all invalid lines


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
    """Imports an export into a new or existing index; images that are already there are replaced.

    The whole file is read before anything is written: it must be complete, and its codes must come
    from the model that filled the index. `partial` imports what is intact of an incomplete file.
    `model` is the model of a new index; by default, the model is looked up by its fingerprint.
    Fine codes are imported if the index has, or its model makes, fine codes of the same kind.
    """
    with _seekable(file) as (stream, name):
        reader = Reader(stream, name, partial)
        total = sum(1 for _ in reader.rows(progress))
        header, chosen = reader.header, model
        if not Store.exists(folder):
            chosen = _model_for(header, model, name)
        bits = header.identity.bits if chosen is None else None
        precision = None if header.model_lost or Store.exists(folder) else header.identity.precision
        with MCHIndex.open(
            folder, chosen, bits=bits, wait=wait, device=device, precision=precision
        ) as index:
            mine = index.identity
            if header.model_lost:
                mine = Identity(mine.bits)  # only the width can be compared
            mine.check_same(header.identity, str(index.path), name)

            def reported() -> Iterator[Row]:
                for done, row in enumerate(reader.rows(), 1):
                    yield row
                    if done % 1000 == 0 or done == total:
                        progress(Step("importing", done, total, unit="images"))

            added, replaced = index.add_records(reported(), header.fine) if total else (0, 0)
            facts = index.stats()
            without = facts["images"] - facts["fine_images"] if facts["fine_bits"] else 0
    return Imported(added, replaced, without, reader.refused, reader.cut, reader.invalid)


class Reader:
    """Reads an export, any number of times.

    An invalid line raises ExportError or, with `partial`, is counted in `invalid`; `refused` has
    the reasons for the first ones.
    """

    def __init__(self, stream: IO[bytes], name: str, partial: bool = False) -> None:
        self._stream, self._name, self._partial = stream, name, partial
        self.refused: list[str] = []
        self.invalid = 0
        self.cut = self._torn = False
        self.header = self._header(next(self._lines(), (1, b""))[1])

    def rows(self, progress: Progress = silent) -> Iterator[Row]:
        self.refused.clear()
        self.invalid = 0
        self.cut = self._torn = False
        count, end = 0, None
        for number, line in itertools.islice(self._lines(), 1, None):
            if number % CHECKED == 0:
                progress(Step("checking", number, unit="lines"))
            if end is not None:
                self._refuse(number, "the file continues after its end")
                break
            if len(self.refused) == REASONS and not line.lstrip().startswith(b"{"):
                self.invalid += 1  # without looking for a reason, which takes longer
                continue
            try:
                record = json_text.loads(line, LINE_LEVELS)
                row = None if _is_end(record) else _row_of(record, self.header)
            except (ValueError, TypeError) as error:
                if not line.endswith(b"\n"):
                    break  # the last line, which is incomplete
                self._refuse(number, error)
                continue
            if row is not None:
                count += 1
                yield row
                continue
            end = record["end"]
            if end != count + self.invalid:  # invalid lines were counted too
                self._refuse(number, f"the end counts {end} images, but there are {count}")
        self.cut = end is None or self._torn
        if self.cut and not self._partial:
            raise ExportError(
                f"{self._name} is truncated or damaged: {count:,} images can be read, but the end "
                "is missing"
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
                self._torn = True  # the rest is lost
                return
            if not line:
                return
            if len(line) == LONGEST:
                raise ExportError(f"{self._name}:{number}: the line is longer than {LONGEST} bytes")
            yield number, line

    def _refuse(self, number: int, reason: str | Exception) -> None:
        self.invalid += 1
        if not self._partial or len(self.refused) < REASONS:
            text = reason if isinstance(reason, str) else _reason(reason)
            self.refused.append(self._at(number, text))
            if not self._partial:
                raise ExportError(self.refused[-1])

    def _at(self, number: int, reason: str) -> str:
        cut = "…" if len(reason) > LONGEST_REASON else ""
        return f"{self._name}:{number}: {reason[:LONGEST_REASON]}{cut}"

    def _header(self, line: bytes) -> Header:
        try:
            facts = json_text.loads(line)
        except ValueError:
            facts = None
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise ExportError(f"{self._name} is not an export of mchindex")
        version = facts.get("version")
        if type(version) is not int or version < 1:
            raise ExportError(self._at(1, "the header is damaged: 'version' must be 1 or more"))
        if version > VERSION:
            raise ExportError(
                f"{self._name} was written by a newer mchindex (version {version}): update mchindex"
            )
        try:
            return Header.from_json(facts)
        except KeyError as error:
            raise ExportError(self._at(1, f"the header is damaged: it has no {error}")) from None
        except ValueError as error:
            raise ExportError(self._at(1, f"the header is damaged: {_reason(error)}")) from None


def _is_end(record: Any) -> bool:
    return isinstance(record, dict) and record.keys() == {"end"}


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}, column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return "its text is not valid Unicode"
    return str(error) or type(error).__name__


def _row_of(record: Any, header: Header) -> Row:
    if not isinstance(record, dict):
        raise ValueError("an image must be an object")
    missing = {"id", "codes"} - record.keys()
    if missing:
        raise ValueError(f"it has no {' and no '.join(sorted(missing))}")
    if record.get("path") == "":  # in the store, an empty path means that the id is the path
        raise ValueError("'path' cannot be empty")
    hash_ = _typed(record, "hash", str)
    metadata = _typed(record, "metadata", dict)
    return Row(
        _id(record["id"]),
        _packed(record["codes"], header.identity),
        _valid(_typed(record, "path", str)),
        _whole(record, "size"),
        _whole(record, "time"),
        None if hash_ is None else bytes.fromhex(hash_),
        _whole(record, "width"),
        _whole(record, "height"),
        None if metadata is None else json_text.dumps(metadata),
        fine=None if header.fine is None else _fine(_typed(record, "fine", list), header),
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
        raise ValueError(f"{name!r} needs more than 64 bits")
    return value


def _valid(text: str | None) -> str | None:
    if text is not None:
        text.encode()  # half a surrogate pair is not text
    return text


def _packed(codes: Any, identity: Identity) -> bytes:
    if not isinstance(codes, list) or not codes:
        raise ValueError("an image must have a list of at least one code")
    parts, regions = [], len(identity.regions) or REGIONS
    for entry in codes:
        if not isinstance(entry, dict) or not entry.keys() >= {"region", "keep", "code"}:
            raise ValueError("a code must be an object with region, keep and code")
        region, keep = _whole(entry, "region"), entry["keep"]
        if region is None or not 0 <= region < regions:
            raise ValueError(f"there is no region {entry['region']!r}")
        if keep is None:
            keep = math.nan
        elif isinstance(keep, bool) or not isinstance(keep, (int, float)) or not 0 <= keep <= 1:
            raise ValueError("'keep' must be a probability from 0 to 1")
        code = bytes.fromhex(_typed(entry, "code", str) or "")
        if len(code) * 8 != identity.bits:
            raise ValueError(f"a code has {len(code) * 8} bits, not {identity.bits}")
        parts.append(_ENTRY.pack(region, keep) + code)
    return b"".join(parts)


def _fine(codes: list[Any] | None, header: Header) -> bytes | None:
    """The fine codes of an image, one per region."""
    if codes is None:
        return None
    if not all(isinstance(code, str) for code in codes):
        raise ValueError("'fine' must be a list of text")
    parts = [bytes.fromhex(code) for code in codes]
    assert header.fine is not None
    regions, bits = max(1, len(header.identity.regions)), header.fine.bits
    if len(parts) != regions or any(len(part) * 8 != bits for part in parts):
        raise ValueError(f"'fine' must be {regions} codes of {bits} bits")
    return b"".join(parts)


@contextmanager
def _seekable(
    file: str | os.PathLike[str] | IO[bytes],
) -> Iterator[tuple[IO[bytes], str]]:
    """The file and its name. A pipe, which can be read only once, is copied to disk first."""
    if isinstance(file, (str, os.PathLike)):
        with _opened(file) as opened, _seekable(opened) as (stream, _):
            yield stream, os.fspath(file)
    elif file.seekable():
        yield file, "the export"
    else:
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(file, spool)
            yield spool, "the export"


def _opened(file: str | os.PathLike[str]) -> IO[bytes]:
    """A regular file, or what this process was given under the name of a descriptor.

    A shell passes a pipe as /dev/fd/63. It can be read without waiting for someone to open it.
    """
    descriptor = _DESCRIPTOR.fullmatch(os.fspath(file))
    if descriptor is None:
        return open_file(file)
    return open(os.dup(int(descriptor[1] or descriptor[2] or 0)), "rb")


def _model_for(
    header: Header, model: str | os.PathLike[str] | None, name: str
) -> str | os.PathLike[str] | None:
    """The model of a new index; None if the export has no model, only your own codes."""
    identity = header.identity
    if model is not None:
        given = _fingerprint(find(model))
        if given is not None and not header.model_lost and given != identity.fingerprint:
            raise ModelMismatchError(
                f"{name} was filled by {identity.title}, not by {os.fspath(model)} ({given})"
            )
        return model
    if header.model_lost:
        raise ExportError(f"{name} does not say which model filled it: name the model")
    if not identity.has_model:
        return None
    elsewhere = [] if identity.name is None else [Path(identity.name)]
    for candidate in listed(*elsewhere):
        if candidate.config["fingerprint"] == identity.fingerprint:
            return candidate.name if candidate.ships else candidate.path
    raise ExportError(
        f"{name} was filled by {identity.title}, which is not installed: give the model's folder"
    )


def _fingerprint(folder: Path) -> str | None:
    try:
        value: str = read_config(folder)["fingerprint"]
        return value
    except (OSError, ValueError, KeyError, TypeError):
        return None  # opening the index will report what is wrong


__all__ = ["Imported", "Reader", "import_index"]
