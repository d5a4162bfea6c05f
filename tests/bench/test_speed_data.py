"""bench/common.py: the codes, queries and images that every speed claim is measured on."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import (
    Cell,
    Codes,
    add_code_options,
    draw_codes,
    draw_images,
    record,
    script,
    whole_numbers,
    write_json,
)
from evaluation import CLASSES, draw_labels
from kinds import KINDS


def distances(codes: Codes, code: Codes) -> list[int]:
    wanted = int.from_bytes(code.tobytes(), "big")
    return [(int.from_bytes(c.tobytes(), "big") ^ wanted).bit_count() for c in codes]


def most_common(codes: Codes) -> Codes:
    code, _ = Counter(c.tobytes() for c in codes).most_common(1)[0]
    return np.frombuffer(code, np.uint8)


def test_clustered_codes_have_zipf_sizes_and_three_percent_of_flipped_bits() -> None:
    cell = Cell(20_000, 64)
    codes, queries = draw_codes(cell, 5000, 1)
    assert (codes.shape, queries.shape) == ((20_000, 8), (5000, 8))
    centres = 20_000 // 200
    weights = sum(1 / rank for rank in range(1, centres + 1))
    left = codes
    for rank in (1, 2, 3):  # centres are about 32 bits apart, so that clusters do not overlap
        centre = most_common(left)
        apart = np.array(distances(left, centre))
        near = apart <= 12
        assert near.sum() / len(codes) == pytest.approx(1 / rank / weights, rel=0.06)
        assert apart[near].mean() / 64 == pytest.approx(0.03, rel=0.06)
        assert (apart[near] == 0).mean() == pytest.approx(0.97**64, rel=0.12)
        asked = np.array(distances(queries, centre)) <= 12  # queries are drawn the same way
        assert asked.mean() == pytest.approx(1 / rank / weights, rel=0.15)
        left = left[~near]


def test_uniform_codes_have_fair_and_independent_bits() -> None:
    codes, queries = draw_codes(Cell(20_000, 32, "uniform"), 1000, 0)
    bits = np.unpackbits(np.concatenate([codes, queries]), axis=1).astype(float)
    assert bits.shape == (21_000, 32)
    assert np.abs(bits.mean(0) - 0.5).max() < 0.02
    correlation = np.corrcoef(bits.T) - np.eye(32)
    assert np.abs(correlation).max() < 0.04


@pytest.mark.parametrize("data", KINDS)
def test_the_seed_decides_the_codes(data: str) -> None:
    cell = Cell(1000, 64, data)
    first, again, other = (draw_codes(cell, 10, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[0] != other[0]).any()


@given(st.integers(1, 400), st.floats(1, 6), st.integers(0, 5))
def test_every_image_has_one_to_six_codes_and_all_codes_are_given_out(
    n: int, mean: float, seed: int
) -> None:
    cell = Cell(n, codes_per_image=mean)
    if not cell.images <= n <= 6 * cell.images:
        with pytest.raises(ValueError, match="cannot be shared"):
            draw_images(cell, seed)
        return
    images = draw_images(cell, seed).tolist()
    assert images == sorted(images)
    counts = Counter(images)
    assert list(counts) == list(range(round(n / mean)))
    assert sum(counts.values()) == n
    assert set(counts.values()) <= {1, 2, 3, 4, 5, 6}


def test_the_numbers_of_codes_per_image_spread_around_their_mean() -> None:
    """One plus a binomial of five: not all images alike, and few at either end."""
    counts = Counter(Counter(draw_images(Cell(16_000, codes_per_image=1.6), 0).tolist()).values())
    assert sum(counts.values()) == 10_000
    p = 0.6 / 5
    assert counts[1] / 10_000 == pytest.approx((1 - p) ** 5, abs=0.02)
    assert counts[2] / 10_000 == pytest.approx(5 * p * (1 - p) ** 4, abs=0.02)


def test_cells_are_named_after_what_sets_them_apart() -> None:
    assert Cell().name == "clustered-64bit-1M"
    assert Cell(20_000, 32, "uniform").name == "uniform-32bit-20k"
    assert Cell(1_500_000, codes_per_image=1.5).name == "clustered-64bit-1500k-1.5codes"
    assert Cell(1_600_000, codes_per_image=1.6).images == 1_000_000


@pytest.mark.parametrize("data", KINDS)
@pytest.mark.parametrize("bits", [24, 32, 256])
def test_every_kind_has_as_many_codes_and_queries_as_asked_for(data: str, bits: int) -> None:
    codes, queries = draw_codes(Cell(300, bits, data), 20, 0)
    assert (codes.shape, queries.shape) == ((300, bits // 8), (20, bits // 8))
    assert codes.dtype == queries.dtype == np.uint8


@pytest.mark.parametrize("bits", [24, 32, 64, 128, 256])
def test_equidistant_codes_are_at_one_distance_from_every_query(bits: int) -> None:
    codes, queries = draw_codes(Cell(400, bits, "equidistant"), 30, 0)
    found = {d for query in queries for d in distances(codes, query)}
    assert found == {bits // 2}
    assert len({c.tobytes() for c in codes}) > 100


def test_equal_codes_are_equal_and_queries_are_near() -> None:
    codes, queries = draw_codes(Cell(400, 64, "equal"), 500, 0)
    assert len({c.tobytes() for c in codes}) == 1
    apart = np.array(distances(queries, codes[0]))
    assert apart.mean() / 64 == pytest.approx(0.03, rel=0.2)
    assert (apart == 0).any()


def test_nine_in_ten_codes_are_in_ten_buckets() -> None:
    codes, queries = draw_codes(Cell(20_000, 64, "ten"), 2000, 0)
    heavy = Counter(c.tobytes() for c in codes).most_common(11)
    assert sum(count for _, count in heavy[:10]) / 20_000 == pytest.approx(0.9, abs=0.01)
    assert heavy[10][1] == 1
    known = {code for code, _ in heavy[:10]}
    assert np.mean([q.tobytes() in known for q in queries]) == pytest.approx(0.9, abs=0.03)


def test_far_queries_have_no_near_neighbour_and_codes_are_clustered() -> None:
    codes, queries = draw_codes(Cell(5000, 128, "far"), 20, 0)
    assert min(min(distances(codes, query)) for query in queries) > 25
    assert min(distances(codes[1:], codes[0])) < 20


@pytest.mark.parametrize("bits", [64, 256])
def test_hashnet_codes_repeat_and_some_bits_flip_more_than_others(bits: int) -> None:
    codes, queries = draw_codes(Cell(20_000, bits, "hashnet"), 1000, 0)
    counts = Counter(c.tobytes() for c in codes)
    assert sum(count for count in counts.values() if count > 1) / 20_000 > 0.2
    centre = most_common(codes)
    near = np.array(distances(codes, centre)) <= 8
    rates = np.unpackbits(codes[near] ^ centre, axis=1).mean(0)
    assert rates.max() > 10 * np.median(rates)
    stored = set(counts)
    assert np.mean([q.tobytes() in stored for q in queries]) > 0.1


def test_gaussian_codes_have_bits_that_depend_on_one_another() -> None:
    codes, _ = draw_codes(Cell(5000, 256, "gaussian"), 1, 0)
    bits = np.unpackbits(codes, axis=1).astype(float)
    assert np.abs(bits.mean(0) - 0.5).max() < 0.05
    strength = np.linalg.eigvalsh(np.cov(bits.T))[::-1]
    assert strength[:8].sum() / strength.sum() > 0.5  # eight of 256 axes hold most of it


def test_labels_are_as_common_as_said() -> None:
    labels = draw_labels(20_000, 0)
    assert labels.shape == (20_000, CLASSES)
    assert labels.any(1).all()
    share = labels.mean(0)
    assert share[0] == pytest.approx(0.5, abs=0.02)  # the cap
    weights = sum(1 / rank for rank in range(1, CLASSES + 1))
    for rank in (2, 3, 4):  # images without a class get one at random, which adds a little
        assert share[rank - 1] == pytest.approx(2.9 / weights / rank, abs=0.02)


def test_options_describe_a_cell_and_refuse_impossible_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = script("A benchmark.")
    add_code_options(parser)
    args = parser.parse_args(["--bits", "128", "--codes-per-image", "1.6", "--data", "uniform"])
    assert (args.bits, args.codes_per_image, args.data, args.seed) == (128, 1.6, "uniform", 0)
    for wrong in (
        ["--bits", "12"],
        ["--bits", "264"],
        ["--codes-per-image", "6.5"],
        ["--data", "codes:x.npz"],
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)
        assert wrong[1] in capsys.readouterr().err
    assert whole_numbers("100,10,100") == (10, 100)


def test_files_of_codes_are_taken_only_where_they_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = script("A benchmark.")
    add_code_options(parser, files=True)
    (tmp_path / "x.npz").touch()
    there = f"codes:{tmp_path / 'x.npz'}"
    assert parser.parse_args(["--data", there]).data == there
    assert parser.parse_args(["--data", "far"]).data == "far"
    for wrong in ("codes:nowhere.npz", "nothing"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--data", wrong])
        assert f"{wrong} is neither codes: and a file" in capsys.readouterr().err


def test_a_record_says_what_was_run_and_is_written_whole(tmp_path: Path) -> None:
    content = record({"k": 10}, 7, [{"qps": 1.5}])
    assert (content["settings"], content["seed"], content["rows"]) == ({"k": 10}, 7, [{"qps": 1.5}])
    assert {"commit", "dirty", "engine", "date", "machine"} <= set(content)
    path = tmp_path / "new" / "run.json"
    write_json(path, content)
    assert json.loads(path.read_text()) == content
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]
