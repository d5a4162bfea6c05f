"""What a command does before it starts."""

from pathlib import Path

import pytest

from helpers.script import run_script

# How NumPy's threads wait for work must be set before NumPy is imported, which reads it once.
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
assert os.environ["OPENBLAS_THREAD_TIMEOUT"] == wanted
"""


@pytest.mark.parametrize(("own", "used"), [(None, "4"), ("20", "20")])
def test_threads_of_numpy_do_not_spin_unless_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None, used: str
) -> None:
    if own is None:
        monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    else:
        monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", own)
    run_script(SCRIPT, used, folder=tmp_path)
