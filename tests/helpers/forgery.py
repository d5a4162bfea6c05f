"""Forges snapshots whose checksums are valid."""

import struct

import numpy as np

HEADER = struct.Struct("<8sIIQQQIIQ")
PART, SECTION = struct.Struct("<6I"), struct.Struct("<QQQII")
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


def forge(original: bytes, rng: np.random.Generator) -> bytes:
    """Changes a few bytes of a part's record or of a section, and updates the checksums."""
    data = bytearray(original)
    *start, n_parts, n_sections, _ = HEADER.unpack_from(data)
    sections = HEADER.size + n_parts * PART.size
    if rng.random() < 0.2:  # a number in a part's record
        at = HEADER.size + 4 * int(rng.integers(n_parts * 6))
        value = int(rng.choice([0, 1, 5, 63, 2**16, 2**31, 2**32 - 1]))
        struct.pack_into("<I", data, at, value)
    else:
        record = sections + SECTION.size * int(rng.integers(n_sections))
        offset, size, _, width, unused = SECTION.unpack_from(data, record)
        for _ in range(int(rng.integers(1, 4)) if size else 0):
            data[offset + int(rng.integers(size))] = int(rng.choice([0, 1, 127, 128, 255]))
        if rng.random() < 0.1:
            width = int(rng.integers(0, 10))
        padded = (size + 64 + 63) // 64 * 64
        content, padding = data[offset : offset + size], data[offset + size : offset + padded]
        check = checksum(bytes(padding), checksum(bytes(content)))
        SECTION.pack_into(data, record, offset, size, check, width, unused)
    end = (sections + n_sections * SECTION.size + 63) // 64 * 64
    HEADER.pack_into(data, 0, *start, n_parts, n_sections, 0)
    HEADER.pack_into(data, 0, *start, n_parts, n_sections, checksum(bytes(data[:end])))
    return bytes(data)
