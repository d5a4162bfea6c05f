"""What MCHIndex does with wrong arguments and with records that are not what it writes."""

import io
import json
import sqlite3
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from helpers.indexes import BITS, codes_for, painted, tiny_model
from helpers.pictures import encoded
from mchindex import ImageError, MCHIndex, StoreDamagedError
from mchindex.index.export import export_index
from mchindex.index.verify import verify
from mchindex.storage.records import Row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        index.add_codes(range(3), np.concatenate([codes_for(i)[:1] for i in range(3)]))
    return tmp_path / "i"


@pytest.mark.parametrize("codes", [b"", b"abc"], ids=["none", "another width"])
def test_a_record_without_codes_is_refused_before_it_is_stored(folder: Path, codes: bytes) -> None:
    with MCHIndex.open(folder) as index:
        with pytest.raises(ValueError, match="'x' has no codes of 32 bits"):
            index.add_records([Row("x", codes)])
        assert index.ids() == [0, 1, 2]
    assert verify(folder).problems == []


def write_fact(folder: Path, name: str, value: Any) -> None:
    """Records a fact with a checksum that matches."""
    text = json.dumps(value)
    db = sqlite3.connect(folder / "index.sqlite", isolation_level=None)
    crc = crc32(f"{name} {text}".encode())
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (name, text, crc))
    db.close()


IDENTITY: dict[str, Any] = {
    "bits": BITS,
    "fingerprint": None,
    "name": None,
    "names": [],
    "boxes": [],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", {}),
        ("model", []),
        ("model", 5),
        ("model", IDENTITY | {"bits": 7}),
        ("model", IDENTITY | {"names": ["whole"], "boxes": [[0]]}),
        ("snapshot", {}),
        ("snapshot", 5),
        ("state", 5),
        ("state", [1, 2]),
    ],
)
def test_a_fact_of_another_shape_is_damage(folder: Path, name: str, value: Any) -> None:
    write_fact(folder, name, value)
    said = f"its record of '{name}' cannot be read"
    with pytest.raises(StoreDamagedError, match=said):
        MCHIndex.open(folder)
    assert any(said in problem for problem in verify(folder).problems)
    assert export_index(folder, io.BytesIO()).images == 3


def picture() -> bytes:
    return encoded(painted(3), "PNG")


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_kind_of_bytes_is_one_image(kind: Any) -> None:
    with MCHIndex(tiny_model()) as index:
        assert index.add(kind(picture())) == [0]
        assert index.search(kind(picture()), 1).distances == [0]
        with pytest.raises(TypeError, match=r"\[image\] for one"):
            index.model.encode(kind(picture()))


def test_a_file_object_is_named_once(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(b"not a picture")
    with MCHIndex(tiny_model()) as index, open(file, "rb") as stream:
        with pytest.raises(ImageError) as error:
            index.add(stream)
        assert str(error.value) == f"{file}: not an image of a known format"
        with pytest.raises(TypeError, match=r"\[image\] for one"):
            index.model.encode(stream)


def test_a_file_in_text_mode(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(picture())
    with MCHIndex(tiny_model()) as index, open(file) as stream:
        for take in (index.add, index.search):
            with pytest.raises(ImageError, match="open it in binary mode"):
                take(stream)
