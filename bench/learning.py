"""What MCH brings to each base method, on labelled images: R@H=0, P@H=0, mAP, F1 by buckets, ANHC.

Every cell is a base method X at a code width, trained and measured with several seeds; beside it
MCH-X, regions kept at random at the same ANHC, and all regions kept. Settings come from validation
parts of training sets; bench/README.md says where query results had a hand in it.

    python bench/learning.py --data DIR                   # crops at 160 px, all cells, three seeds
    python bench/learning.py --data DIR --regions pooled --size 224 --bits 32
    python bench/learning.py --data DIR --report          # tables and pictures of what is there

Cells are kept in --work as they are done: an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from cells import (
    BUDGETS,
    FIGURES,
    LABELS,
    SUPERVISED,
    UNSUPERVISED,
    Data,
    RunError,
    add_options,
    alone,
    cells_folder,
    check_data,
    read_rows,
    run_cells,
    slug,
)
from common import RESULTS, record, write_json
from mchindex.datasets import open_dataset
from mchindex.errors import DatasetError
from mchindex.evaluation.plots import plot_cells, plot_f1_buckets
from mchindex.training.options import LABELLINGS
from paper_figures import BITS, PAPER, theirs


def mean_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a method and width: the mean over seeds of every figure, and the spread of some."""
    out = []
    for method, bits in sorted({(r["method"], r["bits"]) for r in rows}, key=_order):
        these = [r for r in rows if (r["method"], r["bits"]) == (method, bits)]
        row: dict[str, Any] = {"method": method, "bits": bits, "seeds": len(these)}
        for way in ("base", "mch", "random_keep", "keep_all"):
            if way not in these[0]:
                continue
            row[way] = {
                name: None
                if any(r[way][name] is None for r in these)
                else float(np.mean([r[way][name] for r in these]))
                for name in FIGURES
            }
            for name in ("map", "r0", "p0", "f1_own"):
                values = [r[way][name] for r in these]
                row[way][f"{name}_std"] = float(np.std(values, ddof=len(values) > 1))
            curves = [{b: f for b, f in r[way]["f1_buckets"]} for r in these]
            shared = sorted(set.intersection(*(set(c) for c in curves)))
            row[way]["f1_buckets"] = [[b, float(np.mean([c[b] for c in curves]))] for b in shared]
        out.append(row)
    return out


def _order(key: tuple[str, int]) -> tuple[int, int]:
    return (UNSUPERVISED + SUPERVISED).index(key[0]), key[1]


def f1_at(row: dict[str, Any], way: str) -> list[float]:
    curve = {int(b): f for b, f in row[way]["f1_buckets"]}
    return [curve[b] for b in BUDGETS]


