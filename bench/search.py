"""How fast, exact and large is mchindex, compared with FAISS and usearch?

    python bench/search.py                                   # clustered 64-bit, 1M codes
    python bench/search.py --n 100000 --bits 128 --data uniform --k 10,100
    python bench/search.py --data codes:semantic-64.npz      # codes of real images, by codes.py
    python bench/search.py --against HEAD~1                  # an earlier commit as a contender too
    python bench/search.py --suite                           # every cell that has a target
    python bench/search.py --gate                            # where is auto slower than a scan?
    python bench/search.py --all --codes FOLDER              # all figures of the README

bench/README.md explains the output.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path

import building
import calls
import plot
import verdicts
from against import build_at, commit_of
from common import (
    RESULTS,
    Cell,
    add_code_options,
    engine,
    record,
    script,
    whole_numbers,
    write_json,
)
from contenders import PEERS
from gate import GateSettings, grounds, run_gate
from measurements import to_rows
from race import Race, Settings
from table import table


def run_cell(
    cell: Cell, settings: Settings, out: Path, json: Path | None = None, site: str = ""
) -> list[str]:
    """Measures a cell, prints and writes the results; returns one line per target.

    `site` holds the package of the commit `settings.against`.
    """
    before = engine()
    with tempfile.TemporaryDirectory(prefix="mch-bench-") as folder:
        race = Race(cell, settings, Path(folder), site)
        try:
            race.build()
            race.set_truth()
            race.measure()
            race.finish()
        finally:
            race.stop()
    rows = to_rows(race.points, race.builds, cell.n)
    content = record(asdict(settings) | cell.settings, settings.seed, rows)
    targets = verdicts.targets(cell, settings.threads, rows)
    doubts = verdicts.doubts(rows, settings.threads)
    if content["engine"] != before:
        doubts.append("the engine was rebuilt during the run")
    # The workers loaded the engine at the start.
    content |= {"engine": before, "targets": targets, "doubts": doubts}
    print(table(content))
    write_json(json or out / f"{cell.name}-{settings.threads}t.json", content)
    plot.draw(content, out / f"{cell.name}-{settings.threads}t.png")
    return [f"{cell.name}: {line}" for line in verdicts.target_lines(targets, bool(doubts))]


def peers(text: str) -> tuple[str, ...]:
    wanted = tuple(PEERS) if text == "all" else tuple(text.split(","))
    if unknown := set(wanted) - set(PEERS):
        raise argparse.ArgumentTypeError(
            f"no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}"
        )
    return tuple(key for key in PEERS if key == "flat" or key in wanted)


def parser() -> argparse.ArgumentParser:
    default = Settings()
    p = script(__doc__)
    p.add_argument("--n", type=int, help="codes; with --suite and --gate, instead of 1M (1000000)")
    add_code_options(p, files=True)
    p.add_argument(
        "--k", type=whole_numbers, default=default.k, help="such as 10,100,1000 (the default)"
    )
    p.add_argument(
        "--threads", type=int, default=default.threads, help="of each contender (%(default)s)"
    )
    p.add_argument(
        "--queries", type=int, default=default.queries,
        help="per call; a slow contender gets fewer, and the JSON says how many (%(default)s)",
    )  # fmt: skip
    p.add_argument("--repeats", type=int, default=default.repeats, help="%(default)s")
    p.add_argument(
        "--peers", type=peers, default=default.peers,
        help=f"all, or some of {','.join(PEERS)}; flat, the baseline, always runs (all)",
    )  # fmt: skip
    p.add_argument("--lists", type=int, default=default.lists, help="of faiss IVF (%(default)s)")
    p.add_argument(
        "--budget", type=float, default=default.budget, metavar="S",
        help="seconds per measurement; contenders that need more get fewer queries (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--build-limit", type=float, default=default.build_limit, metavar="S",
        help="leave out a graph that takes longer to build, and say so (%(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--search-limit", type=float, default=default.search_limit, metavar="S",
        help="stop a search that takes longer, and say so (%(default)s)",
    )  # fmt: skip
    p.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON and the picture")
    p.add_argument("--json", type=Path, help="the JSON file, instead of one named after the cell")
    p.add_argument(
        "--against", default="", metavar="REV",
        help="build this commit too, and measure its auto as `ours before`",
    )  # fmt: skip
    p.add_argument(
        "--codes", type=Path, nargs="+", default=[], metavar="FILE",
        help="files of codes.py, or folders of them, for --suite, --gate and --all",
    )  # fmt: skip
    p.add_argument(
        "--cells", nargs="+", default=[], metavar="PATTERN",
        help="with --suite or --gate: only cells of these names, such as 'gaussian-*'; needs "
        "--out, because the record is not the whole one",
    )  # fmt: skip
    what = p.add_mutually_exclusive_group()
    what.add_argument("--suite", action="store_true", help="measure every cell that has targets")
    what.add_argument(
        "--gate", action="store_true",
        help="compare auto with Flat and forced strategies on all kinds of codes; exit code 1 if "
        "it is slower somewhere",
    )  # fmt: skip
    what.add_argument(
        "--all", action="store_true", help="--suite, --gate, calls.py and building.py"
    )
    return p


def suite(n: int | None) -> Iterable[Cell]:
    """Every cell that has targets; with `n`, scaled as if `n` stood for a million codes."""
    for cell in verdicts.RATIOS:
        yield cell if n is None else replace(cell, n=n * cell.n // 1_000_000)


def file_cells(paths: Sequence[Path]) -> list[Cell]:
    """The cells of files, and of all files in folders. ValueError or OSError if one is unfit."""
    files = [
        file for path in paths for file in (sorted(path.glob("*.npz")) if path.is_dir() else [path])
    ]
    return [Cell.of_file(file) for file in files]


def cells_of(p: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[list[Cell], list[Cell]]:
    """The cells of the race and those of the gate."""
    try:
        real = file_cells(args.codes)
        if args.suite or args.all:
            race = [*suite(args.n), *real]
        elif args.gate:
            race = []
        elif args.data.startswith("codes:"):
            (one,) = file_cells([Path(args.data.removeprefix("codes:"))])
            race = [one]
        else:
            race = [Cell(args.n or 1_000_000, args.bits, args.data, args.codes_per_image)]
    except (OSError, ValueError) as error:
        p.error(str(error))
    gate = [*grounds(args.n or 1_000_000), *real] if args.gate or args.all else []
    if args.cells:
        race, gate = matching(race, args.cells), matching(gate, args.cells)
        if not race and not gate:
            p.error(f"no cell is named {' or '.join(args.cells)}")
    return race, gate


def matching(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """The cells whose names match one of the patterns."""
    return [cell for cell in cells if any(fnmatch(cell.name, pattern) for pattern in patterns)]


def main() -> None:
    p = parser()
    args = p.parse_args()
    several = args.suite or args.gate or args.all
    if args.json and several:
        p.error("--json names one file, but --suite, --gate and --all write others: use --out")
    if args.cells and (not several or args.all or args.out == RESULTS):
        p.error("--cells goes with --suite or --gate, and with --out")
    if args.codes and not several:
        p.error("--codes goes with --suite, --gate or --all; for one cell, use --data codes:FILE")
    if args.n and args.data.startswith("codes:"):
        p.error("--n is the number of random codes; those of a file are all measured")
    race, gate = cells_of(p, args)
    if race and max(args.k) > (fewest := min(cell.images for cell in race)):
        p.error(f"--k goes up to {max(args.k)}, but there are only {fewest} images")
    fields = Settings.__dataclass_fields__
    settings = Settings(**{key: value for key, value in vars(args).items() if key in fields})
    if settings.against:
        settings = replace(settings, against=commit_of(settings.against))
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mch-before-") as folder:
        site = str(build_at(settings.against, Path(folder))) if settings.against and race else ""
        for cell in race:
            lines += run_cell(cell, settings, args.out, args.json, site)
    if args.all:
        lines += calls.run(args.out / "calls.json", args.seed)
        lines += building.run(args.out / "building.json", sizes(args.n), seed=args.seed)
    passes = True
    if gate:
        chosen = GateSettings(args.k, args.threads, args.seed)
        passes = run_gate(gate, chosen, args.out / "gate.json")
    if not args.gate:
        print("\nTargets")
        print("\n".join(lines) or "none for this cell, this K and this number of threads")
    sys.exit(0 if passes else 1)


def sizes(n: int | None) -> list[int]:
    """How many codes are built; with `n`, scaled as if `n` stood for a million."""
    return [size if n is None else n * size // 1_000_000 for size in building.RATES]


if __name__ == "__main__":
    main()
