"""What a command does before it starts."""

from pathlib import Path

import pytest

from helpers.script import run_script

# How many threads NumPy has must be set before NumPy is imported, which reads it once.
SCRIPT = """
import os, sys
import mchindex.cli
assert "numpy" not in sys.modules, "imported too early"
wanted = sys.argv[1]
sys.argv = ["mch", "info", "--index", "none.mch"]
try:
    mchindex.cli.main()
except SystemExit as stop:
    assert stop.code == 2, stop.code
assert os.environ["OPENBLAS_NUM_THREADS"] == wanted
"""


@pytest.mark.parametrize(("own", "used"), [(None, "1"), ("20", "20")])
def test_numpy_has_one_thread_unless_asked_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, used: str
) -> None:
    if own is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", own)
    run_script(SCRIPT, used, folder=tmp_path)
