"""Synthetic pictures: reproducible, and showing what their labels say."""

import time

import numpy as np
import pytest

from mchindex.datasets import open_dataset
from mchindex.datasets.scenes import CLASSES, SceneSource, scenes
from mchindex.errors import DatasetError


def test_a_picture_depends_only_on_seed_number_and_size() -> None:
    small, large = SceneSource(3, seed=4), SceneSource(3000, seed=4)
    for i in (2, 0):
        np.testing.assert_array_equal(small.image(i), large.image(i))
        assert small.boxes(i) == large.boxes(i)
        assert (small.key(i), small.name(i)) == (large.key(i), large.name(i))
    others = [SceneSource(3, seed=5), SceneSource(3, seed=4, size=32)]
    keys = [source.key(i) for source in (small, *others) for i in range(3)]
    assert len(set(keys)) == len(keys)
    assert {len(key) for key in keys} == {32}
    assert (np.asarray(small.image(0)) != np.asarray(others[0].image(0))).any()


def test_the_size_changes_only_the_resolution() -> None:
    small, large = SceneSource(20, size=64), SceneSource(20, size=128)
    for i in range(20):
        assert small.image(i).size == (64, 64)
        assert large.image(i).size == (128, 128)
        for (a, small_box), (b, large_box) in zip(small.boxes(i), large.boxes(i), strict=True):
            assert a == b
            assert np.abs(np.array(large_box) / 2 - small_box).max() <= 1


def test_labels_are_the_classes_of_the_boxes() -> None:
    dataset = scenes(200, seed=1, size=16)
    source = SceneSource(200, seed=1, size=16)
    assert dataset.classes == CLASSES
    assert len(CLASSES) == 12
    for i in range(200):
        assert sorted(c for c, _ in source.boxes(i)) == np.flatnonzero(dataset.labels[i]).tolist()


def test_most_pictures_have_two_or_three_classes_and_no_class_is_rare() -> None:
    labels = scenes(1500).labels
    share = np.bincount(labels.sum(1), minlength=5) / len(labels)
    assert share[0] == 0
    assert share[2] + share[3] > 0.6
    assert min(share[1], share[4]) > 0.05
    assert labels.mean(0).min() > 0.1


def test_objects_have_the_right_size_and_are_visible() -> None:
    source = SceneSource(100, size=64)
    for i in range(100):
        picture = np.asarray(source.image(i), float)
        ground = np.median(picture.reshape(-1, 3), 0)
        for _, (x0, y0, x1, y1) in source.boxes(i):
            assert 0 <= x0 < x1 <= 64
            assert 0 <= y0 < y1 <= 64
            assert 10 <= max(x1 - x0, y1 - y0) <= 38
            far = np.abs(picture[y0:y1, x0:x1] - ground).sum(2) > 60
            assert far.mean() > 0.1


def test_default_splits() -> None:
    dataset = open_dataset("scenes:200?size=16", seed=2)
    assert {s: len(r) for s, r in dataset.splits.items()} == {
        "query": 20,
        "train": 81,
        "database": 180,
    }
    assert dataset.seed == 2
    assert dataset.skipped == {}
    dataset.check_leakage()
    assert {s: len(r) for s, r in scenes(2).splits.items()} == {
        "query": 1,
        "train": 0,
        "database": 1,
    }


@pytest.mark.parametrize(("n", "seed", "size"), [(0, 0, 64), (-1, 0, 64), (1, -1, 64), (1, 0, 8)])
def test_arguments_out_of_range(n: int, seed: int, size: int) -> None:
    with pytest.raises(DatasetError, match=f"n={n}, seed={seed}, size={size}"):
        SceneSource(n, seed, size)


@pytest.mark.parametrize("i", [-1, 3])
def test_numbers_out_of_range(i: int) -> None:
    source = SceneSource(3)
    for ask in (source.image, source.key, source.name, source.boxes, source.classes):
        with pytest.raises(IndexError, match="0 to 2"):
            ask(i)


@pytest.mark.slow
def test_drawing_is_fast() -> None:
    source = SceneSource(500)
    start = time.process_time()
    for i in range(500):
        source.image(i)
    assert time.process_time() - start < 1
