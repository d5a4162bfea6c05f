"""Retrieval quality of a set of codes: every figure of the paper in one pass over the queries.

An image is relevant to a query if they share at least one label. Recall is undefined for a query
without a relevant image in the database: such queries are left out of every mean and counted in
`without_relevant`. Images without labels are relevant to no query: leave them out of the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from mchindex.evaluation.checks import check_codes, check_labels, class_names, whole, wholes
from mchindex.evaluation.code_words import to_words
from mchindex.evaluation.curves import default_budgets, default_ks
from mchindex.evaluation.database import Codes, Database
from mchindex.evaluation.metrics import f1, precision
from mchindex.evaluation.tally import Counts, Tally, for_each_block
from mchindex.progress import Progress, silent

Floats = NDArray[np.float64]

ALWAYS = 1000  # the default curve extends to this budget even if fewer buckets find everything

CONVENTIONS = {
    "relevant": "shares at least one label with the query",
    "without_relevant": "queries without a relevant image are left out of every mean",
    "distance": "the smallest over an image's distinct codes; every image ranks once",
    "map": "over the whole ranking; ties in database order",
    "map_tie_aware": "mean over all orders of the images that tie in distance",
    "map_at": "divided by min(k, number of relevant images)",
    "ndcg10": "nDCG of the first 10 images; an image's gain is the Jaccard index of its labels and "
    "the query's; ties in database order",
    "p10": "share of the first 10 images that are relevant; ties in database order",
    "p0": "a query that finds nothing within the radius counts as 0",
    "f1_buckets": "mean F1 of all images in the first buckets visited, empty buckets included",
    "f1_buckets_by_k": "mean number of buckets and mean F1 at the K-th image; images of a bucket "
    "in database order; bucket counts are capped at 2^63 - 1",
}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`. Means are over the queries that have a relevant image."""

    bits: int
    radius: int  # of p0, r0, empty
    queries: int  # all queries given
    without_relevant: int  # queries left out of the means
    images: int
    codes: int  # distinct codes of each image, summed over the images

    map: float  # over the whole ranking; ties in database order
    map_tie_aware: float  # the mean over all orders of ties
    map_at: dict[int, float]  # by k; divided by min(k, number of relevant images)
    ndcg10: float  # of the first 10 images; their gain is the Jaccard index of the labels
    p10: float  # share of relevant images among the first 10
    p0: float  # precision within the radius; a query that finds nothing counts as 0
    p0_nonempty: float | None  # the same over the queries that find something; None if none does
    r0: float  # recall within the radius
    empty: float  # share of the queries that find nothing within the radius
    anhc: float  # average number of hash codes: mean number of distinct codes per image
    anhc_raw: float | None  # mean of `Codes.kept`, duplicates included; None if not given
    f1_own: float  # F1 within the query's bucket (H=0)

    f1_buckets: list[list[float]]  # [number of buckets, mean F1 of all images in them]
    f1_buckets_by_k: list[list[float]]  # [mean number of buckets, mean F1, K] of the first K images
    per_class: dict[str, dict[str, float]]  # queries, map, p0, r0, f1_own of queries with the class
    # ap, ap_tie_aware, ndcg10, p10, p, r, f1_own: (queries,) each; NaN for queries left out
    per_query: dict[str, Floats] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Every figure except `per_query` as plain numbers, and the conventions they follow."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "per_query"}
        out["map_at"] = {str(k): value for k, value in self.map_at.items()}  # JSON keys are strings
        return out | {"conventions": dict(CONVENTIONS)}


