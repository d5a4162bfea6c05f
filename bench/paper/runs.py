"""Cells: a base method at a code width with one seed, trained and measured in worker processes.

Each finished cell is a JSON file with its figures and a .pt file with its model and codes. A run
that was interrupted computes only the cells that are missing.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common import progress
from mchindex.datasets import Dataset, open_dataset
from mchindex.errors import MCHError
from mchindex.files import replacing, write_file
from mchindex.inference.region_codes import Packed
from mchindex.models import MCHModel, Policy, RegionCodes, create_method
from mchindex.models.backbones import create_backbone
from mchindex.models.extract import Extractor, choose_device
from mchindex.models.hashing import HashMethod
from mchindex.models.views import Features
from mchindex.progress import Display
from mchindex.regions import corners_and_centre
from mchindex.training.features import WHOLE_ONLY, FeatureCache, Fixed, Regions, WithCrops
from mchindex.training.measure import WAYS, Coded, measure
from mchindex.training.options import TrainingOptions
from mchindex.training.run import fit_from_views, labelled
from paper.figures import LABELS, SUPERVISED
from paper.options import Key, Options
from paper.records import CellResult, Figures, MCHRow, Row, from_json, to_json

XI = 0.5
# The paper's reward, on the training images of the base method itself.
AGENT = {"reward": "loss", "folds": 0}
MEANS = ("map", "map_tie_aware", "p0", "p0_nonempty", "r0", "empty", "anhc", "anhc_raw", "f1_own")
SPREADS = ("map", "r0", "p0", "f1_own")


class RunError(MCHError):
    """The user can put this right; the message says how."""


class Data:
    """A data set's features: of the queries, of the database's regions, of the training views."""

    def __init__(self, dataset: Dataset, options: Options) -> None:
        self.dataset, self.options = dataset, options
        self.backbone = create_backbone("efficientnet-lite0", options.size, "pretrained")
        self.extractor = Extractor(self.backbone, options.regions, choose_device("cpu"))
        self.queries = self.features("query", WHOLE_ONLY)
        self.database = self.features("database", Fixed(corners_and_centre(options.sigma)))
        self.training = self.features("train", WithCrops(options.crops, options.sigma))
        self._views: dict[tuple[str, int], Features] = {}

    def features(self, split: str, wanted: Regions, only: Any = ...) -> NDArray[np.float16]:
        """(images, regions, dim) of a split, or of `only` some of its images."""
        rows, cache = self.dataset.splits[split][only], FeatureCache(self.options.cache)
        with Display(titles={"features": f"features, {split}"}) as display:
            return cache.features(self.extractor, self.dataset.images, rows, wanted, display)

    def labels(self, split: str) -> NDArray[np.bool_]:
        return np.asarray(self.dataset.labels[self.dataset.splits[split]], bool)

    def views(self, options: TrainingOptions) -> Features:
        """The training views with their labels; kept, because only labels and seed change them."""
        key = (options.labels, options.seed)
        if key not in self._views:
            array, labels = torch.from_numpy(self.training), torch.from_numpy(self.labels("train"))
            self._views = {key: labelled(array, labels, options)}
        return self._views[key]

    def model(self, method: HashMethod, policy: Policy | None) -> MCHModel:
        options = self.options
        return MCHModel(self.backbone, method, policy, options.sigma, XI, options.regions)

    def coded(self, queries: Packed, database: RegionCodes) -> Coded:
        labels, classes = self.labels("query"), self.dataset.classes
        return Coded(queries, database, labels, self.labels("database"), classes, {})


def run_cell(data: Data, cell: Key) -> tuple[CellResult, dict[str, Any]]:
    """Trains and measures one cell: its figures, and what `read_cell` returns."""
    options, (method, bits, seed) = data.options, cell
    supervised = method in SUPERVISED
    training = TrainingOptions(
        method, bits, sigma=options.sigma, regions=options.regions, seed=seed, agent=supervised,
        labels=options.labels, agent_settings=AGENT,
    )  # fmt: skip
    start = time.monotonic()
    base, policy, _ = fit_from_views(data.views(training), training)
    trained = time.monotonic() - start
    model = data.model(base, policy)
    queries = model.codes_of(torch.from_numpy(data.queries[:, 0]))
    coded = data.coded(queries, model.regions_of(data.database))
    # Only the curves by buckets are shown. Curves by K would double the time.
    found = measure(coded, XI, WAYS if supervised else ("base",), seed=seed, threads=1, ks=[1])
    ways: dict[str, Any] = {}
    for way, one in found.items():
        curve = [(b, f1) for b, f1, *_ in one.f1_buckets]
        ways[way] = Figures(f1_buckets=curve, **{name: getattr(one, name) for name in MEANS})
    spent = {"train": trained, "all": time.monotonic() - start}
    agent = training.agent_options().to_json() if supervised else None
    result = CellResult(*cell, seconds=spent, settings=base.settings.to_json(), agent=agent, **ways)
    parts = {
        "method": base.state_dict(),
        "policy": None if policy is None else policy.state_dict(),
        "queries": torch.from_numpy(coded.queries),
        "codes": torch.from_numpy(coded.database.codes),
        "keep": torch.from_numpy(coded.database.keep),
    }
    return result, parts


def read_cell(data: Data, cell: Key) -> tuple[MCHModel, Coded]:
    """A finished cell: its model, and the data in its codes. A damaged one is removed."""
    path = data.options.path(cell)
    result = read_result(path)
    try:
        parts = torch.load(path.with_suffix(".pt"), map_location="cpu", weights_only=True)
    except (FileNotFoundError, EOFError, RuntimeError, pickle.UnpicklingError):
        remove_cell(path)
        result = None
    if result is None:
        raise RunError(f"{path} or its .pt file is damaged or missing: run again to compute both")
    method = create_method(result.method, data.backbone.dim, result.bits, result.settings)
    method.load_state_dict(parts["method"])
    policy = None
    if result.agent is not None and parts["policy"] is not None:
        policy = Policy(method.feature_dim, method.bits, result.agent["width"])
        policy.load_state_dict(parts["policy"])
    database = RegionCodes(parts["codes"].numpy(), parts["keep"].numpy())
    return data.model(method, policy), data.coded(parts["queries"].numpy(), database)


def read_result(path: Path) -> CellResult | None:
    """A cell's figures, None if there are none. A damaged cell is removed."""
    try:
        return from_json(CellResult, json.loads(path.read_text()))
    except FileNotFoundError:
        pass
    except ValueError:
        remove_cell(path)
    return None


