"""Fine codes on disk: they follow every change, survive damage to what is derived from them, and
damage to themselves is reported."""

import errno
import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mchindex.index.table
import mchindex.storage.store
from helpers.fine_models import fine_model, with_fine
from helpers.indexes import damage
from helpers.small_model import photo, small_model, write_photos
from mchindex import MCHIndex
from mchindex.errors import ExportError, ModelMismatchError, StoreDamagedError
from mchindex.index.export import export_index
from mchindex.index.fine_snapshot import load_fine, save_fine
from mchindex.index.importing import import_index
from mchindex.index.table import Saved
from mchindex.index.verify import verify
from mchindex.storage.rescue import salvage_fine
from mchindex.storage.store import Store

N = 12


def ranked(index: MCHIndex, **limits: Any) -> list[Any]:
    return [
        [(hit.id, hit.score, hit.region) for hit in hits]
        for hits in index.search([photo(1), photo(50)], 20, **limits)
    ]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with a snapshot, and with images changed before it and after it."""
    folder = tmp_path_factory.mktemp("fine") / "a.mch"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 5)
        with MCHIndex.open(folder, fine_model()) as index:
            index.add([photo(i) for i in range(N)], list(range(N)), progress=False)
            index.remove([2, 3])
            index.update([photo(30)], [4], progress=False)
        patch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 10**6)
        with MCHIndex.open(folder) as index:
            index.remove([5])
            index.update([photo(31)], [6], progress=False)
            index.add([photo(20), photo(21)], [20, 21], progress=False)
    return folder


@pytest.fixture
def folder(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / once.name))


@pytest.fixture(scope="module")
def expected(once: Path) -> list[Any]:
    """What searches find in an index that holds the same and was never changed."""
    photos = {0: 0, 1: 1, **{i: i for i in range(7, N)}, 4: 30, 6: 31, 20: 20, 21: 21}
    with MCHIndex(fine_model()) as index:
        index.add([photo(i) for i in photos.values()], list(photos), progress=False)
        return ranked(index, rank="best")


def saved_in(folder: Path) -> Saved:
    store = Store(folder)
    saved = Saved.of_store(store)
    store.close()
    assert saved is not None
    return saved


def exported(folder: Path) -> tuple[Any, list[Any]]:
    out = io.BytesIO()
    done = export_index(folder, out)
    return done, [json.loads(line) for line in out.getvalue().splitlines()]


# Following changes.


def test_both_tables_follow_every_change(folder: Path, expected: list[Any]) -> None:
    assert saved_in(folder).fine is not None
    with MCHIndex.open(folder) as index:
        assert ranked(index, rank="best") == expected
        assert index.stats()["fine_images"] == len(index) == N - 1
        index.remove(index.ids())
        assert index.search(photo(1), rank="best").ids == []
        index.add([photo(1)], ["new"], progress=False)
        assert index.search(photo(1)).rank == "best"
        assert index.search(photo(1)).ids == ["new"]
    report = verify(folder)
    assert (report.problems, report.fine, report.images) == ([], 1, 1)


def test_an_open_index_follows_another_writer(folder: Path, expected: list[Any]) -> None:
    with MCHIndex.open(folder) as reader, MCHIndex.open(folder) as writer:
        assert ranked(reader) == expected
        writer.add([photo(50)], ["fifty"], progress=False)
        assert reader.search(photo(50), 1, rank="best").ids == ["fifty"]
        writer.remove(["fifty"])
        assert ranked(reader) == expected


def test_a_failure_while_following_leaves_nothing_half_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images that were read before the failure are read again, and are not there twice."""
    monkeypatch.setattr(mchindex.storage.store, "CHUNK", 1)
    with MCHIndex.open(folder) as reader, MCHIndex.open(folder) as writer:
        writer.add([photo(i) for i in range(60, 64)], list(range(60, 64)), progress=False)
        for name in ("_add", "_add_fine"):
            right = getattr(mchindex.index.table, name)
            calls: list[int] = []

            def fail(*arguments: Any, right: Any = right, calls: list[int] = calls) -> Any:
                calls.append(1)
                if len(calls) == 3:
                    raise StoreDamagedError("a page cannot be read")
                return right(*arguments)

            with monkeypatch.context() as patch:
                patch.setattr(mchindex.index.table, name, fail)
                with pytest.raises(StoreDamagedError):
                    reader.refresh()
            assert len(calls) == 3
        assert ranked(reader, rank="best") == ranked(writer, rank="best")
        assert reader.stats()["fine_images"] == len(reader) == len(writer)


