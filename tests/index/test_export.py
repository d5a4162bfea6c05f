"""Exporting an index and importing it: nothing changes, and nothing invalid is imported."""

import contextlib
import gzip
import io
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mchindex
from helpers.indexes import codes_for, damage
from helpers.small_model import photo, small_model, write_photos
from mchindex import MCHIndex, json_text
from mchindex.errors import ExportError, ModelMismatchError, NotAnIndexError, StoreDamagedError
from mchindex.index.export import created, export_index
from mchindex.index.importing import LONGEST, REASONS, Reader, import_index
from mchindex.models import MCHModel
from mchindex.storage.records import Row, code_type
from mchindex.storage.store import Store

BITS = 24


def export(folder: Path) -> bytes:
    stream = io.BytesIO()
    export_index(folder, stream)
    return stream.getvalue()


def rows_of(folder: Path) -> list[Row]:
    """All that is stored, without the keys, which each index assigns itself."""
    store = Store(folder)
    rows = list(store.each())
    store.close()
    return [
        Row(r.id, r.codes[:-4], r.path, r.size, r.time, r.hash, r.width, r.height, r.metadata)
        for r in rows
    ]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of codes: several per image, an image with equal codes, text and integer ids."""
    folder = tmp_path_factory.mktemp("once") / "filled.mch"
    names: list[Any] = [seed if seed % 2 else f"näme {seed}" for seed in range(40)]
    codes = [codes_for(seed, bits=BITS) for seed in range(40)]
    ids = [name for name, its in zip(names, codes, strict=True) for _ in its] + ["twin", "twin"]
    regions = [3 * i for its in codes for i in range(len(its))] + [4, 2]
    notes = [*({"seed": seed, "ä": None} for seed in range(40)), None]
    with MCHIndex.open(folder, bits=BITS) as index:
        every = np.concatenate([*codes, codes[1][:1], codes[1][:1]])
        index.add_codes(ids, every, regions, metadata=notes)
        index.remove(3)
    return folder


@pytest.fixture
def filled(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / once.name))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    small_model().save(folder)
    return folder


# Export and import


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_an_import_restores_what_was_exported(filled: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    with created(file) as stream:
        done = export_index(filled, stream)
    assert (done.images, done.lost) == (40, 0)
    assert (file.read_bytes()[:2] == b"\x1f\x8b") == name.endswith("gz")
    back = import_index(file, tmp_path / "back.mch")
    assert (back.added, back.replaced, back.refused, back.cut) == (40, 0, [], False)
    assert rows_of(tmp_path / "back.mch") == rows_of(filled)
    assert export(tmp_path / "back.mch") == export(filled)
    assert os.listdir(tmp_path).count(name) == 1
    assert not [f for f in os.listdir(tmp_path) if f.startswith(".")]


def test_imported_images_are_not_encoded_again(tmp_path: Path, model: Path) -> None:
    """Times and hashes are exported too, so nothing needs to be encoded again."""
    photos = write_photos(tmp_path / "photos", 9)
    with MCHIndex.open(tmp_path / "a.mch", model) as index:
        index.add(photos[:8], metadata={"album": "x"})
        index.add(photo(99), ids=["in memory"])
        want = index.search(photo(3), 5)[:]
    (tmp_path / "out.jsonl").write_bytes(export(tmp_path / "a.mch"))
    import_index(tmp_path / "out.jsonl", tmp_path / "b.mch", model=model)
    assert rows_of(tmp_path / "b.mch") == rows_of(tmp_path / "a.mch")
    with MCHIndex.open(tmp_path / "b.mch") as index:
        assert index.search(photo(3), 5)[:] == want
        again = index.add(tmp_path / "photos")
        assert (len(again.skipped), again.added) == (8, [str(photos[8])])
    # Imported again, each image is replaced by itself.
    back = import_index(tmp_path / "out.jsonl", tmp_path / "b.mch")
    assert (back.added, back.replaced) == (0, 9)


signs = st.characters(exclude_categories=["Cs"])
text = st.text(signs, max_size=6)
numbers = st.integers(-(2**63), 2**63 - 1)
values = (
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | text
)
metadata = st.dictionaries(
    text, st.recursive(values, lambda s: st.lists(s, max_size=3)), max_size=3
)
entries = st.lists(
    st.tuples(st.integers(0, 255), st.floats(0, 1, width=32), st.binary(min_size=3, max_size=3)),
    min_size=1,
    max_size=4,
)
records = st.builds(
    Row,
    id=st.none(),  # set below, because ids must be distinct
    codes=entries.map(lambda e: np.array(
        [(r, k, list(c)) for r, k, c in e], code_type(BITS)
    ).tobytes()),
    path=st.none() | st.text(signs, min_size=1, max_size=6),
    size=st.none() | numbers,
    time=st.none() | numbers,
    hash=st.none() | st.binary(min_size=32, max_size=32),
    width=st.none() | st.integers(0, 2**31),
    height=st.none() | st.integers(0, 2**31),
    metadata=st.none() | metadata.map(lambda m: json.dumps(m, ensure_ascii=False)),
)  # fmt: skip
places = itertools.count()


@settings(max_examples=30)
@given(
    rows=st.lists(records, max_size=6),
    ids=st.lists(
        text.filter(lambda t: "\0" not in t) | numbers, min_size=6, max_size=6, unique=True
    ),
)
def test_any_record_survives_an_export_and_an_import(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], ids: list[Any]
) -> None:
    root = tmp_path_factory.mktemp(f"any{next(places)}")
    originals = [
        Row(id, r.codes, r.path, r.size, r.time, r.hash, r.width, r.height, r.metadata)
        for id, r in zip(ids, rows, strict=False)
    ]
    with MCHIndex.open(root / "a.mch", bits=BITS) as index:
        index.add_records(originals)
    (root / "out").write_bytes(export(root / "a.mch"))
    import_index(root / "out", root / "b.mch")
    assert rows_of(root / "b.mch") == rows_of(root / "a.mch") == originals


def test_an_export_is_read_one_line_at_a_time(tmp_path: Path) -> None:
    """The reader reads no further than the rows that are taken from it."""
    head = {"format": "mchindex-export", "version": 1, "bits": 8, "model": None}
    head |= {"fingerprint": None, "names": [], "boxes": []}

    class Endless(io.RawIOBase):
        def __init__(self) -> None:
            self.lines = 0

        def seek(self, offset: int, whence: int = 0) -> int:
            self.lines = 0
            return 0

        def read(self, size: int = -1) -> bytes:
            return b"{\n"

        def readline(self, size: int | None = -1) -> bytes:
            self.lines += 1
            if self.lines == 1:
                return json.dumps(head).encode() + b"\n"
            codes = [{"region": 0, "keep": 1, "code": "ff"}]
            return json.dumps({"id": self.lines, "codes": codes}).encode() + b"\n"

    stream: Any = Endless()
    rows = list(itertools.islice(Reader(stream, "endless").rows(), 1000))
    assert len(rows) == 1000
    assert stream.lines == 1001


MEASURED = """
import re, sys
from mchindex.index.export import created, export_index
from mchindex.index.importing import import_index
work, source, target = sys.argv[1:]
if work == "import":
    done = import_index(source, target).added
