"""How much CPU time does a command take before it answers, beside an earlier commit?

    python bench/start.py                          # this commit and the one before it
    python bench/start.py --against v0.1 --images 500

Each version indexes the same drawn pictures of 640 x 480. Every command then runs in a process of
its own, whose files are in the page cache. Rounds of both versions are
interleaved, and the median of the CPU time (user and system, all threads) counts. The time of
Python itself is part of it.
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
from common import RESULTS, progress, record, script, verdict, write_json
from encode import draw

COMMAND = "import sys; from mchindex.cli import main; main()"
# The first search of a process, and the mean of later ones, by different pictures.
PYTHON = """
import json, sys, time
from mchindex import MCHIndex
index = MCHIndex.open("photos.mch")
index.search("../photos/00003.jpg")
first = time.process_time()
for i in range(4, 24):
    index.search(f"../photos/{i:05d}.jpg")
print(json.dumps([first, (time.process_time() - first) / 20]))
"""
FIRST, LATER = "first search of a Python process", "a later search by a picture"
# What each may take, in seconds of CPU time.
ALLOWED = {
    "search by a picture": 0.8,
    "search by an id": 0.4,
    "search by a word": 0.4,
    "info": 0.4,
    "add, nothing new": 0.4,
    FIRST: 0.6,
    LATER: 0.025,
}


class Start(TypedDict):
    what: str
    version: str
    cpu_seconds: float  # median
    all: list[float]  # one per round


def arguments(folder: Path) -> dict[str, list[str]]:
    """The command lines that are timed."""
    return {
        "search by a picture": ["search", "../photos/00003.jpg"],
        "search by an id": ["search", "--id", str(folder / "photos" / "00003.jpg")],
        "search by a word": ["search", "--text", "dog"],
        "info": ["info"],
        "add, nothing new": ["add", "../photos", "--quiet"],
    }


def cpu_seconds(command: Sequence[str], folder: Path, site: Path | None) -> tuple[float, str]:
    """The CPU time of a process and of those it started, and what it printed."""
    environment = os.environ | ({"PYTHONPATH": str(site)} if site else {})
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{text}")
    return used.ru_utime + used.ru_stime, text


def mch(words: Sequence[str], folder: Path, site: Path | None) -> float:
    """The CPU time of a command line."""
    return cpu_seconds([sys.executable, "-P", "-c", COMMAND, *words], folder, site)[0]


def rows_of(times: Mapping[tuple[str, str], Sequence[float]]) -> list[Start]:
    """One row per command and version."""
    return [
        {"what": what, "version": version, "cpu_seconds": median(all_), "all": list(all_)}
        for (what, version), all_ in times.items()
    ]


def measure(
    folder: Path, sites: Mapping[str, Path | None], rounds: int
) -> dict[tuple[str, str], list[float]]:
    """CPU seconds by command and version, one per round, after a round that is not counted."""
    commands = arguments(folder)
    times: dict[tuple[str, str], list[float]] = {
        (what, version): [] for what in ALLOWED for version in sites
    }
    for round_ in range(rounds + 1):
        for version, site in list(sites.items())[:: 1 if round_ % 2 else -1]:
            found = {what: mch(words, folder / version, site) for what, words in commands.items()}
            python = [sys.executable, "-P", "-c", PYTHON]
            _, printed = cpu_seconds(python, folder / version, site)
            found[FIRST], found[LATER] = json.loads(printed.splitlines()[-1])
            for what, seconds in found.items():
                if round_:
                    times[what, version].append(seconds)
        progress(f"round {round_} of {rounds}")
    return times


def main() -> None:
    p = script(__doc__)
    p.add_argument("--against", default="HEAD~1", help="an earlier commit (%(default)s)")
    p.add_argument("--images", type=int, default=3000, help="in the index (%(default)s)")
    p.add_argument("--rounds", type=int, default=5, help="%(default)s")
    p.add_argument("--json", type=Path, default=RESULTS / "start.json", help="%(default)s")
    args = p.parse_args()
    if args.images < 24:
        raise SystemExit("--images is at least 24: later searches need different pictures")
    earlier = commit_of(args.against)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sites = {"this": None, "earlier": build_at(earlier, folder / "build")}
        (folder / "photos").mkdir()
        progress(f"drawing {args.images} pictures")
        draw(folder / "photos", args.images, 640)
        for version, site in sites.items():
            progress(f"indexing them: {version}")
            (folder / version).mkdir()
            mch(["add", "../photos", "--quiet"], folder / version, site)
        rows = rows_of(measure(folder, sites, args.rounds))
    report(rows)
    settings = {"against": earlier, "images": args.images, "rounds": args.rounds}
    write_json(args.json, record(settings, 0, rows) | {"allowed": ALLOWED})


def report(rows: Sequence[Start]) -> None:
    """Prints what both versions take, and whether this one takes what it may."""
    took = {(row["what"], row["version"]): row["cpu_seconds"] for row in rows}
    for what, most in ALLOWED.items():
        this, earlier = took[what, "this"], took[what, "earlier"]
        print(
            f"{what:34}{earlier:8.3f} -> {this:6.3f} s of CPU time, {earlier / this:5.1f} times "
            f"less; at most {most:g}: {verdict(this <= most)}"
        )


if __name__ == "__main__":
    main()
