"""An index gives the same answers as an oracle, whatever was done to it before."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

import mchindex.index.facade
import mchindex.index.table
import mchindex.storage.schema
import mchindex.storage.store
from helpers.indexes import BITS, assert_as_fresh, codes_for, drawn, painted, tiny_model
from helpers.oracle import Oracle
from helpers.pictures import encoded
from mchindex import MCHIndex
from mchindex.errors import ModelMismatchError
from mchindex.index.results import Hits

CODE = np.zeros(BITS // 8, np.uint8)


@pytest.fixture
def index() -> Iterator[MCHIndex]:
    with MCHIndex(bits=BITS) as made:
        yield made


def ids_of(hits: Hits) -> list[Any]:
    return sorted(hits.ids, key=str)


# Random operations, compared with a dictionary.

IDS = st.one_of(st.integers(-3, 12), st.sampled_from(["1", "a", "ä", "12", "x y"]))


class Machine(RuleBasedStateMachine):
    """An index, a second instance of it that only reads, and a dictionary of their content."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 4)
        self.patch.setattr(mchindex.index.facade, "BULK", 3)
        self.patch.setattr(mchindex.storage.store, "GONE_KEPT", 5)
        self.patch.setattr(mchindex.storage.store, "CHUNK", 2)
        self.patch.setattr(mchindex.storage.schema, "CHECKPOINT", 3)
        self.model: dict[Any, tuple[Any, list[int], dict[str, Any]]] = {}
        self.serial = 0

    @initialize(memory=st.sampled_from([False, False, True]))
    def create(self, memory: bool) -> None:
        self.folder = None if memory else Path(tempfile.mkdtemp())
        if self.folder is None:
            self.index = self.reader = MCHIndex(bits=BITS)
        else:
            self.index = MCHIndex.open(self.folder / "i", bits=BITS)
            self.reader = MCHIndex.open(self.folder / "i")

    @rule(ids=st.lists(IDS, min_size=1, max_size=8), kind=st.sampled_from(["red", "blue", None]))
    def add(self, ids: list[Any], kind: str | None) -> None:
        self.serial += 1
        names = list(dict.fromkeys(ids))
        rows = {name: codes_for(names.index(name), self.serial) for name in names}
        flat = [(name, code, r) for name in names for r, code in enumerate(rows[name])]
        notes = {} if kind is None else {"kind": kind}
        self.index.add_codes(
            [name for name, _, _ in flat], np.stack([code for _, code, _ in flat]),
            [r for _, _, r in flat], metadata=[notes] * len(names),
        )  # fmt: skip
        for name in names:
            self.model.pop(name, None)  # a replaced image moves to the end
            self.model[name] = (rows[name], list(range(len(rows[name]))), notes)

    @rule(ids=st.lists(IDS, max_size=6))
    def remove(self, ids: list[Any]) -> None:
        present = {id_ for id_ in ids if id_ in self.model}
        assert self.index.remove(ids) == len(present)
        for id_ in present:
            del self.model[id_]

    @rule(id_=IDS, kind=st.sampled_from(["red", "blue"]))
    def note(self, id_: Any, kind: str) -> None:
        if id_ in self.model:
            self.index.set_metadata(id_, {"kind": kind})
            codes, regions, _ = self.model[id_]
            self.model[id_] = (codes, regions, {"kind": kind})

    @precondition(lambda self: self.folder is not None)
    @rule(lose=st.sampled_from(["nothing", "snapshot", "both"]))
    def reopen(self, lose: str) -> None:
        assert self.folder is not None
        self.index.close()
        if lose == "both":
            self.reader.close()
        if lose != "nothing":
            for file in (self.folder / "i").glob("table-*"):
                file.unlink()
        self.index = MCHIndex.open(self.folder / "i")
        if lose == "both":
            self.reader = MCHIndex.open(self.folder / "i")

    @rule(
        seed=st.integers(0, 100), k=st.integers(1, 15), which=st.booleans(),
        radius=st.none() | st.integers(0, 12), buckets=st.none() | st.integers(1, 5000),
        kinds=st.none() | st.lists(st.sampled_from(["red", "blue", None]), max_size=2),
        allowed=st.none() | st.lists(IDS, max_size=6),
    )  # fmt: skip
    def search(
        self, seed: int, k: int, which: bool, radius: int | None, buckets: int | None,
        kinds: list[str | None] | None, allowed: list[Any] | None,
    ) -> None:  # fmt: skip
        index = self.reader if which else self.index
        oracle, keys = Oracle(BITS), {}
        chosen = set()
        for key, (id_, (codes, regions, notes)) in enumerate(self.model.items()):
            oracle.add([key] * len(codes), codes, regions)
            keys[key] = id_
            if (kinds is None or notes.get("kind") in kinds) and (
                allowed is None or id_ in [a for a in allowed if type(a) is type(id_)]
            ):
                chosen.add(key)
        query = codes_for(seed, 7)[:1]
        limited = None if kinds is None and allowed is None else chosen
        want = oracle.search(query, k, radius, buckets, limited)
        got = index.search_codes(
            query[0], k, max_radius=radius, max_buckets=buckets, allowed=allowed,
            filter=None if kinds is None else {"kind": kinds},
        )  # fmt: skip
        n = int(want["counts"][0])
        names = ["whole" if r == 0 else f"region {r}" for r in want["regions"][0, :n]]
        assert [(h.id, h.distance, h.region) for h in got] == list(
            zip([keys[i] for i in want["ids"][0, :n].tolist()], want["distances"][0, :n].tolist(),
                names, strict=True)
        )  # fmt: skip
        assert (got.buckets, got.candidates) == (want["buckets"][0], want["candidates"][0])
        assert (got.radius, got.exact) == (want["radius"][0], want["exact"][0])
        assert [h.metadata for h in got] == [self.model[h.id][2] for h in got]

    @invariant()
    def the_same_images(self) -> None:
        for index in {id(i): i for i in (self.index, self.reader)}.values():
            assert len(index) == len(self.model)
            stored = {image.id: image for image in index.images()}
            assert list(stored) == list(self.model)
            for id_, (codes, _, notes) in self.model.items():
                np.testing.assert_array_equal(stored[id_].codes, codes)
                assert stored[id_].metadata == notes

    def teardown(self) -> None:
        self.index.close()
        self.reader.close()
        self.patch.undo()
        if self.folder is not None:
            shutil.rmtree(self.folder)


