"""Wrong arguments raise a clear error that names the argument, and leave the table unchanged."""

import builtins
import gc
import threading
from typing import Any

import numpy as np
import pytest

from helpers.oracle import DTYPES, assert_answer
from helpers.samples import STRATEGIES, clustered, oracle_of, table_of, uniform
from mchindex import BucketTable, SearchResult

CODES = uniform(64, 2, seed=0)
NAN = float("nan")


def small() -> BucketTable:
    table = BucketTable(64)
    table.add([1, 2], CODES)
    return table


@pytest.mark.parametrize("bits", [0, -8, 7, 12, 65, 264, 10**30, -(10**30)])
def test_bits_out_of_range(bits: int) -> None:
    with pytest.raises(ValueError, match=r"bits.*multiple of 8"):
        BucketTable(bits)


@pytest.mark.parametrize("bits", [64.0, "64", None, [64]])
def test_bits_of_the_wrong_type(bits: Any) -> None:
    with pytest.raises(TypeError):
        BucketTable(bits)


def test_bits_may_be_a_numpy_integer() -> None:
    table = BucketTable(np.int64(128))
    assert table.bits == 128
    assert BucketTable().bits == 64


BAD_IDS: list[tuple[Any, type[Exception]]] = [
    ([3, -1], ValueError),
    ([3], ValueError),
    ([3, 4, 5], ValueError),
    ([], ValueError),
    ([[3, 4]], ValueError),
    ([[3], [4]], ValueError),
    (np.array([3, 2**63], np.uint64), ValueError),
    (np.array([3.0, 4.0]), TypeError),
    (np.array([3.0, NAN]), TypeError),
    ([3, 4.5], TypeError),
    ([True, False], TypeError),
    (np.array([True, False]), TypeError),
    (["3", "4"], TypeError),
    (np.array([3, 4], "datetime64[s]"), TypeError),
    (np.array([3, None], object), TypeError),
    (None, TypeError),
]


@pytest.mark.parametrize(("ids", "error"), BAD_IDS)
def test_bad_ids(ids: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"(?i)\bids?\b"):
        small().add(ids, CODES)


def test_an_id_beyond_int64_in_a_list() -> None:
    with pytest.raises((TypeError, ValueError), match=r"(?i)\bids?\b"):
        small().add([3, 2**70], CODES)


def test_the_error_for_an_id_of_minus_one_names_it() -> None:
    with pytest.raises(ValueError, match="-1"):
        small().add([3, -1], CODES)


BAD_CODES: list[tuple[Any, type[Exception], str]] = [
    (np.unpackbits(CODES, axis=1), ValueError, r"np\.packbits"),
    (np.unpackbits(CODES, axis=1).astype(bool), TypeError, r"np\.packbits"),
    (CODES.astype(bool), TypeError, r"np\.packbits"),
    (CODES.astype(np.int64), TypeError, "uint8"),
    (CODES.astype(np.int8), TypeError, "uint8"),
    (CODES.astype(np.float32), TypeError, "uint8"),
    (CODES[:, :7], ValueError, r"\b8\b"),
    (np.concatenate([CODES, CODES], axis=1), ValueError, r"\b8\b"),
    (CODES[:, :0], ValueError, r"\b8\b"),
    (CODES[None], ValueError, "(?i)dim|shape"),
    (np.uint8(3), ValueError, "(?i)dim|shape"),
    ([["a"] * 8] * 2, TypeError, "uint8"),
    ([[0.5] * 8] * 2, TypeError, "uint8"),
    ("12345678", TypeError, "uint8"),
    (None, TypeError, "uint8"),
]


@pytest.mark.parametrize(("codes", "error", "message"), BAD_CODES)
def test_bad_codes(codes: Any, error: type[Exception], message: str) -> None:
    table = small()
    with pytest.raises(error, match=message):
        table.add([3, 4], codes)
    with pytest.raises(error, match=message):
        table.search(codes)
    with pytest.raises(error, match=message):
        table.within(codes, 3)


@pytest.mark.parametrize("value", [256, -1, 2**70])
def test_bytes_out_of_range_in_a_list(value: int) -> None:
    with pytest.raises((TypeError, ValueError), match=r"codes"):
        small().add([3], [[value] * 8])


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_ids_and_codes_of_different_length(rows: int) -> None:
    with pytest.raises(ValueError, match=r"(?i)\bids?\b"):
        small().add([3, 4], uniform(64, rows, seed=1))


