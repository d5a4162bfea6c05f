"""Reads pictures from files, bytes, arrays, tensors and Pillow images, as upright RGB."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import io
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from typing import IO, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile, StubImageFile

from mchindex import decoders
from mchindex.budget import Budget
from mchindex.errors import ImageError, MissingDecoderError
from mchindex.files import open_file

PathLike: TypeAlias = str | os.PathLike[str]


class Tensor(Protocol):
    """A torch tensor. Torch itself is not imported."""

    @property
    def ndim(self) -> int: ...
    def detach(self) -> Any: ...


# One image, as `read_picture` takes it.
Source: TypeAlias = (
    PathLike | bytes | bytearray | memoryview | IO[bytes] | Image.Image | NDArray[Any] | Tensor
)
BYTES = (bytes, bytearray, memoryview)

# The formats that are read besides camera RAW, whatever a file is called. Pillow knows more, but
# it starts Ghostscript to read EPS, and unpacks some of the others without a limit.
# fmt: off
FORMATS = frozenset((
    "AVIF", "BMP", "CUR", "DCX", "DDS", "DIB", "FLI", "GIF", "HEIF", "ICNS", "ICO", "JPEG",
    "JPEG2000", "MPO", "MSP", "PCD", "PCX", "PNG", "PPM", "PSD", "QOI", "SGI", "SUN", "TGA", "TIFF",
    "WEBP", "XBM", "XPM",
))
# fmt: on

LARGEST = 1 << 30  # bytes of a file, at most
MEMORY = 400 << 20  # bytes for pictures that are being decoded, in all threads together
LARGE = 1 << 24  # pixels above which a picture is reduced when it is decoded
PREVIEW = 320  # pixels of the shorter side that the preview in a RAW file needs to be used
_SMALLER = 1.1  # times as long are the sides of a picture of which a preview is a smaller version
_BAND = 1 << 20  # pixels converted at a time
# Formats whose decoders need little memory besides the picture itself.
_LEAN = frozenset(("BMP", "DIB", "GIF", "JPEG", "MPO", "PCX", "PNG", "TGA", "TIFF"))
_CONTAINERS = frozenset(["ICNS", "ICO"])  # what is inside may be larger than the header says
_HEIF = 3  # bytes per pixel that the decoder of HEIC needs besides the picture; others: 16
_RAW = 16  # bytes per pixel that developing a RAW file needs besides the 2 that were recorded
_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # per pixel

_ORIENTATION = 0x0112  # the EXIF tag that says how the camera was held
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_SIDEWAYS = {_TURNS[n] for n in (5, 6, 7, 8)}  # these swap width and height


class Picture(NamedTuple):
    image: Image.Image  # RGB, upright, completely decoded
    size: tuple[int, int]  # full width and height; `image` may be a smaller version


def open_rgb(source: Source) -> Image.Image:
    """Reads a picture as RGB, upright and completely decoded, so that nothing can fail later.

    `source` is a file name, the bytes of a file, a binary file object (read to its end), a Pillow
    image, a uint8 array of shape (h, w), (h, w, 3) or (h, w, 4), or a tensor of shape (h, w),
    (1, h, w), (3, h, w) or (4, h, w) of uint8 or of floats in 0…1. Transparent parts become white.
    Only the first frame of an animation is read.

    Raises ImageError if the picture cannot be decoded, which includes truncated files and pictures
    of more than `PIL.Image.MAX_IMAGE_PIXELS` pixels.
    """
    return read_picture(source).image


def read_picture(source: Source, least: int | None = None) -> Picture:
    """Like `open_rgb`, but with `least`, the picture may be smaller, as long as each side still has
    `least` pixels.

    A JPEG may be decoded at a half, a quarter or an eighth of its size, which is much faster. This
    includes a Pillow image that was opened from a file and has not been loaded yet. A picture of
    more than `LARGE` pixels is reduced to save memory.

    A camera RAW file gives the preview that the camera stored in it, in the size of what it
    recorded. It is developed only if it has no preview of `PREVIEW` pixels per side, in half its
    size if that is enough.

    Pictures that several threads decode at the same time take at most `MEMORY` bytes together. A
    picture that needs more than that is decoded while no other is.
    """
    if least is not None:
        source = _file_of(source)
    if hasattr(source, "detach") and hasattr(source, "ndim"):  # file objects have detach, too
        tensor: Any = source
        with _decoding(14 * math.prod(tensor.shape)):  # floats are copied more than once
            source = _of_array(_of_tensor(tensor))
    elif isinstance(source, np.ndarray):
        with _decoding(2 * source.size):
            source = _of_array(source)
    name = source_name(source)
    try:
        if isinstance(source, Image.Image):
            _refuse_unread_format(source)
            with _decoding(_memory_for(source, source.size, least)):
                return _upright_rgb(source, source.size, least)
        with _opened(source) as stream:
            bytes = stream.seek(0, os.SEEK_END)
            if not bytes:
                raise ImageError("the file is empty")
            if bytes > LARGEST:
                raise ImageError(f"too large: the file has {bytes:,} bytes")
            extra = decoders.require(stream)
            stream.seek(0)
            held = 0 if isinstance(source, BYTES) else bytes
            if extra == "raw":
                return _read_raw(stream, least, held)
            if extra == "heic" and not is_read("HEIF"):
                return _read_opened(decoders.open_heif(stream), least, held)
            return _read_opened(_identified(stream), least, held)
    except MissingDecoderError as error:
        raise MissingDecoderError(error.extra, name) from None
    except UnidentifiedImageError as error:
        raise ImageError(f"{name}: not an image of a known format") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{name}: too large: {error}") from error
    except OSError as error:
        raise ImageError(f"{name}: {error.strerror or error}") from error
    except Exception as error:  # Pillow's decoders may raise anything if a file is broken
        raise ImageError(f"{name}: {error or type(error).__name__}") from error


def _read_opened(image: Image.Image, least: int | None, held: int, orientation: int = 1) -> Picture:
    """Decodes an image and closes it. `held` is the memory that its file takes; `orientation` is
    that of an image without EXIF data."""
    with image:
        _refuse_bomb(image.size)
        size = image.size
        if least is not None:
            image.draft(None, (least, least))
        with _decoding(_memory_for(image, size, least) + held):
            picture = _upright_rgb(image, size, least, orientation)
            image.close()  # frees its pixels
        return picture


def _read_raw(stream: IO[bytes], least: int | None, held: int) -> Picture:
    with closing(decoders.Raw(stream)) as raw:
        _refuse_bomb(raw.recorded)
        preview, full = raw.preview(), raw.size
        if preview is None:
            return _develop(raw, least, held)
        shown = Image.open(io.BytesIO(preview.jpeg), formats=["JPEG"])
        if min(shown.size) < PREVIEW and max(full) > _SMALLER * max(shown.size):
            return _develop(raw, least, held)
    held += len(preview.jpeg)
    if least is None:
        held += 4 * math.prod(full)  # it is enlarged
    return _enlarged(_read_opened(shown, least, held, preview.orientation), full, least)


def _develop(raw: decoders.Raw, least: int | None, held: int) -> Picture:
    half = least is not None and min(raw.size) // 2 >= least
    pixels = math.prod(raw.recorded)
    with _decoding(2 * pixels + _RAW * pixels // (4 if half else 1) + held):
        image = Image.fromarray(raw.develop(half).squeeze())  # grey ones have one channel
        size = image.size
        if half:
            exact = all(abs(2 * a - b) <= 1 for a, b in zip(size, raw.size, strict=True))
            size = raw.size if exact else (2 * image.width, 2 * image.height)
        return _upright_rgb(image, size, least)


def _enlarged(picture: Picture, full: tuple[int, int], least: int | None) -> Picture:
    """A preview as a smaller version of a picture of the full size, without distortion."""
    image, (width, height) = picture
    scale = min(full[0] / width, full[1] / height)
    if scale < _SMALLER:  # the preview shows about every pixel
        return picture
    size = (round(width * scale), round(height * scale))
    if least is None:
        image = image.resize(size)
    elif min(image.size) < least:
        enough = min(least, *size) / min(image.size)
        image = image.resize((round(image.width * enough), round(image.height * enough)))
    return Picture(image, size)


def source_name(source: Source) -> str:
    """What an error calls a picture, as in "NAME: reason". Raises TypeError for anything else."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, BYTES):
        return f"the given {len(source)} bytes"
    if isinstance(source, (Image.Image, np.ndarray)) or hasattr(source, "ndim"):
        return getattr(source, "filename", "") or "the given image"
    if is_file_object(source):
        return file_name(source) or "the given file"
    raise TypeError(
        "an image must be a file name, bytes, a binary file object, a Pillow image, a NumPy array "
        f"or a tensor, not {type(source).__name__}"
    )


