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
import fcntl
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import RESULTS, progress, record, write_json
from mchindex.datasets import Dataset, DatasetError, open_dataset
from mchindex.evaluation.plots import plot_cells, plot_f1_buckets
from mchindex.models import MCHModel
from mchindex.models.backbones import create_backbone
from mchindex.models.extract import Extractor, choose_device
from mchindex.models.hashing import Features, HashMethod, Packed, check_bits
from mchindex.models.mch import RegionCodes
from mchindex.models.methods import create_method
from mchindex.models.policy import Policy
from mchindex.regions import corners_and_centre
from mchindex.training.features import (
    WHOLE_ONLY,
    FeatureCache,
    Fixed,
    WithCrops,
    default_cache,
)
from mchindex.training.measure import Coded, kept_by, measure
from mchindex.training.run import LABELLINGS, TrainingOptions, fit_from_views, labelled
from paper_figures import ANHC_XI, BITS, PAPER, theirs

UNSUPERVISED = ("lsh", "itq", "pca")
SUPERVISED = ("ksh", "hashnet", "adsh", "dch", "mmhh")
LABELS = {
    "lsh": "LSH", "itq": "ITQ", "pca": "PCA+rotation",
    "ksh": "KSH", "hashnet": "HashNet", "adsh": "ADSH", "dch": "DCH", "mmhh": "MMHH",
}  # fmt: skip
BUDGETS = (1, 10, 100, 1000)
FIGURES = ("map", "map_tie_aware", "p0", "p0_nonempty", "r0", "empty", "anhc", "anhc_raw", "f1_own")


class RunError(Exception):
    """What whoever runs this can put right: shown without a traceback."""


class Data:
    """A data set's features: of the queries, of the database's regions, of the training views."""

    def __init__(self, dataset: Dataset, args: argparse.Namespace) -> None:
        self.dataset = dataset
        backbone = create_backbone("efficientnet-lite0", args.size, "pretrained")
        extractor = Extractor(backbone, args.regions, choose_device("cpu"))
        cache = FeatureCache(args.cache)
        self.backbone = backbone

        def features(split: str, wanted: Any) -> Any:
            def tell(stage: str, done: int, total: int, figures: Any) -> None:
                if done % 4096 == 0 or done == total:
                    progress(f"features of {split}: {done:,} of {total:,}")

            rows = dataset.splits[split]
            return cache.features(extractor, dataset.images, rows, wanted, tell)

        self.queries = features("query", WHOLE_ONLY)
        self.database = features("database", Fixed(corners_and_centre(args.sigma)))
        self.training = features("train", WithCrops(args.crops, args.sigma))
        self._views: dict[tuple[str, int], Features] = {}

    def labels(self, split: str) -> Any:
        return self.dataset.labels[self.dataset.splits[split]]

    def views(self, options: TrainingOptions) -> Features:
        """The training views with what is to be learnt of them, which only a seed changes."""
        key = (options.labels, options.seed)
        if key not in self._views:
            array, labels = torch.from_numpy(self.training), torch.from_numpy(self.labels("train"))
            self._views = {key: labelled(array, labels, options)}
        return self._views[key]


