"""Every figure against a slow computation of another form, and the curves against BucketTable."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain, permutations, product
from math import comb
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.oracle import INT64_MAX, Oracle, number
from helpers.samples import near
from helpers.script import run_script
from mchindex import BucketTable
from mchindex._core import bucket_ranks
from mchindex.evaluation import Codes, Evaluation, at_radius, evaluate
from mchindex.evaluation.curves import default_budgets, default_ks, last_bucket
from mchindex.evaluation.metrics import harmonic, tie_aware_average_precision
from mchindex.progress import Step

WIDTHS = (8, 16, 64, 72, 128, 256)
AT = (1, 3, 10, 1000)


class Case(NamedTuple):
    queries: NDArray[np.uint8]
    database: Codes
    query_labels: NDArray[np.bool_]
    labels: NDArray[np.bool_]

    @property
    def bits(self) -> int:
        return 8 * int(self.queries.shape[1])

    @property
    def n(self) -> int:
        return len(self.labels)

    def relevant(self, query: int) -> set[int]:
        wanted = self.query_labels[query].tolist()
        return {
            i
            for i, row in enumerate(self.labels.tolist())
            if any(a and b for a, b in zip(wanted, row, strict=True))
        }

    def counted(self) -> list[int]:
        return [q for q in range(len(self.queries)) if self.relevant(q)]

    def table(self) -> BucketTable:
        table = BucketTable(self.bits)
        table.add(self.database.images, self.database.codes)
        return table

    def oracle(self) -> Oracle:
        oracle = Oracle(self.bits)
        oracle.add(self.database.images.tolist(), self.database.codes)
        return oracle


def case(
    bits: int,
    n: int,
    queries: int,
    seed: int,
    classes: int = 5,
    codes_per_image: float = 2.0,
    flips: float = 2.0,
) -> Case:
    """Clustered codes in shuffled rows, with ties, equal codes and equal rows; random labels.

    Only query 0 has the last class, and it has no other class: it has no relevant image.
    """
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 256, (3, bits // 8), np.uint8)
    m = round(n * codes_per_image)
    images = rng.permutation(np.concatenate([np.arange(n), rng.integers(0, n, m - n)]))
    labels = rng.random((n + queries, classes)) < 0.3
    labels[:, -1] = False
    labels[n] = np.arange(classes) == classes - 1
    labels[n + 1, 0] = labels[0, 0] = True  # at least one query is counted
    codes = Codes(near(centres, m, flips, rng), images, np.bincount(images))
    return Case(near(centres, queries, flips, rng), codes, labels[n:], labels[:n])


cases = st.builds(
    case,
    bits=st.sampled_from([8, 16, 64, 72]),
    n=st.integers(1, 25),
    queries=st.integers(2, 4),
    seed=st.integers(0, 2**32 - 1),
    classes=st.sampled_from([2, 3, 70]),
    codes_per_image=st.sampled_from([1.0, 1.6, 3.0]),
    flips=st.sampled_from([0.5, 3.0]),
)


# The slow figures, in plain Python.


def slow_distances(c: Case, query: int) -> list[int]:
    code = number(c.queries[query])
    kept: list[list[int]] = [[] for _ in range(c.n)]
    for image, row in zip(c.database.images.tolist(), c.database.codes, strict=True):
        kept[image].append((code ^ number(row)).bit_count())
    return [min(distances) for distances in kept]


def slow_ap(order: list[int], relevant: set[int], k: int | None = None) -> Fraction:
    total = Fraction(0)
    seen = 0
    for place, image in enumerate(order[:k], 1):
        if image in relevant:
            seen += 1
            total += Fraction(seen, place)
    return total / min(len(relevant), k or len(relevant))


def slow_tie_aware(distances: list[int], relevant: set[int]) -> Fraction:
    """The expectation at each place, over the number of relevant images before it."""
    total, before, hits = Fraction(0), 0, 0
    for distance in sorted(set(distances)):
        tied = [i for i, d in enumerate(distances) if d == distance]
        h, g = len(relevant & set(tied)), len(tied)
        for place in range(g):
            # j of the `place` images before it in the tie are relevant, and so is this one.
            for j in range(h):
                ways = comb(place, j) * comb(g - 1 - place, h - 1 - j)
                total += Fraction(ways, comb(g, h)) * Fraction(hits + j + 1, before + place + 1)
        before, hits = before + g, hits + h
    return total / len(relevant)


def slow_ndcg(c: Case, query: int, order: list[int]) -> float:
    """Of the first ten, where an image gains by the labels that it shares with the query."""
    wanted = set(np.flatnonzero(c.query_labels[query]).tolist())
    own = [set(np.flatnonzero(row).tolist()) for row in c.labels]
    gain = [len(wanted & labels) / len(wanted | labels) for labels in own]

    def discounted(gains: list[float]) -> float:
        return sum(g / math.log2(place + 1) for place, g in enumerate(gains[:10], 1))

    return discounted([gain[i] for i in order]) / discounted(sorted(gain, reverse=True))


def slow_f1(found: set[int], relevant: set[int]) -> float:
    hits = len(found & relevant)
    if not hits:
        return 0.0
    p, r = hits / len(found), hits / len(relevant)
    return 2 * p * r / (p + r)


def mean(values: Any) -> float:
    return float(np.mean(list(values)))


Search = Callable[..., Any]  # like BucketTable.search: the result has `ids` and `buckets`


def search_of(c: Case, oracle: bool) -> Search:
    if not oracle:
        return partial(c.table().search, c.queries)
    slow = c.oracle()
    return lambda **options: SimpleNamespace(**slow.search(c.queries, **options))


def curve_by_budget(c: Case, search: Search, budgets: list[int]) -> list[list[float]]:
    rows = []
    for budget in budgets:
        found = search(k=c.n, max_buckets=budget)
        sets = {q: set(found.ids[q].tolist()) - {-1} for q in c.counted()}
        rows.append([budget, mean(slow_f1(sets[q], c.relevant(q)) for q in sets)])
    return rows


def curve_by_k(c: Case, search: Search, ks: list[int]) -> list[list[float]]:
    rows = []
    for k in ks:
        found = search(k=k)
        sets = {q: set(found.ids[q].tolist()) - {-1} for q in c.counted()}
        f1 = mean(slow_f1(sets[q], c.relevant(q)) for q in sets)
        rows.append([mean(float(found.buckets[q]) for q in sets), f1, k])
    return rows


@pytest.mark.parametrize("radius", [0, 2])
@pytest.mark.parametrize("bits", WIDTHS)
def test_every_figure(bits: int, radius: int) -> None:
    c = case(bits, n=60, queries=9, seed=bits + radius)
    result = evaluate(*c, radius=radius, at=AT, classes=list("abcde"))

    counted = c.counted()
    assert 0 not in counted
    relevant = {q: c.relevant(q) for q in counted}
    distances = {q: slow_distances(c, q) for q in counted}
    order = {q: sorted(range(c.n), key=distances[q].__getitem__) for q in counted}
    near_by = {q: {i for i in range(c.n) if distances[q][i] <= radius} for q in counted}
    own = {q: {i for i in range(c.n) if distances[q][i] == 0} for q in counted}
    per_query = {
        "ap": {q: float(slow_ap(order[q], relevant[q])) for q in counted},
        "ap_tie_aware": {q: float(slow_tie_aware(distances[q], relevant[q])) for q in counted},
        "ndcg10": {q: slow_ndcg(c, q, order[q]) for q in counted},
        "p10": {q: len(set(order[q][:10]) & relevant[q]) / min(10, c.n) for q in counted},
        "p": {q: len(near_by[q] & relevant[q]) / max(1, len(near_by[q])) for q in counted},
        "r": {q: len(near_by[q] & relevant[q]) / len(relevant[q]) for q in counted},
        "f1_own": {q: slow_f1(own[q], relevant[q]) for q in counted},
    }
    assert result.per_query.keys() == per_query.keys()
    for name, values in per_query.items():
        want = [values.get(q, np.nan) for q in range(len(c.queries))]
        np.testing.assert_allclose(result.per_query[name], want, rtol=1e-12, err_msg=name)

    assert result.map == pytest.approx(mean(per_query["ap"].values()))
    assert result.map_tie_aware == pytest.approx(mean(per_query["ap_tie_aware"].values()))
    assert result.map_at == pytest.approx(
        {k: mean(float(slow_ap(order[q], relevant[q], k)) for q in counted) for k in AT}
    )
    assert result.ndcg10 == pytest.approx(mean(per_query["ndcg10"].values()))
    assert result.p10 == pytest.approx(mean(per_query["p10"].values()))
    assert result.p0 == pytest.approx(mean(per_query["p"].values()))
    assert result.r0 == pytest.approx(mean(per_query["r"].values()))
    assert result.f1_own == pytest.approx(mean(per_query["f1_own"].values()))
    assert result.empty == pytest.approx(mean(not near_by[q] for q in counted))
    nonempty = [per_query["p"][q] for q in counted if near_by[q]]
    assert result.p0_nonempty == (pytest.approx(mean(nonempty)) if nonempty else None)

    distinct = {
        (i, number(row)) for i, row in zip(c.database.images, c.database.codes, strict=True)
    }
    assert (result.bits, result.radius, result.images) == (bits, radius, c.n)
    assert (result.queries, result.without_relevant) == (len(c.queries), 9 - len(counted))
    assert (result.codes, result.anhc) == (len(distinct), len(distinct) / c.n)
    assert result.anhc_raw == len(c.database.codes) / c.n

    assert result.per_class.keys() == {
        name for j, name in enumerate("abcde") if c.query_labels[counted, j].any()
    }
    for name, figures in result.per_class.items():
        holding = [q for q in counted if c.query_labels[q, "abcde".index(name)]]
        keys = {"map": "ap", "p0": "p", "r0": "r", "f1_own": "f1_own"}
        assert figures == pytest.approx(
            {key: mean(per_query[of][q] for q in holding) for key, of in keys.items()}
            | {"queries": len(holding)}
        )


def assert_curves(
    result: Evaluation, c: Case, search: Search, budgets: list[int], ks: list[int]
) -> None:
    want = curve_by_budget(c, search, budgets)
    np.testing.assert_allclose(result.f1_buckets, want, rtol=1e-12)
    np.testing.assert_allclose(result.f1_buckets_by_k, curve_by_k(c, search, ks), rtol=1e-12)


@pytest.mark.parametrize(
    ("bits", "alike"), [(bits, 0) for bits in WIDTHS] + [(72, 8), (192, 8), (256, 8), (256, 20)]
)
def test_curves_match_the_oracle(bits: int, alike: int) -> None:
    """The oracle ranks in Python's integers, which are not capped before they are compared.

    The first `alike` bytes of all codes are equal, so the later words of a mask decide.
    """
    c = case(bits, n=40, queries=5, seed=bits, flips=bits / 4)
    c.queries[-1] = ~c.queries[-2]  # as far as possible from many codes
    c.database.codes[:, :alike] = c.queries[:, :alike] = 0x5A
    result = evaluate(*c)
    budgets = [round(b) for b, _ in result.f1_buckets]
    assert_curves(result, c, search_of(c, oracle=True), budgets, default_ks(c.n))


@settings(max_examples=60)
@given(cases, st.data())
def test_curves_match_the_table(c: Case, data: st.DataObject) -> None:
    most = min(2**c.bits, INT64_MAX)
    drawn = data.draw(st.lists(st.integers(1, most), max_size=3), label="budgets")
    budgets = sorted({1, 2, c.bits + 1, most, *drawn})
    ks = sorted({1, c.n, c.n + 3, *data.draw(st.lists(st.integers(1, c.n)), label="ks")})
    result = evaluate(*c, budgets=budgets, ks=ks, threads=1)
    assert_curves(result, c, search_of(c, oracle=False), budgets, ks)


@settings(max_examples=40)
@given(cases, st.integers(0, 8))
def test_figures_at_a_radius_match_the_table(c: Case, radius: int) -> None:
    found = c.table().within(c.queries, radius)
    sets = [set(found.ids[a:b].tolist()) for a, b in zip(found.lims, found.lims[1:], strict=False)]
    counted = c.counted()
    p = {q: len(sets[q] & c.relevant(q)) / max(1, len(sets[q])) for q in counted}
    nonempty = [p[q] for q in counted if sets[q]]
    (row,) = at_radius(*c, [radius], threads=1)
    assert row == pytest.approx(
        {
            "radius": radius,
            "p": mean(p.values()),
            "p_nonempty": mean(nonempty) if nonempty else None,
            "r": mean(len(sets[q] & c.relevant(q)) / len(c.relevant(q)) for q in counted),
            "empty": mean(not sets[q] for q in counted),
            "f1": mean(slow_f1(sets[q], c.relevant(q)) for q in counted),
        }
    )
    whole = evaluate(*c, radius=radius, threads=1)
    assert (row["p"], row["r"], row["empty"]) == (whole.p0, whole.r0, whole.empty)
    assert row["p_nonempty"] == whole.p0_nonempty


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=3))
def test_tie_aware_is_the_mean_over_all_orders(ties: list[list[bool]]) -> None:
    """Each inner list has the relevance of the images at one distance."""
    flat = list(chain(*ties))
    relevant = {i for i, alike in enumerate(flat) if alike}
    if not relevant:
        return
    numbers = iter(range(len(flat)))
    groups = [[next(numbers) for _ in tie] for tie in ties]
    every = [
        slow_ap(list(chain(*orders)), relevant)
        for orders in product(*(list(permutations(group)) for group in groups))
    ]
    want = sum(every) / len(every)
    counts = np.array([len(tie) for tie in ties]), np.array([sum(tie) for tie in ties])
    got = tie_aware_average_precision(*counts, harmonic(len(flat)))
    assert got == pytest.approx(float(want), rel=1e-12)
    distances = [d for d, tie in enumerate(ties) for _ in tie]
    assert slow_tie_aware(distances, relevant) == want


def test_tie_aware_is_accurate_in_a_large_database() -> None:
    images, relevant = np.array([70_000, 1, 49_998, 1]), np.array([30_000, 1, 11, 1])
    exact, t, r = 0.0, 0, 0
    for g, h in zip(images.tolist(), relevant.tolist(), strict=True):
        i = np.arange(1, g + 1)
        exact += float(np.sum(h / g * (r + 1 + (i - 1) * (h - 1) / max(1, g - 1)) / (t + i)))
        t, r = t + g, r + h
    got = tie_aware_average_precision(images, relevant, harmonic(t))
    assert got == pytest.approx(exact / r, rel=1e-11)


@settings(max_examples=30)
@given(cases)
def test_ap_is_between_the_best_and_the_worst_order_of_ties(c: Case) -> None:
    """Database order is one of the orders over which the tie-aware figure is the mean."""
    result = evaluate(*c, threads=1)
    for q in c.counted():
        relevant, distances = c.relevant(q), slow_distances(c, q)
        best = sorted(range(c.n), key=lambda i: (distances[i], i not in relevant))
        worst = sorted(range(c.n), key=lambda i: (distances[i], i in relevant))
        low, high = float(slow_ap(worst, relevant)), float(slow_ap(best, relevant))
        for name in ("ap", "ap_tie_aware"):
            assert low - 1e-12 <= result.per_query[name][q] <= high + 1e-12


@pytest.mark.parametrize("bits", WIDTHS)
def test_one_code_per_image_is_hamming_ranking(bits: int) -> None:
    c = case(bits, n=300, queries=12, seed=bits, codes_per_image=1.0)
    codes = np.empty((c.n, bits // 8), np.uint8)
    codes[c.database.images] = c.database.codes
    index = faiss.IndexBinaryFlat(bits)
    index.add(codes)
    distances, ids = index.search(c.queries, c.n)
    result = evaluate(*c)
    for q in c.counted():
        order = ids[q][np.lexsort((ids[q], distances[q]))].tolist()
        want = slow_ap(order, c.relevant(q))
        assert result.per_query["ap"][q] == pytest.approx(float(want), rel=1e-12)
    assert result.anhc == result.anhc_raw == 1
    for row in at_radius(*c, [0, 1, 3]):
        # The radius of FAISS is exclusive.
        lims, _, _ = index.range_search(c.queries[c.counted()], row["radius"] + 1)
        assert row["empty"] == pytest.approx(float((np.diff(lims.astype(int)) == 0).mean()))


@settings(max_examples=30)
@given(cases)
def test_more_buckets_never_find_less(c: Case) -> None:
    rows = at_radius(*c, range(c.bits + 1), threads=1)
    recalls = [row["r"] for row in rows]
    empties = [row["empty"] for row in rows]
    assert recalls == sorted(recalls)
    assert recalls[-1] == 1
    assert empties == sorted(empties, reverse=True)
    assert all(row["p"] <= (row["p_nonempty"] or 0) + 1e-12 for row in rows)

    # If every image is relevant, precision is 1, so F1 grows with recall and ends at 1.
    everything = c._replace(
        labels=np.ones_like(c.labels), query_labels=np.ones_like(c.query_labels)
    )
    result = evaluate(*everything, threads=1)
    by_budget = [f1 for _, f1 in result.f1_buckets]
    by_k = [f1 for _, f1, _ in result.f1_buckets_by_k]
    assert by_budget == sorted(by_budget)
    assert by_k == sorted(by_k)
    assert (by_k[-1], result.map, result.map_tie_aware) == pytest.approx((1, 1, 1))
    buckets = [b for b, _, _ in result.f1_buckets_by_k]
    assert buckets == sorted(buckets)
    assert result.f1_own == by_budget[0]


@settings(max_examples=30)
@given(cases, st.randoms(use_true_random=False))
def test_order_and_duplicates_of_codes_do_not_matter(c: Case, random: Any) -> None:
    """Neither the order of the codes nor a repeated code changes a figure."""
    rows = list(range(len(c.database.codes)))
    rows += random.choices(rows, k=5)
    random.shuffle(rows)
    again = Codes(c.database.codes[rows], c.database.images[rows], c.database.kept)
    assert evaluate(*c, threads=1).to_json() == evaluate(*c._replace(database=again)).to_json()


def test_the_number_of_threads_changes_nothing() -> None:
    c = case(64, n=500, queries=50, seed=1)
    one = evaluate(*c, threads=1, at=AT)
    for threads in (0, 2, 5):
        many = evaluate(*c, threads=threads, at=AT)
        assert many.to_json() == one.to_json()
        for name, values in one.per_query.items():
            np.testing.assert_array_equal(many.per_query[name], values)


def by_hand() -> Evaluation:
    """The query is 0000 0000, with class a. Five images, by distance and class: 0 b, 1 a, 1 b,
    0 a (by its second code), 8 a. Bucket 1 contains images 0 and 3, bucket 2 image 1, bucket 9
    image 2, and bucket 256 image 4.
    """
    codes = [0, 0b1000_0000, 0b0000_0001, 0b1111_1110, 0, 0, 0b1111_1111]
    images = [0, 1, 2, 3, 3, 3, 4]
    labels = np.array([[0, 1], [1, 0], [0, 1], [1, 0], [1, 0]], bool)
    database = Codes(np.array(codes, np.uint8)[:, None], np.array(images))
    query = np.zeros((1, 1), np.uint8)
    return evaluate(
        query, database, np.array([[True, False]]), labels,
        at=(1, 2, 3), ks=(1, 2, 3, 4, 5, 6), classes=["a", "b"],
    )  # fmt: skip


def test_by_hand() -> None:
    result = by_hand()
    # The ranking is 0, 3, 1, 2, 4: the relevant images have ranks 2, 3 and 5.
    assert result.map == pytest.approx((1 / 2 + 2 / 3 + 3 / 5) / 3)
    # Four orders: ranks {1 or 2}, {3 or 4}, 5.
    assert result.map_tie_aware == pytest.approx(
        ((1 + 1 / 2) / 2 + (2 / 3 + 2 / 4) / 2 + 3 / 5) / 3
    )
    assert result.map_at == pytest.approx({1: 0, 2: (1 / 2) / 2, 3: (1 / 2 + 2 / 3) / 3})
    assert (result.p0, result.p0_nonempty, result.r0, result.empty) == (0.5, 0.5, 1 / 3, 0)
    assert (result.codes, result.anhc, result.anhc_raw) == (6, 1.2, None)
    own, two, three, all_ = (2 * h / (found + 3) for h, found in ((1, 2), (2, 3), (2, 4), (3, 5)))
    assert result.f1_own == own
    # 1, 2, 5, 10, 20, 50, 100, 200, 256 buckets
    f1 = [own, two, two, three, three, three, three, three, all_]
    assert result.f1_buckets == [
        [b, pytest.approx(v)] for b, v in zip(default_budgets(8), f1, strict=True)
    ]
    # Image 0 comes first in bucket 1 and is not relevant; a sixth image is sought in all buckets.
    assert result.f1_buckets_by_k == [
        [1, 0, 1], [1, own, 2], [2, two, 3], [9, three, 4], [256, all_, 5], [256, all_, 6]
    ]  # fmt: skip
    assert result.per_class == {
        "a": {"queries": 1, "map": result.map, "p0": 0.5, "r0": 1 / 3, "f1_own": own}
    }


def test_to_json_has_plain_values() -> None:
    result = by_hand()
    out = result.to_json()
    assert json.loads(json.dumps(out)) == out
    assert out["map_at"].keys() == {"1", "2", "3"}
    assert "per_query" not in out
    assert out["conventions"]["map_at"] == "divided by min(k, number of relevant images)"


def test_queries_that_find_nothing() -> None:
    c = case(64, n=30, queries=4, seed=3)
    far = c._replace(queries=np.random.default_rng(0).integers(0, 256, (4, 8), np.uint8))
    result = evaluate(*far, budgets=[1, 2])
    assert (result.p0, result.p0_nonempty, result.r0, result.empty) == (0, None, 0, 1)
    assert result.f1_buckets == [[1, 0], [2, 0]]


def test_default_curve_stops_when_everything_is_found() -> None:
    """Every code equals the query: one bucket is enough, but the curve always extends to 1000."""
    labels = np.ones((4, 1), bool)
    database = Codes(np.zeros((4, 8), np.uint8), np.arange(4))
    one = evaluate(np.zeros((1, 8), np.uint8), database, labels[:1], labels)
    assert [b for b, _ in one.f1_buckets] == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    further = replace(database, codes=np.repeat(np.array([[0], [0], [0], [1]], np.uint8), 8, 1))
    last = evaluate(np.zeros((1, 8), np.uint8), further, labels[:1], labels).f1_buckets
    assert last[-1][1] == 1
    assert last[-2][1] < 1
    assert last[-1][0] > bucket_ranks(further.codes[3:])[0] > last[-2][0]


def test_curves_may_be_left_out() -> None:
    result = evaluate(*case(16, n=10, queries=3, seed=0), ks=(), budgets=())
    assert (result.f1_buckets, result.f1_buckets_by_k, result.map_at) == ([], [], {})


def test_last_bucket_inverts_the_rank() -> None:
    for bits in (8, 16, 24, 64, 72, 256):
        most = min(2**bits, INT64_MAX - 1)
        every = range(1, 257) if bits == 8 else [b for b in default_budgets(bits) if b <= most]
        for budget in every:
            radius, mask = last_bucket(budget, bits)
            assert mask.bit_count() == radius
            packed = np.frombuffer(mask.to_bytes(bits // 8, "big"), np.uint8)
            assert bucket_ranks(packed).tolist() == [budget]


@pytest.mark.parametrize("bits", range(8, 257, 8))
def test_default_budgets(bits: int) -> None:
    budgets = default_budgets(bits)
    assert budgets == sorted(set(budgets))
    assert budgets[-1] == min(2**bits, INT64_MAX)
    assert {b for b in (1, 10, 100, 1000) if b <= 2**bits} <= set(budgets)


@pytest.mark.parametrize("n", [1, 2, 10, 40, 41, 1000, 120_000])
def test_default_ks(n: int) -> None:
    ks = default_ks(n)
    assert ks == sorted(set(ks))
    assert (ks[0], ks[-1]) == (1, n)
    assert len(ks) <= 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {"queries": c.queries.astype(np.int64)}, "uint8 array, not int64"),
        (lambda c: {"queries": c.queries.tolist()}, "uint8 array, not list"),
        (lambda c: {"queries": c.queries[0]}, r"queries must have the shape .* not \(2,\)"),
        (lambda c: {"queries": c.queries[:0]}, "queries is empty"),
        (lambda c: {"queries": np.tile(c.queries, 17)}, "1 to 32 bytes"),
        (lambda c: {"queries": c.queries[:, :1]}, "8 bits and the database has 16"),
        (lambda c: {"query_labels": c.query_labels[1:]}, "each of the 4 queries, not 3"),
        (lambda c: {"query_labels": c.query_labels[:, 1:]}, "4 classes and labels has 5"),
        (lambda c: {"query_labels": c.query_labels.astype(int)}, "bool array, not int64"),
        (lambda c: {"labels": c.labels.astype(np.uint8)}, "bool array, not uint8"),
        (lambda c: {"labels": c.labels[:, 0]}, r"\(rows, classes\)"),
        (lambda c: {"labels": c.labels[:, :0]}, r"\(rows, classes\)"),
        (lambda c: {"labels": c.labels[:-1]}, "image 9 is not one of the 9 images with labels"),
        (lambda c: {"labels": np.tile(c.labels, (2, 1))}, "10 of 20 images have no code.* 10"),
        (lambda c: {"labels": np.zeros_like(c.labels)}, "no query shares a label"),
        (lambda c: {"database": Codes(c.database.codes[:0], c.database.images[:0]),
                    "labels": c.labels[:0]}, "database is empty"),
        (lambda c: {"database": Codes(c.database.codes, c.database.images - 1)}, "image -1 is not"),
        (lambda c: {"database": Codes(c.database.codes, c.database.images[1:])}, r"shape \(20,\)"),
        (lambda c: {"database": Codes(c.database.codes, c.database.images / 1)}, "integer array"),
        (lambda c: {"database": replace(c.database, codes=c.database.codes / 1)}, "database.codes"),
        (lambda c: {"database": replace(c.database, kept=np.ones(3, int))}, "each of the 10"),
        (lambda c: {"database": replace(c.database, kept=np.zeros(10, int))}, "kept is 0"),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused(change: Callable[[Case], dict[str, Any]], message: str) -> None:
    c = case(16, n=10, queries=4, seed=0)
    assert evaluate(*c).images == 10
    bad = c._replace(**change(c))
    with pytest.raises(ValueError, match=message):
        evaluate(*bad)
    with pytest.raises(ValueError, match=message):
        at_radius(*bad, [0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": -1}, "radius: expected 0 to 16, not -1"),
        ({"radius": 17}, "radius: expected 0 to 16, not 17"),
        ({"radius": 0.5}, "radius: expected a whole number, not 0.5"),
        ({"at": [0]}, "at: expected 1 to .*, not 0"),
        ({"ks": [0, 1]}, "ks: expected 1 to .*, not 0"),
        ({"budgets": [2**63]}, "budgets: expected 1 to 9223372036854775807"),
        ({"classes": ["a"]}, "5 different names"),
        ({"classes": list("aabcd")}, "got 5, of which 4 are different"),
        ({"threads": -1}, "threads"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(*case(16, n=10, queries=4, seed=0), **options)


def test_bad_radii_are_refused() -> None:
    with pytest.raises(ValueError, match="radii: expected 0 to 16, not 17"):
        at_radius(*case(16, n=10, queries=4, seed=0), [1, 17])


def test_progress_is_reported_and_may_stop_the_run() -> None:
    c = case(16, n=20, queries=50, seed=0)
    seen: list[tuple[int, int | None]] = []
    evaluate(*c, progress=lambda step: seen.append((step.done, step.total)))
    assert seen[-1] == (50, 50)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    def refuse(step: Step) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at_radius(*c, [0], progress=refuse)


def test_arguments_are_not_changed() -> None:
    c = case(72, n=20, queries=5, seed=0)
    arrays: list[NDArray[Any]] = [
        c.queries,
        c.database.codes,
        c.database.images,
        c.query_labels,
        c.labels,
    ]
    for array in arrays:
        array.setflags(write=False)
    assert evaluate(*c).queries == 5
    assert at_radius(*c, [1])


def test_import_is_light(tmp_path: Path) -> None:
    script = (
        "import sys, mchindex.evaluation; "
        "heavy = {'torch', 'faiss', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    run_script(script, folder=tmp_path)