def thorough(examples: int) -> settings:
    # Every step writes to disk, which is slow on some machines.
    return settings(
        max_examples=examples, stateful_step_count=20, suppress_health_check=list(HealthCheck)
    )


def test_any_sequence_of_operations_agrees_with_the_oracle() -> None:
    run_state_machine_as_test(Machine, settings=thorough(10))


@pytest.mark.slow
def test_many_sequences_of_operations_agree_with_the_oracle() -> None:
    run_state_machine_as_test(Machine, settings=thorough(200))


# Filters.

NOTES: dict[Any, dict[str, Any] | None] = {
    0: {"album": "2024", "n": 1, "flag": True, "tags": ["dog", "cat"]},
    1: {"album": "2023", "n": 1.5, "flag": False, "tags": []},
    2: {"album": None, "n": -1, "tags": "dog"},
    3: {},
    4: None,
    5: {"ä 図": "ö", "a.b": 1, "a": {"b": 1}, "$": 2, 'quo"te': "'; DROP TABLE images; --"},
    6: {"album": "2024", "n": "1", "tags": [1, None, ["dog"]], "": "empty", "a'b": 3, "[0]": 4},
}


@pytest.fixture
def noted(index: MCHIndex) -> MCHIndex:
    codes = np.repeat(CODE[None], len(NOTES), axis=0)
    index.add_codes(list(NOTES), codes, metadata=list(NOTES.values()))
    return index


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"album": "2024"}, [0, 6]),
        ({"album": 2024}, []),
        ({"album": ["2024", "2023"]}, [0, 1, 6]),
        ({"album": ("2023",)}, [1]),
        ({"album": {"2023", "x"}}, [1]),
        ({"album": []}, []),
        ({"album": None}, [2, 3, 4, 5]),
        ({"album": [None, "2023"]}, [1, 2, 3, 4, 5]),
        ({"n": 1}, [0]),
        ({"n": 1.0}, [0]),
        ({"n": np.int64(1)}, [0]),
        ({"n": "1"}, [6]),
        ({"n": 1.5}, [1]),
        ({"flag": True}, [0]),
        ({"flag": np.False_}, [1]),
        ({"tags": "dog"}, [0, 2]),
        ({"tags": ["cat", "dog"]}, [0, 2]),
        ({"tags": 1}, [6]),
        ({"tags": '["dog","cat"]'}, []),
        ({"tags": '["dog"]'}, []),
        ({"a": '{"b":1}'}, []),
        ({"ä 図": "ö"}, [5]),
        ({"a.b": 1}, [5]),
        ({"$": 2}, [5]),
        ({'quo"te': "'; DROP TABLE images; --"}, [5]),
        ({"a'b": 3, "[0]": 4, "": "empty"}, [6]),
        ({"album": "2024", "n": 1}, [0]),
        ({"album": "2024", "n": None}, []),
        ({"none": "x"}, []),
    ],
)
def test_a_filter_selects_the_matching_images(
    noted: MCHIndex, wanted: dict[str, Any], expected: list[int]
) -> None:
    assert ids_of(noted.search_codes(CODE, 50, filter=wanted)) == expected
    assert ids_of(noted.search_codes(CODE, 50, filter=wanted)) == expected  # from the cache
    some = noted.search_codes(CODE, 50, filter=wanted, allowed=[0, 5, "0", 99])
    assert ids_of(some) == [i for i in expected if i in (0, 5)]
    if 0 in expected:
        noted.remove(0)
        assert 0 not in noted.search_codes(CODE, 50, filter=wanted).ids


