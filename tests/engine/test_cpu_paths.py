"""Every instruction set of this machine gives the same answers."""

from collections.abc import Iterator

import pytest

from helpers.oracle import assert_answer, assert_ranked
from helpers.samples import STRATEGIES, WIDTHS, clustered, oracle_of, queries_near, table_of
from mchindex._core import cpu_path, cpu_paths, use_cpu_path


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = cpu_path()
    yield
    use_cpu_path(before)


def test_the_portable_path_is_always_available() -> None:
    assert "portable" in cpu_paths()
    assert len(set(cpu_paths())) == len(cpu_paths())
    assert cpu_path() in cpu_paths()


def test_a_path_can_be_chosen() -> None:
    for path in cpu_paths():
        use_cpu_path(path)
        assert cpu_path() == path


def test_the_error_for_an_unknown_path_lists_the_known_ones() -> None:
    before = cpu_path()
    with pytest.raises(ValueError, match="abacus") as caught:
        use_cpu_path("abacus")
    assert "portable" in str(caught.value)
    assert cpu_path() == before


@pytest.mark.parametrize("path", cpu_paths())
@pytest.mark.parametrize("bits", WIDTHS)
def test_answers(bits: int, path: str) -> None:
    use_cpu_path(path)
    # 67 codes: more than any vector holds, with a remainder that fills none.
    rows = clustered(bits, 67, seed=bits)
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    queries = queries_near(rows.codes, 4, seed=1)
    expected = oracle.search(queries, 8)
    inside = oracle.within(queries, 5)
    for strategy in STRATEGIES:
        assert_answer(table.search(queries, 8, strategy=strategy), expected, strategy)
        assert_answer(table.within(queries, 5, strategy=strategy), inside, strategy)


@pytest.mark.parametrize("path", cpu_paths())
def test_every_length_of_the_remainder(path: str) -> None:
    use_cpu_path(path)
    for n in range(1, 70):
        rows = clustered(64, n, seed=n, images=n)
        result = table_of(64, rows).search(rows.codes[:2], n, strategy="scan")
        assert_ranked(result, rows, rows.codes[:2])


@pytest.mark.parametrize("bits", [32, 64, 104, 128, 256])
def test_large_tables(bits: int) -> None:
    rows = clustered(bits, 30_000, seed=bits, centres=30_000)
    table = table_of(bits, rows)
    queries = queries_near(rows.codes, 6, seed=2)
    for path in cpu_paths():
        use_cpu_path(path)
        for strategy in STRATEGIES:
            result = table.search(queries, 20, strategy=strategy)
            assert_ranked(result, rows, queries, f"{path}, {strategy}")


@pytest.mark.parametrize("bits", [32, 56, 64, 128, 192, 256])
def test_large_groups(bits: int) -> None:
    n = 30_000 if bits == 32 else 9000  # so many that a few thousand differ
    rows = clustered(bits, n, seed=bits, centres=2, flips=bits / 20)
    table, oracle = table_of(bits, rows), oracle_of(bits, rows)
    assert table.memory()["planes"] > 0
    queries = queries_near(rows.codes, 6, seed=1)
    for k in (3, 300):
        expected = oracle.search(queries, k)
        for path in cpu_paths():
            use_cpu_path(path)
            assert_answer(table.search(queries, k), expected, path)
