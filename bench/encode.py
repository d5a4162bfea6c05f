"""Images a second: `MCHIndex.add` from files against the bare network on pixels in memory.

    python bench/encode.py                         # drawn pictures of 640 x 480, as JPEG files
    python bench/encode.py --side 1600 --images 200

The network runs on ready pixels, without decoding, codes or a store; `add` does it all, durably.
The same with torch in place of ONNX Runtime. Each contender is a process of its own with the same
number of threads; rounds are interleaved and the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from common import RESULTS, progress, record, write_json

CONTENDERS = ("network onnx", "add onnx", "network torch", "add torch")


def draw(folder: Path, images: int, side: int) -> None:
    """JPEG files of the shape that cameras and COCO have, 4 : 3."""
    from mchindex.datasets.scenes import SceneSource

    source = SceneSource(images, 0, side)
    for i in range(images):
        picture = source.image(i)
        picture.crop((0, 0, side, side * 3 // 4)).save(folder / f"{i:05d}.jpg", quality=90)


def work(args: argparse.Namespace) -> float:
    """One contender, once: images a second."""
    import torch

    from mchindex import MCHIndex
    from mchindex.models import MCHModel
    from mchindex.models.extract import resized
    from mchindex.regions import WHOLE

    torch.set_num_threads(args.threads)
    what, engine = args.worker.split()
    model = MCHModel.load(args.model, engine=engine)
    files = sorted(Path(args.folder).iterdir())
    assert model.extractor.engine == engine
    if what == "add":
        with tempfile.TemporaryDirectory() as place:
            index = MCHIndex.open(Path(place, "index.mch"), model=model)
            index.add(files[:16])  # a first pass builds what later ones use
            start = time.perf_counter()
            added = index.add(files[16:], progress=False)
            seconds = time.perf_counter() - start
            assert len(added.added) == len(files) - 16
            index.close()
        return (len(files) - 16) / seconds
    from mchindex.images import open_rgb

    few = np.stack([resized(open_rgb(f), WHOLE, model.backbone.size) for f in files[:16]])
    rounds = (len(files) - 16) // 8
    stream = ((few[i % 2 * 8 :][:8]) for i in range(rounds))
    run = model.extractor._run
    run(few)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(args.threads) as pool:
        list(pool.map(run, [few[:8]] * args.threads))
        start = time.perf_counter()
        list(pool.map(run, stream))
        seconds = time.perf_counter() - start
    return rounds * 8 / seconds


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
        draw(Path(folder), args.images + 16, args.side)
        for round_ in range(args.rounds):
            for name in CONTENDERS[:: 1 if round_ % 2 else -1]:
                command = [sys.executable, __file__, "--worker", name, "--folder", folder]
                command += ["--threads", str(args.threads), "--model", args.model]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                speeds[name].append(json.loads(done.stdout.splitlines()[-1]))
                progress(f"{name}: {speeds[name][-1]:.1f} images/s")
    rows: list[dict[str, Any]] = [
        {"contender": n, "images_per_second": median(s), "all": s} for n, s in speeds.items()
    ]
    middle = {row["contender"]: row["images_per_second"] for row in rows}
    ratios = {
        "add over network, onnx": middle["add onnx"] / middle["network onnx"],
        "add over network, torch": middle["add torch"] / middle["network torch"],
        "onnx over torch, network": middle["network onnx"] / middle["network torch"],
        "onnx over torch, add": middle["add onnx"] / middle["add torch"],
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    settings = {k: getattr(args, k) for k in ("model", "images", "side", "threads", "rounds")}
    write_json(args.json, record(settings, 0, rows) | {"ratios": ratios})


if __name__ == "__main__":
    main()
