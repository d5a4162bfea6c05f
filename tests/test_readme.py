"""The examples of the README run as printed, and do what their comments say."""

import re
from pathlib import Path

import pytest

from helpers.script import run_script
from mchindex.datasets import open_dataset
from mchindex.training import TrainingOptions, train_model

README = Path(__file__).parents[1] / "README.md"


INDEXING, LEARNING, SEARCHING = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_index_example_runs(tmp_path: Path) -> None:
    checks = (
        "assert len(index) == 60 and hit.metadata == {'album': 'drawn'}\n"
        "first = index.search('photos/7.jpg')[0]\n"
        "assert (first.distance, first.path) == (0, str(Path('photos/7.jpg').absolute()))\n"
    )
    run_script(INDEXING + checks, folder=tmp_path)


def test_the_model_example_runs(tmp_path: Path) -> None:
    data = open_dataset("scenes:60")
    options = TrainingOptions(
        bits=32,
        backbone="small",
        settings={"epochs": 1},
        agent_settings={"steps": 10},
        backbone_settings={"epochs": 1},
    )
    train_model(data, options, out=tmp_path / "model")
    for i, name in enumerate(("cat-and-dog.jpg", "cat.jpg")):
        data.images.image(i).save(tmp_path / name)
    checks = (
        "assert encoded.codes.shape[1] == query.shape[1] == 4 and encoded.regions[0] == 0\n"
        "assert encoded.keep.shape == (1, 6)\n"
    )
    run_script(LEARNING + checks, folder=tmp_path)


def test_the_table_example_runs(tmp_path: Path) -> None:
    checks = (
        "assert hits.ids[0, 0] == 1 and hits.distances[0, 0] == 0 and hits.regions[0, 0] == 1\n"
        "assert hits.exact.all() and 1 not in BucketTable.load('table.mch')\n"
    )
    run_script(SEARCHING + checks, folder=tmp_path)
    assert (tmp_path / "table.mch").exists()


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)", README.read_text()))
def test_links_point_to_existing_files(link: str) -> None:
    assert (README.parent / link).exists()
