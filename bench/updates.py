"""How long does a change to a large table take, and the search after it?

python bench/updates.py                 # a table of 10M codes
python bench/updates.py --n 100000
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

import numpy as np

from common import (
    RESULTS,
    Cell,
    add_code_options,
    draw_codes,
    draw_images,
    progress,
    record,
    script,
    seconds,
    write_json,
)


class Change(TypedDict):
    what: str
    median_s: float
    worst_s: float
    times: int


def summary(took: Mapping[str, Sequence[float]]) -> list[Change]:
    """One row per kind of operation, from the seconds of each."""
    return [
        {"what": what, "median_s": median(all_), "worst_s": max(all_), "times": len(all_)}
        for what, all_ in took.items()
    ]


def run(cell: Cell, added: int, times: int, seed: int) -> dict[str, Any]:
    """Adds `added` codes and removes one image, `times` times, searching after each change."""
    from mchindex import BucketTable

    progress(f"drawing {cell.n:,} codes")
    codes, fresh = draw_codes(cell, added * times + 1, seed)
    images = draw_images(cell, seed)
    query, fresh = fresh[-1:], fresh[:-1]
    table = BucketTable(bits=cell.bits)
    progress(f"adding them: {seconds(lambda: table.add(images, codes)):.2f} s")
    progress(f"optimize: {seconds(lambda: table.optimize(substring=True)):.2f} s")
    rng = np.random.default_rng(seed)
    last = int(images[-1])
    victims = rng.choice(last, times, replace=False)
    took: dict[str, list[float]] = {}

    def note(what: str, action: Callable[[], object]) -> None:
        took.setdefault(what, []).append(seconds(action))

    table.search(query, 10)
    for i in range(times):
        note("search, nothing changed", lambda: table.search(query, 10))
        new = last + 1 + i * added + np.arange(added)
        part = fresh[i * added : (i + 1) * added]
        note(f"add {added:,} codes", lambda new=new, part=part: table.add(new, part))  # type: ignore[misc]
        note("search after adding", lambda: table.search(query, 10))
        victim = int(victims[i])
        note("id in table", lambda victim=victim: victim in table)  # type: ignore[misc]
        note("remove one image", lambda victim=victim: table.remove([victim]))  # type: ignore[misc]
        note("search after removing", lambda: table.search(query, 10))
        if victim in table or int(new[0]) not in table:
            raise RuntimeError("the table does not show a change that was made to it")
        progress(f"{i + 1}/{times}")
    settings = asdict(cell) | {"what": "updates", "added": added, "times": times}
    return record(settings, seed, summary(took))


def main() -> None:
    p = script(__doc__)
    p.add_argument("--n", type=int, default=10_000_000, help="codes in the table (%(default)s)")
    add_code_options(p)
    p.add_argument("--added", type=int, default=1000, help="codes per add (%(default)s)")
    p.add_argument("--times", type=int, default=30, help="repeats of each change (%(default)s)")
    p.add_argument("--json", type=Path, help="the JSON file (bench/results/updates-….json)")
    args = p.parse_args()
    cell = Cell(args.n, args.bits, args.data, args.codes_per_image)
    content = run(cell, args.added, args.times, args.seed)
    print(f"\n{cell.name}: {cell.n:,} codes, {args.times} times{'':14}median       worst")
    for row in content["rows"]:
        print(f"{row['what']:40}{1e3 * row['median_s']:9.3f} ms{1e3 * row['worst_s']:9.3f} ms")
    write_json(args.json or RESULTS / f"updates-{cell.name}.json", content)


if __name__ == "__main__":
    main()
