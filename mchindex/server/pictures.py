"""Pictures of indexed images, read by id only, and only as they were indexed.

A picture leaves the service only after it was decoded and encoded again, and only if the bytes of
its file have the SHA-256 that is stored: a file that was replaced, or a link that leads elsewhere
by now, is not read by anyone.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from typing import Literal, NamedTuple

from PIL import Image

from mchindex.budget import Budget
from mchindex.errors import ImageError
from mchindex.files import open_file
from mchindex.images import LARGEST, Picture, read_picture
from mchindex.server.problems import ProblemError
from mchindex.storage.records import Row

Format = Literal["webp", "jpeg"]
LARGE = 2048  # pixels per side of a picture that is shown by itself
CACHED = 64 << 20  # bytes of small pictures that are kept
_files = Budget(256 << 20)  # bytes of files in memory, in all threads together


def read_indexed(row: Row, least: int | None = None) -> Picture:
    """The picture of an indexed image. Raises a 404 problem if its file is not what was indexed."""
    if row.path is None or row.hash is None:
        raise ProblemError(
            404, "no-file", "this image has no file: only its codes are in the index"
        )
    changed = ProblemError(
        404, "changed-file", "the file of this image was moved or changed since it was indexed"
    )
    try:
        with open_file(row.path) as stream:
            size = stream.seek(0, io.SEEK_END)
            if size != row.size or size > LARGEST:
                raise changed
            stream.seek(0)
            with _files.held(size):
                data = stream.read(size + 1)
                if hashlib.sha256(data).digest() != row.hash:
                    raise changed
                return read_picture(data, least)
    except OSError as error:
        raise changed from error


class Encoded(NamedTuple):
    """A picture to send."""

    data: bytes
    media_type: str
    etag: str


class Pictures:
    """Small versions of pictures, some of which are kept in memory."""

    def __init__(self, most: int = CACHED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    @staticmethod
    def etag(row: Row, side: int, format: Format) -> str:
        """What identifies a version of a picture."""
        return f'"{(row.hash or b"").hex()[:32]}-{side}-{format}"'

    def get(self, row: Row, side: int, format: Format) -> Encoded:
        """A picture of at most `side` pixels per side."""
        etag = self.etag(row, side, format)
        with self._lock:
            if etag in self._kept:
                self._kept.move_to_end(etag)
                return Encoded(self._kept[etag], f"image/{format}", etag)
        try:
            image = read_indexed(row, side).image
        except ImageError:
            raise ProblemError(404, "unreadable-picture", "the picture cannot be read") from None
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        if format == "webp":
            image.save(stream, "WEBP", quality=82, method=2)
        else:
            image.save(stream, "JPEG", quality=86)
        data = stream.getvalue()
        if side < LARGE:
            self._keep(etag, data)
        return Encoded(data, f"image/{format}", etag)

    def _keep(self, etag: str, data: bytes) -> None:
        with self._lock:
            if etag not in self._kept:
                self._kept[etag] = data
                self._bytes += len(data)
            while self._bytes > self._most:
                self._bytes -= len(self._kept.popitem(last=False)[1])
