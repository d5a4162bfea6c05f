"""The examples of the README run as printed, and do what their comments say."""

import re
from pathlib import Path

import pytest

from helpers.script import run_script
from mchindex.datasets.scenes import SceneSource

README = Path(__file__).parents[1] / "README.md"


PAGE = README.read_text("utf-8")
INDEXING, SEARCHING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_index_example_runs(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    drawn = SceneSource(60, seed=1, size=224)
    for i in range(60):
        drawn.image(i).save(tmp_path / "photos" / f"{i}.jpg")
    checks = (
        "from pathlib import Path\n"
        "assert len(index) == 59 and hit.metadata == {'album': 'summer'} and hit.id not in index\n"
        "first = index.search('photos/7.jpg')[0]\n"
        "assert (first.distance, first.path) == (0, str(Path('photos/7.jpg').absolute()))\n"
    )
    run_script(INDEXING + checks, folder=tmp_path)


def test_what_held_of_the_paper_is_what_its_report_says() -> None:
    report = (README.parent / "docs" / "paper" / "paper.md").read_text("utf-8")
    counts = re.search(
        r"Of (\d+) tests .*?, (\d+) hold \(.*?\), (\d+) hold in some of the cells, "
        r"(\d+) do not hold here, and (\d+) cannot be judged",
        report,
    )
    assert counts
    every, held, partly, failed, unknown = counts.groups()
    text = " ".join(PAGE.split())
    assert f"of {every} tests of the paper's statements, {held} hold, {partly} hold in" in text
    assert f"{failed} do not hold here, and {unknown} cannot be judged" in text


def test_the_table_example_runs(tmp_path: Path) -> None:
    checks = (
        "assert hits.ids[0, 0] == 1 and hits.distances[0, 0] == 0 and hits.regions[0, 0] == 1\n"
        "assert hits.exact.all() and 1 not in BucketTable.load('table.mch')\n"
    )
    run_script(SEARCHING + checks, folder=tmp_path)
    assert (tmp_path / "table.mch").exists()


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)", PAGE))
def test_links_point_to_existing_files(link: str) -> None:
    assert (README.parent / link).exists()