def is_file_object(source: object) -> bool:
    """Whether `source` can be read like a file."""
    return callable(getattr(source, "read", None)) and not isinstance(source, os.PathLike)


def file_name(stream: Any) -> str | None:
    """The name of the file behind a file object, if it has one."""
    name = getattr(stream, "name", None)
    return name if isinstance(name, str) and os.path.exists(name) else None


def read_all(stream: IO[bytes]) -> bytes:
    """Reads a file object to its end."""
    if isinstance(stream, io.TextIOBase):
        raise TypeError("the file is open in text mode: open it in binary mode")
    data = stream.read()
    if not isinstance(data, bytes):
        raise TypeError(f"reading the file gave {type(data).__name__}, not bytes")
    return data


def _opened(source: Any) -> IO[bytes]:
    if isinstance(source, (str, os.PathLike)):
        return open_file(source)
    return io.BytesIO(source if isinstance(source, BYTES) else read_all(source))


def is_read(kind: str | None) -> bool:
    """Whether pictures in a format, by Pillow's name for it, are read."""
    return kind in FORMATS and kind in Image.OPEN


def _identified(stream: IO[bytes]) -> ImageFile:
    """Opens a picture; formats that are not common are loaded only if it needs them."""
    Image.preinit()
    try:
        return Image.open(stream, formats=_formats())
    except UnidentifiedImageError:
        Image.init()
        stream.seek(0)
        return Image.open(stream, formats=_formats())


