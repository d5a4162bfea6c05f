"""Data sets: consistent parts, no query in the database, and the specs that open them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.pictures import write, write_pictures
from mchindex.datasets import Dataset, FileSource, load_split, open_dataset
from mchindex.errors import DatasetError, ImageError
from mchindex.images import digest


def small(tmp_path: Path, **changes: Any) -> Dataset:
    """Five images: 0 and 3 are queries, 1, 2 and 4 the database, 2 and 4 for training."""
    names = [f"{i}.jpg" for i in range(5)]
    write_pictures(tmp_path, names)
    parts: dict[str, Any] = {
        "name": "small",
        "classes": ("cat", "dog", "eel"),
        "labels": np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 0], [1, 1, 0]], bool),
        "images": FileSource(tmp_path, names),
        "splits": {"query": [0, 3], "train": [2, 4], "database": [1, 2, 4]},
        "skipped": {"no label": 2},
    }
    return Dataset(**{**parts, **changes})


def test_images_are_read_from_files(tmp_path: Path) -> None:
    dataset = small(tmp_path)
    assert len(dataset) == len(dataset.images) == 5
    assert dataset.images.name(3) == "3.jpg"
    assert dataset.images.key(3) == digest(tmp_path / "3.jpg")
    assert dataset.images.image(3).size == (8, 6)
    (tmp_path / "3.jpg").unlink()
    with pytest.raises(ImageError, match=r"3\.jpg"):
        dataset.images.key(3)
    with pytest.raises(ImageError, match=r"3\.jpg"):
        dataset.images.image(3)


SPLITS = {"query": [0, 3], "train": [2, 4], "database": [1, 2, 4]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.zeros((5, 2), bool)}, r"labels.*\(5, 3\).*\(5, 2\)"),
        ({"labels": np.zeros((4, 3), bool)}, r"labels.*\(5, 3\).*\(4, 3\)"),
        ({"labels": np.zeros((5, 3))}, "bool.*float64"),
        ({"classes": (), "labels": np.zeros((5, 0), bool)}, "at least one class"),
        ({"classes": ("cat", "cat", "eel")}, "class names must be unique"),
        ({"splits": {"query": [0], "database": [1]}}, "query, train, database"),
        ({"splits": {**SPLITS, "test": [0]}}, "query, train, database"),
        ({"splits": {**SPLITS, "query": []}}, "the query split is empty"),
        ({"splits": {**SPLITS, "database": [], "train": []}}, "the database split is empty"),
        ({"splits": {**SPLITS, "query": [0, 5]}}, "query split.*0 to 5.*0 to 4"),
        ({"splits": {**SPLITS, "query": [-1]}}, "query split"),
        ({"splits": {**SPLITS, "query": [3, 0]}}, "query split must be ascending"),
        ({"splits": {**SPLITS, "query": [0, 0]}}, "query split must be ascending"),
        ({"splits": {**SPLITS, "query": [0.0]}}, "query split.*float64"),
        ({"splits": {**SPLITS, "query": [[0]]}}, "query split"),
        ({"splits": {**SPLITS, "query": [0, 1]}}, r"1 images are both queries and.*1\.jpg"),
        ({"splits": {**SPLITS, "train": [3]}}, r"1 training images are not in.*3\.jpg"),
    ],
)
def test_inconsistent_parts_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError, match=message):
        small(tmp_path, **changes)


def test_training_split_and_classes_may_be_empty(tmp_path: Path) -> None:
    dataset = small(tmp_path, splits={**SPLITS, "train": []})
    assert dataset.splits["train"].tolist() == []
    assert dataset.splits["train"].dtype == np.int64
    assert not dataset.labels[:, 2].any()


def test_arrays_are_read_only_copies(tmp_path: Path) -> None:
    labels = np.ones((5, 3), bool)
    dataset = small(tmp_path, labels=labels)
    labels[:] = False
    assert dataset.labels.all()
    with pytest.raises(ValueError, match="read-only"):
        dataset.labels[0, 0] = False
    with pytest.raises(ValueError, match="read-only"):
        dataset.splits["query"][0] = 1


def test_leaks_are_found_by_content(tmp_path: Path) -> None:
    dataset = small(tmp_path)
    dataset.check_leakage()
    (tmp_path / "4.jpg").write_bytes((tmp_path / "3.jpg").read_bytes())
    assert dataset.leaks() == [(3, 4)]
    with pytest.raises(DatasetError, match=r"1 database images.*4\.jpg.*the query 3\.jpg"):
        dataset.check_leakage()
    repaired = dataset.without([d for _, d in dataset.leaks()], "also a query")
    repaired.check_leakage()
    assert repaired.skipped == {"no label": 2, "also a query": 1}


def test_without_renumbers_the_other_images(tmp_path: Path) -> None:
    dataset = small(tmp_path).without(iter([2, 0, 2]), "broken")
    assert [dataset.images.name(i) for i in range(len(dataset))] == ["1.jpg", "3.jpg", "4.jpg"]
    assert dataset.images.key(1) == digest(tmp_path / "3.jpg")
    assert dataset.images.image(1).size == (8, 6)
    assert dataset.labels.tolist() == small(tmp_path).labels[[1, 3, 4]].tolist()
    assert as_lists(dataset.splits) == {"query": [1], "train": [2], "database": [0, 2]}
    assert dataset.skipped == {"no label": 2, "broken": 2}
    again = dataset.without([0], "broken")
    assert again.images.name(0) == "3.jpg"
    assert again.skipped == {"no label": 2, "broken": 3}


def test_without_no_images_and_without_too_many(tmp_path: Path) -> None:
    dataset = small(tmp_path)
    assert dataset.without([], "broken") is dataset
    with pytest.raises(DatasetError, match="3 to 5"):
        dataset.without([3, 5], "broken")
    with pytest.raises(DatasetError, match="the query split is empty"):
        dataset.without([0, 3], "broken")


@given(st.data())
def test_without_keeps_every_other_image_in_its_split(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 12))
    dataset = open_dataset(f"scenes:{n}?size=16")
    bad = data.draw(st.sets(st.integers(0, n - 1)))
    kept = {split: rows for split, rows in names(dataset, bad).items() if split != "train"}
    if not all(kept.values()):
        with pytest.raises(DatasetError):
            dataset.without(bad, "bad")
    else:
        assert names(dataset.without(bad, "bad")) == names(dataset, bad)


def names(dataset: Dataset, bad: set[int] | None = None) -> dict[str, list[str]]:
    return {
        split: [dataset.images.name(i) for i in rows if i not in (bad or ())]
        for split, rows in as_lists(dataset.splits).items()
    }


def as_lists(splits: Mapping[str, Any]) -> dict[str, list[int]]:
    return {split: rows.tolist() for split, rows in splits.items()}


@pytest.mark.parametrize("spec", ["", "nowhere", "cocoa:/x", "https://example.org/x"])
def test_an_unknown_spec_lists_the_kinds(spec: str) -> None:
    with pytest.raises(DatasetError) as caught:
        open_dataset(spec)
    for kind in ("folder:", "coco:", "nuswide:", "mirflickr:", "lists:", "scenes:", "labels.csv"):
        assert kind in str(caught.value)


def test_a_folder_without_labels_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a folder without labels\.csv"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("coco:nowhere", "'nowhere' is not a folder"),
        ("coco:.", "not a COCO folder"),
        ("mirflickr:.", "not a MIRFLICKR folder"),
        ("nuswide:.", r"Imagelist\.txt is missing"),
        ("lists:.", r"test\.txt is missing"),
        ("coco:.?size=3", "no option size; its options: queries, train"),
        ("scenes:many", "whole number.*many"),
        ("scenes:20?size=big", "whole number.*big"),
        ("scenes:0", "n ≥ 1"),
        ("scenes:20?queries=20", "20 queries.*20 usable"),
        ("scenes:20?queries=5&train=16", "16 training images.*20 usable"),
    ],
)
def test_bad_specs_are_refused(
    spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError, match=message):
        open_dataset(spec)


def test_options_in_the_spec_and_as_keywords() -> None:
    dataset = open_dataset("scenes:20?queries=3&size=16", queries=4, train=2)
    assert {split: len(rows) for split, rows in dataset.splits.items()} == {
        "query": 4,
        "train": 2,
        "database": 16,
    }
    assert dataset.images.image(0).size == (16, 16)
    with pytest.raises(DatasetError, match="no option colour"):
        open_dataset("scenes:20", colour=3)


def test_a_folder_name_may_look_like_options(tmp_path: Path) -> None:
    root = tmp_path / "what?a=b"
    write_pictures(root / "images", ["a.jpg", "b.jpg"])
    write(root / "labels.csv", "file,split,labels\na.jpg,query,x\nb.jpg,database,x\n")
    assert len(open_dataset(root)) == len(open_dataset(f"folder:{root}")) == 2


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("classes.txt", "{}"),
        ("labels.csv", "{}"),
        ("test.txt", "lists:{}"),
        ("annotations/instances_val2014.json", "coco:{}"),
        ("ImageList/Imagelist.txt", "nuswide:{}"),
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_refused(name: str, spec: str, tmp_path: Path) -> None:
    write(tmp_path / "labels.csv", "file,labels\na.jpg,x\n")
    (tmp_path / "val2014").mkdir()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(DatasetError):
        open_dataset(spec.format(tmp_path))
    with pytest.raises(DatasetError, match="not a regular file"):
        load_split(small(tmp_path / "small"), tmp_path / name)
