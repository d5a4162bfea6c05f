"""Turns what `add` is given (files, folders, patterns, pictures in memory) into items."""

from __future__ import annotations

import glob
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from mchindex import decoders, json_text
from mchindex.budget import Budget
from mchindex.errors import ImageError, MissingDecoderError
from mchindex.files import open_file
from mchindex.folders import is_image_name, matching, walk
from mchindex.images import (
    BYTES,
    LARGEST,
    Picture,
    Source,
    file_name,
    is_file_object,
    read_picture,
    reduced,
    source_name,
)
from mchindex.storage.records import Id, Known
from mchindex.storage.store import Store

Metadata = Mapping[str, Any]
_TRIES = 3  # attempts to read a file that changes while it is being read
_ROWS = 256  # of pixels, copied at a time
_COARSE = 2_000_000_000  # ns: no file system has a coarser clock
_INTEGERS = range(-(2**63), 2**63)  # what SQLite can store
_files = Budget(128 << 20)  # bytes of files in memory, in all threads together


@dataclass(slots=True)
class Item:
    """One image on its way into the index: its source, what is stored of it, and its outcome."""

    source: Source | None  # None: there is nothing to read, and `error` says why
    id: Id | None = None
    path: str | None = None
    metadata: str | None = None  # as JSON
    size: int | None = None
    time: int | None = None
    hash: bytes | None = None
    width: int = 0
    height: int = 0
    error: str | None = None
    extra: str | None = None  # that reads it, if it is not installed
    known: Known | None = None  # what the store has under this id
    decoded: bool = False

    @property
    def name(self) -> str:
        """The image as messages name it."""
        return self.path if self.path is not None else str(self.id)

    def bytes_held(self) -> int:
        """About how much memory the source takes; a file takes none before it is read."""
        if self.path is not None or self.source is None:
            return 0
        if isinstance(self.source, Image.Image):
            return 4 * self.source.width * self.source.height
        if isinstance(self.source, BYTES):
            return len(self.source)
        size = getattr(self.source, "nbytes", 0)  # of an array or a tensor
        return size if isinstance(size, int) else 0

    def load(self, least: int | None, force: bool = False) -> Picture | None:
        """The picture, or None if it cannot be read (see `error`) or has not changed.

        `force` loads an unchanged picture too. `least` is passed to `read_picture`.
        """
        known = None if force or self.known is None else self.known.hash
        if self.error is not None:
            return None
        given: Any = self.source
        try:
            if known is not None and self.is_unchanged():
                self.hash = known
                return None
            if self.path is None:
                return self._in_memory(known, least)
            with _files.held(os.stat(self.path).st_size):
                given = self._read()
                self.hash = hashlib.sha256(given).digest()
                if self.hash == known:
                    return None
                picture = read_picture(given, least)
        except MissingDecoderError as error:
            self.error, self.extra = error.reason, error.extra
            return None
        except ImageError as error:
            self.error = str(error).removeprefix(f"{source_name(given)}: ")
            return None
        except OSError as error:
            self.error = error.strerror or str(error)
            return None
        except Exception as error:  # an object given as a picture may raise anything
            self.error = str(error) or type(error).__name__
            return None
        self.width, self.height = picture.size
        return picture

    def is_unchanged(self) -> bool:
        """Whether the file still has the size and the time that are stored."""
        if self.path is None or self.known is None or self.known.hash is None:
            return False
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (self.known.size, self.known.time)

    def _in_memory(self, known_hash: bytes | None, least: int | None) -> Picture | None:
        image, size = read_picture(self.source)  # type: ignore[arg-type]  # None raises TypeError
        total = hashlib.sha256(f"{size}".encode())
        width, height = self.width, self.height = size
        for top in range(0, height, _ROWS):
            total.update(image.crop((0, top, width, min(top + _ROWS, height))).tobytes())
        self.hash = total.digest()
        return None if self.hash == known_hash else Picture(reduced(image, least), size)

    def _read(self) -> bytes:
        """The bytes of the file, all from one version of it."""
        assert self.path is not None
        for _ in range(_TRIES):
            with open_file(self.path) as stream:
                before = os.fstat(stream.fileno())
                if before.st_size > LARGEST:
                    raise ImageError(f"too large: the file has {before.st_size:,} bytes")
                decoders.require(stream)  # before much is read
                began = time.time_ns()
                data = stream.read()
            now = os.stat(self.path)
            same = (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns)
            if same and len(data) == before.st_size:
                # A file that was just written may change again without a change of its time. It is
                # stored without a time, so that the next `add` reads it again. So is a file whose
                # time does not fit in 64 bits: it is before 1677 or after 2262.
                settled = abs(began - before.st_mtime_ns) >= _COARSE
                self.size = before.st_size
                if settled and before.st_mtime_ns in _INTEGERS:
                    self.time = before.st_mtime_ns
                return data
        raise ImageError("the file changed while it was being read")


