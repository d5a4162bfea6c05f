"""Small files of the kinds that phones and cameras write: HEIC and DNG."""

import io
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# Made from `drawing()` by Debian's heif-enc 1.15.1: heif-enc -L -p chroma=444 drawing.png
STORED_HEIC = Path(__file__).parents[1] / "fixtures" / "drawing.heic"
FIELDS = [
    [(200, 30, 40), (40, 180, 60), (30, 60, 200)],
    [(230, 210, 40), (20, 20, 20), (255, 255, 255)],
]


def drawing(width: int = 128, height: int = 96) -> Image.Image:
    """Six fields of colour, no two alike, so that it looks different however it is turned."""
    return Image.fromarray(np.array(FIELDS, np.uint8)).resize(
        (width, height), Image.Resampling.NEAREST
    )


def difference(image: Image.Image, other: Image.Image) -> float:
    """The mean difference of the values of two pictures of the same size."""
    assert image.size == other.size
    both = (np.asarray(one.convert("RGB"), np.float64) for one in (image, other))
    return float(np.abs(np.subtract(*both)).mean())


# HEIC: the pixels of the stored file, in boxes that are written anew.


def _box(kind: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I", 8 + len(data)) + kind + data


def _full_box(kind: bytes, *parts: bytes, version: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", version << 24), *parts)


def heic(
    *,
    quarters: int = 0,
    mirror: int | None = None,
    exif: Image.Exif | None = None,
    size: tuple[int, int] = (128, 96),
    brand: bytes = b"heic",
) -> bytes:
    """A HEIC file of `drawing()` that says: show it turned to the left by quarter turns, then
    mirrored (0: top to bottom, 1: left to right). `size` is the size that it claims."""
    stored = STORED_HEIC.read_bytes()
    at = stored.index(b"hvcC") - 4
    coding = stored[at : at + int.from_bytes(stored[at : at + 4])]
    pixels = stored[stored.index(b"mdat") + 4 :]
    properties = [coding, _full_box(b"ispe", struct.pack(">II", *size))]
    properties += [_box(b"irot", bytes([quarters]))] if quarters else []
    properties += [_box(b"imir", bytes([mirror]))] if mirror is not None else []
    items, kinds = [pixels], [b"hvc1"]
    if exif is not None:
        items.append(bytes(4) + exif.tobytes().removeprefix(b"Exif\0\0"))
        kinds.append(b"Exif")
    used = bytes(0x80 | place for place in range(1, len(properties) + 1))  # all of them essential
    head = _box(b"ftyp", brand, bytes(4), b"mif1", b"heic")

    def meta(start: int) -> bytes:
        where, described = b"", b""
        for id, (data, kind) in enumerate(zip(items, kinds, strict=True), 1):
            where += struct.pack(">HHHII", id, 0, 1, start, len(data))
            described += _full_box(b"infe", struct.pack(">HH", id, 0), kind, b"\0", version=2)
            start += len(data)
        return _full_box(
            b"meta",
            _full_box(b"hdlr", bytes(4), b"pict", bytes(13)),
            _full_box(b"pitm", struct.pack(">H", 1)),
            _full_box(b"iloc", b"\x44\0", struct.pack(">H", len(items)), where),
            _full_box(b"iinf", struct.pack(">H", len(items)), described),
            _box(
                b"iprp",
                _box(b"ipco", *properties),
                _full_box(b"ipma", struct.pack(">IHB", 1, 1, len(used)), used),
            ),
            _full_box(b"iref", _box(b"cdsc", struct.pack(">HHH", 2, 1, 1))) if exif else b"",
        )

    start = len(head) + len(meta(0)) + 8
    return head + meta(start) + _box(b"mdat", *items)


# DNG: a TIFF file with what a sensor behind a Bayer filter records.

_BYTE, _ASCII, _SHORT, _LONG, _RATIONAL, _SIGNED = 1, 2, 3, 4, 5, 10
_CODES = {_BYTE: "B", _ASCII: "B", _SHORT: "H", _LONG: "I", _RATIONAL: "I", _SIGNED: "i"}
Tags = Mapping[int, tuple[int, list[int]]]
# From XYZ to the camera's colours, which are those of sRGB.
FROM_XYZ = (3.2406, -1.5372, -0.4986, -0.9689, 1.8758, 0.0415, 0.0557, -0.2040, 1.0570)


def _ifd(tags: Tags, start: int) -> bytes:
    """A directory of a TIFF file that begins at `start`, with its values behind it."""
    entries, values = b"", b""
    behind = start + 2 + 12 * len(tags) + 4
    for tag, (kind, numbers) in sorted(tags.items()):
        data = struct.pack(f"<{len(numbers)}{_CODES[kind]}", *numbers)
        count = len(numbers) // (2 if kind in (_RATIONAL, _SIGNED) else 1)
        if len(data) > 4:
            place = struct.pack("<I", behind + len(values))
            values += data + b"\0" * (len(data) % 2)
        else:
            place = data.ljust(4, b"\0")
        entries += struct.pack("<HHI", tag, kind, count) + place
    return struct.pack("<H", len(tags)) + entries + bytes(4) + values


def mosaic(image: Image.Image) -> NDArray[np.uint16]:
    """What a sensor behind a Bayer filter records: red, green; green, blue."""
    shown = np.asarray(image, np.float64) / 255
    linear = np.where(shown < 0.081, shown / 4.5, ((shown + 0.099) / 1.099) ** 2.222)  # as BT.709
    one = np.empty(linear.shape[:2])
    for row, column, channel in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2)):
        one[row::2, column::2] = linear[row::2, column::2, channel]
    return np.rint(one * 65535).astype(np.uint16)


