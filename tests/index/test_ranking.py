"""Ranking by fine codes: what comes first, that limits hold, and that answers do not vary."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import mchindex.index.ranking as ranking
from helpers.fine_models import FINE_BITS, fine_model
from helpers.small_model import photo, small_model
from mchindex import BucketTable, MCHIndex
from mchindex.index.identity import FineIdentity
from mchindex.index.ranking import Query
from mchindex.storage.records import Row, code_type

N = 40
RANKS: Any = ("best", "fine", "code")
BY_FINE: Any = ("best", "fine")


def ids_and_scores(hits: Any) -> list[tuple[Any, ...]]:
    return [(hit.id, hit.score, hit.distance, hit.region, hit.box) for hit in hits]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MCHIndex]:
    """An index of photos, each with a year. It is only searched."""
    folder = tmp_path_factory.mktemp("ranking") / "a.mch"
    with MCHIndex.open(folder, fine_model()) as index:
        index.add(
            [photo(i) for i in range(N)], list(range(N)),
            metadata=[{"year": 2000 + i % 4} for i in range(N)], progress=False,
        )  # fmt: skip
        yield index


@pytest.mark.parametrize("rank", BY_FINE)
def test_an_image_in_the_index_comes_first_with_score_one(shared: MCHIndex, rank: Any) -> None:
    answers = shared.search([photo(i) for i in range(N)], 3, rank=rank)
    for i, hits in enumerate(answers):
        assert (hits[0].id, hits[0].score, hits[0].region) == (i, 1.0, "whole")
        assert hits[0].box == (0, 0, 60, 40)
        assert all(0 <= hit.score <= 1 for hit in hits)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_best_is_the_default(shared: MCHIndex) -> None:
    hits = shared.search(photo(3), 5)
    assert hits.rank == "best"
    assert ids_and_scores(hits) == ids_and_scores(shared.search(photo(3), 5, rank="best"))


@pytest.mark.parametrize("rank", BY_FINE)
def test_copies_come_first(shared: MCHIndex, rank: Any) -> None:
    first = 0
    for i in range(N):
        out = io.BytesIO()
        photo(i).save(out, "JPEG", quality=90)
        first += shared.search(Image.open(io.BytesIO(out.getvalue())), 1, rank=rank).ids == [i]
    assert first >= 0.9 * N


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"filter": {"year": 2001}},
        {"allowed": range(5, 25)},
        {"filter": {"year": {">=": 2002}}, "allowed": range(30)},
        {"max_radius": 5},
        {"max_buckets": 200},
    ],
)
def test_pages_and_batches_and_threads_agree(
    shared: MCHIndex, rank: Any, limits: dict[str, Any]
) -> None:
    queries = [photo(i) for i in (1, 7, 100)]
    whole = [ids_and_scores(h) for h in shared.search(queries, 12, rank=rank, **limits)]
    for query, want in zip(queries, whole, strict=True):
        alone = shared.search(query, 12, rank=rank, threads=1, **limits)
        assert ids_and_scores(alone) == want
        pages = [
            hit
            for offset in (0, 5, 10)
            for hit in ids_and_scores(shared.search(query, 5, rank=rank, offset=offset, **limits))
        ]
        assert pages[:12] == want
        assert shared.search(query, 5, rank=rank, offset=1000, **limits).ids == []
        if limits:
            allowed = limits.get("allowed", range(N))
            assert all(id in allowed for id, *_ in want)
            if "filter" in limits:
                assert all(id in shared.ids(limits["filter"]) for id, *_ in want)
            assert all(d <= limits.get("max_radius", 16) for _, _, d, *_ in want)


@pytest.mark.parametrize("rank", BY_FINE)
def test_filtered_hits_are_those_of_the_whole_list(shared: MCHIndex, rank: Any) -> None:
    everything = ids_and_scores(shared.search(photo(2), N, rank=rank))
    assert len(everything) == N
    for filter in ({"year": 2001}, {"year": {">=": 2002}}):
        some = shared.ids(filter)
        hits = shared.search(photo(2), N, rank=rank, filter=filter)
        assert ids_and_scores(hits) == [hit for hit in everything if hit[0] in some]
    assert shared.search(photo(2), 5, rank=rank, filter={"year": 1900}).ids == []
    assert shared.search(photo(2), 5, rank=rank, allowed=[]).ids == []
    assert len(shared.search(photo(2), 10 * N, rank=rank)) == N


@pytest.mark.parametrize("rank", BY_FINE)
def test_a_limited_search_ranks_what_the_codes_reach(shared: MCHIndex, rank: Any) -> None:
    several: list[dict[str, Any]] = [{"max_radius": 1}, {"max_buckets": 5}]
    for limits in several:
        reached = set(shared.search(photo(100), N, rank="code", **limits).ids)
        hits = shared.search(photo(100), N, rank=rank, **limits)
        assert set(hits.ids) == reached
        assert 0 < len(reached) < N
        assert not hits.exact
        assert hits.limited_by == next(iter(limits))


@pytest.mark.parametrize("rank", BY_FINE)
def test_answers_are_the_same_after_reopening(shared: MCHIndex, rank: Any) -> None:
    want = ids_and_scores(shared.search(photo(9), 20, rank=rank))
    assert shared.path is not None
    with MCHIndex.open(shared.path) as again:
        assert ids_and_scores(again.search(photo(9), 20, rank=rank)) == want


@pytest.mark.parametrize("rank", RANKS)
def test_searching_by_an_image_of_the_index(shared: MCHIndex, rank: Any) -> None:
    hits = shared.search(id=5, k=N, rank=rank)
    assert hits.rank == rank
    assert sorted(hits.ids) == [i for i in range(N) if i != 5]
    (name, *_) = shared[5].regions[::-1]
    assert 5 not in shared.search(id=5, region=name, k=N, rank=rank).ids
    with pytest.raises(ValueError, match="no code for 'nowhere'"):
        shared.search(id=5, region="nowhere", rank=rank)


def test_a_region_finds_the_same_region() -> None:
    with MCHIndex(fine_model()) as index:
        index.add([photo(i % 10) for i in range(20)], progress=False)
        tried = 0
        for stored in list(index.images())[:10]:
            for name in stored.regions:
                hits = index.search(id=stored.id, region=name, rank="fine", k=3)
                assert (hits[0].id, hits[0].region, hits[0].score) == (
                    int(stored.id) + 10, name, 1.0
                )  # fmt: skip
                tried += name != "whole"
        assert tried


@pytest.mark.parametrize("rank", BY_FINE)
def test_equal_scores_come_in_the_order_of_adding(rank: Any) -> None:
    with MCHIndex(fine_model()) as index:
        index.add([photo(1)] * 6, ["f", "b", "e", "a", "d", "c"], progress=False)
        index.add([photo(2), photo(3)], ["x", "y"], progress=False)
        index.update([photo(1)], ["b"], progress=False)  # the newest now
        hits = index.search(photo(1), 8, rank=rank)
        assert hits.ids[:6] == ["f", "e", "a", "d", "c", "b"]
        assert {hit.score for hit in hits[:6]} == {1.0}


def test_code_is_the_order_of_the_bucket_table(shared: MCHIndex) -> None:
    table = BucketTable(shared.bits)
    regions = {name: i for i, name in enumerate(shared.stats()["regions"])}
    for stored in shared.images():
        keys = [int(stored.id)] * len(stored.codes)
        table.add(keys, stored.codes, [regions[name] for name in stored.regions])
    queries = [photo(i) for i in range(90, 100)]
    codes = shared.model.encode_query(queries)
    want = table.search(codes, 10)
    both: list[dict[str, Any]] = [{"rank": "code"}, {"rank": "code", "threads": 1}]
    for options in both:
        answers = shared.search(queries, 10, **options)
        for i, hits in enumerate(answers):
            assert hits.ids == want.ids[i].tolist()
            assert hits.distances == want.distances[i].tolist()
            assert [regions[hit.region] for hit in hits] == want.regions[i].tolist()
            assert (hits.buckets, hits.radius) == (want.buckets[i], want.radius[i])
            assert [hit.score for hit in hits] == [
                round(1 - d / shared.bits, 4) for d in want.distances[i]
            ]
    by_code = shared.search_codes(codes, 10)
    assert [h.ids for h in by_code] == want.ids.tolist()
    assert by_code[0].rank == "code"


# More images than a small model makes in a moment: codes as they are.


def filled(n: int, seed: int = 0) -> tuple[MCHIndex, NDArray[np.uint8], NDArray[np.uint8]]:
    """An index in memory with clustered codes, the codes, and the fine codes of its images."""
    rng = np.random.default_rng(seed)
    index = MCHIndex(fine_model())
    bits, regions = index.bits, len(index.stats()["regions"])
    centres = 12
    which = rng.integers(centres, size=n)
    codes = rng.integers(0, 256, (centres, bits // 8), np.uint8)[which]
    codes ^= np.packbits(rng.random((n, bits)) < 0.05, axis=1)
    middle = rng.integers(0, 256, (centres, regions, FINE_BITS // 8), np.uint8)
    flips = np.packbits(rng.random((n, regions, FINE_BITS)) < 0.15, axis=2)
    fine = middle[which] ^ flips
    entries = np.zeros(n, code_type(bits))
    entries["code"], entries["keep"] = codes, 1
    kind = FineIdentity.of_model(fine_model())
    assert kind is not None
    rows = [Row(i, entries[i].tobytes(), fine=fine[i].tobytes()) for i in range(n)]
    assert index.add_records(rows, (kind.bits, kind.fingerprint)) == (n, 0)
    return index, codes, fine


def test_candidates_find_what_an_exhaustive_ranking_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    index, codes, fine = filled(3000)
    picked = np.random.default_rng(1).choice(3000, 40, replace=False)
    near = np.random.default_rng(2).standard_normal((40, FINE_BITS))
    asked = Query(
        codes[picked], ((np.unpackbits(fine[picked, 0], axis=1) * 2.0 - 1) + near).astype("f4")
    )
    exact = index._searcher.search(asked, 10, (), rank="best")
    assert all(hits.exact for hits in exact)
    for name, value in {"ALL": 100, "CANDIDATES": 300, "NEAR": 64, "PROBES": 4}.items():
        monkeypatch.setattr(ranking, name, value)
    found = index._searcher.search(asked, 10, (), rank="best")
    shares = [len({*one.ids} & {*other.ids}) / 10 for one, other in zip(exact, found, strict=True)]
    assert np.mean(shares) > 0.95
    assert all(one.ids[0] == other.ids[0] for one, other in zip(exact, found, strict=True))
    for hits in found:
        assert not hits.exact
        assert hits.limited_by == "candidates"
        assert hits.candidates < 3000
    # One batch or several, one thread or several: the same.
    for i in range(5):
        one = Query(asked.codes[[i]], asked.fine[[i]])  # type: ignore[index]
        alone = index._searcher.search(one, 10, (), rank="best", threads=1)[0]
        assert ids_and_scores(alone) == ids_and_scores(found[i])
    allowed = list(range(0, 3000, 7))
    some = index._searcher.search(asked, 10, (), rank="best", allowed=allowed)
    assert all(int(id) % 7 == 0 for hits in some for id in hits.ids)
    index.close()


def test_a_copy_with_another_code_is_found_by_its_fine_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, codes, fine = filled(2000, seed=3)
    for name, value in {"ALL": 100, "CANDIDATES": 20, "NEAR": 64, "PROBES": 8}.items():
        monkeypatch.setattr(ranking, name, value)
    own = (np.unpackbits(fine[77, 0]) * 2.0 - 1).astype(np.float32)[None]
    (hits,) = index._searcher.search(Query(~codes[[77]], own), 3, (), rank="best")
    assert hits.ids[0] == 77
    index.close()


def test_a_large_k_gets_all_its_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    index, codes, fine = filled(2000, seed=4)
    asked = Query(codes[:3], (np.unpackbits(fine[:3, 0], axis=1) * 2.0 - 1).astype("f4"))
    exact = [hits.ids for hits in index._searcher.search(asked, 600, (), rank="best")]
    for name, value in {"ALL": 100, "CANDIDATES": 20, "NEAR": 64, "PROBES": 8}.items():
        monkeypatch.setattr(ranking, name, value)
    assert [hits.ids for hits in index._searcher.search(asked, 600, (), rank="best")] == exact
    page = index._searcher.search(asked, 10, (), rank="best", offset=500)
    assert [hits.ids for hits in page] == [ids[500:510] for ids in exact]
    few = index._searcher.search(asked, 10, (), rank="best", allowed=list(range(90)))
    assert all(hits.exact and len(hits) == 10 for hits in few)
    # Where the cells hold too few images, the rest is looked at, too.
    monkeypatch.setattr(ranking, "CANDIDATES", 1)
    monkeypatch.setattr(ranking, "PROBES", 0)
    found = index._searcher.search(asked, 10, (), rank="best")
    assert [hits.ids for hits in found] == [ids[:10] for ids in exact]
    assert all(hits.exact for hits in found)
    none = Query(asked.codes[:0], asked.fine[:0])  # type: ignore[index]
    assert len(index._searcher.search(none, 10, (), rank="best")) == 0
    index.close()


# Errors.


def test_an_unknown_rank_is_refused(shared: MCHIndex) -> None:
    for rank in ("x", "", 1, ["best"]):
        with pytest.raises((ValueError, TypeError), match="rank must be one of best, code, fine"):
            shared.search(photo(1), rank=rank)  # type: ignore[call-overload]


@pytest.mark.parametrize("rank", BY_FINE)
def test_an_index_of_own_codes_has_no_fine_codes(rank: Any) -> None:
    with MCHIndex(bits=16) as index:
        index.add_codes([1], np.zeros((1, 2), np.uint8))
        with pytest.raises(ValueError, match="it has no fine codes"):
            index.search_codes(np.zeros(2, np.uint8), rank=rank)
        with pytest.raises(ValueError, match="it has no fine codes"):
            index.search(id=1, rank=rank)
        assert index.search_codes(np.zeros(2, np.uint8)).rank == "code"


@pytest.mark.parametrize("rank", BY_FINE)
def test_a_code_alone_cannot_be_ranked_by_fine_codes(shared: MCHIndex, rank: Any) -> None:
    with pytest.raises(ValueError, match="the query has no fine code"):
        shared.search_codes(np.zeros(2, np.uint8), rank=rank)


def test_a_partly_filled_index_ranks_by_code_until_it_is_filled() -> None:
    with MCHIndex(fine_model()) as index:
        index.add([photo(i) for i in range(4)], progress=False)
        index.add_codes(["own"], np.zeros((1, 2), np.uint8))
        assert index.search(photo(1), 2).rank == "code"
        with pytest.raises(ValueError, match="1 of its images have no fine codes"):
            index.search(photo(1), rank="best")
        index.remove("own")
        assert index.search(photo(1), 2).rank == "best"


def test_fine_codes_of_another_kind_are_not_compared(tmp_path: Path) -> None:
    from helpers.fine_models import with_fine
    from mchindex.errors import ModelMismatchError

    other = with_fine(small_model(), seed=5)
    assert other.fingerprint == fine_model().fingerprint
    with MCHIndex.open(tmp_path / "a.mch", fine_model()) as index:
        index.add([photo(i) for i in range(4)], progress=False)
    with MCHIndex.open(tmp_path / "a.mch", other) as index:
        assert index.search(photo(1), 1).rank == "code"
        with pytest.raises(ValueError, match="with the model that filled it"):
            index.search(photo(1), rank="fine")
        with pytest.raises(ModelMismatchError, match="another version of its model"):
            index.add([photo(9)], progress=False)
    with MCHIndex.open(tmp_path / "a.mch", small_model()) as index:
        assert index.search(photo(1), 1).rank == "code"