def to_items(
    images: Any,
    ids: Any = None,
    metadata: Metadata | Iterable[Metadata | None] | Callable[[Any], Metadata | None] | None = None,
    ignored: list[str] | None = None,
) -> tuple[Iterator[Item], int | None]:
    """The items for the arguments of `add`, and their number if it is known in advance.

    Files in folders that do not have the suffix of an image are added to `ignored`.
    """
    single = one_image(images)
    if not single and isinstance(ids, (str, bytes)):
        raise TypeError("several images need a list of ids")
    if isinstance(metadata, (str, bytes)):
        raise TypeError("metadata must be a mapping, a list of mappings, or a function")
    if single and isinstance(ids, (str, int, np.integer, os.PathLike)):
        ids = [ids]
    if single and isinstance(metadata, Mapping):
        metadata = [metadata] if ids is not None else metadata
    tops: Iterable[Any] = [images] if single else _several(images)
    total: int | None = None
    if ids is None and not isinstance(tops, Iterator):
        items = [item for top in tops for item in _expand(top, ignored)]
        total = len(items)
        flat: Iterator[Item] = iter(items)
    elif ids is None:
        flat = (item for top in tops for item in _expand(top, ignored))
    else:
        if isinstance(ids, Sized):
            ids = _distinct_ids(ids)
        total = len(ids) if isinstance(ids, Sized) else None
        if total is not None and isinstance(tops, Sized) and len(tops) != total:
            raise ValueError(f"{len(tops)} images and {total} ids were given")
        flat = _with_ids(tops, ids)
    flat = _without_repeats(flat)
    return (flat if metadata is None else _with_metadata(flat, metadata)), total


def one_image(images: Any) -> bool:
    """Whether `images` is one image, file, folder or pattern rather than several."""
    if isinstance(images, (str, *BYTES, os.PathLike, Image.Image)) or is_file_object(images):
        return True
    return getattr(images, "ndim", 4) <= 3 and (
        (isinstance(images, np.ndarray) and images.dtype.kind not in "UO")
        or hasattr(images, "detach")
    )


def _several(images: Any) -> Iterable[Any]:
    if isinstance(images, Mapping):
        raise TypeError("images cannot be a mapping: use add(mapping.values(), ids=mapping.keys())")
    if not isinstance(images, Iterable):
        raise TypeError(
            "images must be file names, folders, file objects, Pillow images, arrays, tensors, or "
            f"an iterable of them, not {type(images).__name__}"
        )
    return images


def check_id(id: Any) -> Id:
    """An id as it is stored: a plain `str`, or a plain `int` of 64 bits.

    The content of an enumeration's member or of another subclass is taken, whatever the subclass
    does to print or compare itself.
    """
    if isinstance(id, os.PathLike) and not isinstance(id, str):
        id = os.fspath(id)
    if isinstance(id, str):
        text = str.__str__(id)
        _check_text(text)
        return text
    if isinstance(id, np.integer):
        id = int(id)
    if isinstance(id, bool) or not isinstance(id, int):
        raise TypeError(f"an id must be text or an integer, not {type(id).__name__}")
    number = int.__int__(id)
    if number not in _INTEGERS:
        raise ValueError(f"an integer id must fit in 64 bits: {number}")
    return number


def metadata_json(metadata: Metadata | None) -> str | None:
    """Metadata as JSON text, the form in which it is stored. Raises ValueError if it has none."""
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise ValueError(f"metadata must be a mapping, not {type(metadata).__name__}")
    try:
        return json_text.dumps(dict(metadata))
    except ValueError as error:
        raise ValueError(f"metadata cannot be stored as JSON: {error}") from None


def resolved_ids(store: Store, ids: Iterable[Any]) -> list[Id]:
    """Ids as they are stored: a relative path may mean the absolute path of a stored image."""
    if isinstance(ids, (str, bytes)):
        raise TypeError("ids must be a list, even of one id: [id]")
    names = [check_id(id) for id in ids]
    full = {
        name: os.path.abspath(name)
        for name in names
        if isinstance(name, str) and not os.path.isabs(name)
    }
    found = store.known([*full, *full.values()]) if full else {}
    return [
        full[name] if name in full and name not in found and full[name] in found else name
        for name in names
    ]


def _check_text(text: str) -> None:
    if text.isascii() and "\0" not in text:
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not valid Unicode: rename it") from None
    if "\0" in text:
        raise ValueError(f"{text!r} contains a null character")


