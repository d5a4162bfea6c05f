"""database.txt, test.txt and train.txt with lines such as `path 0 1 0`."""

from pathlib import Path

import pytest

from helpers.pictures import write, write_pictures
from mchindex.datasets import Dataset, open_dataset
from mchindex.errors import DatasetError

LISTS = {
    "test": "a.jpg 1 0 0\nb.jpg 0 1 1\n",
    "database": "c.jpg 1 0 1\nsub/d.jpg 0 0 1\nb.jpg 0 1 1\n",
    "train": "sub/d.jpg 0 0 1\n",
}


def lists(tmp_path: Path, spec: str = "lists:{}", **changed: str) -> Dataset:
    write_pictures(tmp_path, ["a.jpg", "b.jpg", "c.jpg", "sub/d.jpg"])
    for part, text in {**LISTS, **changed}.items():
        write(tmp_path / f"{part}.txt", text)
    return open_dataset(spec.format(tmp_path))


def split_names(dataset: Dataset) -> dict[str, list[str]]:
    return {
        split: [dataset.images.name(i) for i in rows.tolist()]
        for split, rows in dataset.splits.items()
    }


EXPECTED = {
    "query": ["a.jpg", "b.jpg"],
    "train": ["sub/d.jpg"],
    "database": ["c.jpg", "sub/d.jpg"],
}


def test_queries_are_removed_from_the_database_and_counted(tmp_path: Path) -> None:
    dataset = lists(tmp_path)
    assert dataset.classes == ("0", "1", "2")
    assert split_names(dataset) == EXPECTED
    assert dataset.skipped == {"also a query": 1}
    assert dataset.labels.astype(int).tolist() == [[1, 0, 0], [0, 1, 1], [1, 0, 1], [0, 0, 1]]
    dataset.check_leakage()


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    changed = {part: "\ufeff" + text.replace("\n", "\r\n") for part, text in LISTS.items()}
    assert split_names(lists(tmp_path, **changed)) == EXPECTED


def test_paths_are_normalised(tmp_path: Path) -> None:
    dataset = lists(tmp_path, train="./sub//d.jpg 0 0 1\nb.jpg 0 1 1\n")
    assert split_names(dataset) == EXPECTED
    assert dataset.skipped == {"also a query": 1}


def test_training_images_are_added_to_the_database(tmp_path: Path) -> None:
    assert split_names(lists(tmp_path, database="c.jpg 1 0 1\n")) == EXPECTED


def test_train_txt_is_optional(tmp_path: Path) -> None:
    lists(tmp_path)
    (tmp_path / "train.txt").unlink()
    assert split_names(open_dataset(f"lists:{tmp_path}")) == {**EXPECTED, "train": []}


def test_missing_files_and_images_without_label_are_counted(tmp_path: Path) -> None:
    more = LISTS["database"] + "none.jpg 1 0 0\nblank.jpg 0 0 0\n"
    dataset = lists(tmp_path, database=more)
    assert dataset.skipped == {"also a query": 1, "missing file": 1, "no label": 1}
    assert split_names(dataset) == EXPECTED


def test_a_prefix_can_be_stripped(tmp_path: Path) -> None:
    there = {
        part: "".join(f"/home/author/{line}\n" for line in text.splitlines())
        for part, text in LISTS.items()
    }
    with pytest.raises(DatasetError, match=r"/home/author/a\.jpg; use strip="):
        lists(tmp_path, **there)
    assert split_names(lists(tmp_path, "lists:{}?strip=/home/author", **there)) == EXPECTED


def test_classes_txt_names_the_classes(tmp_path: Path) -> None:
    assert lists(tmp_path, classes="cat\ndog\neel\n").classes == ("cat", "dog", "eel")
    with pytest.raises(DatasetError, match=r"classes\.txt names 2 classes.*3 labels per line"):
        lists(tmp_path, classes="cat\ndog\n")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"test": "a.jpg 1 0 0\nb.jpg 0 2 1\n"},
            r"test\.txt, line 2: expected a path and a 0 or 1",
        ),
        (
            {"test": "a.jpg 1 0 0\nb.jpg 0 x 1\n"},
            r"test\.txt, line 2: expected a path and a 0 or 1",
        ),
        ({"test": "a.jpg\n"}, r"test\.txt, line 1: expected a path and a 0 or 1"),
        ({"test": "a.jpg 1 0 0\n\nb.jpg 0 1 1\n"}, r"test\.txt, line 2: expected a path"),
        ({"test": "a.jpg 1 0 0\nb.jpg 0 1\n"}, r"test\.txt, line 2: expected 3 labels.*not 2"),
        ({"test": "a.jpg 1 0 0\na.jpg 1 0 0\n"}, r"test\.txt, line 2: 'a\.jpg' is already"),
        ({"test": "\n"}, r"test\.txt is empty"),
        ({"train": "sub/d.jpg 0 0 1 0\n"}, r"train\.txt has 4 labels per line.*3"),
        (
            {"train": "sub/d.jpg 0 1 1\n"},
            r"train\.txt and another list label sub/d\.jpg differently",
        ),
        ({"database": "b.jpg 0 1 1\n", "train": "b.jpg 0 1 1\n"}, "the database split is empty"),
    ],
)
def test_bad_lists_are_refused(changed: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        lists(tmp_path, **changed)
