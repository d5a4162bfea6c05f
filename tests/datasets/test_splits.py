"""Splits: random ones have the requested sizes, saved ones are read back exactly."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mchindex.datasets import Dataset, load_split, open_dataset, save_split
from mchindex.datasets.splits import random_split, random_split_per_class
from mchindex.errors import DatasetError


class Named:
    """Images that have names and nothing else."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def image(self, i: int) -> Image.Image:
        raise AssertionError("a split needs no pixels")

    def key(self, i: int) -> bytes:
        raise AssertionError("a split needs no content")

    def name(self, i: int) -> str:
        return self.names[i]


def dataset_of(names: list[str], splits: dict[str, list[int]], seed: int | None = None) -> Dataset:
    return Dataset(
        name="named",
        classes=("a", "ß"),
        labels=np.ones((len(names), 2), np.bool_),
        images=Named(names),
        splits={split: np.array(rows, np.int64) for split, rows in splits.items()},
        skipped={},
        seed=seed,
    )


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    # Any characters, lone surrogates included: Python uses them for file names that are not UTF-8.
    name = st.text(st.characters(), min_size=1, max_size=6)
    names = draw(st.lists(name, min_size=2, max_size=10, unique=True))
    places = draw(st.lists(st.sampled_from(["query", "train", "database", ""]), min_size=10))
    places[:2] = ["query", "database"]
    rows: dict[str, list[int]] = {
        split: [i for i in range(len(names)) if places[i] == split] for split in ("query", "train")
    }
    rows["database"] = [i for i in range(len(names)) if places[i] in ("train", "database")]
    return dataset_of(names, rows, draw(st.none() | st.integers(0, 2**70)))


@given(dataset=datasets(), random=st.randoms())
def test_round_trip(
    dataset: Dataset, random: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("split") / "split.json"
    save_split(dataset, path)
    # A data set with the images in another order and in other splits.
    order = list(range(len(dataset)))
    random.shuffle(order)
    names = [dataset.images.name(i) for i in order]
    other = dataset_of(names, {"query": [0], "train": [], "database": [1]})
    loaded = load_split(other, path)
    for split, rows in dataset.splits.items():
        expected = {dataset.images.name(i) for i in rows.tolist()}
        assert {names[i] for i in loaded.splits[split].tolist()} == expected
        assert len(loaded.splits[split]) == len(rows)
    assert loaded.seed == dataset.seed
    for split in dataset.splits:
        np.testing.assert_array_equal(
            load_split(dataset, path).splits[split], dataset.splits[split]
        )


NAMES = ["a.jpg", "b.jpg", "c.jpg"]
SPLITS = {"query": [0], "train": [], "database": [1, 2]}


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "split.json"
    save_split(dataset_of(NAMES, SPLITS, seed=5), path)
    return path


def test_the_manifest_lists_names(tmp_path: Path) -> None:
    manifest = json.loads(saved(tmp_path).read_text())
    assert manifest["splits"] == {"query": ["a.jpg"], "train": [], "database": ["b.jpg", "c.jpg"]}
    assert (manifest["name"], manifest["seed"], manifest["classes"]) == ("named", 5, ["a", "ß"])


def test_a_failed_write_leaves_the_old_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        save_split(dataset_of(["x", "y"], {"query": [0], "train": [], "database": [1]}), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_images_that_the_manifest_does_not_list_are_in_no_split(tmp_path: Path) -> None:
    more = dataset_of(["new.jpg", *NAMES], {"query": [0], "train": [], "database": [1]})
    loaded = load_split(more, saved(tmp_path))
    assert loaded.splits["query"].tolist() == [1]
    assert loaded.splits["database"].tolist() == [2, 3]


def test_the_manifest_may_only_list_existing_images(tmp_path: Path) -> None:
    less = dataset_of(NAMES[:2], {"query": [0], "train": [], "database": [1]})
    with pytest.raises(DatasetError, match=r"lists 1 images that named does not have.* 'c\.jpg'"):
        load_split(less, saved(tmp_path))


def test_names_must_be_unique(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="two images are named 'a'"):
        save_split(dataset_of(["a", "b", "a"], SPLITS), tmp_path / "split.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a split manifest"),
        ({"version": 2}, "version 2; mchindex reads version 1"),
        ({"classes": ["a", "b"]}, "other classes: a, b; named has a, ß"),
        ({"splits": {"query": ["a.jpg"]}}, "not a split manifest"),
        ({"splits": []}, "not a split manifest"),
        ({"splits": {"query": [[]], "train": [], "database": []}}, "named does not have"),
        (
            {"splits": {"query": ["a.jpg"], "train": [], "database": ["a.jpg"]}},
            r"queries and in the database, for example a\.jpg",
        ),
        ({"splits": {"query": ["a.jpg"] * 2, "train": [], "database": ["b.jpg"]}}, "repeats"),
    ],
)
def test_bad_manifests_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DatasetError, match=message):
        load_split(dataset_of(NAMES, SPLITS), path)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"{", b"\xff\xfe"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    with pytest.raises(DatasetError, match="missing"):
        load_split(dataset_of(NAMES, SPLITS), path)
    path.write_bytes(content)
    with pytest.raises(DatasetError, match="not a split manifest"):
        load_split(dataset_of(NAMES, SPLITS), path)