def test_wrong_fine_codes_are_not_stored(folder: Path) -> None:
    with MCHIndex.open(folder) as index:
        row = index._store.row(0)
        assert row is not None
        wrong = row._replace(id="wrong", codes=row.codes[:-4], fine=b"short")
        kind = index._live.fine_kind
        assert kind is not None
        with pytest.raises(ValueError, match="has 5 bytes of fine codes"):
            index.add_records([wrong], (kind.bits, kind.fingerprint))
        assert "wrong" not in index
        # Fine codes of another kind are left out.
        assert index.add_records([wrong], (kind.bits, "another kind")) == (1, 0)
        assert index.stats()["fine_images"] == len(index) - 1


# The snapshot.


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(at: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[at] ^= 4
        file.write_bytes(data)

    return change


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


CHANGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut": cut,
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "magic": flip(0),
    "header checksum": flip(9),
    "header": flip(20),
    "content": flip(-1),
    "other": lambda file: file.write_bytes(b"MCHFINE1" * 100),
    "folder": replace_by_folder,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_snapshot_loses_nothing(
    folder: Path, expected: list[Any], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / saved_in(folder).fine_file
    CHANGES[change](file)
    report = verify(folder)
    if change == "missing":
        assert report.problems == []
        assert "is missing" in "; ".join(report.notes)
    else:
        assert "the snapshot of the fine codes cannot be used" in "; ".join(report.problems)
    with MCHIndex.open(folder) as index:
        assert index._live._snapshot_at == 0
        assert ranked(index) == expected
        monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
        index.add([photo(50)], [50], progress=False)
        index.remove([50])
    if change != "folder":
        assert verify(folder).problems == []
    with MCHIndex.open(folder) as index:
        assert index._live._snapshot_at > 0
        assert ranked(index) == expected


def test_the_snapshot_of_another_state_is_not_used(folder: Path, expected: list[Any]) -> None:
    file = folder / saved_in(folder).fine_file
    with MCHIndex.open(folder) as index:
        index.remove([0])
        assert index._live._fine is not None
        save_fine(index._live._fine, file)  # intact, but not what the store names
        index.add([photo(0)], [0], progress=False)
    assert "belongs to another snapshot" in "; ".join(verify(folder).problems)
    with MCHIndex.open(folder) as index:
        assert index._live._snapshot_at == 0
        assert sorted(ranked(index)[0]) == sorted(expected[0])


def test_a_snapshot_that_disagrees_with_the_store_is_reported(folder: Path) -> None:
    saved = saved_in(folder)
    with MCHIndex.open(folder) as index:
        kind = index._live.fine_kind
        assert kind is not None
        table = kind.table(index.bits, len(index.identity.regions))
        assert saved.fine is not None
        load_fine(table, folder / saved.fine_file, saved.fine, saved.key)
        content = table.content()
        content["fine"][0, 0, 0] ^= 1
        forged = kind.table(index.bits, len(index.identity.regions))
        forged.add(**content)
        with index._store.writer():
            crc = save_fine(forged, folder / saved.fine_file)
            index._store.set(snapshot=saved._replace(fine=crc).to_json())
    problems = "; ".join(verify(folder).problems)
    assert "the snapshot of the fine codes and the store disagree on 1 images" in problems


def test_a_snapshot_with_later_images_is_not_used(folder: Path, expected: list[Any]) -> None:
    saved = saved_in(folder)
    with MCHIndex.open(folder) as index:
        kind = index._live.fine_kind
        assert kind is not None
        assert saved.fine is not None
        table, forged = (kind.table(index.bits, len(index.identity.regions)) for _ in range(2))
        load_fine(table, folder / saved.fine_file, saved.fine, saved.key)
        content = table.content()
        content["keys"][-1] += 1000
        forged.add(**content)
        with index._store.writer():
            crc = save_fine(forged, folder / saved.fine_file)
            index._store.set(snapshot=saved._replace(fine=crc).to_json())
    assert "images that were stored later" in "; ".join(verify(folder).problems)
    with MCHIndex.open(folder) as index:
        assert index._live._snapshot_at == 0
        assert ranked(index) == expected
        index.add([photo(50)])


def test_stray_snapshots_are_noted(folder: Path) -> None:
    (folder / "table-old.fine").write_bytes(b"left by a crash")
    report = verify(folder)
    assert report.problems == []
    assert report.notes == ["table-old.fine is not used by the index: delete it"]


def test_a_backup_has_the_snapshot_and_the_fine_codes(
    folder: Path, tmp_path: Path, expected: list[Any]
) -> None:
    with MCHIndex.open(folder) as index:
        index.backup(tmp_path / "copy.mch")
    assert verify(tmp_path / "copy.mch").notes == []
    with MCHIndex.open(tmp_path / "copy.mch") as index:
        assert index._live._snapshot_at > 0
        assert ranked(index, rank="best") == expected
    (folder / saved_in(folder).fine_file).unlink()
    with MCHIndex.open(folder) as index:
        index.backup(tmp_path / "second.mch")
    assert verify(tmp_path / "second.mch").notes == []
    with MCHIndex.open(tmp_path / "second.mch") as index:
        assert ranked(index, rank="best") == expected


# Damage to the fine codes themselves.


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE fine SET codes = zeroblob(length(codes)) WHERE key = 1", "are damaged: 1;"),
        ("UPDATE fine SET codes = substr(codes, 2) WHERE key = 1", "are damaged: 1;"),
        ("UPDATE fine SET codes = 'text' WHERE key = 1", "are damaged: 1;"),
        (
            "UPDATE fine SET codes = (SELECT codes FROM fine AS f WHERE f.key = 8) WHERE key = 1",
            "are damaged: 1;",
        ),
        ("DELETE FROM fine WHERE key = 1", "fine codes of 11 images, but has those of 10"),
        ("DELETE FROM fine", "fine codes of 11 images, but has those of 0"),
        ("UPDATE meta SET value = '[]' WHERE name = 'fine_images'", "record of 'fine_images'"),
        ("UPDATE meta SET value = '{}' WHERE name = 'fine'", "record of 'fine'"),
        ("DELETE FROM meta WHERE name = 'fine'", "does not say which fine codes"),
        ("DELETE FROM meta WHERE name = 'fine_images'", "fine codes of 0 images, but has those"),
        ("DROP TABLE fine", "no such table: fine"),
    ],
)
def test_damaged_fine_codes_are_reported_and_never_used(
    folder: Path, tmp_path: Path, statement: str, message: str
) -> None:
    damage(folder, statement)
    problems = "; ".join(verify(folder).problems)
    assert message in problems
    for snapshot in folder.glob("table-*"):
        snapshot.unlink()  # so that all codes are read
    # If the record of what they are is missing, the index has none.
    error = ValueError if statement == "DELETE FROM meta WHERE name = 'fine'" else StoreDamagedError
    with pytest.raises(error), MCHIndex.open(folder) as index:
        ranked(index, rank="best")
    # The images are rescued, with the fine codes that are intact.
    done, lines = exported(folder)
    assert (done.images, done.lost, lines[-1]) == (N - 1, 0, {"end": N - 1})
    with_fine = sum("fine" in line for line in lines[1:-1])
    assert with_fine == N - 1 - done.fine_lost or "meta" in statement
    file = tmp_path / "rescued.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    imported = import_index(file, tmp_path / "new.mch", model=folder / "model")
    assert (imported.added, imported.without_fine) == (N - 1, N - 1 - with_fine)
    assert verify(tmp_path / "new.mch").problems == []