def _formats() -> list[str]:
    """The formats that are read, of those that Pillow has loaded."""
    return [kind for kind in Image.ID if is_read(kind)]


def _refuse_unread_format(image: Image.Image) -> None:
    # Loading the picture may start another program.
    unloaded = isinstance(image, StubImageFile) or getattr(image, "tile", None)
    if isinstance(image, ImageFile) and unloaded and image.format not in FORMATS:
        raise ImageError(
            f"it is in the format {image.format}, which is not read: if you trust it, call its "
            "load() first"
        )


# Memory.


_memory = Budget(MEMORY)
_RETURNED = 32 << 20  # bytes of a picture above which its memory is given back to the system


class _Scope(threading.local):
    held: ExitStack | None = None  # of `one_picture`
    counted = False  # whether it holds memory


_scope = _Scope()


@contextmanager
def one_picture() -> Iterator[None]:
    """Makes a picture that this thread reads within it count as decoded until the end.

    Without it, a picture counts only until `read_picture` returns. Only the first picture that is
    read within it counts.
    """
    before = _scope.held, _scope.counted
    with ExitStack() as held:
        _scope.held, _scope.counted = held, False
        try:
            yield
        finally:
            _scope.held, _scope.counted = before


@contextmanager
def _decoding(bytes: int) -> Iterator[None]:
    """Waits until there is memory to decode a picture."""
    if _scope.held is None:
        with _held(bytes):
            yield
    else:
        if not _scope.counted:  # waiting for more while holding some could last for ever
            _scope.held.enter_context(_held(bytes))
            _scope.counted = True
        yield


@contextmanager
def _held(bytes: int) -> Iterator[None]:
    with _memory.held(bytes):
        try:
            yield
        finally:
            if bytes >= _RETURNED and (trim := _malloc_trim()) is not None:
                trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Gives freed memory back to the system, where the C library can.

    The GNU C library keeps what a thread has freed for that thread, so that memory would grow with
    the number of threads.
    """
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def _memory_for(image: Image.Image, size: tuple[int, int], least: int | None) -> int:
    """About how many bytes it takes to decode and convert a picture of this full size."""
    if image.format in _CONTAINERS:
        return MEMORY
    pixels = max(image.width * image.height, _tile_pixels(image))
    result = image.width * image.height // _reduction(image.size, least) ** 2
    total = _BYTES.get(image.mode, 4) * pixels + 4 * result
    if isinstance(image, ImageFile) and image.format not in _LEAN:
        total += (_HEIF if image.format == "HEIF" else 16) * pixels
    if "progressive" in image.info:  # the decoder keeps coefficients, two bytes each, at full size
        total += 2 * len(image.getbands()) * size[0] * size[1]
    return total


def _tile_pixels(image: Image.Image) -> int:
    """The pixels of a tile of a TIFF file, which may be larger than the picture."""
    width, length = (getattr(image, "tag_v2", {}).get(tag, 0) for tag in (322, 323))
    return width * length if isinstance(width, int) and isinstance(length, int) else 0


def _reduction(size: tuple[int, int], least: int | None) -> int:
    """By which factor the sides of a picture are reduced when it is decoded."""
    pixels = size[0] * size[1]
    if least is None or pixels <= LARGE:
        return 1
    return max(1, min(math.ceil(math.sqrt(pixels / LARGE)), min(size) // max(1, least)))


def reduced(image: Image.Image, least: int | None) -> Image.Image:
    """A picture in RGB, as small as `read_picture` makes it."""
    factor = _reduction(image.size, least)
    return image if factor == 1 else image.reduce(factor)


class Thumbnail(NamedTuple):
    """A small version of a picture."""

    jpeg: bytes
    width: int
    height: int
    size: tuple[int, int]  # of the full picture

    @property
    def url(self) -> str:
        """The picture as a data URL, for a self-contained page."""
        return f"data:image/jpeg;base64,{base64.b64encode(self.jpeg).decode()}"


def thumbnail(source: Source, side: int) -> Thumbnail:
    """A picture as a JPEG of at most `side` pixels per side; raises ImageError."""
    image, size = read_picture(source, side)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=86, subsampling=0, optimize=True)
    return Thumbnail(stream.getvalue(), *image.size, size)


def digest(source: PathLike | bytes) -> bytes:
    """The SHA-256 of a file's bytes. Equal digests mean equal pictures."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).digest()
    try:
        with open_file(source) as stream:
            return hashlib.file_digest(stream, "sha256").digest()  # type: ignore[arg-type]
    except OSError as error:
        raise ImageError(f"{os.fspath(source)}: {error.strerror or error}") from error