@pytest.mark.parametrize(
    "wrong", [{"a": {"b": 1}}, {"a": object()}, {"a": float("nan")}, {"a": [[1]]}, {1: 2}]
)
def test_invalid_filters_are_refused(noted: MCHIndex, wrong: Any) -> None:
    with pytest.raises(ValueError, match="filter"):
        noted.search_codes(CODE, filter=wrong)


def test_filters_see_new_metadata(noted: MCHIndex) -> None:
    assert ids_of(noted.search_codes(CODE, 50, filter={"album": "2023"})) == [1]
    noted.set_metadata(3, {"album": "2023"})
    assert ids_of(noted.search_codes(CODE, 50, filter={"album": "2023"})) == [1, 3]
    assert noted[3].metadata == {"album": "2023"}


def test_allowed_restricts_the_search_to_these_ids(noted: MCHIndex) -> None:
    noted.add_codes(["1"], CODE[None])
    assert noted.search_codes(CODE, 50, allowed=["1"]).ids == ["1"]
    assert noted.search_codes(CODE, 50, allowed=[1]).ids == [1]
    assert noted.search_codes(CODE, 50, allowed=np.array([2, 1])).ids == [1, 2]
    some: list[Any] = [1, "none"]
    assert noted.search_codes(CODE, 50, allowed=iter(some)).ids == [1]
    assert noted.search_codes(CODE, 50, allowed=[]).ids == []
    with pytest.raises(TypeError, match="list"):
        noted.search_codes(CODE, allowed="1")
    wrong: Any = [1.5]
    with pytest.raises(TypeError, match="float"):
        noted.search_codes(CODE, allowed=wrong)


# Searching.


