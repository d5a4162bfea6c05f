"""A process that forks with an index open, and its child, lose nothing that either reports."""

from pathlib import Path

import pytest

from helpers.script import run_script

SCRIPT = """
import os, sys
import numpy as np
from mchindex import MCHIndex
from mchindex.errors import StoreError
from mchindex.index.verify import verify

path, when = sys.argv[1:]
code = np.zeros((1, 4), np.uint8)
index = MCHIndex.open(path, bits=32)
index.add_codes(["parent"], code)
reports, report = os.pipe()
go, start = os.pipe()
if os.fork() == 0:
    try:
        if when == "before":
            os.read(go, 1)
        with MCHIndex.open(path) as mine:
            mine.add_codes(["first"], code)
            os.write(report, b"first\\n")
            if when != "before":
                os.read(go, 1)
            for i in range(30):
                mine.add_codes([f"more {i}"], code)
                os.write(report, f"more {i}\\n".encode())
    except StoreError:
        os.write(report, b"refused\\n")  # safe too
    os._exit(0)
os.close(report)
stored = {"parent"}
with open(reports) as lines:
    if when != "before":
        stored.add(next(lines).strip())
    if when == "never":
        os.write(start, b"x")
    index.close()
    if when != "never":
        with MCHIndex.open(path) as again:  # as another process would
            again.add_codes(["again"], code)
            stored.add("again")
        os.write(start, b"x")
    stored |= set(map(str.strip, lines))
os.wait()
with MCHIndex.open(path) as index:
    assert set(index) == stored - {"refused"}, (set(index), stored)
assert verify(path, model=False).problems == []
"""


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_a_forked_writer_loses_nothing_when_its_parent_closes_the_index(
    tmp_path: Path, when: str
) -> None:
    """The parent closes the index before or after the child has opened it, or while it writes."""
    run_script(SCRIPT, str(tmp_path / "i"), when, folder=tmp_path)
