"""Exports an index to a script for PostgreSQL (14 or newer): tables, and the two queries.

`mch_nearest` gives the hits of `rank="code"`, in the same order; `mch_finest` compares fine codes,
bit by bit. Both are plain SQL over `bit` columns: PostgreSQL scans all codes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO

from mchindex.index.adding import groups
from mchindex.index.facade import MCHIndex
from mchindex.storage.records import Row, unpack_codes, unpack_fine

TOGETHER = 1000  # images that are read at a time

_TABLES = """\
-- An index of images, written by mchindex. Load it with: psql -v ON_ERROR_STOP=1 -f FILE
BEGIN;
CREATE TABLE mch_images (
  key bigint PRIMARY KEY, id jsonb NOT NULL UNIQUE, path text, width integer, height integer,
  metadata json
);
CREATE TABLE mch_codes (
  key bigint NOT NULL REFERENCES mch_images ON DELETE CASCADE, region smallint NOT NULL,
  code bit({bits}) NOT NULL
);
"""

# An image counts at its nearest code; at one distance, the larger mask is visited first.
_NEAREST = """\
CREATE FUNCTION mch_nearest(query bit({bits}), k integer)
RETURNS TABLE (id jsonb, distance integer, region smallint) LANGUAGE sql STABLE AS $$
  SELECT i.id, c.distance, c.region FROM (
    SELECT DISTINCT ON (key) key, region, bit_count(code # query)::integer AS distance,
      code # query AS mask
    FROM mch_codes ORDER BY key, bit_count(code # query), code # query DESC, region
  ) AS c JOIN mch_images AS i USING (key)
  ORDER BY c.distance, c.mask DESC, key LIMIT k
$$;
"""

_FINE = """\
CREATE TABLE mch_fine (
  key bigint NOT NULL REFERENCES mch_images ON DELETE CASCADE, region smallint NOT NULL,
  code bit({fine}) NOT NULL
);
"""

_FINEST = """\
CREATE FUNCTION mch_finest(query bit({fine}), k integer)
RETURNS TABLE (id jsonb, distance integer, region smallint) LANGUAGE sql STABLE AS $$
  SELECT i.id, c.distance, c.region FROM (
    SELECT DISTINCT ON (key) key, region, bit_count(code # query)::integer AS distance
    FROM mch_fine ORDER BY key, bit_count(code # query), region
  ) AS c JOIN mch_images AS i USING (key)
  ORDER BY c.distance, key LIMIT k
$$;
"""


def export_postgres(index: MCHIndex, out: IO[bytes]) -> int:
    """Writes the script; returns the number of images. Images that are added or removed meanwhile
    may be in it or not."""
    kind = index._live.fine_kind
    names = {"bits": index.bits, "fine": 0 if kind is None else kind.bits}
    out.write(_TABLES.format(**names).encode())
    images = 0
    for rows in _pages(index):
        images += len(rows)
        _copy(out, "mch_images", map(_image, rows))
        _copy(out, "mch_codes", (line for row in rows for line in _codes(row, index.bits)))
    out.write(_NEAREST.format(**names).encode())
    if kind is not None:
        out.write(_FINE.format(**names).encode())
        regions = max(1, len(index.identity.regions))
        for rows in _pages(index):
            fine = index._store.fine([row.key for row in rows])
            keys = [row.key for row in rows if row.key in fine]
            codes = unpack_fine(keys, [fine[key] for key in keys], regions, kind.bits)
            lines = (
                f"{key}\t{region}\t{_bits(code.tobytes())}"
                for key, own in zip(keys, codes, strict=True)
                for region, code in enumerate(own)
            )
            _copy(out, "mch_fine", lines)
        out.write(_FINEST.format(**names).encode())
    out.write(b"COMMIT;\n")
    return images


def _pages(index: MCHIndex) -> Iterator[list[Row]]:
    return groups(index._store.each(), TOGETHER)


def _copy(out: IO[bytes], table: str, lines: Iterator[str]) -> None:
    out.write(f"COPY {table} FROM stdin;\n".encode())
    for line in lines:
        out.write(f"{line}\n".encode())
    out.write(b"\\.\n")


def _image(row: Row) -> str:
    values = (
        row.key, json.dumps(row.id, ensure_ascii=False), row.path, row.width, row.height,
        row.metadata,
    )  # fmt: skip
    return "\t".join("\\N" if value is None else _escaped(str(value)) for value in values)


def _codes(row: Row, bits: int) -> Iterator[str]:
    _, entries = unpack_codes([row.key], [row.codes], bits, any_region=True)
    for entry in entries:
        yield f"{row.key}\t{int(entry['region'])}\t{_bits(entry['code'].tobytes())}"


def _bits(code: bytes) -> str:
    return f"{int.from_bytes(code, 'big'):0{8 * len(code)}b}"


def _escaped(text: str) -> str:
    """A value as COPY reads it. A file name that is not valid text is written with escapes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    for char, code in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(char, code)
    return text


__all__ = ["export_postgres"]
