"""How many images does `MCHIndex.add` take in per second of CPU time, beside an earlier commit?

    python bench/encode.py                         # this commit and the one before it
    python bench/encode.py --against v0.1 --images 200

`add` reads JPEG files of drawn pictures, 640 x 480 and 4000 x 3000 (12 megapixels), computes codes
and stores them durably. The network alone gets pixels in memory and computes feature maps. Each
runs in its own process; rounds of both versions are interleaved, and the median counts. Images per
second of CPU time do not depend on the number of cores, nor much on what else a machine does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypedDict

from against import build_at, commit_of
from common import RESULTS, progress, record, script, write_json

WARM_UP = 16  # images that are not timed
SIDES = {"640 x 480": 640, "4000 x 3000": 4000}
LARGE = 40  # pictures of 12 megapixels
WANTED = 1.8  # times as many images per second of CPU time as the earlier commit

# It runs in both versions. Models are loaded before the clock starts.
WORKER = """
import json, sys, tempfile, time
from pathlib import Path
from mchindex import MCHIndex
files = sorted(Path(sys.argv[1]).iterdir())
with tempfile.TemporaryDirectory() as place, MCHIndex.open(Path(place, "index.mch")) as index:
    index.add(files[:{warm_up}], progress=False)
    clock, cpu = time.perf_counter(), time.process_time()
    added = index.add(files[{warm_up}:], progress=False)
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    assert len(added.added) == len(files) - {warm_up}, added.failed
    network = 0.0
    if len(sys.argv) > 2:
        import numpy as np
        run = index.model.extractor._run
        pixels = np.random.default_rng(0).integers(0, 256, (8, 3, 224, 224), np.uint8)
        run(pixels)
        start = time.process_time()
        for _ in range(10):
            run(pixels)
        network = 80 / (time.process_time() - start)
print(json.dumps([len(added.added) / clock, len(added.added) / cpu, network]))
"""


class Speed(TypedDict):
    what: str  # the size of the pictures
    version: str
    images_per_second: float  # median
    images_per_cpu_second: float  # median
    network_per_cpu_second: float | None  # median, of the network alone
    all: list[list[float]]  # one per round


def draw(folder: Path, images: int, side: int) -> None:
    """Writes drawn scenes as JPEG files, 4:3 as most photographs are."""
    from mchindex.datasets.scenes import SceneSource

    source = SceneSource(images, 0, min(side, 640))
    for i in range(images):
        picture = source.image(i)
        width, height = picture.size
        picture = picture.crop((0, 0, width, height * 3 // 4))
        if side > width:  # drawing so many pixels would take minutes
            picture = picture.resize((side, side * 3 // 4))
        picture.save(folder / f"{i:05d}.jpg", quality=90)


def speed(folder: Path, site: Path | None, network: bool) -> list[float]:
    """Images per second and per second of CPU time, and those of the network alone."""
    environment = os.environ | ({"PYTHONPATH": str(site)} if site else {})
    code = WORKER.replace("{warm_up}", str(WARM_UP))
    command = [sys.executable, "-P", "-c", code, str(folder), *(["network"] if network else [])]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"adding pictures failed:\n{done.stderr[-2000:]}")
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(
    speeds: Mapping[tuple[str, str], Sequence[Sequence[float]]],
) -> tuple[list[Speed], dict[str, float]]:
    """One row per size and version, and how many times as many images this version takes in."""
    rows: list[Speed] = []
    for (what, version), all_ in speeds.items():
        clock, cpu, network = (median(column) for column in zip(*all_, strict=True))
        rows.append(
            {
                "what": what,
                "version": version,
                "images_per_second": clock,
                "images_per_cpu_second": cpu,
                "network_per_cpu_second": network or None,
                "all": [list(row) for row in all_],
            }
        )
    cpu_speed = {(row["what"], row["version"]): row["images_per_cpu_second"] for row in rows}
    ratios = {
        what: cpu_speed[what, "this"] / cpu_speed[what, "earlier"]
        for what in dict.fromkeys(what for what, _ in speeds)
    }
    return rows, ratios


def main() -> None:
    p = script(__doc__)
    p.add_argument("--against", default="HEAD~1", help="an earlier commit (%(default)s)")
    p.add_argument("--images", type=int, default=600, help="of 640 x 480 (%(default)s)")
    p.add_argument("--rounds", type=int, default=3, help="%(default)s")
    p.add_argument("--json", type=Path, default=RESULTS / "encode.json", help="%(default)s")
    args = p.parse_args()
    earlier = commit_of(args.against)
    with tempfile.TemporaryDirectory() as place:
        sites = {"this": None, "earlier": build_at(earlier, Path(place, "earlier"))}
        speeds: dict[tuple[str, str], list[list[float]]] = {}
        for what, side in SIDES.items():
            folder = Path(place, str(side))
            folder.mkdir()
            draw(folder, (args.images if side == 640 else LARGE) + WARM_UP, side)
            for round_ in range(args.rounds):
                for version, site in list(sites.items())[:: 1 if round_ % 2 else -1]:
                    found = speed(folder, site, side == 640)
                    speeds.setdefault((what, version), []).append(found)
                    progress(f"{what}, {version}: {found[1]:.1f} images per second of CPU time")
    rows, ratios = summary(speeds)
    for what, ratio in ratios.items():
        print(f"{what}: {ratio:.2f} times as many images per second of CPU time")
    settings = {"against": earlier, "images": args.images, "large": LARGE, "rounds": args.rounds}
    write_json(args.json, record(settings, 0, rows) | {"ratios": ratios, "wanted": WANTED})


if __name__ == "__main__":
    main()