def run_cell(
    data: Data, args: argparse.Namespace, method: str, bits: int, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One base method at one width from one seed: its figures in the four ways of keeping, and
    what `read_cell` gives back."""
    supervised = method in SUPERVISED
    options = TrainingOptions(
        method,
        bits,
        sigma=args.sigma,
        regions=args.regions,
        seed=seed,
        agent=supervised,
        labels=args.labels,
    )
    start = time.monotonic()
    base, policy, curve = fit_from_views(data.views(options), options)
    trained = time.monotonic() - start
    model = MCHModel(data.backbone, base, policy, args.sigma, mode=args.regions)
    coded = Coded(
        model.codes_of(torch.from_numpy(data.queries[:, 0])),
        model.regions_of(data.database),
        data.labels("query"),
        data.labels("database"),
        data.dataset.classes,
        {},
    )
    ways = ("base", "mch", "random_keep", "keep_all") if supervised else ("base",)
    # Curves are by budgets of buckets; those by K are not looked at, and would double the time.
    found = measure(coded, 0.5, ways, seed=seed, threads=1, ks=[1])
    row: dict[str, Any] = {"method": method, "bits": bits, "seed": seed}
    for way, figures in found.items():
        row[way] = {name: getattr(figures, name) for name in FIGURES}
        row[way]["f1_buckets"] = [list(p) for p in figures.f1_buckets]
    if supervised:
        row["anhc_by_xi"] = {
            str(xi): float(coded.database.chosen(kept_by("mch", coded.database, xi)).codes.shape[0])
            / len(coded.labels)
            for xi in ANHC_XI
        }
    row["settings"] = base.settings.to_json()
    row["agent"] = options.agent_options().to_json() if supervised else None
    row["curve"] = curve
    row["seconds"] = {"train": trained, "all": time.monotonic() - start}
    parts = {
        "method": base.state_dict(),
        "policy": None if policy is None else policy.state_dict(),
        "queries": torch.from_numpy(coded.queries),
        "codes": torch.from_numpy(coded.database.codes),
        "keep": torch.from_numpy(coded.database.keep),
    }
    return row, parts


@dataclass(frozen=True)
class Kept:
    """A cell's model without its backbone, and the codes of the data in it."""

    method: HashMethod
    policy: Policy | None
    queries: Packed
    database: RegionCodes


def read_cell(work: Path, name: str, dim: int) -> Kept:
    """What a cell such as "dch-32-0" left behind, for features of `dim` numbers."""
    path = work / f"{name}.json"
    row, parts = read_row(path), None
    if row is not None:
        try:
            parts = torch.load(path.with_suffix(".pt"), map_location="cpu", weights_only=True)
        except (FileNotFoundError, EOFError, RuntimeError, pickle.UnpicklingError):
            remove_cell(path)
    if row is None or parts is None:
        raise RunError(f"the cell {name} in {work} is damaged: run again to compute it anew")
    method = create_method(row["method"], dim, row["bits"], row["settings"])
    method.load_state_dict(parts["method"])
    policy = None
    if parts["policy"] is not None:
        policy = Policy(method.feature_dim, method.bits, row["agent"]["width"])
        policy.load_state_dict(parts["policy"])
        policy.eval()
    found = RegionCodes(parts["codes"].numpy(), parts["keep"].numpy())
    return Kept(method.eval(), policy, parts["queries"].numpy(), found)


def read_row(path: Path) -> dict[str, Any] | None:
    """A cell's figures. None: they are not there, or damaged, and then the cell is removed."""
    try:
        row = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        row = None
    if isinstance(row, dict) and row.keys() >= {"method", "bits", "seed", "base", "seconds"}:
        return row
    remove_cell(path)
    return None


def remove_cell(path: Path) -> None:
    """Its figures and its codes: the one is of no use without the other."""
    for file in (path, path.with_suffix(".pt")):
        file.unlink(missing_ok=True)
    progress(f"{path} or its .pt was damaged and is removed: run again to compute it anew")


def beside(path: Path) -> Path:
    """Where a file is written before it takes its place; no other process writes there."""
    return path.with_name(f"{path.name}.{os.getpid()}.new")


def die_with(parent: int) -> None:
    """Ends this process soon after its parent has gone, however that came: no worker lives on."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def work(args: argparse.Namespace) -> None:
    """A worker: takes cells that are not done yet, one after the other."""
    die_with(args.worker)
    torch.set_num_threads(args.threads)
    data = Data(open_dataset(args.data), args)
    for method, bits, seed in cells(args):
        path = args.work / f"{method}-{bits}-{seed}.json"
        claim = path.with_suffix(".claim")
        if done(path):
            continue
        try:
            claim.touch(exist_ok=False)
        except FileExistsError:
            continue  # another worker's
        row, parts = run_cell(data, args, method, bits, seed)
        new = beside(path)
        torch.save(parts, new)
        new.replace(path.with_suffix(".pt"))
        new.write_text(json.dumps(row))
        new.replace(path)
        claim.unlink(missing_ok=True)
        mch = row.get("mch", row["base"])
        progress(
            f"{method}-{bits} seed {seed}: {row['seconds']['all']:.0f} s, mAP "
            f"{row['base']['map']:.4f} -> {mch['map']:.4f}, R@H=0 {row['base']['r0']:.4f} -> "
            f"{mch['r0']:.4f}"
        )


def cells(args: argparse.Namespace) -> list[tuple[str, int, int]]:
    return [(m, b, s) for s in range(args.seeds) for b in args.bits for m in args.methods]


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


def width(text: str) -> int:
    try:
        return check_bits(int(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def slug(spec: str) -> str:
    """A name for files: of a folder its last part, else what was asked for, with its options."""
    place, _, options = spec.partition("?")
    kind, colon, rest = place.partition(":")
    last = Path(rest if colon else place).name
    text = f"{kind}-{last}" if colon and kind != last.lower() else last
    return re.sub(r"[^a-z0-9]+", "-", f"{text}-{options}".lower()).strip("-") or "data"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What decides about the cells, and where they are."""
    parser.add_argument("--data", required=True, help="as `mch train --data` takes it")
    parser.add_argument("--regions", choices=("crops", "pooled"), default="crops")
    parser.add_argument("--size", type=int, help="pixels a side of the backbone's input")
    parser.add_argument("--sigma", type=float, default=0.5, help="a region's side over the image's")
    parser.add_argument("--crops", type=int, default=8, help="random crops a training image")
    every = [*UNSUPERVISED, *SUPERVISED]
    parser.add_argument("--methods", nargs="+", choices=every, default=every, metavar="METHOD")
    parser.add_argument("--bits", nargs="+", type=width, default=[16, 32, 48, 64])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads a process")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--work", type=Path, default=None, help="where cells are kept")