def dng(
    image: Image.Image,
    preview: Image.Image | None = None,
    *,
    orientation: int = 1,
    preview_exif: Image.Exif | None = None,
    bitmap: bool = False,
    size: tuple[int, int] | None = None,
) -> bytes:
    """A DNG file of a picture, with or without a preview, as a JPEG or as plain pixels. `size` is
    the size that it claims."""
    width, height = image.size if size is None else size
    recorded = mosaic(image).tobytes()
    about: Tags = {
        271: (_ASCII, list(b"Test\0")),
        272: (_ASCII, list(b"Test camera\0")),
        274: (_SHORT, [orientation]),
        50706: (_BYTE, [1, 4, 0, 0]),
        50707: (_BYTE, [1, 1, 0, 0]),
        50708: (_ASCII, list(b"Test camera\0")),
        50721: (_SIGNED, [n for value in FROM_XYZ for n in (round(value * 10000), 10000)]),
        50728: (_RATIONAL, [1, 1] * 3),
        50778: (_SHORT, [21]),  # the light is that of a D65 lamp
    }
    sensor = {
        254: (_LONG, [0]),
        256: (_LONG, [width]),
        257: (_LONG, [height]),
        258: (_SHORT, [16]),
        259: (_SHORT, [1]),
        262: (_SHORT, [32803]),
        277: (_SHORT, [1]),
        278: (_LONG, [height]),
        279: (_LONG, [len(recorded)]),
        33421: (_SHORT, [2, 2]),
        33422: (_BYTE, [0, 1, 1, 2]),
        50717: (_LONG, [65535]),
    }
    start = 8
    if preview is None:
        tags = {**about, **sensor, 273: (_LONG, [0])}
        place = start + len(_ifd(tags, start))
        body = _ifd({**tags, 273: (_LONG, [place])}, start) + recorded
        return b"II*\0" + struct.pack("<I", start) + body
    if bitmap:
        small, coding = preview.convert("RGB").tobytes(), (1, 2)
    else:
        stream = io.BytesIO()
        preview.save(stream, "JPEG", quality=95, exif=preview_exif or b"")
        small, coding = stream.getvalue(), (7, 6)
        if preview_exif is not None:  # cameras write it first, and Pillow after 18 bytes of JFIF
            small = small[:2] + small[20:]
    small += b"\0" * (len(small) % 2)
    first: Tags = {
        **about,
        254: (_LONG, [1]),
        256: (_LONG, [preview.width]),
        257: (_LONG, [preview.height]),
        258: (_SHORT, [8, 8, 8]),
        259: (_SHORT, [coding[0]]),
        262: (_SHORT, [coding[1]]),
        273: (_LONG, [0]),
        277: (_SHORT, [3]),
        278: (_LONG, [preview.height]),
        279: (_LONG, [len(small)]),
        330: (_LONG, [0]),
    }
    behind = start + len(_ifd(first, start))  # the preview, then the sensor's directory
    inner = behind + len(small)
    whole: Tags = {**sensor, 273: (_LONG, [0])}
    pixels = inner + len(_ifd(whole, inner))
    first = {**first, 273: (_LONG, [behind]), 330: (_LONG, [inner])}
    whole = {**whole, 273: (_LONG, [pixels])}
    head = b"II*\0" + struct.pack("<I", start)
    return head + _ifd(first, start) + small + _ifd(whole, inner) + recorded
