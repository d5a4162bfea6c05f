"""What MCHIndex does with wrong arguments and with records that are not what it writes."""

import contextlib
import enum
import io
import json
import os
import sqlite3
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

import mchindex.index.table
from helpers.indexes import BITS, assert_as_fresh, codes_for, painted, tiny_model
from helpers.pictures import encoded
from mchindex import ImageError, MCHIndex, StoreDamagedError
from mchindex.errors import ModelError
from mchindex.index.export import export_index
from mchindex.index.importing import import_index
from mchindex.index.verify import verify
from mchindex.storage.records import Row, code_type
from mchindex.storage.store import Store


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


def forge(folder: Path, id: Any, regions: list[int], metadata: str | None = None) -> None:
    """Stores an image as older versions did, which did not check regions and metadata."""
    entries = np.zeros(len(regions), code_type(BITS))
    entries["region"] = regions
    entries["code"] = np.arange(len(regions))[:, None]
    with contextlib.closing(Store(folder)) as store, store.writer():
        store.insert([Row(id, entries.tobytes(), metadata=metadata)])


@pytest.mark.parametrize("regions", [[0, 256], [400], [-1, 3], list(range(400))])
def test_a_record_with_a_wrong_region_is_refused_before_it_is_stored(
    folder: Path, regions: list[int]
) -> None:
    entries = np.zeros(len(regions), code_type(BITS))
    entries["region"] = regions
    rows = [Row("fine", np.zeros(1, code_type(BITS)).tobytes()), Row("x", entries.tobytes())]
    with MCHIndex.open(folder) as index:
        with pytest.raises(ValueError, match="numbered from 0 to 255"):
            index.add_records(rows)
        assert index.ids() == [0, 1, 2]
        index.add_records(rows[:1])
    assert verify(folder).problems == []


@pytest.mark.parametrize("regions", [[0, 256], [-1], list(range(400))])
def test_a_stored_image_that_no_table_can_hold_harms_no_other(
    folder: Path, tmp_path: Path, regions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with MCHIndex.open(folder) as open_before:
        forge(folder, "bad", regions)
        forge(folder, "good", [0, 255])
        everything = [0, 1, 2, "bad", "good"]
        for index in (open_before, MCHIndex.open(folder)):
            assert index.ids() == everything
            assert len(index) == index.stats()["images"] == 5
            assert "bad" not in index.search_codes(np.zeros(BITS // 8, np.uint8), 10).ids
            assert "good" in index.search_codes(np.zeros(BITS // 8, np.uint8), 10).ids
            assert len(index["bad"].codes) == len(regions)
    assert [p for p in verify(folder).problems if "'bad'" in p] == verify(folder).problems != []
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    for number in range(2):  # the second time from a snapshot
        with MCHIndex.open(folder) as index:
            index.add_codes([10 + number], codes_for(number)[:1])
            index.remove([number])
            index.set_metadata("good", {"a": number})
            assert len(index) == 5
            assert index.search_codes(codes_for(number)[0], 1).ids == [10 + number]
    assert list(folder.glob("table-*"))
    with open(tmp_path / "out", "wb") as out:
        exported = export_index(folder, out)
    assert (exported.images, exported.lost) == (4, 1)
    assert import_index(tmp_path / "out", tmp_path / "copy").added == 4
    with MCHIndex.open(folder) as index:
        assert index.remove("bad") == 1
        assert len(index) == 4
        assert_as_fresh(index)
    assert verify(folder).problems == []


@pytest.mark.parametrize(
    "metadata",
    [
        '{"a": ' * 1100 + "1" + "}" * 1100,
        '{"a": ' * 60_000 + "1" + "}" * 60_000,
        '{"a": Infinity}',
        '{"a": 1e999}',
        "[1]",
        "nonsense",
    ],
    ids=["deep", "very deep", "constant", "large", "list", "nonsense"],
)
def test_stored_metadata_that_cannot_be_read_harm_no_other_image(
    folder: Path, metadata: str
) -> None:
    forge(folder, "bad", [0], metadata)
    with MCHIndex.open(folder) as index:
        index.set_metadata(1, {"a": 1})
        hits = index.search_codes(np.zeros(BITS // 8, np.uint8), 10)
        assert {hit.id: hit.metadata for hit in hits}["bad"] == {}
        assert index.search_codes(codes_for(1)[0], 10, filter={"a": 1}).ids == [1]
        assert index.count({"a": {">": 0, "<": 5}}) == 1
        with pytest.raises(StoreDamagedError, match="the metadata of image 'bad' cannot be read"):
            index["bad"]
        (problem,) = verify(folder).problems
        assert "'bad'" in problem
        index.set_metadata("bad", {"a": 2})
        assert index["bad"].metadata == {"a": 2}
    assert verify(folder).problems == []


@pytest.mark.parametrize("metadata", ['{"a": ' * 1100 + "1" + "}" * 1100, '{"a": NaN}', "[]", "x"])
def test_a_record_with_metadata_that_cannot_be_read_is_refused(folder: Path, metadata: str) -> None:
    entries = np.zeros(1, code_type(BITS)).tobytes()
    with MCHIndex.open(folder) as index:
        with pytest.raises(ValueError, match="the metadata of image 'x'"):
            index.add_records([Row("x", entries, metadata=metadata)])
        assert len(index) == 3


class Name(enum.StrEnum):
    CAT = "cat"


class Number(enum.IntEnum):
    SEVEN = 7


def test_records_hold_plain_values(folder: Path) -> None:
    """Their checksums are those of the values that SQLite gives back."""
    entries = np.zeros(1, code_type(BITS)).tobytes()
    rows = [
        Row(Name.CAT, entries, Name.CAT, Number.SEVEN, np.int64(3), metadata="{}"),  # type: ignore[arg-type]
        Row(Number.SEVEN, entries, str(Name.CAT)),
    ]
    with MCHIndex.open(folder) as index:
        index.add_records(rows)
        assert [type(id_) for id_ in index.ids()[-2:]] == [str, int]
        assert index["cat"].path == "cat"
        with pytest.raises(TypeError, match="float"):
            index.add_records([Row("x", entries, size=1.5)])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="64 bits"):
            index.add_records([Row("x", entries, time=2**63)])
        with pytest.raises(TypeError, match="an id must be"):
            index.add_records([Row(1.5, entries)])  # type: ignore[arg-type]
    assert verify(folder).problems == []


def test_the_path_of_an_index_is_not_a_model(folder: Path, tmp_path: Path) -> None:
    for path in (str(folder), folder, "photos.mch", tmp_path / "photos.mch"):
        with pytest.raises(ModelError) as error:
            MCHIndex(path)
        assert f"MCHIndex.open({os.fspath(path)!r})" in str(error.value)
    with pytest.raises(ModelError, match="not a model"):
        MCHIndex.open(tmp_path / "new", folder)


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
