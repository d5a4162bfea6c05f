"""Feeds damaged and forged input to everything that reads a stranger's bytes.

`python -m attack.fuzz TARGET FOLDER SEED EXAMPLES` draws inputs for one target: valid files that
are built here, then changed. Each input must be read, or refused with the documented exceptions,
within limited time and memory; where something was stored, it must be possible to use it.
"""

from __future__ import annotations

import csv
import faulthandler
import gzip
import io
import json
import os
import resource
import shutil
import signal
import sqlite3
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import mchindex.index.table
from helpers.camera_files import dng, drawing, heic
from helpers.forgery import forge
from helpers.memory import peak
from helpers.samples import STRATEGIES, clustered, table_of
from mchindex import BucketTable, MCHIndex
from mchindex.errors import ImageError, MCHError, ModelError, SnapshotError

SECONDS = 10.0  # of CPU time for one input, at most
MEMORY = 200 << 20  # bytes by which one input may raise the peak of the process's memory
BITS = 32

# Changes to bytes.

NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1]
PLACES = st.integers(0, 64) | st.integers(0, 1 << 20)
EDITS = st.one_of(
    st.tuples(st.just("bit"), PLACES, st.integers(0, 7)),
    st.tuples(st.just("byte"), PLACES, st.integers(0, 255)),
    st.tuples(st.just("big"), PLACES, st.sampled_from(NUMBERS)),
    st.tuples(st.just("little"), PLACES, st.sampled_from(NUMBERS)),
    st.tuples(st.just("cut"), PLACES, st.just(0)),
    st.tuples(st.just("delete"), PLACES, st.integers(1, 100)),
    st.tuples(st.just("repeat"), PLACES, st.integers(1, 100)),
    st.tuples(st.just("insert"), PLACES, st.integers(1, 5000)),
)


def changed(data: bytes, edits: list[tuple[str, int, int]]) -> bytes:
    for kind, place, value in edits:
        at = place % (len(data) + 1)
        before, after = data[:at], data[at:]
        if kind == "bit" and after:
            data = before + bytes([after[0] ^ 1 << value]) + after[1:]
        elif kind == "byte":
            data = before + bytes([value]) + after[1:]
        elif kind in ("big", "little"):
            width = 8 if value >> 32 else 4 if value >> 16 else 2
            data = before + value.to_bytes(width, kind) + after[width:]  # type: ignore[arg-type]
        elif kind == "cut":
            data = before
        elif kind == "delete":
            data = before + after[value:]
        elif kind == "repeat":
            data = before + after[:value] * 3 + after
        elif kind == "insert":
            data = before + b"[" * value + after
    return data


class File(NamedTuple):
    """The content of a file, and how it was made, which is shorter to print."""

    data: bytes
    how: object

    def __repr__(self) -> str:
        return f"<{self.how}>"


def damaged(originals: list[bytes]) -> SearchStrategy[File]:
    """One of several files with a few changes to its bytes."""
    return st.tuples(
        st.integers(0, len(originals) - 1), st.lists(EDITS, max_size=4)
    ).map(lambda how: File(changed(originals[how[0]], how[1]), how))  # fmt: skip


# Changes to JSON.

ODD = st.one_of(
    st.sampled_from([
        None, True, -1, 0, 1, 255, 256, 2**31, 2**63, 10**400, 0.5, 1e308, float("inf"),
        float("nan"), "", "x", "x\0y", "\ud800", "é", "/dev/zero", "grid:3000x3000",
        "+".join(["corners"] * 3000), [], [[]], {}, {"": {}}, ["x"] * 300, {"x": [1, 2.5, None]},
    ]),
    st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5),
)  # fmt: skip


