"""Files written by an earlier version can still be read and give the same answers.

The fixtures were written by commit 9e43d47: an index with its model, an index of codes with a
snapshot, an export, and a snapshot of a table.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mchindex import BucketTable, MCHIndex
from mchindex.index.importing import import_index
from mchindex.index.results import Hits
from mchindex.index.verify import verify
from mchindex.models import MCHModel

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format-1"
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text("utf-8"))
QUERIES = np.array(EXPECTED["queries"], np.uint8)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the fixtures, because opening an index writes to its folder."""
    return Path(shutil.copytree(FIXTURES, tmp_path / "old"))


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
