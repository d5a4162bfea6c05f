"""The example of the README runs as printed, and says what its comments say."""

import re
from pathlib import Path

import pytest

from script import run_script

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    checks = (
        "assert hits.ids[0, 0] == 1 and hits.distances[0, 0] == 0 and hits.regions[0, 0] == 1\n"
        "assert hits.exact.all() and 1 not in BucketTable.load('table.mch')\n"
    )
    run_script(example + checks, folder=tmp_path)
    assert (tmp_path / "table.mch").exists()


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)", README.read_text()))
def test_links_lead_somewhere(link: str) -> None:
    assert (README.parent / link).exists()