BAD_REGIONS: list[tuple[Any, type[Exception]]] = [
    ([0, 256], ValueError),
    ([-1, 0], ValueError),
    ([0], ValueError),
    ([0, 1, 2], ValueError),
    ([[0, 1]], ValueError),
    (np.array([0, 2**63], np.uint64), ValueError),
    ([0.0, 1.0], TypeError),
    ([0.0, NAN], TypeError),
    (["whole", "centre"], TypeError),
]


@pytest.mark.parametrize(("regions", "error"), BAD_REGIONS)
def test_bad_regions(regions: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"(?i)\bregions?\b"):
        small().add([3, 4], CODES, regions)


@pytest.mark.parametrize(
    "arguments",
    [
        ([*range(10, 99), -1], uniform(64, 90, 1)),
        (range(10, 100), uniform(64, 89, 1)),
        (range(10, 100), uniform(64, 90, 1), [*range(89), 256]),
        (range(10, 100), uniform(64, 90, 1), [0.5] * 90),
        (range(10, 100), uniform(72, 90, 1)),
    ],
)
def test_a_failed_add_changes_nothing(arguments: Any) -> None:
    rows = clustered(64, 50, seed=1, images=10)
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    before = table.memory()
    with pytest.raises((TypeError, ValueError)):
        table.add(*arguments)
    assert (len(table), table.n_codes) == (len(oracle.images), oracle.n_codes)
    assert table.n_buckets == oracle.n_buckets
    assert table.memory() == before
    assert 10 not in table
    assert_answer(table.search(rows.codes, 12), oracle.search(rows.codes, 12))


BAD_SETTINGS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"k": 0}, ValueError),
    ({"k": -1}, ValueError),
    ({"k": 2**27}, ValueError),  # two queries: 2 * 2**27 hits
    ({"k": 2**62}, ValueError),
    ({"k": 10**30}, ValueError),
    ({"k": -(10**30)}, ValueError),
    ({"k": 2.5}, TypeError),
    ({"k": "3"}, TypeError),
    ({"k": None}, TypeError),
    ({"max_radius": -1}, ValueError),
    ({"max_radius": -(10**30)}, ValueError),
    ({"max_radius": 2.0}, TypeError),
    ({"max_radius": "2"}, TypeError),
    ({"max_buckets": -1}, ValueError),
    ({"max_buckets": -(10**30)}, ValueError),
    ({"max_buckets": 1e6}, TypeError),
    ({"threads": -1}, ValueError),
    ({"threads": 1.5}, TypeError),
    ({"strategy": "fast"}, ValueError),
    ({"strategy": ""}, ValueError),
    ({"strategy": 3}, TypeError),
    ({"allowed": [1.0]}, TypeError),
    ({"allowed": ["1"]}, TypeError),
    ({"allowed": [True]}, TypeError),
    ({"allowed": [[1]]}, ValueError),
]


@pytest.mark.parametrize(("settings", "error"), BAD_SETTINGS)
def test_bad_search_settings(settings: dict[str, Any], error: type[Exception]) -> None:
    (name,) = settings
    with pytest.raises(error, match=rf"\b{name}\b"):
        small().search(CODES, **settings)


@pytest.mark.parametrize(
    ("radius", "error"), [(-1, ValueError), (2.0, TypeError), ("2", TypeError), (None, TypeError)]
)
def test_bad_range_radius(radius: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="radius"):
        small().within(CODES, radius)


def test_the_error_for_an_unknown_strategy_lists_the_known_ones() -> None:
    unknown: Any = "fastest"
    for call in (small().search, lambda c, strategy: small().within(c, 1, strategy=strategy)):
        with pytest.raises(ValueError, match="fastest") as caught:
            call(CODES, strategy=unknown)
        assert all(name in str(caught.value) for name in STRATEGIES)


