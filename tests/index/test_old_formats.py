"""Files written by an earlier version can still be read and give the same answers.

The fixtures of format 1 were written by commit 9e43d47: an index with its model, an index of codes
with a snapshot, an export, and a snapshot of a table. Those of format 2 were written by commit
b299a2a: an index with fine codes, its model and its snapshot, and an export.
"""

import gzip
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mchindex.index.table
from helpers.disks import disk, read_only
from helpers.small_model import photo, write_photos
from mchindex import BucketTable, MCHIndex
from mchindex.cli import run
from mchindex.index.export import export_index
from mchindex.index.importing import import_index
from mchindex.index.ranking import WEIGHTS, Query
from mchindex.index.results import Hits
from mchindex.index.verify import verify
from mchindex.models import MCHModel
from mchindex.models.fine import FineHash

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "format-1/expected.json").read_text("utf-8"))
EXPECTED_2: dict[str, Any] = json.loads((FIXTURES / "format-2/expected.json").read_text("utf-8"))
QUERIES = np.array(EXPECTED["queries"], np.uint8)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the fixtures of format 1, because opening an index writes to its folder."""
    return Path(shutil.copytree(FIXTURES / "format-1", tmp_path / "old"))


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A copy of the fixtures of format 2."""
    return Path(shutil.copytree(FIXTURES / "format-2", tmp_path / "second"))


def as_json(hits: Hits) -> Any:
    rows = [[h.id, h.distance, h.region, h.box and list(h.box), dict(h.metadata)] for h in hits]
    return [rows, hits.buckets, hits.radius]


@pytest.mark.parametrize("name", ["photos", "codes"])
def test_an_old_index_gives_the_same_answers(old: Path, name: str) -> None:
    with MCHIndex.open(old / f"{name}.mch", create=False) as index:
        assert [as_json(hits) for hits in index.search_codes(QUERIES, 5)] == EXPECTED[name]
    assert verify(old / f"{name}.mch").problems == []


def test_an_old_index_has_the_same_records(old: Path) -> None:
    with MCHIndex.open(old / "photos.mch", create=False) as index:
        stored = {
            str(s.id): [s.metadata, list(s.regions), s.codes.tolist(), s.keep.tolist()]
            for s in index.images()
        }
    assert stored == EXPECTED["stored"]


def test_the_snapshot_of_an_old_index_is_used(old: Path) -> None:
    """Without it, opening the index would read the whole store."""
    with MCHIndex.open(old / "codes.mch", create=False) as index:
        (snapshot,) = (old / "codes.mch").glob("table-*.snapshot")
        assert BucketTable.load(snapshot).n_codes == 600
        assert index._live._snapshot_at == 300


def test_an_old_index_can_be_changed(old: Path) -> None:
    with MCHIndex.open(old / "codes.mch", create=False) as index:
        before = len(index)
        index.add_codes(["new"], QUERIES[:1])
        assert index.search_codes(QUERIES[0], 1).ids == ["new"]
        assert len(index) == before + 1
    assert verify(old / "codes.mch").problems == []


def test_an_old_model_can_be_loaded(old: Path) -> None:
    model = MCHModel.load(old / "photos.mch" / "model", device="cpu")
    assert model.fingerprint == EXPECTED["fingerprint"]
    assert model.encode([np.zeros((32, 32, 3), np.uint8)]).codes.shape[1] == 2


def test_an_old_export_can_be_imported(old: Path, tmp_path: Path) -> None:
    model = old / "photos.mch" / "model"
    import_index(old / "photos.jsonl.gz", tmp_path / "new.mch", model=model)
    with MCHIndex.open(tmp_path / "new.mch") as index:
        answers = index.search_codes(QUERIES, 5)
        assert [as_json(hits)[0] for hits in answers] == [hits for hits, *_ in EXPECTED["photos"]]


def test_an_old_snapshot_gives_the_same_answers(old: Path) -> None:
    want = EXPECTED["table"]
    for mmap in (False, True):
        table = BucketTable.load(old / "table.snapshot", mmap=mmap)
        result = table.search(np.array(want["queries"], np.uint8), 4)
        for name in ("ids", "distances", "regions", "buckets"):
            assert getattr(result, name).tolist() == want[name]


# Format 1 without fine codes, and filling them in.


