"""Reads pictures from files, bytes, arrays, tensors and Pillow images, as upright RGB."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from mchindex.errors import ImageError

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
    """Like `open_rgb`, but with `least`, a JPEG may be decoded at a half, a quarter or an eighth of
    its size, which is much faster, as long as each side still has `least` pixels. This includes a
    Pillow image that was opened from a file and has not been loaded yet."""
    if least is not None:
        source = _file_of(source)
    if hasattr(source, "detach") and hasattr(source, "ndim"):  # file objects have detach, too
        source = _of_tensor(source)
    if isinstance(source, np.ndarray):
        source = _of_array(source)
    name = source_name(source)
    try:
        if isinstance(source, Image.Image):
            return _upright_rgb(source, source.size)
        with _opened(source) as stream:
            if not stream.read(1):
                raise ImageError("the file is empty")
            stream.seek(0)
            with Image.open(stream) as image:
                _refuse_bomb(image)
                size = image.size
                if least is not None:
                    image.draft(None, (least, least))
                return _upright_rgb(image, size)
    except UnidentifiedImageError as error:
        raise ImageError(f"{name}: not an image of a known format") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{name}: too large: {error}") from error
    except OSError as error:
        raise ImageError(f"{name}: {error.strerror or error}") from error
    except Exception as error:  # Pillow's decoders may raise anything if a file is broken
        raise ImageError(f"{name}: {error or type(error).__name__}") from error


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
        return open(source, "rb")
    return io.BytesIO(source if isinstance(source, BYTES) else read_all(source))


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
    if not isinstance(source, bytes):
        path = Path(source)
        try:
            source = path.read_bytes()
        except OSError as error:
            raise ImageError(f"{path}: {error.strerror or error}") from error
    return hashlib.sha256(source).digest()


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


def _refuse_bomb(image: Image.Image) -> None:
    # Up to twice its limit, Pillow only warns, and nobody reads warnings.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise Image.DecompressionBombError(
            f"{image.width} x {image.height} pixels, and PIL.Image.MAX_IMAGE_PIXELS is {limit}"
        )


def _upright_rgb(image: Image.Image, size: tuple[int, int]) -> Picture:
    if not image.width or not image.height:
        raise ImageError("it has no pixels")
    image.load()  # before reading EXIF data, which a PNG may store after its pixels
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data is common, and the picture may still be fine
        turn = None
    rgb = _rgb(image)
    rgb.info = {}  # so that reading this picture again does not rotate it again
    if turn is None:
        return Picture(rgb, size)
    return Picture(rgb.transpose(turn), size[::-1] if turn in _SIDEWAYS else size)


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
