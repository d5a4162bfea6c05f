"""Exports and imports of a million records take no more memory than small ones (memory.py)."""

from pathlib import Path

import pytest

from attack.faults import run_module

FEW, MANY = 100_000, 1_000_000
CACHE = 64 << 20  # bytes of pages that each connection of SQLite keeps, at most
TABLE = 60  # bytes per record that the table of an open index may take, at most


@pytest.mark.slow
def test_a_million_records_are_exported_and_imported_in_flat_memory(tmp_path: Path) -> None:
    peaks = {}
    for records in (FEW, MANY):
        folder = tmp_path / str(records)
        folder.mkdir()
        for step in ("fill", "export", "import"):
            peaks[step, records] = int(run_module("attack.memory", step, folder, records))
    # The records themselves are about 300 MB.
    assert peaks["export", MANY] - peaks["export", FEW] < CACHE + (16 << 20)
    growth = peaks["import", MANY] - peaks["import", FEW]
    assert growth < 2 * CACHE + (MANY - FEW) * TABLE
