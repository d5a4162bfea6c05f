"""How many images per second does `MCHIndex.add` take in, compared with the network alone?

    python bench/encode.py                         # drawn pictures of 640 x 480, as JPEG files
    python bench/encode.py --side 1600 --images 200

The network alone gets pixels in memory and computes features. `add` reads JPEG files, computes
codes as well and stores them durably. Both run on ONNX Runtime and on torch, each in its own
process with the same number of threads. Rounds are interleaved, and the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TypedDict

import numpy as np

from common import RESULTS, progress, record, script, write_json

CONTENDERS = ("network onnx", "add onnx", "network torch", "add torch")
WARM_UP = 16  # images that are not timed
BATCH = 8  # images per call of the network


class Speed(TypedDict):
    contender: str
    images_per_second: float  # median
    all: list[float]  # one per round


def summary(speeds: Mapping[str, Sequence[float]]) -> tuple[list[Speed], dict[str, float]]:
    """One row per contender, and how their medians compare."""
    rows: list[Speed] = [
        {"contender": name, "images_per_second": median(all_), "all": list(all_)}
        for name, all_ in speeds.items()
    ]
    middle = {row["contender"]: row["images_per_second"] for row in rows}
    return rows, {
        "add over network, onnx": middle["add onnx"] / middle["network onnx"],
        "add over network, torch": middle["add torch"] / middle["network torch"],
        "onnx over torch, network": middle["network onnx"] / middle["network torch"],
        "onnx over torch, add": middle["add onnx"] / middle["add torch"],
    }


def draw(folder: Path, images: int, side: int) -> None:
    """Writes drawn scenes as JPEG files, 4:3 as most photographs are."""
    from mchindex.datasets.scenes import SceneSource

    source = SceneSource(images, 0, side)
    for i in range(images):
        picture = source.image(i)
        picture.crop((0, 0, side, side * 3 // 4)).save(folder / f"{i:05d}.jpg", quality=90)


def work(args: argparse.Namespace) -> float:
    """Runs one contender once, in this process; returns images per second."""
    import torch

    from mchindex import MCHIndex
    from mchindex.images import open_rgb
    from mchindex.inference.extract import resized
    from mchindex.models import MCHModel
    from mchindex.regions import WHOLE

    torch.set_num_threads(args.threads)
    what, engine = args.worker.split()
    model = MCHModel.load(args.model, engine=engine)
    files = sorted(Path(args.folder).iterdir())
    assert model.extractor.engine == engine
    if what == "add":
        with tempfile.TemporaryDirectory() as place:
            index = MCHIndex.open(Path(place, "index.mch"), model=model)
            index.add(files[:WARM_UP])
            start = time.perf_counter()
            added = index.add(files[WARM_UP:], progress=False)
            seconds = time.perf_counter() - start
            assert len(added.added) == len(files) - WARM_UP
            index.close()
        return (len(files) - WARM_UP) / seconds
    few = np.stack([resized(open_rgb(f), WHOLE, model.backbone.size) for f in files[:WARM_UP]])
    batches = (len(files) - WARM_UP) // BATCH
    stream = (few[i * BATCH % WARM_UP :][:BATCH] for i in range(batches))
    run = model.extractor._run
    run(few)
    with ThreadPoolExecutor(args.threads) as pool:
        list(pool.map(run, [few[:BATCH]] * args.threads))
        start = time.perf_counter()
        list(pool.map(run, stream))
        seconds = time.perf_counter() - start
    return batches * BATCH / seconds


def main() -> None:
    p = script(__doc__)
    cores = len(os.sched_getaffinity(0))
    p.add_argument("--model", default="coco-64", help="%(default)s")
    p.add_argument("--images", type=int, default=600, help="%(default)s")
    p.add_argument("--side", type=int, default=640, help="width in pixels (%(default)s)")
    p.add_argument("--threads", type=int, default=cores, help="%(default)s")
    p.add_argument("--rounds", type=int, default=3, help="%(default)s")
    p.add_argument("--json", type=Path, default=RESULTS / "encode.json", help="%(default)s")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    p.add_argument("--folder", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        print(json.dumps(work(args)))
        return
    speeds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        progress(f"drawing {args.images} pictures")
        draw(Path(folder), args.images + WARM_UP, args.side)
        for round_ in range(args.rounds):
            for name in CONTENDERS[:: 1 if round_ % 2 else -1]:
                command = [sys.executable, __file__, "--worker", name, "--folder", folder]
                command += ["--threads", str(args.threads), "--model", args.model]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                speeds[name].append(json.loads(done.stdout.splitlines()[-1]))
                progress(f"{name}: {speeds[name][-1]:.1f} images/s")
    rows, ratios = summary(speeds)
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    settings = {k: getattr(args, k) for k in ("model", "images", "side", "threads", "rounds")}
    write_json(args.json, record(settings, 0, rows) | {"ratios": ratios})


if __name__ == "__main__":
    main()