@st.composite
def odd_json(draw: Callable[[Any], Any], value: Any) -> Any:
    """A JSON value in which a few values have been replaced, removed or added."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(0, 3))):
        node = value
        while isinstance(node, (dict, list)) and node:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = keys[draw(st.integers(0, 30)) % len(keys)]
            if not isinstance(node[key], (dict, list)) or draw(st.integers(0, 3)) == 0:
                action = draw(st.integers(0, 4))
                if action == 0:
                    del node[key]
                elif action == 1 and isinstance(node, dict):
                    node[draw(st.sampled_from(["", "end", "x", "model_lost"]))] = deepcopy(
                        draw(ODD)
                    )
                else:
                    node[key] = deepcopy(draw(ODD))
                break
            node = node[key]
    return value


def json_file(*lines: Any) -> File:
    """JSON as a stranger writes it, with numbers that are too large."""
    texts = [json.dumps(line).replace("Infinity", "1e999") + "\n" for line in lines]
    return File("".join(texts).encode("utf-8", "surrogatepass"), lines)


# What is attacked. Each target draws inputs and tries them.


class Target:
    inputs: SearchStrategy[Any]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def attack(self, given: Any) -> bool:
        """Tries an input; returns whether it was accepted."""
        raise NotImplementedError


def _use(index: MCHIndex) -> None:
    """Uses an index in all ways that read what it holds."""
    from mchindex.index.export import export_index
    from mchindex.index.verify import verify

    assert index.path is not None
    code = np.zeros(index.bits // 8, np.uint8)
    for filter in (None, {"n": 1}, {"tag": {">=": "a"}}, {"a.b": None}):
        for hit in index.search_codes(code, 5, filter=filter):
            json.dumps(hit.metadata, allow_nan=False)
    assert len(list(index.images())) == len(index)
    with open(os.devnull, "wb") as out:
        done = export_index(index.path, out)
        assert (done.images, done.lost) == (len(index), 0)
    assert verify(index.path, model=False).problems == []


def _own_codes(path: Path) -> MCHIndex:
    index = MCHIndex.open(path, bits=BITS)
    codes = np.random.default_rng(0).integers(0, 256, (6, BITS // 8), np.uint8)
    notes: list[Any] = [{"n": 1, "tag": "x"}, None, {"a": {"b": [1, "é"]}}, {}]
    ids: list[int | str] = [1, 1, "a", "é", -5, -5]
    index.add_codes(ids, codes, [0, 3, 0, 1, 0, 2], metadata=notes)
    return index


def _fine_index(path: Path) -> MCHIndex:
    """An index with fine codes, with a snapshot, and with changes after it."""
    from helpers.indexes import drawn, tiny_fine_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 3)
        index = MCHIndex.open(path, tiny_fine_model())
        index.add([drawn(i) for i in range(4)], progress=False)
    index.add([drawn(9)], ["nine"], progress=False)
    index.remove([1])
    return index


class Export(Target):
    """`import_index`: damaged exports, and exports with odd values."""

    def __init__(self, folder: Path) -> None:
        from mchindex.index.export import export_index

        super().__init__(folder)
        with _own_codes(folder / "original") as index:
            index.add_codes([7], np.zeros((1, BITS // 8), np.uint8))
        out = io.BytesIO()
        export_index(folder / "original", out)
        plain = out.getvalue()
        records = [json.loads(line) for line in plain.splitlines()]
        _fine_index(folder / "fine").close()
        out = io.BytesIO()
        export_index(folder / "fine", out)
        fine = [json.loads(line) for line in out.getvalue().splitlines()]
        records[1] |= {"path": "/a", "size": 5, "time": 7, "hash": "ab", "width": 3, "height": 4}
        odd = (odd_json(records) | odd_json(fine)).map(lambda lines: json_file(*lines))
        zipped = odd.map(lambda file: File(gzip.compress(file.data), file.how))
        files = damaged([plain, gzip.compress(plain, mtime=0), out.getvalue()]) | odd | zipped
        self.inputs = st.tuples(files, st.booleans(), st.sampled_from(["", "original", "fine"]))

    def attack(self, given: tuple[File, bool, str]) -> bool:
        from mchindex.index.importing import import_index

        file, partial, old = given
        accepted = False
        path = self.folder / "index"
        if old:
            shutil.copytree(self.folder / old, path)
        try:
            with suppress(MCHError):
                import_index(io.BytesIO(file.data), path, partial=partial)
                accepted = True
            if (path / "index.sqlite").exists():
                with MCHIndex.open(path, create=False) as index:
                    _use(index)
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return accepted


class Model(Target):
    """`MCHModel.load`: damaged weights, and configs with odd values."""

    def __init__(self, folder: Path) -> None:
        from helpers.indexes import tiny_model

        super().__init__(folder)
        tiny_model().save(folder / "model")
        self.config = folder / "model/config.json"
        self.weights = folder / "model/model.safetensors"
        config, weights = self.config.read_bytes(), self.weights.read_bytes()
        odd = odd_json(json.loads(config)).map(json_file)
        self.inputs = st.one_of(
            st.tuples(odd | damaged([config]), st.just(File(weights, "unchanged"))),
            st.tuples(st.just(File(config, "unchanged")), damaged([weights])),
        )

    def attack(self, given: tuple[File, File]) -> bool:
        from mchindex.models import MCHModel

        self.config.write_bytes(given[0].data)
        self.weights.write_bytes(given[1].data)
        try:
            MCHModel.load(self.config.parent, engine="torch", device="cpu")
        except ModelError:
            return False
        return True


class Snapshot(Target):
    """`BucketTable.load`: damaged snapshots, and snapshots forged with valid checksums."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        originals = []
        for bits, rows, substring in ((64, 40, False), (64, 300, True), (24, 9, False)):
            table = table_of(bits, clustered(bits, rows, seed=bits))
            table.remove([0, 1])
            if substring:
                table.optimize(substring=True)
            table.save(folder / "table")
            originals.append((folder / "table").read_bytes())
        seeds = st.tuples(st.integers(0, len(originals) - 1), st.integers(0, 1 << 30))
        forged = seeds.map(
            lambda how: File(forge(originals[how[0]], np.random.default_rng(how[1])), how)
        )
        self.inputs = st.tuples(forged | damaged(originals), st.booleans())

    def attack(self, given: tuple[File, bool]) -> bool:
        file = self.folder / "forged"
        file.write_bytes(given[0].data)
        try:
            table = BucketTable.load(file, mmap=given[1])
        except SnapshotError:
            return False
        codes = np.random.default_rng(0).integers(0, 256, (2, table.bits // 8), np.uint8)
        for strategy in STRATEGIES:
            table.search(codes, 3, max_buckets=10_000, strategy=strategy)
        table.remove([1, 2, 3])
        table.add([5], codes[:1])
        table.optimize()
        return True


class Fine(Target):
    """Opening and checking an index whose fine codes, in a snapshot or in the store, were changed.

    Forged snapshots have valid checksums, and the store names them.
    """

    def __init__(self, folder: Path) -> None:
        from mchindex.index.table import Saved
        from mchindex.storage.store import Store as RealStore

        super().__init__(folder)
        with _fine_index(folder / "original") as index:
            self.count, self.bits = len(index), index.bits
        store = RealStore(folder / "original")
        saved = Saved.of_store(store)
        store.close()
        assert saved is not None
        self.saved = saved
        original = (folder / "original" / saved.fine_file).read_bytes()
        head, _, content = original[12:].partition(b"\n")
        header = json.loads(head)
        forged = st.tuples(odd_json(header), damaged([content])).map(self._forged)
        with closing(sqlite3.connect(folder / "original/index.sqlite")) as db:
            rows = dict(db.execute("SELECT key, codes FROM fine").fetchall())
        columns = st.sampled_from(sorted(rows)).flatmap(
            lambda key: st.tuples(st.just(key), damaged([rows[key]]))
        )
        self.inputs = st.one_of(
            st.tuples(st.just("damaged"), damaged([original])),
            st.tuples(st.just("forged"), forged),
            st.tuples(st.just("store"), columns),
        )

    @staticmethod
    def _forged(parts: tuple[Any, File]) -> File:
        header, content = parts
        if isinstance(header, dict) and header.get("crc") is not None:
            header["crc"] = zlib.crc32(content.data)
        text = json.dumps(header).replace("Infinity", "1e999")
        line = text.encode("utf-8", "surrogatepass") + b"\n"
        check = zlib.crc32(line).to_bytes(4, "little")
        return File(b"MCHFINE1" + check + line + content.data, (header, content.how))

    def attack(self, given: tuple[str, Any]) -> bool:
        from mchindex.index.export import export_index
        from mchindex.index.verify import verify

        kind, what = given
        path, accepted = self.folder / "index", False
        shutil.copytree(self.folder / "original", path)
        try:
            if kind == "store":
                key, file = what
                with closing(sqlite3.connect(path / "index.sqlite", isolation_level=None)) as db:
                    db.execute("UPDATE fine SET codes = ? WHERE key = ?", (file.data, key))
                (path / self.saved.fine_file).unlink()
            else:
                (path / self.saved.fine_file).write_bytes(what.data)
            if kind == "forged":
                crc = zlib.crc32(what.data[12:].partition(b"\n")[2])
                self._name(path, crc)
            with suppress(MCHError), MCHIndex.open(path, create=False) as index:
                assert len(index) == self.count
                # A snapshot with a valid checksum may hold anything, but nothing may break.
                index.search_codes(np.zeros(self.bits // 8, np.uint8), 5)
                with suppress(ValueError):
                    index.search(id="nine", rank="best", k=10)
                accepted = True
            verify(path, model=False)
            with open(os.devnull, "wb") as out:
                done = export_index(path, out)
            assert (done.images, done.lost) == (self.count, 0)
            assert kind == "store" or done.fine_lost == 0
        finally:
            shutil.rmtree(path)
        return accepted

    def _name(self, path: Path, crc: int) -> None:
        """Makes the store name a snapshot with this checksum."""
        from mchindex.storage.store import Store as RealStore

        store = RealStore(path)
        with store.writer():
            store.set(snapshot=self.saved._replace(fine=crc).to_json())
        store.close()


class Store(Target):
    """Opening, searching, verifying and exporting an index whose SQLite file was changed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with _own_codes(folder / "original") as index:
            shutil.copytree(folder / "original", folder / "index")  # with its log
            index.remove(["a"])
        shutil.copyfile(folder / "index/index.sqlite-wal", folder / "log")
        shutil.rmtree(folder / "index")
        file = (folder / "original/index.sqlite").read_bytes()
        log = (folder / "log").read_bytes()
        self.inputs = st.tuples(damaged([file]), st.none() | damaged([log]))

    def attack(self, given: tuple[File, File | None]) -> bool:
        from mchindex.index.export import export_index
        from mchindex.index.verify import verify

        path, accepted = self.folder / "index", False
        path.mkdir()
        (path / "index.sqlite").write_bytes(given[0].data)
        if given[1] is not None:
            (path / "index.sqlite-wal").write_bytes(given[1].data)
        try:
            with suppress(MCHError), MCHIndex.open(path, create=False) as index:
                code = np.zeros(index.bits // 8, np.uint8)
                for hit in index.search_codes(code, 5, filter={"n": {">=": 0}}):
                    assert hit.metadata["n"] >= 0
                list(index.images())
                index.add_codes(["new"], code[None])
                index.remove(["new"])
                accepted = True
            with suppress(MCHError):
                verify(path, model=False)
            with suppress(MCHError), open(os.devnull, "wb") as out:
                export_index(path, out)
        finally:
            shutil.rmtree(path)
        return accepted


class Picture(Target):
    """`read_picture`: damaged files of every format that Pillow can write here."""

    def __init__(self, folder: Path) -> None:
        from PIL import Image

        super().__init__(folder)
        Image.MAX_IMAGE_PIXELS = 1 << 20
        Image.init()
        picture = Image.effect_noise((40, 30), 50)
        originals = []
        for kind in sorted(Image.SAVE):
            for mode in ("RGB", "L", "P", "RGBA", "1", "I;16"):
                with suppress(Exception):  # not every format has every mode
                    out = io.BytesIO()
                    picture.convert(mode).save(out, kind)
                    originals.append(out.getvalue())
        exif = Image.Exif()
        exif[0x0112] = 6
        out = io.BytesIO()
        picture.save(out, "JPEG", exif=exif, progressive=True)
        originals += [heic(), dng(drawing(32, 24)), dng(drawing(32, 24), drawing(16, 12))]
        originals += [out.getvalue(), b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
        self.inputs = st.tuples(damaged(originals), st.sampled_from([None, 8]))

    def attack(self, given: tuple[File, int | None]) -> bool:
        from mchindex.images import read_picture

        try:
            picture = read_picture(given[0].data, given[1])
        except ImageError:
            return False
        assert picture.image.mode == "RGB"
        picture.image.tobytes()
        return True


class Metadata(Target):
    """Metadata files of the command line, and metadata given to an index."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.index = _own_codes(folder / "index")
        table = io.StringIO()
        csv.writer(table).writerows([["file", "n", "tag"], ["a", "1", "x"], ["b", "", 'é"\n']])
        record = {"file": "a", "n": 1, "tag": ["x", {"y": None}]}
        jsonl = odd_json(record).map(json_file)
        self.inputs = st.one_of(
            st.tuples(st.just("csv"), damaged([table.getvalue().encode()])),
            st.tuples(st.just("jsonl"), jsonl | damaged([json.dumps(record).encode() * 2])),
            st.tuples(st.just("value"), st.dictionaries(st.text(max_size=3), ODD, max_size=3)),
        )

    def attack(self, given: tuple[str, Any]) -> bool:
        from mchindex.cli.metadata import MetadataByPath

        kind, content = given
        if kind == "value":
            values = [content]
        else:
            file = self.folder / f"metadata.{kind}"
            file.write_bytes(content.data)
            try:
                values = list(MetadataByPath([], file).own.values())
            except ValueError:
                return False
        for value in values:
            try:
                self.index.set_metadata(1, value)
            except ValueError:
                return False
            assert self.index[1].metadata == json.loads(json.dumps(value))
            _use(self.index)
        return True


class Layout(Target):
    """`read_layout`: text that is almost a layout."""

    _NUMBERS = st.sampled_from(["1", "2", "3", "16", "3000", "9" * 30, "", "-1", "٣", "0", "inf"])
    _SIDES = st.sampled_from(["", "@0.5", "@1", "@0", "@1e-9", "@.0000001", "@", "@2", "@0.5@0.5"])

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        sizes = st.integers(1, 4) | self._NUMBERS
        grids = st.builds("grid:{}x{}".format, sizes, sizes)
        names = st.sampled_from(["corners", "corners", "x", ""])
        parts = st.builds("{}{}".format, grids | names, st.just("") | self._SIDES)
        several = st.lists(parts, max_size=3).map("+".join)
        many = st.builds(lambda part, n: "+".join([part] * n), parts, st.sampled_from([50, 3000]))
        self.inputs = several | several | many | st.text()

    def attack(self, given: str) -> bool:
        from mchindex.regions import read_layout

        try:
            layout = read_layout(given)
        except ValueError:
            return False
        assert len(layout) <= 256
        assert layout.array().shape == (len(layout), 4)
        return True


class Filter(Target):
    """`--filter` and `--metadata` of the command line, used in searches."""

    _WORDS = st.sampled_from(
        ["n", "tag", "a.b", "a..b", ".", "", " ", "x\0y", "1e999", "NaN", "9" * 400, "[" * 2000,
         "null", "true", '"x"', "\ud800", "%", "'", "é", "$.n", "[0]"]
    )  # fmt: skip

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.index = _own_codes(folder / "index")
        words = self._WORDS | st.text(max_size=5)
        operators = st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "==", "=>", ""])
        self.inputs = st.lists(st.builds("{}{}{}".format, words, operators, words), max_size=4)

    def attack(self, given: list[str]) -> bool:
        from mchindex.cli.options import conditions, pairs, scalar

        with suppress(ValueError):
            json.dumps({key: scalar(text) for key, text in pairs("--metadata", given)})
        try:
            filter = conditions(given)
            matching = self.index.ids(filter)
        except ValueError:
            return False
        assert set(matching) <= set(self.index)
        self.index.search_codes(np.zeros(BITS // 8, np.uint8), 3, filter=filter)
        return True


TARGETS: dict[str, type[Target]] = {
    "export": Export, "model": Model, "snapshot": Snapshot, "store": Store, "picture": Picture,
    "metadata": Metadata, "layout": Layout, "filter": Filter, "fine": Fine,
}  # fmt: skip


# Limits.


@contextmanager
def limited() -> Iterator[None]:
    """Fails if what runs within it takes too much CPU time."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"it took more than {SECONDS:g} s")

    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    faulthandler.enable()
    name, folder, seed, examples = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    target = TARGETS[name](Path(folder))
    outcomes = [0, 0]  # refused, accepted

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    @given(target.inputs)
    def attack(given: Any) -> None:
        before = peak()
        with limited():
            outcomes[target.attack(given)] += 1
        assert peak() - before < MEMORY, "it took too much memory"

    # What an input allocates in one piece fails before the machine suffers.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (2 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    attack()
    print(*outcomes)


if __name__ == "__main__":
    main()