def codes(*rows: int) -> NDArray[np.uint8]:
    return np.array([[0] * (BITS // 8 - 1) + [row] for row in rows], np.uint8)


def test_an_empty_index_finds_nothing(index: MCHIndex, tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", tiny_model()) as other:
        for empty in (index, other):
            assert len(empty) == 0
            assert list(empty) == []
            assert list(empty.images()) == []
            hits = empty.search_codes(CODE)
            assert (len(hits), list(hits), hits.ids, hits.distances) == (0, [], [], [])
            assert len(empty.search_codes(CODE[None].repeat(3, 0))) == 3
            assert empty.remove([1]) == 0
            assert empty.prune() == []
            assert empty.stats()["anhc"] == 0
        assert len(other.search(drawn(0))) == 0
        assert len(other.search([])) == 0


def test_a_search_by_id_leaves_the_image_out(index: MCHIndex) -> None:
    index.add_codes(["a", "a", "b", "c", "d"], codes(0, 15, 1, 3, 7), [0, 2, 0, 0, 0])
    assert index.search(id="a", k=2).ids == ["b", "c"]
    assert index.search(id="a", k=50).ids == ["b", "c", "d"]
    assert index.search(id="a", k=1, region="region 2").ids == ["d"]
    assert index.search(id="a", allowed=["a", "d"]).ids == ["d"]
    assert index.search(id="a", filter={"none": 1}).ids == []
    assert index.search(id="a", max_radius=1).ids == ["b"]
    index.add_codes(["twin"], codes(0))
    assert index.search(id="a", k=1).ids == ["twin"]
    with pytest.raises(KeyError, match="none"):
        index.search(id="none")
    with pytest.raises(ValueError, match="only for whole, region 2"):
        index.search(id="a", region="centre")
    wrong: list[dict[str, Any]] = [{}, {"query": drawn(0), "id": "a"}]
    for arguments in wrong:
        with pytest.raises(TypeError, match="query, the id"):
            index.search(**arguments)


def test_k_radius_and_buckets_limit_the_hits(index: MCHIndex) -> None:
    index.add_codes([0, 1, 2, 3], codes(0, 1, 3, 7))
    assert index.search_codes(CODE, 2).ids == [0, 1]
    hits = index.search_codes(CODE, 1000)
    assert (hits.ids, hits.distances, hits.exact) == ([0, 1, 2, 3], [0, 1, 2, 3], True)
    assert index.search_codes(CODE, max_radius=1).ids == [0, 1]
    cut = index.search_codes(CODE, max_buckets=1)
    assert (cut.ids, cut.exact, cut.buckets) == ([0], False, 1)
    for k in (0, -1):
        with pytest.raises(ValueError, match="k must be"):
            index.search_codes(CODE, k)
        with pytest.raises(ValueError, match="k must be"):
            index.search(id=0, k=k)
    with pytest.raises((TypeError, ValueError)):
        index.search_codes(np.zeros(3, np.uint8))


def test_hits_are_sequences(index: MCHIndex) -> None:
    index.add_codes([f"image {i}" for i in range(12)], np.repeat(CODE[None], 12, 0))
    answers = index.search_codes(np.stack([CODE, ~CODE]), 12)
    assert len(answers) == 2
    assert [len(hits) for hits in answers] == [12, 12]
    hits = answers[0]
    assert hits[-1] is hits[11]
    assert [h.id for h in hits[:2]] == ["image 0", "image 1"]
    assert "2 more" in repr(hits)
    assert [h.distances[0] for h in answers[::-1]] == [BITS, 0]
    with pytest.raises(IndexError):
        hits[12]
    with pytest.raises(IndexError):
        answers[2]


def test_a_region_of_a_query_can_be_searched_for(tmp_path: Path) -> None:
    with MCHIndex(tiny_model()) as index:
        left, right = drawn(1), drawn(2)
        both = np.concatenate([left, right], axis=1)
        index.add([left, right], ["left", "right"])
        assert index.search(both, 1, region=(0, 0, 8, 6)).ids == ["left"]
        assert index.search(both, 1, region=(8, 0, 16, 6))[0].distance == 0
        assert index.search([left, painted(2)], 1)[1][0].id == "right"
        several = index.search([both, both], 1, region=(8, 0, 16, 6))
        assert [hits.ids for hits in several] == [["right"], ["right"]]
        (tmp_path / "a.png").write_bytes(encoded(painted(1), "PNG"))
        for query in (tmp_path / "a.png", (tmp_path / "a.png").read_bytes(), painted(1)):
            assert index.search(query, 1).ids == ["left"]
        wrong: Any
        for wrong in ((0, 0, 17, 6), (4, 0, 4, 6), (0, 0, 1), (float("nan"), 0, 8, 6)):
            with pytest.raises(ValueError, match="region"):
                index.search(both, region=wrong)
        wrong = "centre"
        with pytest.raises(TypeError, match="box"):
            index.search(both, region=wrong)


# Your own codes.


def test_your_own_codes_and_regions_are_stored(index: MCHIndex) -> None:
    assert index.add_codes(["a", "b", "a"], codes(1, 2, 3), [0, 255, 7]) == 2
    assert index["a"].regions == ("whole", "region 7")
    assert index["b"].regions == ("region 255",)
    assert index["a"].boxes == (None, None)
    np.testing.assert_array_equal(index["a"].codes, codes(1, 3))
    assert index.add_codes([], np.zeros((0, BITS // 8), np.uint8)) == 0
    assert index.add_codes(np.array([5, 3, 5]), codes(1, 2, 3)) == 2
    assert list(index) == ["a", "b", 5, 3]
    with pytest.raises(ValueError, match="no model"):
        index.add([drawn(0)])
    with pytest.raises(ValueError, match="no model"):
        index.search(drawn(0))
    assert_as_fresh(index)


@pytest.mark.parametrize(
    ("ids", "rows", "more"),
    [
        ([1, 2], codes(1), {}),
        ([1], codes(1, 2), {}),
        ([1], codes(1)[0], {}),
        ([1], codes(1)[:, :2], {}),
        ([1], codes(1).astype(np.int64), {}),
        ([1], codes(1).astype(float), {}),
        ([1], codes(1), {"regions": [0, 1]}),
        ([1], codes(1), {"regions": [-1]}),
        ([1], codes(1), {"regions": [256]}),
        ([1], codes(1), {"regions": [0.5]}),
        ([1], codes(1), {"metadata": [{}, {}]}),
        ([1, 1], codes(1, 2), {"metadata": [{}, {}]}),
        ("ab", codes(1, 2), {}),
        (np.array([[1, 2]]), codes(1, 2), {}),
    ],
)
def test_invalid_codes_are_refused(
    index: MCHIndex, ids: Any, rows: Any, more: dict[str, Any]
) -> None:
    index.add_codes(["there"], codes(9))
    with pytest.raises((TypeError, ValueError)):
        index.add_codes(ids, rows, **more)
    assert list(index) == ["there"]
    assert_as_fresh(index)


def test_nothing_is_stored_if_some_metadata_is_invalid(
    index: MCHIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mchindex.index.facade, "BULK", 2)
    with pytest.raises(ValueError, match="JSON"):
        index.add_codes(range(5), np.repeat(CODE[None], 5, 0), metadata=[{}] * 4 + [{"x": set()}])
    assert len(index) == 0


# Models.


def test_another_model_is_refused(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        index.add([drawn(0)])
    with pytest.raises(ModelMismatchError, match="another model"):
        MCHIndex.open(tmp_path / "i", tiny_model(1))
    with pytest.raises(ModelMismatchError, match="32 bits"):
        MCHIndex.open(tmp_path / "i", bits=64)
    with pytest.raises(ValueError, match="32 bits"):
        MCHIndex(tiny_model(), bits=64)
    with pytest.raises(ValueError, match="bits"):
        MCHIndex(bits=7)
    MCHIndex.open(tmp_path / "own", bits=BITS).close()
    with pytest.raises(ModelMismatchError, match="own codes"):
        MCHIndex.open(tmp_path / "own", tiny_model())
    with MCHIndex.open(tmp_path / "i", tiny_model(), bits=BITS) as index:
        assert len(index) == 1


# Closing.


def test_a_closed_index_cannot_be_used(tmp_path: Path) -> None:
    for index in (MCHIndex(bits=BITS), MCHIndex.open(tmp_path / "i", bits=BITS)):
        index.add_codes([1], CODE[None])
        hits = index.search_codes(CODE)
        index.close()
        index.close()
        assert "closed" in repr(index)
        for attempt in (
            lambda index: index.search_codes(CODE), lambda index: index.add_codes([1], CODE[None]),
            len, list, lambda index: index[1], lambda index: 1 in index,
            lambda index: index.remove(1), lambda index: index.stats(),
            lambda index: list(index.images()), lambda index: index.prune(),
            lambda index: index.set_metadata(1, {}), lambda index: index.search(id=1),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="closed"):
                attempt(index)
        assert hits.ids == [1]


def test_hits_outlive_the_index(tmp_path: Path) -> None:
    for index in (MCHIndex(bits=BITS), MCHIndex.open(tmp_path / "i", bits=BITS)):
        with index:
            index.add_codes([1], CODE[None], metadata=[{"a": 1}])
            answers = index.search_codes(CODE[None])
            used = index.search_codes(CODE[None])
            assert used[0].ids == [1]
        for result in (answers, used):
            assert [(hit.id, hit.metadata) for hit in result[0]] == [(1, {"a": 1})]
            assert "1 hit," in repr(result[0])


def test_stats_describe_the_index(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        index.add([drawn(i) for i in range(20)])
        stats = index.stats()
        assert stats["images"] == 20
        assert stats["codes"] == sum(len(image.codes) for image in index.images())
        assert stats["anhc"] == stats["codes"] / 20 > 1
        assert stats["bytes"] > 10_000
        assert stats["regions"][0] == "whole"
        assert "20 images" in repr(index)
