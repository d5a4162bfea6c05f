"""Small copies of MS-COCO, NUS-WIDE and MIRFLICKR-25k in their published layouts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.pictures import write, write_pictures
from mchindex.datasets import Dataset, open_dataset
from mchindex.datasets.mirflickr import CLASSES
from mchindex.errors import DatasetError


def names_of(dataset: Dataset) -> list[str]:
    return [dataset.images.name(i) for i in range(len(dataset))]


def sizes(dataset: Dataset) -> tuple[int, ...]:
    return tuple(len(dataset.splits[split]) for split in ("query", "train", "database"))


# --- MS-COCO ---------------------------------------------------------------------------------

CATEGORIES = [(90, "toothbrush"), (1, "person"), (13, "stop sign")]  # ids have gaps


def coco_part(root: Path, part: str, first_id: int, labels: Sequence[Sequence[int]]) -> list[str]:
    """Writes an image per entry, with an object of each of its categories; gives the paths."""
    prefix = f"COCO_{part}_" if part.endswith("2014") else ""
    files = [f"{prefix}{first_id + i:012d}.jpg" for i in range(len(labels))]
    tree = {
        "info": {},
        "images": [
            {"id": first_id + i, "file_name": file, "width": 8, "height": 6}
            for i, file in enumerate(files)
        ],
        "categories": [{"id": id_, "name": name, "supercategory": "x"} for id_, name in CATEGORIES],
        "annotations": [
            {
                "id": 1,
                "image_id": first_id + i,
                "category_id": c,
                "iscrowd": 0,
                "bbox": [0, 0, 1, 1],
            }
            for i, present in enumerate(labels)
            for c in present
        ],
    }
    write(root / "annotations" / f"instances_{part}.json", json.dumps(tree))
    write_pictures(root / part, files)
    return [f"{part}/{file}" for file in files]


@pytest.mark.parametrize("year", ["2014", "2017"])
def test_coco(year: str, tmp_path: Path) -> None:
    train = coco_part(tmp_path, f"train{year}", 9, [[1], [90, 90, 13], [], [13]])
    val = coco_part(tmp_path, f"val{year}", 500, [[1, 90], [1], [90]])
    dataset = open_dataset(f"coco:{tmp_path}?queries=2&train=3")
    assert dataset.classes == ("person", "stop sign", "toothbrush")
    assert names_of(dataset) == [train[0], train[1], train[3], *val]
    assert dataset.labels.astype(int).tolist() == [
        [1, 0, 0],
        [0, 1, 1],
        [0, 1, 0],
        [1, 0, 1],
        [1, 0, 0],
        [0, 0, 1],
    ]
    assert dataset.skipped == {"no label": 1}
    assert sizes(dataset) == (2, 3, 4)
    assert dataset.images.image(0).size == (8, 6)


def test_coco_crowds_count_as_labels(tmp_path: Path) -> None:
    coco_part(tmp_path, "val2017", 1, [[1], [90], [90]])
    path = tmp_path / "annotations" / "instances_val2017.json"
    tree = json.loads(path.read_text())
    tree["annotations"][0]["iscrowd"] = 1
    path.write_text(json.dumps(tree))
    assert open_dataset(f"coco:{tmp_path}", queries=1, train=1).labels[:, 0].tolist() == [1, 0, 0]


def test_coco_with_only_one_part(tmp_path: Path) -> None:
    coco_part(tmp_path, "val2017", 1, [[1], [90], [13]])
    # The published annotations come for both parts, even if the user has one part's images.
    write(tmp_path / "annotations" / "instances_train2017.json", "not read")
    dataset = open_dataset(f"coco:{tmp_path}?queries=1&train=2")
    assert (len(dataset), dataset.skipped) == (3, {})


def test_coco_missing_files_are_counted(tmp_path: Path) -> None:
    names = coco_part(tmp_path, "val2014", 1, [[1], [90], [13]])
    (tmp_path / names[1]).unlink()
    dataset = open_dataset(f"coco:{tmp_path}?queries=1&train=1")
    assert names_of(dataset) == [names[0], names[2]]
    assert dataset.skipped == {"missing file": 1}


def test_coco_with_too_few_images(tmp_path: Path) -> None:
    coco_part(tmp_path, "val2017", 1, [[1], [90], [13]])
    with pytest.raises(DatasetError, match="5000 queries and 10000 training images from 3 usable"):
        open_dataset(f"coco:{tmp_path}")


def test_coco_splits_follow_the_seed(tmp_path: Path) -> None:
    coco_part(tmp_path, "val2017", 1, [[1]] * 40)
    spec = f"coco:{tmp_path}?queries=8&train=10"
    first, again, other = (open_dataset(spec, seed=seed) for seed in (1, 1, 2))
    for split in first.splits:
        np.testing.assert_array_equal(first.splits[split], again.splits[split])
        assert first.splits[split].tolist() != other.splits[split].tolist()


def change_categories(tree: dict[str, Any]) -> None:
    tree["categories"].pop()


def change_annotations(tree: dict[str, Any]) -> None:
    tree["annotations"][0]["image_id"] = 77


def change_key(tree: dict[str, Any]) -> None:
    del tree["images"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_categories, "image 500 and category 13"),
        (change_annotations, "image 77 and category 1"),
        (change_key, "not a COCO instances file: no 'images'"),
    ],
)
def test_coco_damaged_annotations(change: Any, message: str, tmp_path: Path) -> None:
    coco_part(tmp_path, "val2014", 500, [[1, 13]])
    path = tmp_path / "annotations" / "instances_val2014.json"
    tree = json.loads(path.read_text())
    change(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(DatasetError, match=rf"instances_val2014\.json.*{message}"):
        open_dataset(f"coco:{tmp_path}")
    path.write_text("{")
    with pytest.raises(DatasetError, match=r"instances_val2014\.json is not JSON"):
        open_dataset(f"coco:{tmp_path}")


def test_coco_parts_with_different_categories(tmp_path: Path) -> None:
    coco_part(tmp_path, "train2014", 1, [[1]])
    coco_part(tmp_path, "val2014", 1, [[1]])
    path = tmp_path / "annotations" / "instances_val2014.json"
    path.write_text(path.read_text().replace("person", "robot"))
    with pytest.raises(
        DatasetError, match=r"val2014.*different categories from instances_train2014"
    ):
        open_dataset(f"coco:{tmp_path}")


# --- NUS-WIDE --------------------------------------------------------------------------------

CONCEPTS = ["airport", "animal", "beach", "bear"]
IDS = [2124494179, 56, 1234567, 481827288, 815043568, 99, 2312345678, 1998877665]
TRUTH = np.array(  # animal and bear are the most frequent
    [
        [0, 1, 0, 0],
        [0, 1, 0, 1],
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
        [0, 1, 1, 1],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
    ]
)


def nuswide(root: Path, truth: Any = TRUTH, ids: Sequence[int] = IDS, end: str = "\r\n") -> None:
    listed = "".join(f"actor\\{i:04d}_{id_}.jpg{end}" for i, id_ in enumerate(ids, 1))
    write(root / "ImageList" / "Imagelist.txt", listed)
    write(root / "ConceptsList" / "Concepts81.txt", "".join(f"{c}{end}" for c in CONCEPTS))
    for concept, column in zip(CONCEPTS, np.asarray(truth).T, strict=True):
        path = root / "Groundtruth" / "AllLabels" / f"Labels_{concept}.txt"
        write(path, "".join(f"{flag}{end}" for flag in column))
    # As published, with the id alone, with Flickr's secret after it, and with a number before it.
    names = [f"Flickr/actor/{i:04d}_{id_}.jpg" for i, id_ in enumerate(ids[:3], 1)]
    names += [f"more/{ids[3]}.JPG", f"more/{ids[4]}_a4bf6754ba_m.jpg", f"{ids[5]}.png"]
    names += [f"98796_{id_}_a4bf6754ba_m.jpg" for id_ in ids[6:]]
    write_pictures(root, names)


SPEC = "nuswide:{}?concepts=2&queries=1&train=1"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_nuswide(end: str, tmp_path: Path) -> None:
    nuswide(tmp_path, end=end)
    write(tmp_path / "Flickr" / "readme_56.txt", "no image")
    dataset = open_dataset(SPEC.format(tmp_path))
    assert dataset.classes == ("animal", "bear")
    assert dataset.skipped == {"no label": 1}
    assert names_of(dataset) == [
        "Flickr/actor/0001_2124494179.jpg",
        "Flickr/actor/0002_56.jpg",
        "more/481827288.JPG",
        "more/815043568_a4bf6754ba_m.jpg",
        "99.png",
        "98796_2312345678_a4bf6754ba_m.jpg",
        "98796_1998877665_a4bf6754ba_m.jpg",
    ]
    assert dataset.labels.tolist() == TRUTH[[0, 1, 3, 4, 5, 6, 7]][:, [1, 3]].astype(bool).tolist()
    assert sizes(dataset) == (2, 2, 5)
    dataset.check_leakage()


def test_nuswide_missing_files_and_repeated_ids(tmp_path: Path) -> None:
    ids = [*IDS[:6], IDS[0], IDS[7]]
    nuswide(tmp_path, ids=ids)
    (tmp_path / "99.png").unlink()
    dataset = open_dataset(SPEC.format(tmp_path))
    assert dataset.skipped == {"no label": 1, "listed twice": 1, "missing file": 1}
    assert len(set(names_of(dataset))) == len(dataset) == 5


def test_nuswide_images_behind_a_link(tmp_path: Path) -> None:
    nuswide(tmp_path / "set")
    (tmp_path / "set" / "Flickr").rename(tmp_path / "disk")
    (tmp_path / "set" / "Flickr").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "loop").symlink_to(tmp_path / "set")
    assert len(open_dataset(SPEC.format(tmp_path / "set"))) == 7


def test_nuswide_chooses_queries_and_training_images_per_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random((120, 4)) < [0.5, 0.2, 0.4, 0.0]).astype(int)
    nuswide(tmp_path, truth, range(1000, 1120))
    spec = f"nuswide:{tmp_path}?concepts=4&queries=4&train=6"
    dataset = open_dataset(spec, seed=3)
    # bear has no image; the other classes get their share, and no image is chosen twice.
    assert sizes(dataset) == (12, 18, len(dataset) - 12)
    for split, least in (("query", 4), ("train", 6)):
        assert (dataset.labels[dataset.splits[split]].sum(0)[:3] >= least).all()
    assert open_dataset(spec, seed=3).splits["train"].tolist() == dataset.splits["train"].tolist()
    assert open_dataset(spec, seed=4).splits["train"].tolist() != dataset.splits["train"].tolist()


def test_nuswide_with_too_few_images(tmp_path: Path) -> None:
    nuswide(tmp_path)
    with pytest.raises(
        DatasetError, match=r"'bear' has 4 usable.*100 in the query.*lower queries="
    ):
        open_dataset(f"nuswide:{tmp_path}?concepts=2")
    with pytest.raises(DatasetError, match=r"'bear' has 4 usable.*4 in the train.*lower train="):
        open_dataset(f"nuswide:{tmp_path}?concepts=2&queries=1&train=4")
    with pytest.raises(DatasetError, match="concepts=21: expected 1 to 4"):
        open_dataset(f"nuswide:{tmp_path}")


def test_nuswide_files_of_different_lengths(tmp_path: Path) -> None:
    nuswide(tmp_path)
    write(tmp_path / "Groundtruth" / "AllLabels" / "Labels_beach.txt", "0\n1\n")
    with pytest.raises(
        DatasetError, match=r"Labels_beach\.txt has 2 lines, but Imagelist\.txt.* 8"
    ):
        open_dataset(SPEC.format(tmp_path))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("Groundtruth/AllLabels/Labels_bear.txt", "0\n0\n2\n0\n0\n0\n0\n1\n", "line 3.*0 or 1"),
        ("ImageList/Imagelist.txt", "actor\\0001_12.jpg\nactor\\x.jpg\n", "line 2.*a name such as"),
    ],
)
def test_nuswide_bad_lines(file: str, text: str, message: str, tmp_path: Path) -> None:
    nuswide(tmp_path)
    write(tmp_path / file, text)
    with pytest.raises(DatasetError, match=rf"{Path(file).name}.*{message}"):
        open_dataset(SPEC.format(tmp_path))


def test_nuswide_without_images(tmp_path: Path) -> None:
    nuswide(tmp_path)
    for path in list(tmp_path.rglob("*.*g")) + list(tmp_path.rglob("*.JPG")):
        path.unlink()
    with pytest.raises(DatasetError, match=r"none of the 7 labelled images.*2124494179\.jpg"):
        open_dataset(SPEC.format(tmp_path))


# --- MIRFLICKR-25k ---------------------------------------------------------------------------


def mirflickr(images: Path, annotations: Path, end: str = "\r\n") -> None:
    """im1 … im12: image i has class number i, but dogs are 6 and 7, and image 12 has no class."""
    write_pictures(images, [f"im{i}.jpg" for i in range(1, 13)])
    for c, name in enumerate(CLASSES):
        ids = [6, 7] if name == "dog" else [c] if 1 <= c <= 11 else []
        write(annotations / f"{name}.txt", "".join(f"{i}{end}" for i in ids))
    write(annotations / "dog_r1.txt", f"7{end}")
    write(annotations / "README.txt", "Annotations of the collection.")


ANNOTATIONS = "mirflickr25k_annotations_v080"


@pytest.mark.parametrize(
    ("images", "annotations", "where"),
    [
        ("mirflickr", ANNOTATIONS, "."),
        (".", ANNOTATIONS, "."),
        ("mirflickr", ANNOTATIONS, "mirflickr"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_mirflickr(images: str, annotations: str, where: str, end: str, tmp_path: Path) -> None:
    mirflickr(tmp_path / images, tmp_path / annotations, end)
    dataset = open_dataset(f"mirflickr:{tmp_path / where}?queries=3&train=4")
    assert dataset.classes == CLASSES
    assert len(CLASSES) == 24
    # Ordered by number, not by name: im10 comes after im9.
    assert names_of(dataset) == [f"im{i}.jpg" for i in (1, 2, 3, 4, 6, 7, 8, 9, 10, 11)]
    assert dataset.skipped == {"no label": 2}  # 12, and 5, because class 5 is dog
    assert sizes(dataset) == (3, 4, 7)
    assert dataset.labels[:, CLASSES.index("dog")].tolist() == [i in (4, 5) for i in range(10)]
    assert dataset.images.image(0).size == (8, 6)


def test_mirflickr_with_chosen_classes(tmp_path: Path) -> None:
    mirflickr(tmp_path / "mirflickr", tmp_path / ANNOTATIONS)
    spec = f"mirflickr:{tmp_path}?queries=1&train=1"
    for dataset in (
        open_dataset(f"{spec}&classes=dog_r1,clouds"),
        open_dataset(spec, classes=["dog_r1", "clouds"]),
    ):
        assert dataset.classes == ("dog_r1", "clouds")
        assert names_of(dataset) == ["im4.jpg", "im7.jpg"]
        assert dataset.skipped == {"no label": 10}
    with pytest.raises(DatasetError, match=r"cow\.txt is missing; available classes: animals, "):
        open_dataset(spec, classes=["cow"])


def test_mirflickr_missing_files_are_counted(tmp_path: Path) -> None:
    mirflickr(tmp_path / "mirflickr", tmp_path / ANNOTATIONS)
    (tmp_path / "mirflickr" / "im7.jpg").unlink()
    dataset = open_dataset(f"mirflickr:{tmp_path}?queries=3&train=4")
    assert dataset.skipped == {"no label": 2, "missing file": 1}


@pytest.mark.parametrize("line", ["x", "0", "-3", "4.5", "1 2"])
def test_mirflickr_bad_lines(line: str, tmp_path: Path) -> None:
    mirflickr(tmp_path / "mirflickr", tmp_path / ANNOTATIONS)
    write(tmp_path / ANNOTATIONS / "sea.txt", f"3\n{line}\n")
    with pytest.raises(DatasetError, match=rf"sea\.txt, line 2: .*1 or more, not '{line}'"):
        open_dataset(f"mirflickr:{tmp_path}")


def test_mirflickr_with_too_few_images(tmp_path: Path) -> None:
    mirflickr(tmp_path / "mirflickr", tmp_path / ANNOTATIONS)
    with pytest.raises(DatasetError, match="5000 queries and 10000 training images from 10 usable"):
        open_dataset(f"mirflickr:{tmp_path}")
