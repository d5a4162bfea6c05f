"""Pictures that are not what they say."""

import struct
import zlib


def png(width: int, height: int) -> bytes:
    """A PNG that says to be of some size, with almost no bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    pixels = zlib.compress(b"\0" * min(width * height, 1 << 20))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