def remove_cell(path: Path) -> None:
    """Removes figures and codes: neither is of use without the other."""
    for file in (path, path.with_suffix(".pt")):
        file.unlink(missing_ok=True)
    progress(f"removed {path} and its .pt file, which were damaged: run again to compute them")


def mean_rows(results: Sequence[CellResult]) -> list[Row]:
    """One row per method and width: means over the seeds, and the spread of some figures."""
    groups: dict[tuple[int, int], list[CellResult]] = {}
    for one in results:
        groups.setdefault((list(LABELS).index(one.method), one.bits), []).append(one)
    return [_mean_row(groups[key]) for key in sorted(groups)]


def _mean_row(seeds: Sequence[CellResult]) -> Row:
    method, bits = seeds[0].method, seeds[0].bits
    ways = {way: [f for one in seeds if (f := getattr(one, way))] for way in WAYS}
    means = {way: _mean(figures) for way, figures in ways.items() if len(figures) == len(seeds)}
    if "mch" not in means:
        return Row(method, bits, len(seeds), means["base"])
    if len(seeds) > 1:
        gains = [m.f1_own - x.f1_own for x, m in zip(ways["base"], ways["mch"], strict=True)]
        means["mch"].f1_own_gain_se = float(np.std(gains, ddof=1) / np.sqrt(len(gains)))
    return MCHRow(method, bits, len(seeds), **means)


def _mean(seeds: Sequence[Figures]) -> Figures:
    values = {name: [getattr(f, name) for f in seeds] for name in MEANS}
    means = {n: None if None in v else float(np.mean(v)) for n, v in values.items()}
    for name in SPREADS:
        means[f"{name}_std"] = float(np.std(values[name], ddof=len(seeds) > 1))
    curves = [dict(f.f1_buckets) for f in seeds]
    shared = sorted(set.intersection(*(set(c) for c in curves)))
    curve = [(b, float(np.mean([c[b] for c in curves]))) for b in shared]
    return Figures(f1_buckets=curve, **means)  # type: ignore[arg-type]


# Worker processes


def run_cells(options: Options) -> None:
    """Computes the missing cells. The features must be in the cache already."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, spawn, _start_worker, (options,)) as pool:
        try:
            for line in pool.map(_compute, options.missing):
                progress(line)
        except BaseException as error:
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RunError("a worker died: run again to resume") from error
            raise


_worker: dict[str, Data] = {}


def _start_worker(options: Options) -> None:
    """Prepares a worker, which exits as soon as its parent has ended, in whatever way."""

    def watch() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=watch, daemon=True).start()
    torch.set_num_threads(1)
    _worker["data"] = Data(open_dataset(options.data), options)


def _compute(cell: Key) -> str:
    data = _worker["data"]
    result, parts = run_cell(data, cell)
    path = data.options.path(cell)
    with replacing(path.with_suffix(".pt")) as stream:
        torch.save(parts, stream)
    write_file(path, json.dumps(to_json(result)))
    base, mch = result.base, result.mch or result.base
    return (
        f"{path.stem}: {result.seconds['all']:.0f} s, mAP {base.map:.4f} -> {mch.map:.4f}, R@H=0 "
        f"{base.r0:.4f} -> {mch.r0:.4f}"
    )


# The folder of cells


def check_data(work: Path, dataset: Dataset) -> None:
    """Notes in `work` which data its cells are of; raises RunError if they are of other data.

    Compares a digest of the images' names, labels and splits; no picture is opened.
    """
    names = [dataset.images.name(i) for i in range(len(dataset.images))]
    digest = hashlib.sha256(json.dumps([dataset.classes, names]).encode())
    for split in sorted(dataset.splits):
        digest.update(json.dumps([split, dataset.splits[split].tolist()]).encode())
    digest.update(np.packbits(dataset.labels, axis=1).tobytes())
    path, content = work / "data.json", json.dumps({"sha256": digest.hexdigest()})
    if not path.exists():
        write_file(path, content)
    elif path.read_text() != content:
        raise RunError(
            f"{work} holds cells of other data: the images, labels or splits of {dataset.name} "
            "differ. Give another --name or --work, or remove that folder"
        )