def _file_of(source: Source) -> Source:
    """The file name of a picture that has not been loaded yet; everything else unchanged."""
    if isinstance(source, ImageFile) and source.tile and isinstance(source.filename, str):
        return source.filename if os.path.isfile(source.filename) else source
    return source


def _of_tensor(tensor: Any) -> NDArray[Any]:
    array = tensor.detach().cpu().numpy()
    if array.ndim == 3 and array.shape[0] not in (1, 3, 4):
        raise ValueError(
            "an image tensor must have the shape (h, w), (1, h, w), (3, h, w) or (4, h, w), "
            f"not {tuple(array.shape)}"
        )
    if array.ndim == 3:
        array = array[0] if array.shape[0] == 1 else array.transpose(1, 2, 0)
    if array.dtype.kind == "f":
        low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"an image tensor of floats must have values in 0…1, not {low:g}…{high:g}: undo "
                "its normalisation first"
            )
        array = np.rint(array * 255.0).astype(np.uint8)
    return np.ascontiguousarray(array)


def _of_array(array: NDArray[Any]) -> Image.Image:
    if array.dtype != np.uint8:
        raise TypeError(f"an image array must be uint8 in 0…255, not {array.dtype}: convert it")
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or not array.size:
        raise ValueError(
            "an image array must have the shape (h, w), (h, w, 3) or (h, w, 4) and at least one "
            f"pixel, not {array.shape}"
        )
    return Image.fromarray(array)


def _refuse_bomb(size: tuple[int, int]) -> None:
    # Up to twice its limit, Pillow only warns, and nobody reads warnings.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and math.prod(size) > limit:
        raise Image.DecompressionBombError(
            f"{size[0]} x {size[1]} pixels, and PIL.Image.MAX_IMAGE_PIXELS is {limit}"
        )


def _upright_rgb(
    image: Image.Image, size: tuple[int, int], least: int | None, orientation: int = 1
) -> Picture:
    if not image.width or not image.height:
        raise ImageError("it has no pixels")
    image.load()  # before reading EXIF data, which a PNG may store after its pixels
    if image.format in _CONTAINERS or image.format == "HEIF":
        _refuse_bomb(image.size)
        size = image.size
    if image.format != "HEIF":  # whose decoder has turned it; its EXIF data does not count
        try:
            orientation = image.getexif().get(_ORIENTATION, orientation)
        except Exception:  # damaged EXIF data is common, and the picture may still be fine
            orientation = 1
    turn = _TURNS.get(orientation)
    rgb = _converted(image, _reduction(image.size, least))
    rgb.info = {}  # so that reading this picture again does not rotate it again
    if turn is None:
        return Picture(rgb, size)
    return Picture(rgb.transpose(turn), size[::-1] if turn in _SIDEWAYS else size)


def _converted(image: Image.Image, factor: int) -> Image.Image:
    """The picture in RGB, with its sides reduced by a factor.

    A few rows at a time where that saves memory: conversions need several copies of a picture.
    """
    costly = image.mode.startswith("I") or image.has_transparency_data
    width, height = image.size
    if factor == 1 and (not costly or width * height <= _BAND):
        return _rgb(image)
    rows = max(1, _BAND // width // factor) * factor
    out = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    for top in range(0, height, rows):
        band = _rgb(image.crop((0, top, width, min(top + rows, height))))
        out.paste(band.reduce(factor) if factor > 1 else band, (0, top // factor))
    return out


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ImageError("floating-point pixels have no agreed range: save it with 8 bits")
    if image.mode.startswith("I"):  # Pillow's own conversion clips everything above 255
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 0xFFFF:
            raise ImageError("its pixels need more than 16 bits: save it with 8 or 16")
        image = Image.fromarray(np.rint(grey / 257.0).astype(np.uint8))
    elif image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image.convert("RGBA"))
        image = paper
    return image.convert("RGB")