def statements(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What should hold, whether it does, and where it does not."""
    cells = [r for r in rows if "mch" in r]

    def each(name: str, test: Any) -> tuple[str, dict[str, Any]]:
        fails = [f"{r['method']}-{r['bits']}" for r in cells if not test(r)]
        return name, {"holds": not fails, "cells": len(cells), "fails": fails}

    ratios = [r["mch"]["r0"] / max(r["base"]["r0"], 1e-9) for r in cells]
    gain = float(np.exp(np.mean(np.log(ratios))))
    precision = float(np.mean([r["mch"]["p0"] - r["base"]["p0"] for r in cells]))
    pca = {r["bits"]: r["base"]["map"] for r in rows if r["method"] == "pca"}
    itq = {r["bits"]: r["base"]["map"] for r in rows if r["method"] == "itq"}
    best = {b: max(pca.get(b, 0.0), itq.get(b, 0.0)) for b in {r["bits"] for r in cells}}
    out = dict(
        [
            each("R@H=0 of MCH-X above X", lambda r: r["mch"]["r0"] > r["base"]["r0"]),
            each("mAP of MCH-X above X", lambda r: r["mch"]["map"] > r["base"]["map"]),
            each(
                "P@H=0 not more than 0.005 below X",
                lambda r: r["mch"]["p0"] >= r["base"]["p0"] - 0.005,
            ),
            each("mAP above random keeping", lambda r: r["mch"]["map"] > r["random_keep"]["map"]),
            each(
                "F1 of the own bucket above random keeping",
                lambda r: r["mch"]["f1_own"] > r["random_keep"]["f1_own"],
            ),
            each("keeping all loses mAP", lambda r: r["keep_all"]["map"] < r["mch"]["map"]),
            each(
                "F1 at 1, 10, 100, 1000 buckets above X",
                lambda r: all(
                    a > b for a, b in zip(f1_at(r, "mch"), f1_at(r, "base"), strict=True)
                ),
            ),
            each("mAP above ITQ and PCA", lambda r: r["base"]["map"] > best[r["bits"]]),
            each(
                "at most 80 % empty own buckets at 32 bits",
                lambda r: r["bits"] != 32 or r["base"]["empty"] <= 0.8,
            ),
        ]
    )
    out["R@H=0 ratio, geometric mean"] = {"holds": gain >= 1.25, "value": gain}
    out["P@H=0 change, mean"] = {"holds": precision > 0, "value": precision}
    return out


def report(args: argparse.Namespace) -> None:
    rows = read_rows(args)
    if not rows:
        sys.exit(f"no cells in {args.work}: run without --report first")
    means = mean_rows(rows)
    found = statements(means)
    size = args.size or 160
    name = cells_folder(args).name.replace("cells-", "learning-", 1)
    settings = {
        "data": args.name,
        "regions": args.regions,
        "size": size,
        "sigma": args.sigma,
        "xi": 0.5,
        "crops": args.crops,
        "labels": args.labels,
        "backbone": "efficientnet-lite0, frozen",
        "methods": {
            f"{r['method']}-{r['bits']}": {"settings": r["settings"], "agent": r["agent"]}
            for r in rows
            if r["seed"] == 0
        },
    }
    extra = {
        "anhc_by_xi": {
            f"{r['method']}-{r['bits']}": r["anhc_by_xi"]
            for r in rows
            if r["seed"] == 0 and "anhc_by_xi" in r
        },
    }
    content = record(settings, 0, means) | {"statements": found} | extra
    content["paper"] = {"bits": BITS, "figures": PAPER["coco"]}
    content["seconds"] = {
        f"{r['method']}-{r['bits']}-{r['seed']}": round(r["seconds"]["all"], 1) for r in rows
    }
    write_json(RESULTS / f"{name}.json", content)
    show(means, found)
    draw(means, name)


def show(rows: list[dict[str, Any]], found: dict[str, dict[str, Any]]) -> None:
    print("cell          way          mAP    R@H=0  P@H=0  empty  ANHC   F1 at 1/10/100/1000")
    for r in rows:
        for way in ("base", "mch", "random_keep", "keep_all"):
            if way not in r:
                continue
            f = r[way]
            curve = " ".join(f"{x:.4f}" for x in f1_at(r, way))
            print(
                f"{r['method']:>8}-{r['bits']:<3} {way:12} {f['map']:.4f} {f['r0']:.4f} "
                f"{f['p0']:.4f} {f['empty']:.3f} {f['anhc']:.3f}  {curve}"
            )
        values = []
        for what in ("map", "r0", "p0"):
            found_there = theirs("coco", what, r["method"], r["bits"])
            if found_there and found_there[1] is not None:
                values.append(f"{what} {found_there[0]:.4f} -> {found_there[1]:.4f}")
        if values:
            print(f"{'':13}paper: {', '.join(values)}")
    print()
    for name, verdict in found.items():
        value = f" ({verdict['value']:.4f})" if "value" in verdict else ""
        fails = f" in {', '.join(verdict['fails'])}" if verdict.get("fails") else ""
        print(f"{'holds' if verdict['holds'] else 'FAILS':6} {name}{value}{fails}")


def draw(rows: list[dict[str, Any]], name: str) -> None:
    cells = [r for r in rows if "mch" in r]
    if len({r["bits"] for r in cells}) > 1:
        for figure, title in (("r0", "R@H=0"), ("map", "mAP"), ("p0", "P@H=0")):
            values: dict[str, dict[int, float]] = {}
            for r in cells:
                label = LABELS[r["method"]]
                values.setdefault(label, {})[r["bits"]] = r["base"][figure]
                values.setdefault(f"MCH-{label}", {})[r["bits"]] = r["mch"][figure]
            plot_cells(values, RESULTS / f"{name}-{figure}.png", title, f"{title} by code width")
    curves = {}
    for r in cells:
        if r["bits"] == 32:
            curves[LABELS[r["method"]]] = r["base"]["f1_buckets"]
            curves[f"MCH-{LABELS[r['method']]}"] = r["mch"]["f1_buckets"]
    if curves:
        plot_f1_buckets(curves, RESULTS / f"{name}-f1-32.png", "F1 by buckets visited, 32 bits")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--name", help="the data's name in the results; else taken from --data")
    parser.add_argument(
        "--labels", choices=list(LABELLINGS), default="images", help="what is learnt from"
    )
    parser.add_argument("--report", action="store_true", help="only write what is there")
    args = parser.parse_args()
    args.name = args.name or slug(args.data)
    if args.work is None:
        args.work = cells_folder(args)
    if not args.report:
        try:
            with alone(args.work):
                dataset = open_dataset(args.data)
                check_data(args.work, dataset)
                Data(dataset, args)  # all features, before the workers share them
                run_cells(args)
        except (DatasetError, RunError) as error:
            sys.exit(f"bench/learning.py: {error}")
    report(args)


if __name__ == "__main__":
    main()
