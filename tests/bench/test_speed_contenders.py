"""bench/contenders.py: from rows to images, the answers of each contender, and their processes."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import Cell, Codes, Ids, draw_codes, draw_images
from contenders import (
    BEFORE,
    OURS,
    PEERS,
    BuildLimitError,
    FailedError,
    Ours,
    OursAuto,
    Peer,
    Run,
    Worker,
    build,
    drop_repeats,
    exceeds,
    nearest_images,
)
from recall import Judge

ALL = OURS | PEERS
EXACT = ("auto", "probe", "substring", "scan", "flat", "flat-count", "usearch")
QUERIES, K = 12, 10


def first_distinct(row: list[int], k: int) -> list[int]:
    kept = list(dict.fromkeys(i for i in row if i >= 0))[:k]
    return kept + [-1] * (k - len(kept))


@st.composite
def id_tables(draw: st.DrawFn) -> tuple[Ids, int]:
    columns = draw(st.integers(1, 12))
    row = st.lists(st.integers(-1, 6) | st.integers(0, 2**40), min_size=columns, max_size=columns)
    ids = draw(st.lists(row, min_size=1, max_size=5))
    return np.array(ids, dtype=np.int64), draw(st.integers(1, columns))


@given(id_tables())
def test_repeats_are_dropped_in_order(case: tuple[Ids, int]) -> None:
    ids, k = case
    assert drop_repeats(ids, k).tolist() == [first_distinct(row, k) for row in ids.tolist()]


@given(st.data())
def test_rows_become_the_images_they_belong_to(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    images = np.repeat(np.arange(len(sizes)), sizes)
    columns = data.draw(st.integers(1, 20))
    numbers = st.integers(-1, len(images) - 1)
    row = st.lists(numbers, min_size=columns, max_size=columns)
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    k = data.draw(st.integers(1, columns))
    wanted = [first_distinct([images[r] if r >= 0 else -1 for r in row], k) for row in rows]
    assert nearest_images(np.array(rows), images, k).tolist() == wanted


def test_a_peer_finds_k_images_even_if_each_has_six_equal_codes() -> None:
    codes = np.repeat(np.packbits(np.tri(40, 64, dtype=np.uint8), axis=1), 6, axis=0)
    flat = PEERS["flat"](64, Run("", most_codes=6))
    flat.build(np.repeat(np.arange(40), 6), codes)
    query = np.zeros((1, 8), dtype=np.uint8)  # image i is at distance i + 1
    assert flat.search(query, 7, 0).tolist() == [[0, 1, 2, 3, 4, 5, 6]]


def test_a_build_is_given_up_once_its_extrapolated_time_exceeds_the_limit() -> None:
    assert not exceeds(spent=50, done=0.5, limit=100)
    assert exceeds(spent=50.1, done=0.5, limit=100)
    assert not exceeds(spent=3, done=0.001, limit=100)  # too early to tell
    assert exceeds(spent=3.1, done=0.001, limit=100)


class Slow(Peer):
    """Takes codes in pieces and notes them; nothing is searched."""

    title, module = "slow", "numpy"

    def fill(self, codes: Codes) -> None:
        self.starts: list[int] = []
        self.parts: list[Codes] = []

        def add(at: int, part: Codes) -> None:
            self.starts.append(at)
            self.parts.append(part)

        self.fill_in_pieces(codes, add)

    def rows(self, queries: Codes, k: int, setting: int) -> Ids:
        raise NotImplementedError


def test_a_graph_gets_every_code_once_or_is_given_up() -> None:
    codes = np.arange(5500 * 8, dtype=np.uint32).astype(np.uint8).reshape(5500, 8)
    images = np.arange(5500)
    patient = Slow(64, Run("", build_limit=1e6))
    patient.build(images, codes)
    assert patient.starts == list(range(0, 5500, 1000))
    np.testing.assert_array_equal(np.concatenate(patient.parts), codes)
    hasty = Slow(64, Run("", build_limit=1e-9))
    with pytest.raises(BuildLimitError, match="18% took"):
        hasty.build(images, codes)
    assert len(hasty.parts) == 1


@pytest.fixture(scope="module", params=[1.0, 1.6], ids=["one code", "several codes"])
def data(request: pytest.FixtureRequest) -> tuple[Codes, Ids, Codes]:
    cell = Cell(3000, 64, codes_per_image=request.param)
    codes, queries = draw_codes(cell, QUERIES, 0)
    return codes, draw_images(cell, 0), queries


@pytest.mark.parametrize("key", ALL)
def test_every_contender_returns_distinct_images_and_exact_ones_the_nearest(
    key: str, data: tuple[Codes, Ids, Codes]
) -> None:
    codes, images, queries = data
    kind = ALL[key]
    pytest.importorskip(kind.module)
    most = int(np.bincount(images).max())
    contender = kind(64, Run("", lists=16, most_codes=most))
    contender.build(images, codes)
    contender.after_build()
    nearest = []
    for query in queries:
        apart = np.bitwise_count(codes ^ query).sum(1).astype(int)
        best = np.full(images[-1] + 1, 99)
        np.minimum.at(best, images, apart)
        nearest.append(np.argsort(best, kind="stable")[:K])
    judge = Judge(codes, images, queries, np.array(nearest))
    for setting in kind.settings:
        ids = contender.search(queries, K, setting)
        assert ids.shape == (QUERIES, K)
        assert ids.dtype == np.int64
        for row in ids.tolist():
            known = [i for i in row if i >= 0]
            assert len(known) == len(set(known))
            assert all(i <= images[-1] for i in known)
            assert row == known + [-1] * (K - len(known))
        recall = judge.recall(ids, K)
        assert recall == 1 if key in EXACT else 0 <= recall <= 1
        each = np.concatenate(contender.search_each(queries, K, setting))
        np.testing.assert_array_equal(each >= 0, ids >= 0)
        assert judge.recall(each, K) == recall
    assert (contender.bytes_counted() is not None) == kind.ours


def test_labels_tell_settings_apart() -> None:
    for kind in ALL.values():
        assert len({kind.label(setting) for setting in kind.settings}) == len(kind.settings)
    assert ALL["ivf"].label(4) == "faiss IVF nprobe=4"
    assert ALL["flat"].label(0) == "faiss Flat"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    codes, queries = draw_codes(Cell(2000), 8, 0)
    for name, array in (("codes", codes), ("images", np.arange(2000)), ("queries", queries)):
        np.save(tmp_path / f"{name}.npy", array)
    worker = Worker(OURS["auto"], 64, Run(str(tmp_path)))
    yield worker
    if worker.alive:
        worker.stop()


def test_a_worker_builds_searches_and_wraps_around_the_queries(
    worker: Worker, tmp_path: Path
) -> None:
    built = worker.ask("build")
    assert built.build_s > 0
    assert built.optimize_s is not None
    assert built.optimized.counted >= built.built.counted > 2000 * 8
    from mchindex import BucketTable

    table = BucketTable(bits=64)
    table.add(np.arange(2000), np.load(tmp_path / "codes.npy"))
    queries = np.load(tmp_path / "queries.npy")
    wanted = table.search(queries, 5).ids
    np.testing.assert_array_equal(worker.ask("ids", 5, 0, 0, 8, False), wanted)
    np.testing.assert_array_equal(worker.ask("ids", 5, 0, 6, 4, False), wanted[[6, 7, 0, 1]])
    np.testing.assert_array_equal(worker.ask("ids", 5, 0, 0, 8, True), wanted)
    for single in (False, True):
        wall, busy = worker.ask("time", 5, 0, 0, 8, single)
        assert wall > 0
        assert busy >= 0
    assert worker.ask("settle") is None
    assert worker.ask("memory", built.before).counted == built.optimized.counted


def test_a_worker_reports_failures_stops_at_its_limit_and_starts_again(worker: Worker) -> None:
    with pytest.raises(FailedError, match="no attribute 'table'"):
        worker.ask("ids", 5, 0, 0, 8, False)  # not built yet
    assert worker.alive
    with pytest.raises(FailedError, match="no answer within 0 s"):
        worker.ask("build", limit=0)
    assert not worker.alive
    worker.start()
    assert worker.ask("build").build_s > 0


def test_a_dead_process_is_noticed(tmp_path: Path) -> None:
    worker = Worker(OURS["auto"], 64, Run(str(tmp_path)))  # without data
    with pytest.raises(FailedError, match="exit code 1"):
        worker.ask("build")
    assert not worker.alive


def test_regions_are_stored_with_our_codes(tmp_path: Path) -> None:
    codes, queries = draw_codes(Cell(60), 3, 0)
    regions = np.tile(np.arange(3, dtype=np.int16), 20)
    images = np.repeat(np.arange(20), 3)
    for name, array in (("codes", codes), ("images", images), ("regions", regions)):
        np.save(tmp_path / f"{name}.npy", array)
    run = Run(str(tmp_path), most_codes=3)
    ours, flat = OursAuto(64, run), PEERS["flat"](64, run)
    build(ours, tmp_path)
    build(flat, tmp_path)
    found = ours.table.search(codes[1:2], 1)
    assert (found.ids[0, 0], found.regions[0, 0]) == (0, 1)
    assert flat.regions is None
    np.testing.assert_array_equal(
        ours.search(queries, 20, 0) >= 0, flat.search(queries, 20, 0) >= 0
    )


def test_auto_has_no_index_that_it_does_not_ask_for() -> None:
    codes, _ = draw_codes(Cell(2000), 1, 0)
    sizes = {}
    for key in ("auto", "substring"):
        ours = OURS[key](64, Run(""))
        assert isinstance(ours, Ours)
        ours.build(np.arange(2000), codes)
        ours.after_build()
        sizes[key] = ours.table.memory()["substring"]
    assert sizes["auto"] == 0
    assert sizes["substring"] > 0


class Busy:
    """Reports work in the background for a while, as a table does."""

    def __init__(self) -> None:
        self.asked = 0

    def stats(self) -> dict[str, bool]:
        self.asked += 1
        return {"merging": self.asked == 1, "indexing": self.asked == 2}


def test_a_measurement_waits_for_work_in_the_background() -> None:
    ours, table = OursAuto(64, Run("")), Busy()
    ours.table = table  # type: ignore[assignment]
    ours.settle()
    assert table.asked == 3


def test_without_such_reports_it_waits_until_the_process_is_idle() -> None:
    end = time.monotonic() + 0.5
    worker = threading.Thread(target=lambda: all(time.monotonic() < end for _ in repeat(None)))
    worker.start()
    ours = OursAuto(64, Run(""))
    ours.table = object()  # type: ignore[assignment]
    ours.settle()
    assert not worker.is_alive()


def test_the_earlier_commit_is_imported_from_its_own_folder(tmp_path: Path) -> None:
    import mchindex

    site = tmp_path / "site"
    shutil.copytree(Path(mchindex.__file__).parent, site / "mchindex")
    codes, queries = draw_codes(Cell(500), 4, 0)
    for name, array in (("codes", codes), ("images", np.arange(500)), ("queries", queries)):
        np.save(tmp_path / f"{name}.npy", array)
    worker = Worker(BEFORE["before"], 64, Run(str(tmp_path), site=str(site)))
    worker.ask("build")
    now = OursAuto(64, Run(""))
    now.build(np.arange(500), codes)
    wanted = now.search(queries, 5, 0)
    np.testing.assert_array_equal(worker.ask("ids", 5, 0, 0, 4, False), wanted)
    worker.stop()
    with pytest.raises(ImportError, match="was imported from"):
        BEFORE["before"](64, Run("", site=str(site)))  # this process has another one
