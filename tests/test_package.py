"""The package as a whole: what it imports, its version, its names, its memory."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

import mchindex
from helpers.samples import uniform
from helpers.script import run_script
from mchindex import BucketTable


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys, mchindex; "
        "heavy = {'torch', 'faiss', 'PIL', 'pandas', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    run_script(script, folder=tmp_path)


def test_version_is_stated_once() -> None:
    try:
        installed = version("mchindex")
    except PackageNotFoundError:
        pytest.skip("mchindex runs from its source tree")
    assert mchindex.__version__ == installed


def test_all_names_exist() -> None:
    assert all(hasattr(mchindex, name) for name in mchindex.__all__)


def test_memory_per_code_is_bounded() -> None:
    n = 200_000
    table = BucketTable(64)
    table.add(np.arange(n), uniform(64, n, seed=1))
    assert table.n_codes == n
    assert table.memory()["total"] <= 24 * n
    table.optimize(substring=True)
    assert table.memory()["total"] <= 64 * n