def _with_ids(tops: Iterable[Any], ids: Iterable[Any]) -> Iterator[Item]:
    missing = object()
    remaining = iter(ids)
    for top in tops:
        id_ = next(remaining, missing)
        if id_ is missing:
            raise ValueError("there are more images than ids")
        if isinstance(top, (str, os.PathLike)):
            if os.path.isdir(top):
                raise ValueError(f"{os.fspath(top)} is a folder, but an id is for a single image")
            item = _of_file(top)
        else:
            item = Item(top)
        item.id = check_id(id_)
        yield item
    if next(remaining, missing) is not missing:
        raise ValueError("there are more ids than images")


def _distinct_ids(ids: Any) -> list[Id]:
    """Ids as they are stored; raises ValueError if one is given to two images."""
    names = [check_id(id) for id in ids]
    seen: set[Id] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"every image needs an id of its own: {name!r} is given twice")
        seen.add(name)
    return names


def _without_repeats(items: Iterator[Item]) -> Iterator[Item]:
    """Yields the items; those with the id of an earlier item fail, unless both are one file."""
    given: dict[Id, str | None] = {}
    for item in items:
        if item.id is not None and item.error is None:
            if item.id not in given:
                given[item.id] = item.path
            elif item.path is None or item.path != given[item.id]:
                item.error = f"an image before it has the id {item.id!r}, too"
        yield item


def _with_metadata(items: Iterator[Item], metadata: Any) -> Iterator[Item]:
    """Yields the items with their metadata; an item whose metadata cannot be stored fails."""
    if isinstance(metadata, Mapping):
        text = metadata_json(metadata)
        for item in items:
            item.metadata = text
            yield item
        return
    pairs: Iterable[tuple[Item, Any]]
    if callable(metadata):
        named = ((item, item.id if item.path is None else item.path) for item in items)
        pairs = ((item, metadata(name)) for item, name in named)
    else:
        pairs = _paired(items, metadata)
    for item, its in pairs:
        try:
            item.metadata = metadata_json(its)
        except ValueError as error:
            item.error = item.error or str(error)
        yield item


def _paired(items: Iterator[Item], metadata: Iterable[Any]) -> Iterator[tuple[Item, Any]]:
    try:
        yield from zip(items, metadata, strict=True)
    except ValueError as error:
        if "zip()" in str(error):
            raise ValueError("give one metadata entry per image") from None
        raise


def _expand(top: Any, ignored: list[str] | None) -> Iterator[Item]:
    if isinstance(top, (str, os.PathLike)):
        path = os.fspath(top)
        if os.path.isdir(path):
            yield from _walk(path, ignored)
        elif not os.path.lexists(path) and glob.has_magic(path):
            unreadable: list[OSError] = []
            matches = matching(path, unreadable, _is_index)
            if not matches:
                yield Item(None, path, path, error="no file matches this pattern")
            for name in matches:
                yield from _from_folder(name, ignored)
            yield from _not_read(unreadable, path)
        else:
            yield _of_file(path)
    elif getattr(top, "ndim", 0) == 4:
        for array in top:
            yield Item(array)
    else:
        item = Item(top)
        # The picture may have been changed since it was read, so its file only provides its id.
        filename = file_name(top) if is_file_object(top) else getattr(top, "filename", "")
        if filename and isinstance(filename, (str, bytes, os.PathLike)):
            item.id = os.path.abspath(os.fsdecode(filename))
            try:
                item.id = check_id(item.id)
            except ValueError as error:
                item.error = str(error)
        yield item


def _of_file(path: str | os.PathLike[str]) -> Item:
    full = str.__str__(os.path.abspath(os.fspath(path)))
    try:
        _check_text(full)
    except ValueError as error:
        return Item(None, full, full, error=str(error))
    return Item(full, full, full)


def _from_folder(path: str, ignored: list[str] | None) -> Iterator[Item]:
    if is_image_name(path):
        yield _of_file(path)
    elif ignored is not None:
        ignored.append(os.path.abspath(path))


def _walk(root: str, ignored: list[str] | None) -> Iterator[Item]:
    unreadable: list[OSError] = []
    for path in walk(root, unreadable, _is_index):
        yield from _from_folder(path, ignored)
    yield from _not_read(unreadable, root)


def _not_read(unreadable: list[OSError], root: str) -> Iterator[Item]:
    for error in unreadable:
        name = os.path.abspath(error.filename or root)
        yield Item(None, name, name, error=error.strerror or str(error))


def _is_index(folder: str) -> bool:
    return folder.endswith(".mch") and Store.exists(folder)