else:
    with created(target) as stream:
        done = export_index(source, stream).images
print(done, re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])  # KiB
"""


@pytest.mark.slow
def test_a_million_records_in_flat_memory(tmp_path: Path) -> None:
    """SQLite keeps up to 64 MiB of pages per connection, and the table 16 MB; records add up to
    150 MB as text, and to several times that as Python objects."""
    count, rng = 1_000_000, np.random.default_rng(0)
    with open(tmp_path / "in.jsonl", "wb") as stream:
        head = {"format": "mchindex-export", "version": 1, "bits": 64, "model": None}
        stream.write(joined([head | {"fingerprint": None, "names": [], "boxes": []}]))
        for id in range(count):
            codes = [{"region": 0, "keep": None, "code": rng.bytes(8).hex()}]
            stream.write(joined([{"id": id, "metadata": {"year": id % 25}, "codes": codes}]))
        stream.write(joined([{"end": count}]))
    peaks = []
    for work, source, target in (("import", "in.jsonl", "i.mch"), ("export", "i.mch", "out.jsonl")):
        command = [sys.executable, "-c", MEASURED, work, source, target]
        home = str(Path(mchindex.__file__).resolve().parents[1])
        text = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": home}, check=True,
            capture_output=True, text=True,
        ).stdout  # fmt: skip
        done, peak = map(int, text.split())
        assert done == count
        peaks.append(peak // 1024)
    assert peaks[0] < 350  # MiB
    assert peaks[1] < 200


# Invalid files


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export(folder).splitlines()]


def joined(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_truncated_file_is_detected(filled: Path, tmp_path: Path, zipped: bool) -> None:
    whole = export(filled)
    data = gzip.compress(whole) if zipped else whole
    first = whole.index(b"\n") + 1
    for cut in (*range(0, len(data) - 1, len(data) // 40), len(data) - 1 - zipped):
        file = tmp_path / "cut"
        file.write_bytes(data[:cut])
        if not zipped and cut == len(data) - 1:
            continue  # only the newline at the end is missing
        with pytest.raises(ExportError, match=r"truncated|not an export"):
            import_index(file, tmp_path / "new.mch")
        assert not (tmp_path / "new.mch").exists()
    file.write_bytes(data[: len(data) * 3 // 4])
    assert len(data) * 3 // 4 > first or zipped
    back = import_index(file, tmp_path / "new.mch", partial=True)
    assert back.cut
    got, want = rows_of(tmp_path / "new.mch"), rows_of(filled)
    assert 0 < len(got) < len(want)
    assert got == want[: len(got)]


def test_a_gzip_file_with_a_wrong_checksum_is_refused(filled: Path, tmp_path: Path) -> None:
    data = bytearray(gzip.compress(export(filled)))
    data[-6] ^= 1
    (tmp_path / "bad.gz").write_bytes(data)
    with pytest.raises(ExportError, match="damaged"):
        import_index(tmp_path / "bad.gz", tmp_path / "new.mch")


def code(**changes: Any) -> list[dict[str, Any]]:
    return [{"region": 0, "keep": 1.0, "code": "000000"} | changes]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": None}, "an id must be text or an integer"),
        ({"id": 1.5}, "an id must be text or an integer"),
        ({"id": True}, "an id must be text or an integer"),
        ({"id": 2**63}, "64 bits"),
        ({"id": "\ud800"}, "Unicode"),
        ({"path": 3}, "'path' cannot be 3"),
        ({"path": ""}, "'path' cannot be empty"),
        ({"path": "\ud800"}, "Unicode"),
        ({"size": "3"}, "'size' cannot be"),
        ({"time": 2**63}, "'time' needs more than 64 bits"),
        ({"width": 2.5}, "'width' cannot be"),
        ({"hash": "xyz"}, "hexadecimal"),
        ({"metadata": [1]}, "'metadata' cannot be"),
        ({"metadata": {"a": [float("inf")]}}, "Infinity is not JSON"),
        ({"metadata": {"a": float("nan")}}, "NaN is not JSON"),
        ({"metadata": {"a": "\ud800"}}, "Unicode"),
        ({"metadata": {"\ud800": 1}}, "Unicode"),
        ({"codes": []}, "at least one"),
        ({"codes": None}, "at least one"),
        ({"codes": [1]}, "a code must be an object"),
        ({"codes": code(region=-1)}, "no region -1"),
        ({"codes": code(region=70000)}, "no region 70000"),
        ({"codes": code(keep=2)}, "probability"),
        ({"codes": code(keep="1")}, "probability"),
        ({"codes": code(code="0000")}, "a code has 16 bits, not 24"),
        ({"codes": code(code=None)}, "a code has 0 bits"),
        ({"codes": code(code="zzzzzz")}, "hexadecimal"),
    ],
)
def test_the_error_names_the_invalid_line(
    filled: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    lines = lines_of(filled)
    lines[4] |= changes
    file = tmp_path / "wrong.jsonl"
    file.write_bytes(joined(lines))
    with pytest.raises(ExportError) as error:
        import_index(file, tmp_path / "new.mch")
    assert str(error.value).startswith(f"{file}:5: ")
    assert message in str(error.value)
    assert not (tmp_path / "new.mch").exists()
    back = import_index(file, tmp_path / "new.mch", partial=True)
    assert (back.added, back.invalid, back.cut) == (39, 1, False)
    assert len(back.refused) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{\n", "not JSON"),
        (b"\xff\n", "not UTF-8"),
        (b"[]\n", "an object"),
        (b"\n", "not JSON"),
        (b"{}\n", "it has no codes and no id"),
        (b'{"id": 1, "codes": [], "metadata": {"a": NaN}}\n', "NaN"),
        (b'{"id": 1, "codes": [], "metadata": {"a": 1e999}}\n', "1e999 is too large a number"),
        (b'{"id": 1, "codes": [], "metadata": {"a": [-1e400]}}\n', "-1e400 is too large"),
        (b'{"id": 1, "codes": [], "size": 1' + b"0" * 5000 + b"}\n", "limit"),
        (b"[" * 100_000 + b"\n", "nested more than"),
        (b'{"end": 7}\n', "the end counts 7 images, but there are 3"),
        (b'{"end": 3}\n', "continues after its end"),
    ],
)
def test_lines_that_are_not_images_are_refused(
    filled: Path, tmp_path: Path, line: bytes, message: str
) -> None:
    lines = export(filled).splitlines(keepends=True)
    lines.insert(4, line)
    file = tmp_path / "wrong.jsonl"
    file.write_bytes(b"".join(lines))
    with pytest.raises(ExportError, match=r"wrong\.jsonl:[56]: .*" + message):
        import_index(file, tmp_path / "new.mch")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not an export"),
        ({"version": 3}, "newer mchindex"),
        ({"version": "x"}, "header is damaged"),
        ({"version": 0}, "header is damaged"),
        ({"version": True}, "header is damaged"),
        ({"version": None}, "header is damaged"),
        ({"model": 5}, "header is damaged: 'model' must be text or null"),
        ({"model": ["coco-64"], "fingerprint": "x"}, "header is damaged: 'model' must be"),
        ({"model": "x" * 10_000, "fingerprint": "x"}, "header is damaged: 'model' must be"),
        ({"model": "\ud800", "fingerprint": "x"}, "header is damaged: .*Unicode"),
        ({"model": "a\0b", "fingerprint": "x"}, "which is not installed"),
        ({"fingerprint": 5}, "header is damaged: 'fingerprint' must be text or null"),
        ({"fingerprint": {}}, "header is damaged: 'fingerprint' must be text or null"),
        ({"bits": 24.0}, "header is damaged: 'bits' must be an integer"),
        ({"bits": True}, "header is damaged: 'bits' must be an integer"),
        ({"bits": 10**30}, "header is damaged"),
        ({"names": "whole", "boxes": [[0, 0, 1, 1]] * 5}, "header is damaged: 'names' must"),
        ({"names": [1], "boxes": [[0, 0, 1, 1]]}, "header is damaged: 'names' must"),
        ({"names": ["whole"], "boxes": [["0", 0, 1, 1]]}, "header is damaged: 'boxes' must"),
        ({"names": ["whole"], "boxes": [[0, 0, 1, 10**400]]}, "header is damaged: 'boxes' must"),
        ({"names": ["whole"], "boxes": ["0011"]}, "header is damaged: 'boxes' must"),
        ({"names": ["other"], "boxes": [[0, 0, 0.5, 1]]}, "header is damaged"),
        ({"model_lost": "no"}, "header is damaged: 'model_lost' must be true or false"),
        ({"bits": 12}, "header is damaged"),
        ({"bits": "24"}, "header is damaged"),
        ({"names": ["whole"]}, "header is damaged"),
        ({"boxes": None}, "header is damaged"),
        ({"model_lost": True}, "does not say which model filled it"),
        ({"fingerprint": "unknown", "model": "nobody's"}, "which is not installed"),
    ],
)
def test_invalid_headers_are_refused(
    filled: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    lines = lines_of(filled)
    lines[0] |= changes
    (tmp_path / "wrong.jsonl").write_bytes(joined(lines))
    with pytest.raises(ExportError, match=message):
        import_index(tmp_path / "wrong.jsonl", tmp_path / "new.mch")
    assert not (tmp_path / "new.mch").exists()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["/", ".", "coco-64", "a\0b", 24, 1, "whole", [0, 0, 1, 1]]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=300)
@given(
    changes=st.dictionaries(
        st.sampled_from(
            ["version", "bits", "model", "fingerprint", "names", "boxes", "model_lost", "other"]
        ),
        json_values,
        min_size=1,
    ),
    without=st.sets(st.sampled_from(["version", "bits", "model", "fingerprint", "names", "boxes"])),
)
def test_any_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], without: set[str]
) -> None:
    head: dict[str, Any] = {"format": "mchindex-export", "version": 1, "bits": 24, "model": None}
    head |= {"fingerprint": None, "names": [], "boxes": [], **changes}
    head = {key: value for key, value in head.items() if key == "format" or key not in without}
    folder = tmp_path_factory.mktemp("header")
    with contextlib.suppress(ExportError, ModelMismatchError):
        stream = io.BytesIO(joined([head, {"end": 0}]))
        assert import_index(stream, folder / "new.mch").added == 0
        with MCHIndex.open(folder / "new.mch") as index:
            assert index.identity.to_json()["bits"] == head["bits"]


@settings(max_examples=300)
@given(st.lists(json_values | st.binary(max_size=30), max_size=6))
def test_any_line_is_read_or_refused(lines: list[Any]) -> None:
    head = {"format": "mchindex-export", "version": 1, "bits": 24, "model": None}
    head |= {"fingerprint": None, "names": [], "boxes": []}
    text = [b if isinstance(b, bytes) else json.dumps(b).encode() for b in [head, *lines]]
    reader = Reader(io.BytesIO(b"\n".join(text) + b"\n"), "it", partial=True)
    assert all(isinstance(row, Row) for row in reader.rows())


@settings(max_examples=300)
@given(
    st.sampled_from(["id", "path", "size", "time", "hash", "width", "height", "metadata", "codes"]),
    json_values,
)
def test_any_field_is_read_or_refused(field: str, value: Any) -> None:
    head = {"format": "mchindex-export", "version": 1, "bits": 24, "model": None}
    head |= {"fingerprint": None, "names": [], "boxes": []}
    record: dict[str, Any] = {"id": 1, "codes": code()} | {field: value}
    lines = joined([head, record, {"end": 1}])
    reader = Reader(io.BytesIO(lines), "it", partial=True)
    assert len(list(reader.rows())) + reader.invalid == 1


def test_the_reasons_for_many_invalid_lines_are_bounded(filled: Path, tmp_path: Path) -> None:
    head, *images, _ = export(filled).splitlines(keepends=True)
    file = tmp_path / "wrong.jsonl"
    file.write_bytes(b"".join([head, *[b"bad\n"] * 20_000, *images, b'{"end": 20040}\n']))
    tracemalloc.start()
    back = import_index(file, tmp_path / "new.mch", partial=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (back.added, back.invalid, back.cut) == (40, 20_000, False)
    assert len(back.refused) == REASONS
    assert back.refused[0].startswith(f"{file}:2: not JSON")
    assert peak < 5_000_000


def test_the_reason_for_an_invalid_line_is_short(filled: Path, tmp_path: Path) -> None:
    lines = lines_of(filled)
    lines[4]["id"] = "\ud800" + "x" * 100_000
    lines[-1]["end"] = "y" * 100_000
    file = tmp_path / "wrong.jsonl"
    file.write_bytes(joined(lines))
    back = import_index(file, tmp_path / "new.mch", partial=True)
    assert back.invalid == 2
    assert all(len(reason) < len(str(file)) + 400 for reason in back.refused)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_line_that_never_ends_is_refused(filled: Path, tmp_path: Path, zipped: bool) -> None:
    head = export(filled).splitlines(keepends=True)[0]
    data = head + b" " * (LONGEST + 1)
    (tmp_path / "long").write_bytes(gzip.compress(data, 1) if zipped else data)
    with pytest.raises(ExportError, match=r"long:2: the line is longer than"):
        import_index(tmp_path / "long", tmp_path / "new.mch", partial=True)


def test_metadata_of_the_deepest_nesting_survive(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(json_text.DEEPEST - 1):
        deep = [deep]
    with MCHIndex.open(tmp_path / "a.mch", bits=BITS) as index:
        index.add_codes(["x"], np.zeros((1, 3), np.uint8), metadata=[{"a": deep}])
    (tmp_path / "out").write_bytes(export(tmp_path / "a.mch"))
    assert import_index(tmp_path / "out", tmp_path / "b.mch").added == 1
    with MCHIndex.open(tmp_path / "b.mch") as index:
        assert index["x"].metadata == {"a": deep}


@pytest.mark.parametrize("data", [b"", b"\n", b"\x1f\x8b", b"\x89PNG", b"[]", b'"x"', b"{}"])
def test_files_that_are_not_exports_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "other").write_bytes(data)
    with pytest.raises(ExportError, match="not an export of mchindex"):
        import_index(tmp_path / "other", tmp_path / "new.mch")


def test_codes_that_cannot_be_compared_are_refused(
    filled: Path, tmp_path: Path, model: Path
) -> None:
    file = tmp_path / "out.jsonl"
    file.write_bytes(export(filled))
    with MCHIndex.open(tmp_path / "wide.mch", bits=32):
        pass
    with pytest.raises(ModelMismatchError, match="32 bits, not 24"):
        import_index(file, tmp_path / "wide.mch")
    with pytest.raises(ModelMismatchError, match="not by"):
        import_index(file, tmp_path / "new.mch", model=model)
    other = tmp_path / "other"
    small_model(5, bits=BITS).save(other)
    with MCHIndex.open(tmp_path / "modelled.mch", other):
        pass
    with pytest.raises(ModelMismatchError, match="filled by no model"):
        import_index(file, tmp_path / "modelled.mch")
    lines = lines_of(filled)
    lines[0]["fingerprint"] = MCHModel.load(other).fingerprint
    file.write_bytes(joined(lines))
    with pytest.raises(ModelMismatchError, match="different regions"):
        import_index(file, tmp_path / "modelled.mch")


def test_a_pipe_can_be_imported(filled: Path, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    data = export(filled)
    assert len(data) < 60_000  # fits into the buffer of a pipe
    os.write(writing, data)
    os.close(writing)
    with open(reading, "rb") as stream:
        assert import_index(stream, tmp_path / "new.mch").added == 40
    assert rows_of(tmp_path / "new.mch") == rows_of(filled)


def test_a_named_pipe_is_refused_and_a_descriptor_is_read(filled: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        import_index(tmp_path / "pipe", tmp_path / "new.mch")
    with pytest.raises(IsADirectoryError):
        import_index(tmp_path, tmp_path / "new.mch")
    reading, writing = os.pipe()
    os.write(writing, export(filled))
    os.close(writing)
    try:
        assert import_index(f"/dev/fd/{reading}", tmp_path / "new.mch").added == 40
    finally:
        os.close(reading)


def test_an_export_replaces_only_regular_files(filled: Path, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("pipe", "folder", "socket", "to-device")}
    os.mkfifo(places["pipe"])
    places["folder"].mkdir()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(str(places["socket"]))
    places["to-device"].symlink_to("/dev/null")
    before = {name: place.lstat().st_ino for name, place in places.items()}
    for place in places.values():
        with pytest.raises(OSError, match=r"not a regular file|directory"):  # noqa: SIM117
            with created(place, overwrite=True):
                pass
    assert {name: place.lstat().st_ino for name, place in places.items()} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*places, filled.name])


def test_an_export_writes_through_a_link(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link, target = tmp_path / "latest.jsonl.gz", tmp_path / "disk" / "monday"
    link.symlink_to(target)
    with pytest.raises(FileExistsError), created(link):
        pass
    for old in (None, b"old"):
        if old is not None:
            target.write_bytes(old)
        with created(link, overwrite=True) as stream:
            export_index(filled, stream)
        assert link.is_symlink()
        assert gzip.decompress(target.read_bytes()) == export(filled)


def test_an_export_file_appears_when_complete(filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"

    def broken() -> None:
        with created(file) as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert os.listdir(tmp_path) == [filled.name]
    file.write_bytes(b"mine")
    with pytest.raises(FileExistsError), created(file):
        pass
    with created(file, overwrite=True) as stream:
        export_index(filled, stream)
    assert file.read_bytes() == export(filled)


# Damaged indexes


BAD_METADATA = {
    "infinite": '{"a": Infinity}',
    "too large": '{"a": 1e999}',
    "deep": '{"a": ' + "[" * 1100 + "]" * 1100 + "}",
    "half a pair": '{"a": "\\ud800"}',
    "no object": "[1]",
    "no JSON": "{",
}


def test_an_image_with_bad_metadata_is_reported_and_the_others_are_exported(
    filled: Path, tmp_path: Path
) -> None:
    """Earlier versions could store such metadata."""
    entries = np.zeros(1, code_type(BITS)).tobytes()
    with contextlib.closing(Store(filled)) as store, store.writer():
        store.insert([Row(id, entries, metadata=text) for id, text in BAD_METADATA.items()])
    stream = io.BytesIO()
    done = export_index(filled, stream)
    assert (done.images, done.lost) == (40, len(BAD_METADATA))
    assert [reason.split(":")[0] for reason in done.reasons] == [repr(id) for id in BAD_METADATA]
    assert all("its metadata are not" in reason for reason in done.reasons)
    stream.seek(0)
    assert import_index(stream, tmp_path / "new.mch").added == 40
    with MCHIndex.open(filled) as index:
        assert index.ids({"seed": [4, 6]}) == ["näme 4", "näme 6"]
        assert index.search_codes(codes_for(4, bits=BITS)[0], 1, filter={"seed": 4}).ids == [
            "näme 4"
        ]


@pytest.mark.parametrize(
    "changes", [{"hash": "text"}, {"path": b"bytes"}, {"width": "wide"}, {"size": b"1"}]
)
def test_a_record_of_other_types_is_reported(
    filled: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with contextlib.closing(Store(filled)) as store, store.writer():
        entries = np.zeros(1, code_type(BITS)).tobytes()
        store.insert([Row("odd", entries)._replace(**changes)])
    done = export_index(filled, io.BytesIO())
    assert (done.images, done.lost, len(done.reasons)) == (40, 1, 1)


def test_readable_records_of_a_damaged_index_are_exported(filled: Path, tmp_path: Path) -> None:
    before = rows_of(filled)
    damage(
        filled,
        "UPDATE images SET codes = zeroblob(13) WHERE id = 1",
        "UPDATE images SET metadata = '{}' WHERE id = 5",
        "UPDATE images SET codes = 'text' WHERE id = 7",
        "UPDATE images SET codes = NULL || codes WHERE 0",
    )
    stream = io.BytesIO()
    done = export_index(filled, stream)
    assert (done.images, done.lost) == (37, 3)
    (tmp_path / "out").write_bytes(stream.getvalue())
    import_index(tmp_path / "out", tmp_path / "new.mch")
    assert rows_of(tmp_path / "new.mch") == [r for r in before if r.id not in (1, 5, 7)]


def test_records_outside_damaged_pages_are_exported(tmp_path: Path) -> None:
    folder = tmp_path / "a.mch"
    with MCHIndex.open(folder, bits=BITS) as index:
        ids = np.arange(3000)
        index.add_codes(ids, np.random.default_rng(0).integers(0, 256, (3000, 3), np.uint8))
    damage(folder, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = {row.id: row for row in rows_of(folder)}
    data = bytearray((folder / "index.sqlite").read_bytes())
    page = 4096
    for number in range(8, len(data) // page, 7):
        data[number * page : number * page + 200] = bytes(200)
    (folder / "index.sqlite").write_bytes(data)
    stream = io.BytesIO()
    done = export_index(folder, stream)
    assert 0 < done.lost < 3000
    assert done.images + done.lost == 3000
    (tmp_path / "out").write_bytes(stream.getvalue())
    import_index(tmp_path / "out", tmp_path / "new.mch")
    rescued = rows_of(tmp_path / "new.mch")
    assert len(rescued) == done.images > 1000
    assert all(before[row.id] == row for row in rescued)


@pytest.mark.parametrize("bits", [8, 16, 24, 64, 256])
def test_the_code_width_is_recovered_without_the_record_of_the_model(
    tmp_path: Path, bits: int
) -> None:
    folder = tmp_path / "a.mch"
    codes = [codes_for(seed, bits=bits) for seed in range(30)]
    with MCHIndex.open(folder, bits=bits) as index:
        ids = np.repeat(np.arange(30), [len(its) for its in codes])
        index.add_codes(ids, np.concatenate(codes), [i for its in codes for i in range(len(its))])
    before = rows_of(folder)
    damage(folder, "UPDATE meta SET value = 'x' WHERE name IN ('model', 'state')")
    with pytest.raises(StoreDamagedError):
        MCHIndex.open(folder)
    stream = io.BytesIO()
    done = export_index(folder, stream)
    assert (done.images, done.lost, done.header.identity.bits) == (30, 0, bits)
    assert done.header.model_lost
    with MCHIndex.open(tmp_path / "b.mch", bits=bits):
        pass
    (tmp_path / "out").write_bytes(stream.getvalue())
    import_index(tmp_path / "out", tmp_path / "b.mch")
    assert rows_of(tmp_path / "b.mch") == before


def test_the_header_is_recovered_from_the_model_folder(tmp_path: Path, model: Path) -> None:
    photos = write_photos(tmp_path / "photos", 4)
    with MCHIndex.open(tmp_path / "a.mch", model) as index:
        index.add(photos)
    whole = export(tmp_path / "a.mch")
    damage(tmp_path / "a.mch", "UPDATE meta SET value = 'x' WHERE name = 'model'")
    rescued = export(tmp_path / "a.mch")
    assert rescued.splitlines()[1:] == whole.splitlines()[1:]
    heads = [json.loads(data.splitlines()[0]) for data in (whole, rescued)]
    assert heads[0] | {"model": None} == heads[1]


def test_a_folder_that_is_not_an_index_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError, match="is not an index"):
        export_index(tmp_path / "none.mch", io.BytesIO())
    assert not (tmp_path / "none.mch").exists()
    folder = tmp_path / "other.mch"
    folder.mkdir()
    (folder / "index.sqlite").write_bytes(b"something else" * 1000)
    with pytest.raises(StoreDamagedError):
        export_index(folder, io.BytesIO())


def test_an_export_shows_the_index_as_of_one_moment(filled: Path) -> None:
    class Meddling(io.BytesIO):
        """Changes the index while the first image is being written."""

        lines = 0

        def write(self, data: Any) -> int:
            self.lines += 1
            if self.lines == 2:
                with MCHIndex.open(filled) as index:
                    index.add_codes(["new"], np.zeros((1, 3), np.uint8))
                    index.remove(list(index)[:10])
            return super().write(data)

    want = export(filled)
    stream = Meddling()
    export_index(filled, stream)
    assert stream.getvalue() == want
