"""Repeats every table and figure of the paper's experiments on labelled images.

Trains and measures eight methods at four widths with three seeds, then studies the results:
sensitivity to sigma and xi, distances of pairs, search time, pictures. Writes paper.html (one file
to read or print), paper.md (a summary), paper.json (every number) and plots to --out, and says
which of the paper's statements hold.

    python bench/paper --data DIR                            # the report is in paper-NAME
    python bench/paper --data DIR --out report --report      # only draw, from what is stored
    python bench/paper --data DIR --out docs/paper --visual scenes
    python bench/paper --data scenes:400 --out report --methods lsh dch --bits 32 --seeds 1
    python bench/paper --from docs/paper/paper.json --out report   # draw a record again

It can be stopped at any time: the next run resumes. Features, cells and studies are kept in
--cache, and the time each stage took is added up over interrupted runs.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # bench/, whose scripts import one another

from mchindex.errors import MCHError
from mchindex.models.hashing import check_bits
from mchindex.training.features import default_cache
from paper.experiments import Experiments, read_record
from paper.figures import DATASETS, SUPERVISED, UNSUPERVISED
from paper.report import add_pictures, write_report
from paper.runs import Options, locked


def width(text: str) -> int:
    try:
        return check_bits(int(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def slug(spec: str) -> str:
    """A name for files: the last part of a folder's path, or the specification itself."""
    place, _, options = spec.partition("?")
    kind, colon, rest = place.partition(":")
    last = Path(rest if colon else place).name
    text = f"{kind}-{last}" if colon and kind != last.lower() else last
    return re.sub(r"[^a-z0-9]+", "-", f"{text}-{options}".lower()).strip("-") or "data"


def cells_folder(args: argparse.Namespace) -> Path:
    """A folder of its own for each setting that the cells depend on."""
    name = f"cells-{args.name}-{args.regions}-{args.size}"
    name += f"-sigma{args.sigma:g}" if args.sigma != 0.5 else ""
    name += f"-crops{args.crops}" if args.crops != 8 else ""
    return Path(args.cache) / name


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python bench/paper", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add, methods = parser.add_argument, [*UNSUPERVISED, *SUPERVISED]
    add("--data", help="labelled images, as `mch train --data` takes them")
    add("--from", dest="record", type=Path, metavar="JSON", help="draw this record again")
    add("--out", type=Path, help="folder for the report (paper-NAME)")
    add("--report", action="store_true", help="compute nothing, draw what is stored")
    add("--name", help="the data's name (taken from --data)")
    add("--paper", choices=(*DATASETS, "none"),
        help="which of the paper's data sets this is, to show its figures (guessed)")  # fmt: skip
    add("--methods", nargs="+", choices=methods, default=methods, metavar="METHOD")
    add("--bits", nargs="+", type=width, default=[16, 32, 48, 64])
    add("--seeds", type=int, default=3)
    add("--regions", choices=("crops", "pooled"), default="crops")
    add("--size", type=int, default=160, help="input side of the backbone in pixels")
    add("--sigma", type=float, default=0.5, help="side of a region as a share of the image's")
    add("--crops", type=int, default=8, help="random crops per training image")
    add("--part", type=int, default=2000, help="database images in the sigma study")
    add("--classes", nargs=2, default=[], metavar="CLASS",
        help="two to study separately (airplane and bird, or two of about 5%%)")  # fmt: skip
    add("--visual", choices=("data", "scenes", "none"), default="data",
        help="pictures of the visual study: the data's own or drawn ones")  # fmt: skip
    add("--workers", type=int, default=2, help="processes at a time")
    add("--threads", type=int, default=1, help="threads per process")
    add("--cache", type=Path, default=default_cache())
    add("--work", type=Path, help="where cells are kept (a folder in --cache)")
    args = parser.parse_args(words)
    if (args.data is None) == (args.record is None):
        parser.error("give either --data or --from")
    for name in ("seeds", "workers", "threads", "part"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1")
    args.name = args.name or slug(args.data or args.record.parent.name)
    args.out = args.out or Path(f"paper-{args.name}")
    args.work = args.work or cells_folder(args)
    return args


def options_of(args: argparse.Namespace) -> Options:
    return Options(
        **{f.name: v for f in fields(Options) if (v := getattr(args, f.name, ...)) != ...}
    )


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; run again to resume"))
    try:
        if args.record:
            made = read_record(args.record)
            add_pictures(made, args.record.with_name("paper.html"))
        else:
            args.work.mkdir(parents=True, exist_ok=True)
            # A report may be drawn while another run computes.
            with nullcontext() if args.report else locked(args.work):
                made = Experiments(options_of(args), args.report).run()
    except MCHError as error:
        sys.exit(f"bench/paper: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; run again to resume")
    write_report(made, args.out)


if __name__ == "__main__":
    main()
