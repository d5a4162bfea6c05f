"""The example of docs/learning.md runs as printed."""

import re
from pathlib import Path

from helpers.script import run_script
from mchindex.datasets import open_dataset
from mchindex.training import TrainingOptions, train_model

PAGE = Path(__file__).parents[1] / "docs" / "learning.md"


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
    for i, name in enumerate(("a.jpg", "b.jpg", "c.jpg")):
        data.images.image(i).resize((240, 240)).save(tmp_path / name)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    checks = (
        "assert encoded.codes.shape[1] == queries.shape[1] == part.shape[1] == 4\n"
        "assert encoded.regions[0] == 0 and encoded.keep.shape == (2, 6)\n"
    )
    run_script(example + checks, folder=tmp_path)
