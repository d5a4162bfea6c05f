"""Measures the memory of one step: `python -m attack.memory STEP FOLDER RECORDS`.

The steps are `fill` (an index of random codes with metadata), `export` and `import`. It prints by
how many bytes the step raised the peak of the process's memory.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from helpers.memory import peak
from mchindex import MCHIndex
from mchindex.index.export import created, export_index
from mchindex.index.importing import import_index

CHUNK = 20_000


def fill(folder: Path, records: int) -> None:
    rng = np.random.default_rng(0)
    with MCHIndex.open(folder / "index", bits=64) as index:
        for start in range(0, records, CHUNK):
            ids = range(start, min(start + CHUNK, records))
            notes: list[Any] = [{"n": i, "album": f"album {i % 50}"} for i in ids]
            index.add_codes(ids, rng.integers(0, 256, (len(ids), 8), np.uint8), metadata=notes)


def main() -> None:
    step, folder, records = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    before = peak()
    if step == "fill":
        fill(folder, records)
    elif step == "export":
        with created(folder / "export.jsonl") as out:
            assert export_index(folder / "index", out).images == records
    else:
        assert import_index(folder / "export.jsonl", folder / "copy").added == records
    print(peak() - before)


if __name__ == "__main__":
    main()