def test_a_saved_random_split_can_be_loaded(tmp_path: Path) -> None:
    save_split(open_dataset("scenes:30?queries=7"), tmp_path / "split.json")
    loaded = load_split(open_dataset("scenes:30"), tmp_path / "split.json")
    assert len(loaded.splits["query"]) == 7
    with pytest.raises(DatasetError, match="lists 30 images that scenes does not have"):
        load_split(open_dataset("scenes:30", seed=1), tmp_path / "split.json")


@given(st.integers(2, 60), st.data(), st.integers(0, 2**32))
def test_random_split(n: int, data: st.DataObject, seed: int) -> None:
    queries = data.draw(st.integers(1, n - 1))
    train = data.draw(st.integers(0, n - queries))
    splits = random_split(n, queries, train, seed)
    assert [len(splits[s]) for s in ("query", "train", "database")] == [queries, train, n - queries]
    assert sorted([*splits["query"], *splits["database"]]) == list(range(n))
    assert set(splits["train"]) <= set(splits["database"])


@pytest.mark.parametrize(("queries", "train"), [(0, 1), (-1, 0), (10, 0), (4, 7), (4, -1)])
def test_random_split_needs_enough_images(queries: int, train: int) -> None:
    with pytest.raises(DatasetError, match=f"{queries} queries and {train} training.* 10 usable"):
        random_split(10, queries, train, 0)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 4))
def test_random_split_per_class(seed: int, queries: int, train: int) -> None:
    labels = np.random.default_rng(seed).random((80, 3)) < [0.9, 0.0, 0.5]
    splits = random_split_per_class(labels, ("much", "none", "some"), queries, train, seed)
    assert len(splits["query"]) == 2 * queries
    assert len(splits["train"]) == 2 * train
    assert (labels[splits["query"]].sum(0)[[0, 2]] >= queries).all()
    assert sorted([*splits["query"], *splits["database"]]) == list(range(80))
    assert set(splits["train"]) <= set(splits["database"])


def test_the_rarest_class_chooses_first() -> None:
    # The only image of the rare class also has the common class, which must not take it.
    labels = np.array([[1, 1], [1, 0], [1, 0]], np.bool_)
    for seed in range(20):
        splits = random_split_per_class(labels, ("common", "rare"), 1, 0, seed)
        assert 0 in splits["query"]


@pytest.mark.parametrize(("queries", "train"), [(0, 1), (1, -1)])
def test_random_split_per_class_needs_a_query(queries: int, train: int) -> None:
    with pytest.raises(DatasetError, match=f"queries={queries}, train={train}"):
        random_split_per_class(np.ones((4, 1), np.bool_), ("a",), queries, train, 0)
