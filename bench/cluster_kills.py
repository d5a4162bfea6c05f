"""Kills parts of a cluster while images are added and searched, and checks every answer.

A driver process adds images, by codes and by files, and notes each `add` that has returned. This
process searches all the time. What it finds must hold every image that was noted before the search
began, none that was never given, and none twice. After each kill it measures how long it takes
until a search is answered again.

    python bench/cluster_kills.py --kills 50 --out bench/results/cluster_kills.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import progress, record, write_json
from ray_nodes import Nodes, processes

GROUPS = 16  # codes that images share: a search for one finds a sixteenth of them
BATCH, FILES = 40, 40
PATIENCE = 300.0  # seconds that a shard may take on a busy machine
MOST = 5000  # hits of a search; a group never has as many
TARGETS = ("shard", "replica", "encoder", "node", "driver")


def code_of(group: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(group).integers(0, 256, 8, np.uint8)


def drive(folder: str, address: str, journal: str, pictures: str) -> None:
    """Adds images until it is killed. `journal` gets a line before and after each `add`."""
    from mchindex.cluster import ClusterIndex

    index = ClusterIndex.open(folder, address=address, wait=PATIENCE, encoders=2, timeout=PATIENCE)
    files = sorted(map(str, Path(pictures).iterdir()))
    start = time.time_ns()
    with open(journal, "a") as notes:

        def note(**what: Any) -> None:
            notes.write(json.dumps(what) + "\n")
            notes.flush()

        for turn in range(10**6):
            ids = [f"{start}-{turn}-{i}" for i in range(BATCH)]
            note(trying=ids)
            index.add_codes(ids, np.stack([code_of(i % GROUPS) for i in range(BATCH)]))
            note(added=ids)
            if turn % 4 == 0:
                some = files[turn % len(files) :][:FILES]
                note(trying=some)
                index.update(some, progress=False) if turn % 8 else index.add(some, progress=False)
                note(added=some if not turn % 8 else [])
            index.remove(ids[:2])
            note(removed=ids[:2])


class Run:
    def __init__(self, folder: Path, seed: int) -> None:
        from PIL import Image

        from mchindex.cluster import ClusterIndex

        self._random = random.Random(seed)  # noqa: S311  # to repeat a run
        self._folder, self._journal = folder, folder / "journal"
        self._journal.touch()
        self._pictures = folder / "pictures"
        self._pictures.mkdir()
        for i in range(2 * FILES):
            pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).resize((128, 128)).save(self._pictures / f"{i}.jpg")
        self._nodes = Nodes(2, 2, 2)
        self.index = ClusterIndex.open(
            folder / "index", shards=2, replicas=1, address=self._nodes.address, timeout=PATIENCE
        )
        self._driver: subprocess.Popen[bytes] | None = None
        self.searches = self.failed = 0

    def start_driver(self) -> None:
        with open(self._folder / "driver.log", "ab") as log:
            self._driver = subprocess.Popen(
                [
                    sys.executable, str(Path(__file__).resolve()), "--drive",
                    str(self._folder / "index"),
                    self._nodes.address, str(self._journal), str(self._pictures),
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def noted(self) -> tuple[set[str], set[str]]:
        """Images that must be in the index, and those that may be."""
        must: set[str] = set()
        may: set[str] = set()
        for line in self._journal.read_text().splitlines():
            try:
                what = json.loads(line)
            except ValueError:
                continue  # the driver was killed while it wrote
            may.update(what.get("trying", ()))
            must.update(what.get("added", ()))
            gone = set(what.get("removed", ()))
            must -= gone
        doomed = {id for id in must if id.rsplit("-", 1)[-1] in ("0", "1")}
        return must - doomed, may

    def search(self) -> None:
        """Asks for one group, and checks the answer."""
        group = self._random.randrange(GROUPS)
        must, _ = self.noted()
        hits = self.index.search_codes(code_of(group), MOST, rank="code", max_radius=0)
        _, may = self.noted()
        mine = {
            id for id in must if id[0].isdigit() and int(id.rsplit("-", 1)[-1]) % GROUPS == group
        }
        found = hits.ids
        assert len(found) < MOST
        assert not hits.partial
        assert len(set(found)) == len(found), "an image was found twice"
        assert mine <= set(found), f"{len(mine - set(found))} reported images are missing"
        assert set(found) <= may, "an image was found that nobody added"
        self.searches += 1

    def kill(self, target: str) -> bool:
        import ray

        if target == "driver":
            assert self._driver is not None
            self._driver.kill()
            self._driver.wait()
            self.start_driver()
        elif target == "node":
            self._nodes.remove(self._random.choice(self._nodes.workers))
            self._nodes.add(2)
        else:
            pids = self._pids(target)
            if not pids:
                return False
            os.kill(self._random.choice(pids), signal.SIGKILL)
        assert ray.is_initialized()
        return True

    def _pids(self, target: str) -> list[int]:
        """The processes of actors of this cluster: others may run on this machine."""
        if target == "encoder":  # which Ray gives a name
            return [pid for pid in processes(self._nodes.folder) if _is_encoder(pid)]
        shards = self.index._store._shards
        own = []
        for i in range(2):
            try:
                handle = shards._handle(i, 0 if target == "shard" else 1)  # type: ignore[union-attr]
                own.append(shards._ray.get(handle.call.remote("pid"), timeout=5))  # type: ignore[union-attr]
            except Exception:  # noqa: S112  # it is being restarted
                continue
        return own

    def finish(self) -> dict[str, Any]:
        """Ends the driver, and compares the index with what was noted."""
        assert self._driver is not None
        self._driver.kill()
        self._driver.wait()
        ids = list(self.index)
        must, may = self.noted()
        assert len(ids) == len(set(ids)), "an image is stored twice"
        assert must <= set(ids), f"{len(must - set(ids))} reported images are lost"
        assert set(ids) <= may, "an image is stored that nobody added"
        return {"images": len(ids), "reported": len(must)}

    def close(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()
        self.index.close()
        self._nodes.close()


def _is_encoder(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Encoder")
    except OSError:
        return False


def run(kills: int, seed: int, pause: float = 2.0) -> dict[str, Any]:
    # Ray's processes would import the sources of a clone rather than what is installed.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        running = Run(Path(folder), seed)
        chance = random.Random(seed)  # noqa: S311  # to repeat a run
        recovery: dict[str, list[float]] = {target: [] for target in TARGETS}
        try:
            running.start_driver()
            while not running.noted()[0]:
                time.sleep(0.1)
                assert running._driver is not None
                if running._driver.poll() is not None:
                    raise RuntimeError((Path(folder) / "driver.log").read_text())
            done = 0
            while done < kills:
                until = time.monotonic() + chance.uniform(0, pause)
                while time.monotonic() < until:
                    running.search()
                target = TARGETS[done] if done < len(TARGETS) else chance.choice(TARGETS)
                if not running.kill(target):
                    continue  # no encoder runs at the moment
                began = time.monotonic()
                running.search()
                recovery[target].append(round(time.monotonic() - began, 3))
                done += 1
                assert running._driver is not None
                if running._driver.poll() is not None:  # its add failed: it may start again
                    running.failed += 1
                    progress((Path(folder) / "driver.log").read_text()[-2000:])
                    running.start_driver()
            found = running.finish()
        finally:
            running.close()
    return {
        "kills": kills, "seed": seed, "searches": running.searches, **found,
        "drivers_that_failed": running.failed,
        "seconds_to_answer": {
            target: {
                "kills": len(own), "median": float(np.median(own)) if own else None,
                "largest": max(own, default=None),
            }
            for target, own in recovery.items()
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--drive", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    out = options.out and options.out.absolute()
    found = run(options.kills, options.seed)
    print(json.dumps(found, indent=1))
    if out:
        write_json(out, record({"kills": options.kills}, options.seed, [found]))


if __name__ == "__main__":
    main()