def cells_folder(args: argparse.Namespace) -> Path:
    """Where cells are kept: one folder for each setting that they depend on."""
    name = f"cells-{args.name}-{args.regions}-{args.size or 160}"
    if args.sigma != 0.5:
        name += f"-sigma{args.sigma:g}"
    if args.crops != 8:
        name += f"-crops{args.crops}"
    if args.labels != "images":
        name += f"-labels-{args.labels}"
    return Path(args.cache) / name


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Two runs in one folder would take each other's claims away."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"another run is at work in {work}")
        yield


def check_data(work: Path, dataset: Dataset) -> None:
    """Notes in `work` which data its cells are of; refuses any other."""
    path, content = work / "data.json", {"sha256": fingerprint(dataset)}
    try:
        stored = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        stored = None
    if stored is None:
        new = beside(path)
        new.write_text(json.dumps(content))
        new.replace(path)
    elif stored != content:
        raise RunError(
            f"{work} holds cells of other data: other images, labels or splits than those of "
            f"{dataset.name} now. Give another --name or --work, or remove that folder"
        )


def fingerprint(dataset: Dataset) -> str:
    """Of the images' names, labels and splits; no picture is opened."""
    names = [dataset.images.name(i) for i in range(len(dataset.images))]
    digest = hashlib.sha256(json.dumps([dataset.classes, names]).encode())
    for split in sorted(dataset.splits):
        digest.update(json.dumps([split, dataset.splits[split].tolist()]).encode())
    digest.update(np.packbits(dataset.labels, axis=1).tobytes())
    return digest.hexdigest()


def done(path: Path) -> bool:
    """Whether a cell's figures are there, and its codes beside them."""
    return path.exists() and path.with_suffix(".pt").exists()


def missing(args: argparse.Namespace) -> list[str]:
    """Cells that have not been computed."""
    names = [f"{m}-{b}-{s}" for m, b, s in cells(args)]
    return [name for name in names if not done(args.work / f"{name}.json")]


def run_cells(args: argparse.Namespace) -> None:
    """Computes the cells that are missing, in processes of their own; features must be there."""
    if not missing(args):
        return
    for claim in args.work.glob("*.claim"):
        claim.unlink(missing_ok=True)  # of a run that was interrupted
    words = ["data", "name", "regions", "size", "sigma", "crops", "seeds", "threads", "labels"]
    command = [sys.executable, __file__, "--worker", str(os.getpid())]
    for word in [*words, "cache", "work"]:
        if (value := getattr(args, word)) is not None:
            command += [f"--{word}", str(value)]
    command += ["--methods", *args.methods, "--bits", *map(str, args.bits)]
    workers = [subprocess.Popen(command) for _ in range(args.workers)]
    try:
        ends = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.terminate()
    if any(ends):
        sys.exit("a worker failed; run again to go on")


def read_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of all cells there are."""
    found = [read_row(path) for path in sorted(args.work.glob("*-*-*.json"))]
    return [row for row in found if row is not None]


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
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)  # the parent's process
    args = parser.parse_args()
    args.name = args.name or slug(args.data)
    if args.work is None:
        args.work = cells_folder(args)
    if args.worker:
        work(args)
        return
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
