"""Every instruction set that this machine has gives the same answers."""

from collections.abc import Iterator

import numpy as np
import pytest

from helpers.oracle import assert_answer, ranking
from helpers.samples import STRATEGIES, WIDTHS, clustered, oracle_of, queries_near, table_of
from mchindex._core import cpu_path, cpu_paths, use_cpu_path


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = cpu_path()
    yield
    use_cpu_path(before)


def test_the_portable_path_is_always_there() -> None:
    assert "portable" in cpu_paths()
    assert len(set(cpu_paths())) == len(cpu_paths())
    assert cpu_path() in cpu_paths()


def test_a_path_can_be_chosen() -> None:
    for path in cpu_paths():
        use_cpu_path(path)
        assert cpu_path() == path


def test_an_unknown_path_is_told_the_known_ones() -> None:
    before = cpu_path()
    with pytest.raises(ValueError, match="abacus") as caught:
        use_cpu_path("abacus")
    assert "portable" in str(caught.value)
    assert cpu_path() == before


@pytest.mark.parametrize("path", cpu_paths())
@pytest.mark.parametrize("bits", WIDTHS)
def test_answers(bits: int, path: str) -> None:
    use_cpu_path(path)
    # 67 codes: more than any vector holds, and a rest that fills none.
    rows = clustered(bits, 67, seed=bits)
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    queries = queries_near(rows.codes, 4, seed=1)
    expected = oracle.search(queries, 8)
    inside = oracle.within(queries, 5)
    for strategy in STRATEGIES:
        assert_answer(table.search(queries, 8, strategy=strategy), expected, strategy)
        assert_answer(table.within(queries, 5, strategy=strategy), inside, strategy)


@pytest.mark.parametrize("path", cpu_paths())
def test_every_length_of_the_rest(path: str) -> None:
    use_cpu_path(path)
    for n in range(1, 70):
        rows = clustered(64, n, seed=n, images=n)
        result = table_of(64, rows).search(rows.codes[:2], n, strategy="scan")
        for row in range(min(n, 2)):
            ids, distances, _ = ranking(*rows, rows.codes[row])
            np.testing.assert_array_equal(result.ids[row, : len(ids)], ids)
            np.testing.assert_array_equal(result.distances[row, : len(ids)], distances)


@pytest.mark.parametrize("bits", [32, 64, 104, 128, 256])
def test_large_tables(bits: int) -> None:
    rows = clustered(bits, 30_000, seed=bits, centres=30_000)
    table = table_of(bits, rows)
    queries = queries_near(rows.codes, 6, seed=2)
    for path in cpu_paths():
        use_cpu_path(path)
        for strategy in STRATEGIES:
            result = table.search(queries, 20, strategy=strategy)
            for row, query in enumerate(queries):
                ids, distances, regions = ranking(*rows, query)
                np.testing.assert_array_equal(result.ids[row], ids[:20], err_msg=path)
                np.testing.assert_array_equal(result.distances[row], distances[:20])
                np.testing.assert_array_equal(result.regions[row], regions[:20])
