"""What MCHIndex does with wrong arguments and with records that are not what it writes."""

import io
import json
import sqlite3
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from helpers.indexes import BITS, codes_for
from mchindex import MCHIndex, StoreDamagedError
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
