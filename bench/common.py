"""What every benchmark shares: the data, its options, the JSON record, time and memory."""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from file_codes import PREFIX, ImageCodes, read_codes
from kinds import KINDS
from kinds import Codes as Codes

if TYPE_CHECKING:
    from mchindex import BucketTable

Ids = NDArray[np.int64]

MOST_CODES = 6  # an image has 1 to 6 codes
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Cell:
    """One data set of the benchmark."""

    n: int = 1_000_000  # codes
    bits: int = 64
    data: str = "clustered"  # or another of KINDS, or codes:FILE
    codes_per_image: float = 1.0  # mean; if above 1, each image has 1 to MOST_CODES codes

    @classmethod
    def of_file(cls, path: Path) -> Cell:
        """The cell of a file of codes. ValueError if it cannot be used, OSError if not read."""
        found = read_codes(path)
        mean = len(found.codes) / len(found.sizes)
        return cls(len(found.codes), found.bits, f"{PREFIX}{path}", mean)

    @property
    def file(self) -> Path | None:
        """The file that holds the codes; None if they are drawn."""
        return Path(self.data.removeprefix(PREFIX)) if self.data.startswith(PREFIX) else None

    @property
    def kind(self) -> str:
        """What the codes are, without the folder of a file."""
        return self.file.stem if self.file else self.data

    @property
    def name(self) -> str:
        if self.file:
            return self.kind
        size = f"{self.n // 1_000_000}M" if self.n % 1_000_000 == 0 else f"{self.n / 1000:g}k"
        many = f"-{self.codes_per_image:g}codes" if self.codes_per_image > 1 else ""
        return f"{self.data}-{self.bits}bit-{size}{many}"

    @property
    def images(self) -> int:
        return round(self.n / self.codes_per_image)

    @property
    def settings(self) -> dict[str, Any]:
        """What a record says about the cell."""
        data = f"{PREFIX}{self.kind}" if self.file else self.data
        return {"cell": self.name, "images": self.images} | asdict(self) | {"data": data}


def draw(cell: Cell, queries: int, seed: int) -> ImageCodes:
    """The cell's codes, their images, and queries; a file may hold fewer queries."""
    if cell.file:
        found = read_codes(cell.file)
        return replace(found, queries=found.queries[:queries])
    codes, asked = draw_codes(cell, queries, seed)
    return ImageCodes(codes, draw_images(cell, seed), asked)


def draw_codes(cell: Cell, queries: int, seed: int) -> tuple[Codes, Codes]:
    """The cell's codes, and queries that are not stored."""
    return KINDS[cell.data](np.random.default_rng(seed), cell.n, queries, cell.bits)


def draw_images(cell: Cell, seed: int) -> Ids:
    """The image of each code, in ascending order: `cell.images` images share `cell.n` codes.

    Each image has 1 to MOST_CODES codes. ValueError if that is impossible.
    """
    if cell.codes_per_image == 1:
        return np.arange(cell.n, dtype=np.int64)
    if not cell.images <= cell.n <= MOST_CODES * cell.images:
        raise ValueError(
            f"{cell.n} codes cannot be shared by {cell.images} images of 1 to {MOST_CODES} codes"
        )
    rng = np.random.default_rng(seed + 1)
    more = rng.binomial(MOST_CODES - 1, (cell.codes_per_image - 1) / (MOST_CODES - 1), cell.images)
    while surplus := int(more.sum()) - (cell.n - cell.images):
        able = np.flatnonzero(more > 0 if surplus > 0 else more < MOST_CODES - 1)
        more[rng.permutation(able)[: abs(surplus)]] -= np.sign(surplus)
    return np.repeat(np.arange(cell.images, dtype=np.int64), more + 1)