def test_fine_codes_without_an_image_are_reported(folder: Path, expected: list[Any]) -> None:
    damage(folder, "INSERT INTO fine SELECT 1000, codes FROM fine WHERE key = 1")
    assert verify(folder).problems == ["fine codes of images that are not in the store: 1"]
    with MCHIndex.open(folder) as index:
        assert ranked(index) == expected


def test_every_bit_of_the_fine_codes_is_checked(folder: Path) -> None:
    db = sqlite3.connect(folder / "index.sqlite")
    ((blob,),) = db.execute("SELECT codes FROM fine WHERE key = 1").fetchall()
    db.close()
    for at in range(0, 8 * len(blob), 37):
        changed = bytearray(blob)
        changed[at // 8] ^= 1 << at % 8
        damage(folder, f"UPDATE fine SET codes = x'{changed.hex()}' WHERE key = 1")
        store = Store(folder)
        assert salvage_fine(store, [1], len(blob) - 4) == {1: None}
        store.close()


# Exports.


def test_an_export_carries_fine_codes(folder: Path, tmp_path: Path, expected: list[Any]) -> None:
    done, lines = exported(folder)
    assert (done.images, done.lost, done.fine_lost) == (N - 1, 0, 0)
    kind = with_kind()
    assert (lines[0]["version"], lines[0]["fine"]) == (2, kind)
    assert all(len(line["fine"]) == 6 for line in lines[1:-1])
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    new = tmp_path / "new.mch"
    assert import_index(file, new, model=folder / "model").without_fine == 0
    with MCHIndex.open(new) as index:
        assert ranked(index, rank="best") == expected
    assert exported(new)[1][1:] == lines[1:]
    # Once more, into the same index: nothing changes but the order of age.
    assert import_index(file, new).replaced == N - 1
    with MCHIndex.open(new) as index:
        assert index.search(photo(1)).rank == "best"
    assert verify(new).problems == []


def with_kind() -> dict[str, Any]:
    fine = fine_model().fine
    assert fine is not None
    return {"bits": fine.bits, "fingerprint": fine.fingerprint}


def without_fine(lines: list[Any]) -> list[Any]:
    """The export as an earlier version writes it."""
    head = {name: value for name, value in lines[0].items() if name != "fine"} | {"version": 1}
    return [head, *({n: v for n, v in line.items() if n != "fine"} for line in lines[1:])]


def write(file: Path, lines: list[Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_an_export_without_fine_codes_is_imported_as_before(folder: Path, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.jsonl", without_fine(exported(folder)[1]))
    done = import_index(plain, tmp_path / "new.mch", model=folder / "model")
    assert (done.added, done.without_fine) == (N - 1, N - 1)
    with MCHIndex.open(tmp_path / "new.mch") as index:
        assert index.search(photo(1)).rank == "code"
    assert exported(tmp_path / "new.mch")[1][0]["version"] == 1
    assert verify(tmp_path / "new.mch").problems == []


def test_fine_codes_of_another_kind_are_not_imported(folder: Path, tmp_path: Path) -> None:
    _, lines = exported(folder)
    lines[0]["fine"]["fingerprint"] = "another"
    other = write(tmp_path / "other.jsonl", lines)
    done = import_index(other, tmp_path / "new.mch", model=folder / "model")
    assert done.without_fine == N - 1
    lines[0]["fine"] |= with_kind() | {"bits": 72}
    with pytest.raises(ExportError, match="'fine' must be 6 codes of 72 bits"):
        import_index(write(other, lines), tmp_path / "second.mch", model=folder / "model")


def test_fine_codes_are_imported_into_an_old_index(folder: Path, tmp_path: Path) -> None:
    """An index that was filled without fine codes takes those that its model makes."""
    lines = exported(folder)[1]
    with MCHIndex.open(tmp_path / "old.mch", small_model()) as index:
        index.add([photo(1)], [1], progress=False)
        assert index.stats()["fine_bits"] == 0
    file = write(tmp_path / "a.jsonl", lines)
    assert import_index(file, tmp_path / "old.mch").without_fine == 0  # its model makes none
    with MCHIndex.open(tmp_path / "old.mch") as index:
        assert index.search(photo(1)).rank == "code"
    import_index(file, tmp_path / "old.mch", model=folder / "model")
    with MCHIndex.open(tmp_path / "old.mch", fine_model()) as index:
        index.add_records([])
        assert len(index) == N - 1
    with MCHIndex.open(tmp_path / "old.mch") as index:
        assert index.search(photo(1)).rank == "best"
    assert verify(tmp_path / "old.mch").problems == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fine": 5}, "'fine' must be null or an object"),
        ({"fine": {"bits": 64}}, "'fine' must be null or an object"),
        ({"fine": {"bits": 60, "fingerprint": "x"}}, "a multiple of 8 bits"),
        ({"fine": {"bits": 10**9, "fingerprint": "x"}}, "a multiple of 8 bits"),
        ({"fine": {"bits": 64.0, "fingerprint": "x"}}, "a multiple of 8 bits"),
        ({"fine": {"bits": 64, "fingerprint": None}}, "must be text"),
    ],
)
def test_invalid_headers_are_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    lines = exported(folder)[1]
    lines[0] |= change
    with pytest.raises(ExportError, match=message):
        import_index(write(tmp_path / "a.jsonl", lines), tmp_path / "new.mch")


@pytest.mark.parametrize(
    "fine", [5, "ab", ["ab"], [5] * 6, ["zz"] * 6, ["ab" * 8] * 5, ["ab" * 7] * 6, [None] * 6]
)
def test_invalid_fine_codes_are_refused(folder: Path, tmp_path: Path, fine: Any) -> None:
    lines = exported(folder)[1]
    lines[2]["fine"] = fine
    file = write(tmp_path / "a.jsonl", lines)
    with pytest.raises(ExportError, match=r"a\.jsonl:3: "):
        import_index(file, tmp_path / "new.mch", model=folder / "model")
    done = import_index(file, tmp_path / "new.mch", model=folder / "model", partial=True)
    assert (done.added, done.invalid) == (N - 2, 1)


# Filling in what an earlier version left out.


def test_fine_codes_are_filled_in_place_and_resumably(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 9)
    path = tmp_path / "a.mch"
    with MCHIndex.open(path, small_model()) as index:
        index.add(tmp_path / "photos", metadata=lambda p: {"name": Path(p).name}, progress=False)
        before = {s.id: (s.metadata, s.codes.tolist()) for s in index.images()}
    assert Store(path).get("fine") is None

    class StoppedError(Exception):
        pass

    def stop(commit: Any) -> None:
        if commit.done >= 4:
            raise StoppedError

    model = with_fine(small_model())
    with MCHIndex.open(path) as reader:
        with MCHIndex.open(path, model) as index:
            assert index.add(tmp_path / "photos", progress=False).skipped == list(before)
            assert index.search(photo(1)).rank == "code"
            with pytest.raises(StoppedError):
                index.add(tmp_path / "photos", again=True, batch=2, progress=stop)
            assert 0 < index.stats()["fine_images"] < 9
            assert index.search(photo(1)).rank == "code"
        assert verify(path).problems == []
        with MCHIndex.open(path) as index:  # its own model has fine codes by now
            done = index.add(tmp_path / "photos", again=True, progress=False)
            assert len(done.replaced) + len(done.skipped) == 9
            assert len(done.replaced) < 9
            assert index.search(photo(1), 1).ids == [str(photos[1])]
            assert index.search(photo(1), 1).rank == "best"
            assert {s.id: (s.metadata, s.codes.tolist()) for s in index.images()} == before
            assert index.add(tmp_path / "photos", again=True, progress=False).replaced == []
        # An index that was open all the time has followed.
        assert reader.search(id=str(photos[1]), rank="best").rank == "best"
    assert verify(path).problems == []


def test_a_model_without_fine_codes_adds_nothing_to_an_index_with_some(folder: Path) -> None:
    with MCHIndex.open(folder, small_model()) as index:
        with pytest.raises(ModelMismatchError, match="this copy of its model makes none"):
            index.add([photo(40)])
        assert index.stats()["fine_images"] == len(index)


def test_a_snapshot_that_cannot_be_saved_whole_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mchindex.index.table.SNAPSHOT_AFTER", 1)
    monkeypatch.setattr("mchindex.index.table.save_fine", full)
    with MCHIndex.open(tmp_path / "a.mch", fine_model()) as index:
        index.add([photo(i) for i in range(30)])
    assert list((tmp_path / "a.mch").glob("table-*")) == []


def test_the_fine_codes_of_an_index_are_those_of_its_model(folder: Path) -> None:
    model = fine_model()
    assert model.fine is not None
    with MCHIndex.open(folder) as index:
        table = index._live.fine
        assert table is not None
        features = model.extractor([photo(0), photo(30)], model.layout.array())
        keys = [known.key for known in index._store.known([0, 4]).values()]
        np.testing.assert_array_equal(table.read(keys), model.fine.codes(features))
