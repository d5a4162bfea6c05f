"""A model as one ONNX graph for other runtimes gives the codes that the model gives."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from helpers.fine_models import fine_model
from helpers.small_model import photo
from mchindex.cli import run
from mchindex.inference.extract import MODES, Mode, resized
from mchindex.models import MCHModel
from mchindex.models.graph import export_whole
from mchindex.regions import WHOLE

PHOTOS = [photo(i) for i in range(5)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", ["policy", "fine", None])
def test_it_gives_what_the_model_gives(mode: Mode, part: str | None, tmp_path: Path) -> None:
    without: dict[str, Any] = {part: None} if part else {}
    model: MCHModel = replace(fine_model(), mode=mode, **without)
    export_whole(model, tmp_path / "model.onnx")
    size, boxes = model.backbone.size, model.layout.array()
    if mode == "pooled":
        pixels = np.stack([resized(image, WHOLE, size) for image in PHOTOS])
    else:
        pixels = np.stack([[resized(image, box, size) for box in boxes] for image in PHOTOS])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"pixels": pixels}), strict=True))
    features = model.extractor(PHOTOS, boxes)
    wanted = model.regions_of(features)
    np.testing.assert_array_equal(np.packbits(found["codes"] > 0, axis=-1), wanted.codes)
    np.testing.assert_allclose(found["keep"], wanted.keep, atol=1e-4)
    assert ("fine" in found) == (model.fine is not None)
    if model.fine is not None:
        np.testing.assert_array_equal(
            np.packbits(found["fine"] > 0, axis=-1), model.fine.codes(features)
        )


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MCH_MODELS", str(tmp_path / "own"))
    fine_model().save(tmp_path / "own" / "small")
    out = tmp_path / "graphs"
    assert run(["models", "--name", "small", "--export", str(out)]) == 0
    assert [file.name for file in out.iterdir()] == ["small.onnx"]
    assert run(["models", "--name", "nothing", "--export", str(out)]) == 2
    assert "there is no model nothing" in capsys.readouterr().err