def rss() -> int:
    """Resident bytes of this process, after returning freed memory to the system."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _git(*args: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _first_value(path: str, key: str) -> str | None:
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith(key)), None)


def engine() -> str | None:
    """A short hash of the compiled engine; the commit does not say which build was loaded."""
    found = find_spec("mchindex")
    folders = found.submodule_search_locations if found else None
    files = [p for folder in folders or () for p in sorted(Path(folder).glob("_core*.so"))]
    return hashlib.sha256(files[0].read_bytes()).hexdigest()[:16] if files else None


def record(
    settings: dict[str, Any], seed: int, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The JSON record of a run: commit, date, machine, settings, seed and figures."""
    try:
        from mchindex._core import cpu_path

        path: str | None = cpu_path()
    except ImportError:
        path = None
    changes = _git("status", "--porcelain", "--", ":/", ":(exclude,top)bench/results")
    return {
        "commit": _git("rev-parse", "--verify", "-q", "HEAD"),
        "dirty": changes != "",
        "engine": engine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _first_value("/proc/cpuinfo", "model name") or platform.processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory": _first_value("/proc/meminfo", "MemTotal"),
            "load": os.getloadavg()[2],  # mean of the last 15 minutes
            "system": platform.platform(),
            "python": platform.python_version(),
            **{p: _version(p) for p in ("numpy", "faiss-cpu", "usearch", "mchindex")},
            "cpu_path": path,
        },
        "settings": settings,
        "seed": seed,
        "rows": rows,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a record and says where; creates the folder if needed."""
    from mchindex.files import write_file  # here: the peers' processes do without our package

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(content, indent=1) + "\n")
    progress(f"wrote {path}")


def progress(text: str) -> None:
    """Prints a line about the current step to stderr; stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def seconds(action: Callable[[], object]) -> float:
    """How long a call takes, by the clock."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def script(doc: str | None) -> argparse.ArgumentParser:
    """A command-line parser that prints the script's docstring as its help."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _width(text: str) -> int:
    bits = int(text)
    if bits % 8 or not 8 <= bits <= 256:
        raise argparse.ArgumentTypeError(f"{bits} is not a multiple of 8 from 8 to 256")
    return bits


def _mean_codes(text: str) -> float:
    mean = float(text)
    if not 1 <= mean <= MOST_CODES:
        raise argparse.ArgumentTypeError(f"{mean:g} is not between 1 and {MOST_CODES}")
    return mean


def _kind(text: str) -> str:
    if text in KINDS or (text.startswith(PREFIX) and Path(text.removeprefix(PREFIX)).is_file()):
        return text
    raise argparse.ArgumentTypeError(
        f"{text} is neither {PREFIX} and a file that exists nor one of {', '.join(KINDS)}"
    )


def add_code_options(parser: argparse.ArgumentParser, files: bool = False) -> None:
    """The options that describe the codes, all but their number; `files`: codes:FILE too."""
    add = parser.add_argument
    add("--bits", type=_width, default=64, help="code width, a multiple of 8 (%(default)s)")
    if files:
        known = f"{', '.join(KINDS)}, or {PREFIX}FILE as codes.py writes it"
        add("--data", type=_kind, default="clustered", help=f"{known} (%(default)s)")
    else:
        add("--data", choices=KINDS, default="clustered", help="%(default)s")
    add(
        "--codes-per-image", type=_mean_codes, default=1.0, metavar="MEAN",
        help=f"if above 1, each image has 1 to {MOST_CODES} codes (%(default)s)",
    )  # fmt: skip
    add("--seed", type=int, default=0, help="%(default)s")


def whole_numbers(text: str) -> tuple[int, ...]:
    """An option such as 10,100,1000: distinct numbers in ascending order."""
    return tuple(sorted({int(part) for part in text.split(",")}))


def our_table(cell: Cell, queries: int, seed: int) -> tuple[BucketTable, Codes]:
    """A BucketTable that holds the cell's codes, and queries."""
    from mchindex import BucketTable

    codes, asked = draw_codes(cell, queries, seed)
    table = BucketTable(bits=cell.bits)
    progress(f"adding {cell.n:,} codes")
    table.add(draw_images(cell, seed), codes)
    return table, asked


def verdict(meets: bool) -> str:
    return "meets" if meets else "FALLS SHORT"
