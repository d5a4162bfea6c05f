"""Pictures from anywhere, as upright RGB."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from mchindex.errors import ImageError

PathLike: TypeAlias = str | os.PathLike[str]
# A tensor of torch's is an image, too; its type is not named here, so that torch is not needed.
Source: TypeAlias = PathLike | bytes | Image.Image | NDArray[Any] | Any

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

_LYING = {_TURNS[n] for n in (5, 6, 7, 8)}


class Picture(NamedTuple):
    image: Image.Image  # RGB, upright, wholly decoded
    size: tuple[int, int]  # width and height of the whole, of which `image` may be a smaller form


def open_rgb(source: Source) -> Image.Image:
    """The picture in RGB, upright and wholly decoded, so that nothing about it can fail later.

    `source` is a file's name, a file's bytes, a Pillow image, an array of bytes (uint8) of shape
    (h, w), (h, w, 3) or (h, w, 4), or a tensor of shape (h, w), (1, h, w), (3, h, w) or (4, h, w),
    of bytes or of numbers in 0…1. Transparent parts become white; of an animation the first frame
    is taken. Raises ImageError for what cannot be decoded, which includes cut files and pictures of
    more than `PIL.Image.MAX_IMAGE_PIXELS` pixels.
    """
    return read_picture(source).image


def read_picture(source: Source, least: int | None = None) -> Picture:
    """As `open_rgb`; a JPEG may come in half its size, a quarter or an eighth, if each side of it
    then still has `least` pixels: that is decoded much faster. So may a Pillow image that was
    opened from a file and is not loaded yet: it is the same picture as its file."""
    if least is not None:
        source = _file_of(source)
    if hasattr(source, "detach"):
        source = _of_tensor(source)
    if isinstance(source, np.ndarray):
        source = _of_array(source)
    if isinstance(source, Image.Image):
        name = getattr(source, "filename", "") or "the given image"
    elif isinstance(source, bytes):
        name = f"the given {len(source)} bytes"
    elif isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
    else:
        raise TypeError(
            "an image is given as a file name, bytes, a Pillow image, a numpy array or a tensor, "
            f"not as {type(source).__name__}"
        )
    try:
        if isinstance(source, Image.Image):
            return _upright_rgb(source, source.size)
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as stream:
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
    except Exception as error:  # on broken files Pillow's decoders raise nearly every type there is
        raise ImageError(f"{name}: {error or type(error).__name__}") from error


def digest(source: PathLike | bytes) -> bytes:
    """The SHA-256 of a file's bytes: equal digests, equal pictures."""
    if not isinstance(source, bytes):
        path = Path(source)
        try:
            source = path.read_bytes()
        except OSError as error:
            raise ImageError(f"{path}: {error.strerror or error}") from error
    return hashlib.sha256(source).digest()


def _file_of(source: Source) -> Source:
    """The file of a picture that still is as it is on the disk; all else as it is."""
    if isinstance(source, ImageFile) and source.tile and isinstance(source.filename, str):
        return source.filename if os.path.isfile(source.filename) else source
    return source


def _of_tensor(tensor: Any) -> NDArray[Any]:
    array = tensor.detach().cpu().numpy()
    if array.ndim == 3 and array.shape[0] not in (1, 3, 4):
        raise ValueError(
            "an image tensor has the shape (h, w), (1, h, w), (3, h, w) or (4, h, w), "
            f"not {tuple(array.shape)}"
        )
    if array.ndim == 3:
        array = array[0] if array.shape[0] == 1 else array.transpose(1, 2, 0)
    if array.dtype.kind == "f":
        low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
        if not (low >= 0 and high <= 1):
            raise ValueError(
                f"an image tensor of floats has values in 0…1, not {low:g}…{high:g}: undo its "
                "normalisation first"
            )
        array = np.rint(array * 255.0).astype(np.uint8)
    return np.ascontiguousarray(array)


def _of_array(array: NDArray[Any]) -> Image.Image:
    if array.dtype != np.uint8:
        raise TypeError(f"an image array holds uint8 in 0…255, not {array.dtype}: convert it first")
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or not array.size:
        raise ValueError(
            "an image array has the shape (h, w), (h, w, 3) or (h, w, 4) and at least one pixel, "
            f"not {array.shape}"
        )
    return Image.fromarray(array)


def _refuse_bomb(image: Image.Image) -> None:
    # Pillow only warns up to twice its limit, and where nobody reads warnings that is no limit.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise Image.DecompressionBombError(
            f"{image.width} x {image.height} pixels, and PIL.Image.MAX_IMAGE_PIXELS is {limit}"
        )


def _upright_rgb(image: Image.Image, size: tuple[int, int]) -> Picture:
    if not image.width or not image.height:
        raise ImageError("it has no pixels")
    image.load()  # before the EXIF data are read: a PNG may hold them behind its pixels
    try:
        turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data are common, and no reason to refuse a sound picture
        turn = None
    rgb = _rgb(image)
    rgb.info = {}  # who reads this picture again must not turn it again
    if turn is None:
        return Picture(rgb, size)
    return Picture(rgb.transpose(turn), size[::-1] if turn in _LYING else size)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ImageError("floating-point pixels have no agreed range: save it with 8 bits")
    if image.mode.startswith("I"):  # Pillow's own conversion cuts all above 255 off
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 0xFFFF:
            raise ImageError("its pixels are beyond 16 bits: save it with 8 or 16")
        image = Image.fromarray(np.rint(grey / 257.0).astype(np.uint8))
    elif image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        paper.alpha_composite(image.convert("RGBA"))
        image = paper
    return image.convert("RGB")