def test_settings_at_their_limits() -> None:
    rows = clustered(64, 40, seed=2)
    table, oracle = table_of(64, rows), oracle_of(64, rows)
    expected = oracle.search(rows.codes[:3], 5)
    settings: list[dict[str, Any]] = [
        {"max_radius": 64},
        {"max_radius": 10**30},
        {"max_buckets": 2**63},
        {"max_buckets": 10**30},
        {"k": np.int32(5)},
        {"max_radius": np.uint8(64)},
        {"threads": 100},
        {"allowed": None},
        {"allowed": np.unique(rows.ids).astype(np.uint16)},
        {"allowed": [*range(40), -1]},  # no image has the id -1
    ]
    for setting in settings:
        assert_answer(table.search(rows.codes[:3], **({"k": 5} | setting)), expected, setting)
    assert table.within(rows.codes[:3], 10**30).lims.tolist() == [
        len(table) * row for row in range(4)
    ]


def test_bad_removals() -> None:
    table = small()
    bad: list[Any] = [[1.0], ["1"], [True], [NAN], None, np.array([1.0])]
    for ids in bad:
        with pytest.raises(TypeError, match=r"(?i)\bids?\b"):
            table.remove(ids)
    with pytest.raises(ValueError, match=r"(?i)\bids?\b"):
        table.remove([[1]])
    assert len(table) == 2
    # Unknown ids are ignored, and so is -1: the ids of a search result may be passed.
    assert table.remove([99, -1]) == 0
    assert table.remove([]) == 0
    assert table.remove(np.empty(0, np.int64)) == 0


def test_adding_nothing_changes_nothing() -> None:
    table = small()
    nothing: list[Any] = [[], np.empty(0, np.int64), np.empty(0, np.int32)]
    for ids in nothing:
        table.add(ids, np.empty((0, 8), np.uint8))
        table.add(ids, np.empty((0, 8), np.uint8), [])
    assert (len(table), table.n_codes) == (2, 2)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "u8", ">i8", ">i4", ">u8"])
def test_ids_of_any_integer_type(dtype: str) -> None:
    table = BucketTable(64)
    table.add(np.array([100, 7], dtype), CODES, np.array([3, 200], dtype.replace("i1", "u1")))
    result = table.search(CODES, 1, allowed=np.array([100, 7], dtype))
    assert result.ids.tolist() == [[100], [7]]
    assert result.regions.tolist() == [[3], [200]]
    assert table.remove(np.array([100], dtype)) == 1


def test_ids_at_the_ends_of_int64() -> None:
    ids = [2**63 - 1, -(2**63), -2, 0]
    codes = uniform(64, 4, seed=3)
    table = BucketTable(64)
    table.add(ids, codes)
    assert table.search(codes, 1).ids.ravel().tolist() == ids
    assert all(i in table for i in ids)
    # Equal codes are ordered by the signed id.
    table.add(ids, np.repeat(codes[:1], 4, axis=0))
    assert table.search(codes[0], 4).ids.tolist() == [sorted(ids)]
    assert table.remove(ids) == 4


def test_lists_work_like_arrays() -> None:
    table = BucketTable(64)
    table.add([1, 2], CODES.tolist(), [0, 255])
    table.add((3,), [[0] * 8])
    table.add(range(4, 6), CODES)
    result = table.search(CODES.tolist(), 1)
    assert result.ids.tolist() == [[1], [2]]
    assert result.regions.tolist() == [[0], [255]]
    assert table.search([0] * 8, 1).ids.tolist() == [[3]]
    assert len(table) == 5


def test_any_memory_layout() -> None:
    rows = clustered(64, 60, seed=4)
    oracle = oracle_of(64, rows)
    wide = np.zeros((60, 24), np.uint8)
    wide[:, 1:24:3] = rows.codes
    tall = np.repeat(rows.codes, 2, axis=0)
    frozen = rows.codes.copy()
    frozen.flags.writeable = False
    backwards = rows.codes[::-1].copy()[::-1]
    layouts = [wide[:, 1:24:3], tall[::2], frozen, backwards, np.asfortranarray(rows.codes)]
    ids = np.repeat(rows.ids, 3)[::3]
    regions = rows.regions[::-1].copy()[::-1]
    regions.flags.writeable = False
    expected = oracle.search(rows.codes, 6)
    for codes in layouts:
        table = BucketTable(64)
        table.add(ids, codes, regions)
        np.testing.assert_array_equal(codes, rows.codes)
        assert_answer(table.search(codes, 6, allowed=ids[::-1]), expected)
    same = np.broadcast_to(rows.codes[0], (5, 8))
    assert_answer(table.search(same, 6), oracle.search(same, 6))
    assert_answer(table.search(wide[7, 1:24:3], 6), oracle.search(rows.codes[7:8], 6))