def evaluate(
    queries: NDArray[np.uint8],
    database: Codes,
    query_labels: NDArray[np.bool_],
    labels: NDArray[np.bool_],
    *,
    radius: int = 0,
    at: Sequence[int] = (),
    ks: Sequence[int] | None = None,
    budgets: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    threads: int = 0,
    progress: Progress = silent,
) -> Evaluation:
    """Ranks the database for every query and computes all figures.

    `queries` (q, bits // 8) are whole-image codes; `query_labels` (q, classes) and `labels`
    (n, classes) are bool. `radius` applies to p0, r0 and empty; `at` lists the k of map_at; `ks`
    the K of f1_buckets_by_k (default: up to 40, log-spaced from 1 to n); `budgets` the numbers of
    buckets of f1_buckets (default: 1, 2, 5, 10, … until every query has found everything);
    `classes` names the columns of the labels (default: their numbers). `threads=0` uses all cores.
    `progress` is called from the calling thread.

    Raises ValueError if the arrays do not fit together or no query has a relevant image.
    """
    search, wanted = _prepare(queries, database, query_labels, labels)
    radius = whole(radius, "radius", 0, search.bits)
    every_k = wholes(at, "at", 1)
    stops = default_ks(search.n_images) if ks is None else wholes(ks, "ks", 1)
    limits = default_budgets(search.bits) if budgets is None else wholes(budgets, "budgets", 1)
    names = class_names(classes, wanted.shape[1])

    tally = Tally(len(queries), search, radius, every_k, stops, limits)
    codes = to_words(queries)
    for_each_block(
        lambda first, last: tally.add(first, codes[:, first:last], wanted[first:last]),
        len(queries), threads, progress,
    )  # fmt: skip

    relevant = tally.relevant
    counted = _counted(relevant)
    n = search.n_images
    found, hits = tally.found[:, 1], tally.hits[:, 1]
    per_query = {
        "ap": tally.ap,
        "ap_tie_aware": tally.ap_tie_aware,
        "ndcg10": tally.ndcg,
        "p10": tally.p_top,
        "p": precision(found, hits),
        "r": hits / np.maximum(relevant, 1),
        "f1_own": f1(tally.found[:, 0], tally.hits[:, 0], np.maximum(relevant, 1)),
    }
    for values in per_query.values():
        values[~counted] = np.nan

    each = relevant[counted, None]
    in_budget = tally.budget_found[counted]
    if budgets is None:
        done = next(
            (b for b, all_ in zip(limits, (in_budget == n).all(0), strict=True) if all_), limits[-1]
        )
        limits = [limit for limit in limits if limit <= max(done, ALWAYS)]
    by_budget = f1(in_budget, tally.budget_hits[counted], each).mean(0)
    by_k = f1(np.minimum(stops, n), tally.k_hits[counted], each).mean(0)
    buckets = tally.k_buckets[counted].mean(0)
    nonempty = counted & (found > 0)

    def mean(name: str, which: NDArray[np.bool_] = counted) -> float:
        return float(per_query[name][which].mean())

    of_class = {name: column & counted for name, column in zip(names, wanted.T, strict=True)}
    per_class = {
        name: {
            "queries": int(which.sum()),
            "map": mean("ap", which),
            "p0": mean("p", which),
            "r0": mean("r", which),
            "f1_own": mean("f1_own", which),
        }
        for name, which in of_class.items()
        if which.any()
    }
    return Evaluation(
        bits=search.bits,
        radius=radius,
        queries=len(queries),
        without_relevant=int((~counted).sum()),
        images=n,
        codes=search.n_codes,
        map=mean("ap"),
        map_tie_aware=mean("ap_tie_aware"),
        map_at=dict(zip(every_k, tally.ap_at[counted].mean(0).tolist(), strict=True)),
        ndcg10=mean("ndcg10"),
        p10=mean("p10"),
        p0=mean("p"),
        p0_nonempty=mean("p", nonempty) if nonempty.any() else None,
        r0=mean("r"),
        empty=float((found[counted] == 0).mean()),
        anhc=search.n_codes / n,
        anhc_raw=None if database.kept is None else float(database.kept.mean()),
        f1_own=mean("f1_own"),
        f1_buckets=[[b, float(value)] for b, value in zip(limits, by_budget, strict=False)],
        f1_buckets_by_k=[
            [float(b), float(value), k] for b, value, k in zip(buckets, by_k, stops, strict=True)
        ],
        per_class=per_class,
        per_query=per_query,
    )


class AtRadius(TypedDict):
    """A row of `at_radius`: means over the queries that have a relevant image."""

    radius: int
    p: float  # a query that finds nothing counts as 0
    p_nonempty: float | None  # over the queries that find something; None if none does
    r: float
    empty: float  # share of the queries that find nothing
    f1: float


def at_radius(
    queries: NDArray[np.uint8],
    database: Codes,
    query_labels: NDArray[np.bool_],
    labels: NDArray[np.bool_],
    radii: Sequence[int],
    *,
    threads: int = 0,
    progress: Progress = silent,
) -> list[AtRadius]:
    """Precision, recall and F1 of all images within each radius, in the order of `radii`.

    The other arguments and the errors are those of `evaluate`.
    """
    search, wanted = _prepare(queries, database, query_labels, labels)
    reach = [whole(r, "radii", 0, search.bits) for r in radii]
    found, hits = np.zeros((2, len(queries), len(reach)), np.int64)
    relevant = np.zeros(len(queries), np.int64)
    codes = to_words(queries)

    def block(first: int, last: int) -> None:
        for i in range(first, last):
            alike = search.labels.sharing(wanted[i])
            relevant[i] = np.count_nonzero(alike)
            distances = search.distances(codes[:, i : i + 1])
            for j, r in enumerate(reach):
                inside = distances <= r
                found[i, j] = np.count_nonzero(inside)
                hits[i, j] = np.count_nonzero(inside & alike)

    for_each_block(block, len(queries), threads, progress)
    counted = _counted(relevant)
    found, hits, relevant = found[counted], hits[counted], relevant[counted, None]
    p, r, both = precision(found, hits), hits / relevant, f1(found, hits, relevant)
    rows: list[AtRadius] = []
    for j, radius in enumerate(reach):
        some = found[:, j] > 0
        rows.append(
            {
                "radius": radius,
                "p": float(p[:, j].mean()),
                "p_nonempty": float(p[some, j].mean()) if some.any() else None,
                "r": float(r[:, j].mean()),
                "empty": float((~some).mean()),
                "f1": float(both[:, j].mean()),
            }
        )
    return rows


def _prepare(
    queries: NDArray[np.uint8],
    database: Codes,
    query_labels: NDArray[np.bool_],
    labels: NDArray[np.bool_],
) -> tuple[Database, NDArray[np.bool_]]:
    check_codes(queries, "queries")
    if len(queries) == 0:
        raise ValueError("queries is empty: give at least one query")
    wanted = check_labels(query_labels, len(queries), "query_labels")
    search = Database(database, labels)
    if 8 * queries.shape[1] != search.bits:
        raise ValueError(
            f"the queries have {8 * queries.shape[1]} bits and the database has {search.bits}: "
            "encode both with the same model"
        )
    if wanted.shape[1] != labels.shape[1]:
        raise ValueError(
            f"query_labels has {wanted.shape[1]} classes and labels has {labels.shape[1]}: "
            "give both the same columns in the same order"
        )
    return search, wanted


def _counted(relevant: Counts) -> NDArray[np.bool_]:
    counted = relevant > 0
    if not counted.any():
        raise ValueError(
            "no query shares a label with an image of the database, so there is nothing to "
            "evaluate: check that query_labels and labels have the same classes in the same order"
        )
    return counted
