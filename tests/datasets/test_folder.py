"""The folder layout: images/ and labels.csv."""

from pathlib import Path

import numpy as np
import pytest

from helpers.pictures import write, write_pictures
from mchindex.datasets import Dataset, open_dataset
from mchindex.errors import DatasetError, ImageError

TABLE = """\
file,split,labels
a.jpg,query,dog|cat
sub/b.jpg,train,dog
c.jpg,database,eel
"""


def folder(tmp_path: Path, table: str, encoding: str = "utf-8") -> Dataset:
    write_pictures(tmp_path / "images", ["a.jpg", "sub/b.jpg", "c.jpg"])
    write(tmp_path / "labels.csv", table, encoding)
    return open_dataset(str(tmp_path))


def assert_is_table(dataset: Dataset) -> None:
    assert dataset.classes == ("cat", "dog", "eel")
    assert dataset.labels.tolist() == [
        [True, True, False],
        [False, True, False],
        [False, False, True],
    ]
    assert [dataset.images.name(i) for i in range(3)] == ["a.jpg", "sub/b.jpg", "c.jpg"]
    splits = {split: rows.tolist() for split, rows in dataset.splits.items()}
    assert splits == {"query": [0], "train": [1], "database": [1, 2]}
    assert dataset.skipped == {}
    assert dataset.seed is None
    assert dataset.images.image(1).size == (8, 6)


def test_a_plain_table(tmp_path: Path) -> None:
    dataset = folder(tmp_path, TABLE)
    assert_is_table(dataset)
    assert dataset.name == tmp_path.name
    dataset.check_leakage()


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    assert_is_table(folder(tmp_path, TABLE.replace("\n", "\r\n"), "utf-8-sig"))


def test_column_order_spaces_and_empty_lines_do_not_matter(tmp_path: Path) -> None:
    table = "labels, file ,split\n\n dog | cat ,./a.jpg, query\ndog,sub//b.jpg,train\n\n"
    assert_is_table(folder(tmp_path, table + "eel|,c.jpg,database"))


def test_names_may_have_spaces_commas_and_any_letters(tmp_path: Path) -> None:
    names = ["my cat.jpg", "ä 図/ç.jpg", 'a, "b".jpg']
    write_pictures(tmp_path / "images", names)
    table = (
        "file,split,labels\nmy cat.jpg,query,grüne Äpfel\nä 図/ç.jpg,train,犬|grüne Äpfel\n"
        '"a, ""b"".jpg",database,犬\n'
    )
    write(tmp_path / "labels.csv", table)
    dataset = open_dataset(tmp_path)
    assert [dataset.images.name(i) for i in range(3)] == names
    assert dataset.classes == ("grüne Äpfel", "犬")
    dataset.check_leakage()


def test_classes_txt_fixes_the_classes_and_their_order(tmp_path: Path) -> None:
    write(tmp_path / "classes.txt", "\ufeffeel\r\nunicorn\r\ndog\r\ncat\r\n")
    dataset = folder(tmp_path, TABLE)
    assert dataset.classes == ("eel", "unicorn", "dog", "cat")  # there is no image of a unicorn
    assert dataset.labels.sum(0).tolist() == [1, 0, 2, 1]


def test_a_class_missing_from_classes_txt(tmp_path: Path) -> None:
    write(tmp_path / "classes.txt", "eel\ndog\n")
    with pytest.raises(DatasetError, match=r"labels\.csv, line 2: class 'cat'.*classes\.txt"):
        folder(tmp_path, TABLE)


@pytest.mark.parametrize("text", ["eel\ndog\neel\n", "eel\n\ndog\n", "", "\n"])
def test_bad_classes_txt(text: str, tmp_path: Path) -> None:
    write(tmp_path / "classes.txt", text)
    with pytest.raises(DatasetError, match=r"classes\.txt"):
        folder(tmp_path, TABLE)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "line 1: expected a header"),
        ("a.jpg,query,dog\n", "line 1: expected a header"),
        ("file,splits,labels\na.jpg,query,dog\n", "line 1: expected a header.*file,splits,labels"),
        ("file,split,labels\n", "no rows"),
        (TABLE + "d.jpg,query\n", r"line 5: expected 3 columns \(file, split, labels\), not 2"),
        (TABLE + "d, e.jpg,query,dog\n", "line 5: expected 3 columns.*not 4.*quote names"),
        (TABLE + "d.jpg,test,dog\n", "line 5: split 'test' is not one of query, train, database"),
        (TABLE + "d.jpg,,dog\n", "line 5: expected a split"),
        ("file,split,labels\na.jpg,,dog\nc.jpg,query,dog\n", "line 3: expected no split"),
        (TABLE + ",query,dog\n", "line 5: the file name is empty"),
        (TABLE + "./a.jpg,query,dog\n", r"line 5: 'a\.jpg' is already in line 2"),
        (TABLE + '"d.jpg"x,query,dog\n', "line 5: "),
        (TABLE + '"d.jpg,query,dog\n', "line 5: "),
        ("file,split,labels\na.jpg,query,\n", "none of the 1 images listed has a label"),
        (TABLE.replace("query", "train"), "the query split is empty"),
    ],
)
def test_bad_tables_are_refused(table: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=message):
        folder(tmp_path, table)


def test_a_table_that_is_not_utf8(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"labels\.csv is not UTF-8"):
        folder(tmp_path, TABLE.replace("eel", "ä"), "latin-1")


def test_images_without_label_or_file_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = "none.jpg,train,cat\nblank.jpg,query,\nno/where.jpg,database,dog|cat\n"
    dataset = folder(tmp_path, TABLE.replace("c.jpg", rows + "c.jpg"))
    assert dataset.skipped == {"no label": 1, "missing file": 2}
    assert dataset.labels.any(1).all()
    assert_is_table(
        Dataset(
            dataset.name,
            dataset.classes,
            dataset.labels,
            dataset.images,
            dataset.splits,
            skipped={},
        )
    )


def test_all_files_missing(tmp_path: Path) -> None:
    write(tmp_path / "labels.csv", TABLE)
    with pytest.raises(DatasetError, match=r"none of the 3 labelled images.*images.a\.jpg"):
        open_dataset(tmp_path)


def test_a_broken_image_can_be_left_out(tmp_path: Path) -> None:
    dataset = folder(tmp_path, TABLE)
    path = tmp_path / "images" / "c.jpg"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ImageError, match=r"c\.jpg"):
        dataset.images.image(2)
    assert dataset.without([2], "broken image").skipped == {"broken image": 1}


@pytest.mark.parametrize("header", ["file,labels", "file,split,labels"])
def test_without_splits_images_are_split_at_random(header: str, tmp_path: Path) -> None:
    names = [f"{i:02d}.jpg" for i in range(40)]
    for name in names:
        write(tmp_path / "images" / name, "not opened")
    comma = "," * header.count(",")
    rows = "".join(f"{name}{comma}{'ab'[i % 2]}\n" for i, name in enumerate(names))
    write(tmp_path / "labels.csv", f"{header}\n{rows}")
    first, again, other = (open_dataset(tmp_path, seed=seed) for seed in (7, 7, 8))
    assert {s: len(r) for s, r in first.splits.items()} == {"query": 4, "train": 18, "database": 36}
    for split in first.splits:
        np.testing.assert_array_equal(first.splits[split], again.splits[split])
    assert first.splits["query"].tolist() != other.splits["query"].tolist()
    assert (first.seed, other.seed) == (7, 8)