def format_of(folder: Path) -> int:
    db = sqlite3.connect(folder / "index.sqlite")
    (number,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return int(number)


def test_an_old_index_ranks_by_code(old: Path) -> None:
    with MCHIndex.open(old / "photos.mch", create=False) as index:
        hits = index.search(photo(1), 3)
        assert hits.rank == "code"
        assert index.search(id="scene-0").rank == "code"
        assert (index.stats()["fine_bits"], index.stats()["fine_images"]) == (0, 0)
        with pytest.raises(ValueError, match="its images have no fine codes"):
            index.search(photo(1), rank="best")
        assert hits.ids == index.search(photo(1), 3, rank="code").ids
    assert format_of(old / "photos.mch") == 1


def test_an_old_index_stays_in_its_format_without_fine_codes(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version can still open it."""
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    with MCHIndex.open(old / "codes.mch", create=False) as index:
        index.add_codes(["new"], QUERIES[:1])
        index.remove(["new"])
        assert "fine" not in index._store.get("snapshot")
    assert format_of(old / "codes.mch") == 1


def test_old_indexes_can_be_searched_on_a_read_only_disk(
    old: Path, second: Path, tmp_path: Path
) -> None:
    with disk(tmp_path / "disk", 16) as place:
        for path in (old / "photos.mch", second / "photos.mch"):
            shutil.copytree(path, place / path.parent.name)
        with read_only(place):
            with MCHIndex.open(place / "old", create=False) as index:
                answers = index.search_codes(QUERIES, 5)
                assert [as_json(hits) for hits in answers] == EXPECTED["photos"]
                assert index.search(photo(1)).rank == "code"
            with MCHIndex.open(place / "second", create=False) as index:
                assert index.search(photo(1), 1).ids == ["photo-1"]
                assert index.search(photo(1), 1).rank == "best"


def with_fine(folder: Path) -> MCHModel:
    """The old model with a fine hash, as a later version of it would have."""
    model = MCHModel.load(folder, device="cpu")
    hash_ = FineHash(model.backbone.dim, 32)
    torch.manual_seed(0)
    hash_.rotation.copy_(torch.randn(hash_.rotation.shape).half().float())
    return replace(model, fine=hash_)


def test_an_old_index_is_filled_with_fine_codes(old: Path) -> None:
    path = old / "photos.mch"
    model = with_fine(path / "model")
    assert model.fingerprint == EXPECTED["fingerprint"]
    with MCHIndex.open(path, model) as index:
        names = list(index)
        pictures = [photo(i) for i in range(len(names))]
        index.add(pictures[:4], names[:4], again=True, progress=False)
        assert format_of(path) == 2
        assert index.search(photo(1)).rank == "code"
        with pytest.raises(ValueError, match="5 of its images have no fine codes"):
            index.search(photo(1), rank="best")
        index.add(pictures, names, again=True, progress=False)
        assert index.search(photo(1), 1).rank == "best"
        assert index.search(photo(1), 1).ids == [names[1]]
        assert index[names[1]].metadata["tags"] == ["drawn"]
    with MCHIndex.open(path) as index:  # with the model that is in the index
        assert index.search(photo(1), 1).rank == "best"
    assert verify(path).problems == []


def test_a_model_whose_config_was_not_replaced_in_time_loads(old: Path, tmp_path: Path) -> None:
    """A crash between the two files of a model leaves weights with fine codes and a config
    without."""
    with_fine(old / "photos.mch/model").save(tmp_path / "new")
    shutil.copyfile(tmp_path / "new/model.safetensors", old / "photos.mch/model/model.safetensors")
    model = MCHModel.load(old / "photos.mch/model", device="cpu")
    assert (model.fingerprint, model.fine) == (EXPECTED["fingerprint"], None)


# From the shell, with a shipped model.


def without_fine_codes(path: Path) -> None:
    """Turns an index into one of format 1, as the same images made it."""
    db = sqlite3.connect(path / "index.sqlite", isolation_level=None)
    db.execute("DROP TABLE fine")
    db.execute("DELETE FROM meta WHERE name IN ('fine', 'fine_images', 'snapshot')")
    db.execute("PRAGMA user_version = 1")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def test_the_shell_says_what_is_missing_and_fills_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, path = tmp_path / "photos", tmp_path / "a.mch"

    def mch(*arguments: object) -> str:
        assert run([*map(str, arguments), "--index", str(path)]) == 0
        return " ".join(capsys.readouterr().out.split())

    write_photos(photos, 3)
    added = json.loads(mch("add", photos, "--json"))
    assert (added["added"], added["without_fine"]) == (3, 0)
    assert "of 256 bits, for every image" in mch("info")
    without_fine_codes(path)
    missing = "3 images have no fine codes, so hits are ordered by codes alone. Run mch add --again"
    assert missing in mch("info")
    again = mch("add", photos)
    assert "3 unchanged" in again
    assert missing in again
    assert format_of(path) == 1
    filled = json.loads(mch("add", photos, "--again", "--json"))
    assert (filled["replaced"], filled["without_fine"]) == (3, 0)
    assert format_of(path) == 2
    assert "001.png" in mch("search", photos / "001.png", "-k", 1, "--json")
    assert verify(path).problems == []


def test_filling_in_goes_on_after_a_kill(tmp_path: Path) -> None:
    photos, path = tmp_path / "photos", tmp_path / "a.mch"
    write_photos(photos, 8)
    with MCHIndex.open(path) as index:
        index.add(photos, progress=False)
    without_fine_codes(path)
    home = str(Path(mchindex.__file__).parents[1])
    command = [sys.executable, "-c", KILLED, str(photos), str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": home}, timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with MCHIndex.open(path) as index:
        assert index.stats()["fine_images"] == 3
        assert index.search(photos / "001.png").rank == "code"
    assert verify(path).problems == []
    with MCHIndex.open(path) as index:
        filled = index.add(photos, again=True, progress=False)
        assert (len(filled.replaced), len(filled.skipped)) == (5, 3)
        assert index.search(photos / "001.png").rank == "best"
    assert verify(path).problems == []


KILLED = """
import os, signal, sys
from mchindex import MCHIndex

def kill(commit):
    if commit.done >= 3:
        os.kill(os.getpid(), signal.SIGKILL)

with MCHIndex.open(sys.argv[2]) as index:
    files = sorted(os.path.join(sys.argv[1], name) for name in os.listdir(sys.argv[1]))
    for start in range(0, len(files), 3):
        index.add(files[start:start + 3], again=True, batch=3, progress=kill)
"""


# Format 2.


def as_rows(hits: Hits) -> list[Any]:
    return [[h.id, h.score, h.distance, h.region, list(h.box or ())] for h in hits]


@pytest.mark.parametrize("rank", ["best", "fine", "code"])
def test_an_index_of_format_2_gives_the_same_answers(
    second: Path, tmp_path: Path, rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WEIGHTS, "best", tuple(EXPECTED_2["weights"]))
    asked = Query(
        np.array(EXPECTED_2["queries"], np.uint8), np.array(EXPECTED_2["projections"], np.float32)
    )
    with MCHIndex.open(second / "photos.mch", create=False) as index:
        assert index._live._snapshot_at > 0  # the snapshot and its fine codes are used
        answers = index._searcher.search(asked, 5, (), rank=rank)
        assert [as_rows(hits) for hits in answers] == EXPECTED_2[rank]
    assert verify(second / "photos.mch").problems == []
    model = second / "photos.mch/model"
    import_index(second / "photos.jsonl.gz", tmp_path / "new.mch", model=model)
    with MCHIndex.open(tmp_path / "new.mch") as index:
        answers = index._searcher.search(asked, 5, (), rank=rank)
        assert [as_rows(hits) for hits in answers] == EXPECTED_2[rank]


def test_a_model_of_format_2_can_be_loaded(second: Path) -> None:
    model = MCHModel.load(second / "photos.mch/model", device="cpu")
    assert model.fine is not None
    assert model.fingerprint == EXPECTED_2["fingerprint"]
    assert model.fine.fingerprint == EXPECTED_2["fine_fingerprint"]


def test_an_index_of_format_2_is_exported_as_it_was(second: Path, tmp_path: Path) -> None:
    with open(tmp_path / "again.jsonl", "wb") as out:
        export_index(second / "photos.mch", out)
    before = gzip.decompress((second / "photos.jsonl.gz").read_bytes())
    assert (tmp_path / "again.jsonl").read_bytes() == before