def test_contains_takes_anything() -> None:
    table = small()
    here: list[Any] = [1, 2, np.int64(1), np.uint8(2), np.int32(1)]
    absent: list[Any] = [0, 3, -1, 2**70, -(2**70), "1", b"1", None, 1.5, NAN, [1], (1,), object()]
    assert all(i in table for i in here)
    assert not any(i in table for i in absent)


def test_memory_adds_up() -> None:
    table = small()
    for _ in range(2):
        parts = table.memory()
        assert all(isinstance(n, int) and n >= 0 for n in parts.values())
        del parts["scratch"]  # all tables of the process share it
        assert parts.pop("total") == sum(parts.values()) > 0
        table.optimize(substring=True)


def test_misaligned_arrays() -> None:
    codes = uniform(64, 5, seed=3)
    buffer = b"x" + np.arange(5, dtype=np.int64).tobytes()
    table = BucketTable(64)
    table.add(np.frombuffer(buffer, np.int64, offset=1), codes)
    np.testing.assert_array_equal(table.search(codes, k=1).ids[:, 0], np.arange(5))


def test_masked_arrays_are_refused() -> None:
    table = table_of(64, clustered(64, 10, seed=1))
    masked = np.ma.array([3, 4], mask=[True, False])
    with pytest.raises(TypeError, match=r"allowed.*compressed"):
        table.search(uniform(64, 1, seed=1), allowed=masked)


def test_an_empty_list_of_ids_may_have_any_type() -> None:
    table = table_of(64, clustered(64, 10, seed=1))
    empty: list[Any] = [[], np.array([]), np.empty(0, np.int32), set()]
    for nothing in empty:
        assert table.search(uniform(64, 1, seed=1), allowed=nothing).counts.tolist() == [0]
        assert table.remove(nothing) == 0
    assert table.search(uniform(64, 1, seed=1), k=1, allowed={int(i) for i in range(10**4)}).counts[
        0
    ]


def test_codes_without_bytes_are_refused() -> None:
    with pytest.raises((TypeError, ValueError), match="packbits"):
        BucketTable(64).search([[], [], []])


def test_an_array_is_not_an_id() -> None:
    assert np.array([3, 4]) not in table_of(64, clustered(64, 10, seed=1))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 7), (2, 5000), (0, 4), (5000, 1)])
def test_the_arrays_of_a_result_belong_to_the_caller(n: int, k: int) -> None:
    table = small()
    result = table.search(np.repeat(CODES[:1], n, axis=0), k)
    expected = {field: getattr(result, field).copy() for field in DTYPES}
    arrays = {field: getattr(result, field) for field in DTYPES}
    for field, array in arrays.items():
        assert getattr(result, field) is array
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert array.shape == ((n, k) if field in ("ids", "distances", "regions") else (n,))
        assert array.dtype == DTYPES[field]
    for field, array in arrays.items():  # none shares memory with another
        array[...] = 0
        for other in DTYPES.keys() - {field}:
            np.testing.assert_array_equal(arrays[other], expected[other])
        array[...] = expected[field]
    assert len(result) == n
    assert repr(result) == f"SearchResult({n} queries, k={k})"
    del result
    gc.collect()
    np.testing.assert_array_equal(arrays["ids"], expected["ids"])


def test_a_search_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table, imported = small(), list[str]()
    table.search(CODES[0], 1)
    importer = builtins.__import__

    def count(name: str, *rest: Any) -> Any:
        imported.append(name)
        return importer(name, *rest)

    monkeypatch.setattr(builtins, "__import__", count)
    table.search(CODES[0], 1)
    table.within(CODES[:1], 3, allowed=np.array([1]))
    monkeypatch.undo()
    assert imported == []


def test_threads_get_the_same_arrays_of_a_result() -> None:
    table = small()
    for _ in range(50):
        result, start = table.search(CODES, 3), threading.Barrier(4)
        got: list[object] = []

        def read(result: SearchResult = result, start: threading.Barrier = start) -> None:
            start.wait(60)
            got.append(result.ids)  # noqa: B023  # the threads end before the next turn

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len({id(array) for array in got}) == 1
        assert len(got) == 4
