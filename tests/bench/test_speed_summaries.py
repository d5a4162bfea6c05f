"""The arithmetic of the smaller benchmarks; what the shipped models are measured on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import index
import loading
import scaling
import ship
import updates
from common import Cell
from mchindex import BucketTable
from mchindex.catalogue import SHIPPED
from mchindex.datasets import open_dataset
from mchindex.models import MCHModel

TIMES = st.lists(st.floats(1e-4, 100), min_size=1, max_size=9)


def middle(values: list[float]) -> float:
    return float(np.median(values))


@example([1.8], [1.0])
@example([1.79], [1.0])
@given(TIMES, TIMES)
def test_scaling_divides_medians(one: list[float], two: list[float]) -> None:
    row = scaling.speed_up(10, one, two)
    assert (row["one_s"], row["two_s"]) == (middle(one), middle(two))
    assert row["speedup"] == middle(one) / middle(two)
    assert row["meets"] == (middle(one) / middle(two) >= 1.8)


def test_scaling_measures_both_numbers_of_threads() -> None:
    table = BucketTable(bits=64)
    codes = np.random.default_rng(0).integers(0, 256, (500, 8), dtype=np.uint8)
    table.add(np.arange(500), codes)
    row = scaling.measure(table, codes[:20], 5, turns=2)
    assert row["k"] == 5
    assert row["one_s"] > 0
    assert row["two_s"] > 0


@example([0.01], [0.1])
@example([0.01], [0.101])
@given(TIMES, TIMES)
def test_loading_reports_medians_and_the_worst(load: list[float], answer: list[float]) -> None:
    row = loading.summary(True, False, 123, 0.5, load, answer)
    assert (row["load_s"], row["first_answer_s"]) == (middle(load), middle(answer))
    assert row["worst_s"] == max(answer)
    assert row["meets"] == (middle(answer) <= 0.1)
    assert (row["substring"], row["cached"], row["file_bytes"]) == (True, False, 123)


@given(st.dictionaries(st.text(max_size=3), TIMES, max_size=4))
def test_updates_are_summed_up_by_kind(took: dict[str, list[float]]) -> None:
    rows = updates.summary(took)
    assert {r["what"]: (r["median_s"], r["worst_s"], r["times"]) for r in rows} == {
        what: (middle(all_), max(all_), len(all_)) for what, all_ in took.items()
    }


def test_updates_show_in_the_table() -> None:
    """The benchmark raises if a change does not."""
    content = updates.run(Cell(2000), added=10, times=3, seed=0)
    assert {row["times"] for row in content["rows"]} == {3}
    assert "add 10 codes" in [row["what"] for row in content["rows"]]


@given(st.lists(st.tuples(*[st.floats(1e-4, 10)] * 3), min_size=1, max_size=9))
def test_the_index_is_compared_with_the_table_batch_by_batch(
    took: list[tuple[float, float, float]],
) -> None:
    tables, indexes, reads = (list(column) for column in zip(*took, strict=True))
    row = index.summary({"table": tables, "index": indexes, "index, hits read": reads}, 100)
    assert row["index over table"] == pytest.approx(middle([t / i for t, i, _ in took]))
    assert row["queries_per_second, table"] == pytest.approx(100 / middle(tables))
    assert row["queries_per_second, index"] == pytest.approx(100 / middle(indexes))
    assert row["queries_per_second, index, hits read"] == pytest.approx(100 / middle(reads))


def test_the_drift_of_the_machine_cancels_out() -> None:
    """Twice as slow halfway through, for both alike: still the same speed."""
    row = index.summary({"table": [1, 1, 2, 2, 2], "index": [1, 1, 2, 2, 2]}, 1)
    assert row["index over table"] == 1


def test_shipped_models_are_measured_on_images_they_were_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ship, "HELD_OUT", 20)
    data = open_dataset("scenes:200")
    training, unseen = ship.parts(data, 0)
    seen = {int(i) for i in training.splits["train"]}
    held, queries = unseen.splits["database"], unseen.splits["query"]
    assert len(held) == 20
    assert not seen & ({int(i) for i in held} | {int(i) for i in queries})
    assert seen | {int(i) for i in held} == {int(i) for i in data.splits["database"]}
    assert not {int(i) for i in held} & {int(i) for i in data.splits["train"]}


@pytest.mark.parametrize("name", ship.RECIPES)
def test_the_shipped_cards_are_what_the_models_say(name: str) -> None:
    model = MCHModel.load(name)
    assert (SHIPPED / name / "README.md").read_text() == ship.card(name, model)
