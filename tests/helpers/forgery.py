"""Forges snapshots (of format 2) whose checksums are valid, and looks into good ones."""

import struct

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct("<8sIIQQQIIQQ64s")
CHECKSUM = struct.calcsize("<8sIIQQQII")  # where it is in the header
PART, SECTION = struct.Struct("<7I36s"), struct.Struct("<QQQII")
PRIME, WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


def checksum(data: bytes, seed: int = 0) -> int:
    lanes = [seed ^ 1, seed ^ 2, seed ^ 3, seed ^ len(data)]
    whole = len(data) // 32 * 32
    for i, value in enumerate(struct.unpack(f"<{whole // 8}Q", data[:whole])):
        lane = (lanes[i % 4] ^ value) * PRIME & WORD
        lanes[i % 4] = lane ^ lane >> 32
    for i in range(whole, len(data)):
        lanes[i % 4] = (lanes[i % 4] ^ data[i]) * PRIME & WORD
    total = seed
    for lane in lanes:
        total = (total ^ lane) * PRIME & WORD
        total ^= total >> 29
    return total


def counts(data: bytes | bytearray) -> tuple[int, int]:
    """The number of parts and of sections."""
    n_parts, n_sections = HEADER.unpack_from(data)[6:8]
    return n_parts, n_sections


def sealed(data: bytearray) -> bytes:
    """The file with the right checksum of header and directory."""
    n_parts, n_sections = counts(data)
    end = (HEADER.size + n_parts * PART.size + n_sections * SECTION.size + 63) // 64 * 64
    struct.pack_into("<Q", data, CHECKSUM, 0)
    struct.pack_into("<Q", data, CHECKSUM, checksum(bytes(data[:end])))
    return bytes(data)


def forge(original: bytes, rng: np.random.Generator) -> bytes:
    """Changes a few bytes of a part's record or of a section, and updates the checksums."""
    data = bytearray(original)
    n_parts, n_sections = counts(data)
    if rng.random() < 0.2:  # a number in a part's record
        part, field = rng.integers(n_parts), rng.integers(6)
        value = int(rng.choice([0, 1, 5, 63, 2**16, 2**31, 2**32 - 1]))
        struct.pack_into("<I", data, int(HEADER.size + PART.size * part + 4 * field), value)
    else:
        record = HEADER.size + n_parts * PART.size + SECTION.size * int(rng.integers(n_sections))
        offset, size, _, width, spare = SECTION.unpack_from(data, record)
        for _ in range(int(rng.integers(1, 4)) if size else 0):
            data[offset + int(rng.integers(size))] = int(rng.choice([0, 1, 127, 128, 255]))
        if rng.random() < 0.1:
            width = int(rng.integers(0, 10))
        padded = (size + 64 + 63) // 64 * 64
        content, padding = data[offset : offset + size], data[offset + size : offset + padded]
        check = checksum(bytes(padding), checksum(bytes(content)))
        SECTION.pack_into(data, record, offset, size, check, width, spare)
    return sealed(data)


def occupied(data: bytes) -> NDArray[np.bool_]:
    """Which places of the probe table are taken, in a snapshot of one part, codes up to 64 bits."""
    n_parts, _ = counts(data)
    assert n_parts == 1
    before = 5  # sections: the codes, and four of the groups
    record = HEADER.size + PART.size + before * SECTION.size
    offset, size, *_ = SECTION.unpack_from(data, record)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, size, offset), bitorder="little")
    return bits.astype(bool)
