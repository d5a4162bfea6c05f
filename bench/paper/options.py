"""The options of the command, as one dataclass."""
# ruff: noqa: RUF009 - `option` returns a field

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mchindex.inference.extract import MODES, Mode
from mchindex.inference.region_codes import check_bits
from mchindex.training.features import default_cache
from mchindex.training.options import Labelling
from paper.figures import SUPERVISED, UNSUPERVISED

METHODS = (*UNSUPERVISED, *SUPERVISED)
Key = tuple[str, int, int]  # a cell: method, bits, seed


def option(help: str, default: Any = None, **more: Any) -> Any:
    return field(default=default, metadata={"help": help} | more)


@dataclass(frozen=True)
class Options:
    """What is computed, on which data, and where it is kept."""

    data: str = option("labelled images, as `mch train --data` takes them")
    record: Path | None = option("draw this paper.json again", type=Path, name="from")
    out: Path = option("folder for the report (paper-NAME)", type=Path)
    report: bool = option("compute nothing, draw what is stored", False, action="store_true")
    name: str = option("of the data; shows whether it is one of the paper's (from --data)")
    methods: Sequence[str] = option(", ".join(METHODS), METHODS, nargs="+", choices=METHODS)
    bits: Sequence[int] = option("code widths", (16, 32, 48, 64), nargs="+", type=int)
    seeds: int = option("per method and width", 3, type=int)
    regions: Mode = option("how regions get their features", "crops", choices=MODES)
    size: int = option("input side of the backbone in pixels", 160, type=int)
    sigma: float = option("side of a region as a share of the image's", 0.5, type=float)
    crops: int = option("random crops per training image", 8, type=int)
    part: int = option("database images in the sigma study", 2000, type=int)
    classes: Sequence[str] = option(
        "two to study separately (airplane and bird, or two of about 5%%)", (), nargs=2
    )
    visual: str = option("whose pictures to show", "data", choices=("data", "scenes", "none"))
    workers: int = option("processes at a time, one thread each", 2, type=int)
    cache: Path = option("folder for features and cells", default_cache(), type=Path)
    work: Path = option("folder for the cells of this run (in --cache)", type=Path)
    labels: Labelling = "images"

    @property
    def cells(self) -> list[Key]:
        return [(m, b, s) for s in range(self.seeds) for b in self.bits for m in self.methods]

    def path(self, cell: Key) -> Path:
        return self.work / "{}-{}-{}.json".format(*cell)

    @property
    def missing(self) -> list[Key]:
        """The cells that lack their figures or their codes."""
        both = {c: (self.path(c), self.path(c).with_suffix(".pt")) for c in self.cells}
        return [cell for cell, files in both.items() if not all(f.exists() for f in files)]


def parse(about: str | None, words: Sequence[str] | None = None) -> Options:
    """The options given on the command line, with all names and folders filled in."""
    parser = argparse.ArgumentParser("python bench/paper", description=about)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for f in (f for f in fields(Options) if f.metadata):
        more = dict(f.metadata)
        flag = more.pop("name", f.name)
        many = {"metavar": flag.upper()} if "nargs" in more else {}
        parser.add_argument(f"--{flag}", dest=f.name, default=f.default, **more, **many)
    given = Options(**vars(parser.parse_args(words)))
    if (given.data is None) == (given.record is None):
        parser.error("give either --data or --from")
    try:
        for bits in given.bits:
            check_bits(bits)
    except ValueError as error:
        parser.error(f"--bits: {error}")
    for name in ("seeds", "workers", "part"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1")
    name = given.name or slug(given.data or "record")
    # The cells have a folder of their own for each setting that they depend on.
    folder = f"cells-{name}-{given.regions}-{given.size}"
    folder += f"-sigma{given.sigma:g}" if given.sigma != 0.5 else ""
    folder += f"-crops{given.crops}" if given.crops != 8 else ""
    out, work = given.out or Path(f"paper-{name}"), given.work or given.cache / folder
    return replace(given, name=name, out=out, work=work)


def slug(spec: str) -> str:
    """A name for files: the last part of a folder's path, or the specification itself."""
    place, _, options = spec.partition("?")
    kind, colon, rest = place.partition(":")
    last = Path(rest if colon else place).name
    text = f"{kind}-{last}" if colon and kind != last.lower() else last
    return re.sub(r"[^a-z0-9]+", "-", f"{text}-{options}".lower()).strip("-") or "data"
