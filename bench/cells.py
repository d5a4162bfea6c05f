"""Cells: a base method at a code width from a seed, trained and measured; kept as they are done.

`learning.py` shows them, `paper.py` studies what they left. They are computed by processes of
their own, which is what running this file starts; an interrupted run goes on where it stopped.
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

from common import progress
from mchindex.datasets import Dataset, open_dataset
from mchindex.models import MCHModel
from mchindex.models.backbones import create_backbone
from mchindex.models.extract import Extractor, choose_device
from mchindex.models.hashing import HashMethod, Packed, check_bits
from mchindex.models.methods import create_method
from mchindex.models.policy import Policy
from mchindex.models.region_codes import RegionCodes
from mchindex.models.views import Features
from mchindex.progress import Progress, Step
from mchindex.regions import corners_and_centre
from mchindex.training.features import (
    WHOLE_ONLY,
    FeatureCache,
    Fixed,
    WithCrops,
    default_cache,
)
from mchindex.training.measure import Coded, kept_by, measure
from mchindex.training.options import LABELLINGS, TrainingOptions
from mchindex.training.run import fit_from_views, labelled
from paper_figures import ANHC_XI

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
            rows, tell = dataset.splits[split], tell_features(split)
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


def tell_features(what: str) -> Progress:
    def tell(step: Step) -> None:
        if step.done % 4096 == 0 or step.done == step.total:
            progress(f"features of {what}: {step.done:,} of {step.total:,}")

    return tell


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


def read_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of all cells there are."""
    found = [read_row(path) for path in sorted(args.work.glob("*-*-*.json"))]
    return [row for row in found if row is not None]


def beside(path: Path) -> Path:
    """Where a file is written before it takes its place; no other process writes there."""
    return path.with_name(f"{path.name}.{os.getpid()}.new")


def done(path: Path) -> bool:
    """Whether a cell's figures are there, and its codes beside them."""
    return path.exists() and path.with_suffix(".pt").exists()


def all_cells(args: argparse.Namespace) -> list[tuple[str, int, int]]:
    return [(m, b, s) for s in range(args.seeds) for b in args.bits for m in args.methods]


def missing(args: argparse.Namespace) -> list[str]:
    """Cells that have not been computed."""
    names = [f"{m}-{b}-{s}" for m, b, s in all_cells(args)]
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


def work(args: argparse.Namespace) -> None:
    """A worker: takes cells that are not done yet, one after the other."""
    die_with(args.worker)
    torch.set_num_threads(args.threads)
    data = Data(open_dataset(args.data), args)
    for method, bits, seed in all_cells(args):
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


def die_with(parent: int) -> None:
    """Ends this process soon after its parent has gone, however that came: no worker lives on."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--name", required=True)
    parser.add_argument("--labels", choices=list(LABELLINGS), required=True)
    parser.add_argument("--worker", type=int, required=True, help="the process that started this")
    work(parser.parse_args())


if __name__ == "__main__":
    main()
