"""Decoders that are installed as extras: `heic` for HEIC and HEIF, `raw` for camera RAW.

A file's format is found by its content. A decoder is imported when the first such file is met.
"""

from __future__ import annotations

import os
import struct
import threading
from importlib import import_module
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mchindex.errors import MissingDecoderError

# What each extra reads, by the suffixes of file names, and the package that does it.
# fmt: off
SUFFIXES = {
    "heic": frozenset((".heic", ".heics", ".heif", ".heifs", ".hif")),
    "raw": frozenset((
        ".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".iiq", ".kdc", ".mef",
        ".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".rw2", ".rwl", ".sr2", ".srw", ".x3f",
    )),
}
# fmt: on
_PACKAGES = {"heic": "pi_heif", "raw": "rawpy"}

_HEAD = 64  # bytes at the start of a file that tell its format, but for those based on TIFF
_HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
_HEIF = frozenset((b"mif1", b"msf1"))  # containers, of HEIC or of AVIF
_AVIF = frozenset((b"avif", b"avis"))
# CRW; RAF; ORF, three times; RW2 and RWL; MRW; X3F
_RAW = (
    b"II\x1a\0\0\0HEAPCCDR", b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\0", b"\0MRM",
    b"FOVb",
)  # fmt: skip
_TIFF = {b"II*\0": "<", b"MM\0*": ">"}  # the order of bytes
_MOST_TAGS = 1000  # of a TIFF file that are looked at
_SUBFILE, _COMPRESSION, _MAKE, _SUB_IFDS, _DNG_VERSION = 254, 259, 271, 330, 50706
_RAW_COMPRESSIONS = frozenset((32767, 32769, 32770, 34713, 65000, 65535))  # of camera makers
# The orientation in EXIF for each turn in LibRaw: 1 mirrors, 2 turns upside down, 4 transposes.
_ORIENTATIONS = (1, 2, 4, 3, 5, 8, 6, 7)

_unpacking = threading.Lock()  # one preview at a time: its size is not known before


def extra_of(stream: IO[bytes]) -> str | None:
    """The extra that reads a file, or None if Pillow reads it. Leaves the stream at its start."""
    stream.seek(0)
    head = stream.read(_HEAD)
    try:
        if head[4:8] == b"ftyp":
            return _extra_of_brands(head)
        if head.startswith(_RAW) or (head[:4] in _TIFF and _is_raw_tiff(stream, head)):
            return "raw"
        return None
    finally:
        stream.seek(0)


def extra_of_name(path: str) -> str | None:
    """The extra that reads files with this suffix, or None if Pillow does."""
    suffix = os.path.splitext(path)[1].lower()
    return next((extra for extra, suffixes in SUFFIXES.items() if suffix in suffixes), None)


def require(stream: IO[bytes]) -> str | None:
    """Like `extra_of`, but raises MissingDecoderError if the extra is not installed."""
    extra = extra_of(stream)
    if extra is None or (extra == "heic" and "HEIF" in Image.OPEN):  # a user registered a decoder
        return extra
    try:
        import_module(_PACKAGES[extra])
    except ImportError:
        raise MissingDecoderError(extra) from None
    return extra


def _extra_of_brands(head: bytes) -> str | None:
    """By the brands in the first box of an ISO base media file."""
    end = min(max(16, int.from_bytes(head[:4])), _HEAD)
    major, others = head[8:12], {head[at : at + 4] for at in range(16, end, 4)}
    if major == b"crx ":  # CR3
        return "raw"
    if major in _HEIC or (major in _HEIF and not others & _AVIF):
        return "heic"
    return None


def _is_raw_tiff(stream: IO[bytes], head: bytes) -> bool:
    """Whether the pixels that a camera recorded lie behind the first picture of a TIFF file."""
    if head[8:10] == b"CR" or head[8:12] == b"IIII":  # CR2, IIQ
        return True
    order = _TIFF[head[:4]]
    tags: dict[int, int] = {}
    try:
        stream.seek(*struct.unpack(order + "I", head[4:8]))
        (count,) = struct.unpack(order + "H", stream.read(2))
        entries = stream.read(12 * min(count, _MOST_TAGS))
        for tag, kind, _, value in struct.iter_unpack(order + "HHI4s", entries):
            short = kind == 3
            tags[tag] = struct.unpack(order + "HI"[not short], value[: 2 if short else 4])[0]
    except (struct.error, OSError, ValueError):  # not a TIFF file, or cut short
        return False
    if _DNG_VERSION in tags or tags.get(_COMPRESSION) in _RAW_COMPRESSIONS:
        return True
    # The first picture is only a preview. Some cameras do not say so.
    return _SUB_IFDS in tags and tags.get(_SUBFILE, int(_MAKE in tags)) == 1


def open_heif(stream: IO[bytes]) -> Image.Image:
    """A HEIC or HEIF picture that is not decoded yet; decoding it turns it upright."""
    return import_module("pi_heif.as_plugin").HeifImageFile(stream)  # type: ignore[no-any-return]


class Preview(NamedTuple):
    """The picture in a RAW file that its camera developed."""

    jpeg: bytes
    orientation: int  # as in EXIF, for a JPEG that has no EXIF data itself


class Raw:
    """A camera RAW file, of which only the metadata has been read. Raises OSError if it is none,
    or if it is damaged."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._rawpy = import_module("rawpy")
        self._file: Any = self._rawpy.RawPy()
        try:
            self._file.open_buffer(stream)
        except self._rawpy.LibRawError as error:
            self.close()
            raise _refusal(error) from None
        self._sizes = self._file.sizes

    def close(self) -> None:
        """Frees its memory."""
        self._file.close()

    @property
    def recorded(self) -> tuple[int, int]:
        """The width and height of all that the camera recorded, margins included."""
        return self._sizes.raw_width, self._sizes.raw_height

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the picture, upright."""
        width, height = self._sizes.width, self._sizes.height
        return (height, width) if self._sizes.flip & 4 else (width, height)

    def preview(self) -> Preview | None:
        """The largest picture that the camera developed, or None if there is no JPEG of it.

        Plain pixels, which some old cameras stored, are not used: in a damaged file, rawpy believes
        a size that they do not have, and reads beyond their end.
        """
        try:
            with _unpacking:
                found = self._file.extract_thumb()
        except self._rawpy.LibRawError:
            return None
        if found.format != self._rawpy.ThumbFormat.JPEG:
            return None
        return Preview(found.data, _ORIENTATIONS[self._sizes.flip & 7])

    def develop(self, half: bool) -> NDArray[np.uint8]:
        """The picture from what the sensor recorded, upright, in full or half size."""
        try:
            rgb: NDArray[np.uint8] = self._file.postprocess(
                use_camera_wb=True,
                half_size=half,
                demosaic_algorithm=self._rawpy.DemosaicAlgorithm.LINEAR,  # codes need no better one
            )
        except self._rawpy.LibRawError as error:
            raise _refusal(error) from None
        return rgb


def _refusal(error: Exception) -> OSError:
    reason = error.args[0] if error.args else ""
    return OSError(reason.decode() if isinstance(reason, bytes) else str(reason))
