"""The fine hash of a model: what it learns, and that it is saved, checked and loaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from helpers.fine_models import fine_model
from helpers.small_model import photo, small_model
from mchindex.errors import ModelError
from mchindex.inference.fine import FineArrays, check_fine_bits
from mchindex.json_text import dumps, loads
from mchindex.models import MCHModel
from mchindex.models.fine import CELLS, FineHash


def features(n: int, dim: int = 24, groups: int = 5, seed: int = 0) -> Tensor:
    """Features around a few centres, off the origin."""
    rng = np.random.default_rng(seed)
    centres = 3 * np.random.default_rng(1).standard_normal((groups, dim))
    noise = rng.standard_normal((n, dim))
    return torch.from_numpy((centres[np.arange(n) % groups] + noise + 4).astype(np.float32))


@pytest.mark.parametrize(("dim", "bits"), [(24, 8), (24, 24), (24, 64), (7, 32)])
def test_a_fit_gives_useful_codes_of_any_width(dim: int, bits: int) -> None:
    x = features(800, dim)
    hash_ = FineHash.fit(x, bits)
    assert (hash_.bits, hash_.rotation.shape, hash_.cells.shape) == (
        bits, (dim, bits), (50, bits // 8)
    )  # fmt: skip
    codes = hash_.codes(x.numpy().astype(np.float16))
    assert codes.shape == (800, bits // 8)
    assert codes.dtype == np.uint8
    ones = np.unpackbits(codes, axis=1).mean(0)
    assert ((ones > 0.05) & (ones < 0.95)).all(), "a bit that is always the same says nothing"
    # Codes of near features are near.
    near = nnf.normalize(x) @ nnf.normalize(x).T
    distance = np.bitwise_count(codes[:, None] ^ codes[None]).sum(2)
    assert np.corrcoef(near.numpy().ravel(), distance.ravel())[0, 1] < -0.7


def test_a_fit_depends_on_its_seed_alone() -> None:
    x = features(300)
    one, same, other = FineHash.fit(x, 16), FineHash.fit(x, 16), FineHash.fit(x, 16, seed=1)
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_the_rotation_keeps_angles() -> None:
    """Projections are as similar as the centred features, up to what is left out."""
    x = features(500)
    hash_ = FineHash.fit(x, 24)
    centred = nnf.normalize(x) - hash_.mean
    turned = hash_.project(x)
    torch.testing.assert_close(turned @ turned.T, centred @ centred.T, atol=2e-3, rtol=1e-2)


def test_codes_are_the_signs_of_projections_of_any_shape() -> None:
    hash_ = FineHash.fit(features(100), 16)
    x = features(12).numpy().astype(np.float16).reshape(3, 4, 24)
    real, codes = hash_.projections(x), hash_.codes(x)
    assert (real.shape, codes.shape) == ((3, 4, 16), (3, 4, 2))
    np.testing.assert_array_equal(np.unpackbits(codes, axis=-1), real > 0)
    assert hash_.codes(np.empty((0, 24), np.float16)).shape == (0, 2)
    for scale in (0.5, 2.0):  # only the direction of features counts
        np.testing.assert_array_equal(hash_.codes(x * np.float16(scale)), codes)


def test_few_features_make_few_cells() -> None:
    assert len(FineHash.fit(features(10), 8).cells) == 0
    assert len(FineHash.fit(features(100), 8).cells) == 6
    assert CELLS * 16 > 60_000  # a sample never has enough features for more


@pytest.mark.parametrize("bits", [0, -8, 7, 12, 1032])
def test_widths_that_cannot_be(bits: int) -> None:
    with pytest.raises(ValueError, match="a multiple of 8 bits, from 8 to 1024"):
        check_fine_bits(bits)


def test_a_model_with_fine_codes_is_saved_and_loaded(tmp_path: Path) -> None:
    model = fine_model()
    model.save(tmp_path / "model")
    loaded = MCHModel.load(tmp_path / "model", device="cpu")
    assert model.fine is not None
    assert loaded.fine is not None
    assert loaded.fine.fingerprint == model.fine.fingerprint
    assert loaded.fingerprint == model.fingerprint == small_model().fingerprint
    asked = [photo(1), photo(2)]
    for mine, theirs in zip(model.encode_queries(asked), loaded.encode_queries(asked), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(model.encode_query(asked), small_model().encode_query(asked))
    assert small_model().encode_queries(asked)[1] is None


def test_a_changed_fine_hash_is_noticed(tmp_path: Path) -> None:
    model = fine_model()
    assert model.fine is not None
    model.save(tmp_path / "model")
    other = replace(model, fine=FineHash.fit(torch.randn(240, model.backbone.dim), model.fine.bits))
    other.save(tmp_path / "other")
    (tmp_path / "other/model.safetensors").replace(tmp_path / "model/model.safetensors")
    with pytest.raises(ModelError, match="fine hash differs"):
        MCHModel.load(tmp_path / "model")


def test_a_model_without_fine_codes_is_saved_as_before(tmp_path: Path) -> None:
    small_model().save(tmp_path / "model")
    config = loads((tmp_path / "model/config.json").read_text())
    assert config["format"] == 1
    assert "fine" not in config
    assert MCHModel.load(tmp_path / "model", device="cpu").fine is None


@pytest.mark.parametrize(
    "fine",
    [
        5, [], {}, {"bits": 64}, {"bits": "64", "cells": 15}, {"bits": 63, "cells": 15},
        {"bits": 0, "cells": 15}, {"bits": 10**9, "cells": 15}, {"bits": 64, "cells": -1},
        {"bits": 64, "cells": 10**12}, {"bits": 64, "cells": 14}, {"bits": 32, "cells": 15},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(tmp_path: Path, fine: Any) -> None:
    fine_model().save(tmp_path / "model")
    file = tmp_path / "model/config.json"
    file.write_text(dumps(loads(file.read_text()) | {"fine": fine}))
    with pytest.raises(ModelError):
        MCHModel.load(tmp_path / "model", device="cpu")


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    fine = fine_model().fine
    assert fine is not None
    broken = FineHash(fine.mean.shape[0], fine.bits, len(fine.cells))
    broken.load_state_dict(fine.state_dict())
    broken.rotation[0, 0] = float("nan")
    with pytest.raises(ModelError, match=r"fine\.rotation has values that are not finite"):
        replace(fine_model(), fine=broken).save(tmp_path / "model")


@pytest.mark.parametrize("name", ["mean", "rotation", "cells"])
def test_the_fingerprint_covers_everything(name: str) -> None:
    fine = FineHash.fit(features(200), 16)
    before = fine.fingerprint
    getattr(fine, name).view(-1)[0] += 1
    assert fine.fingerprint != before


# Several branches.


def test_no_branch_drowns_another() -> None:
    x = torch.cat([features(300, seed=1), features(300, seed=2)], 1)
    fine = FineHash.fit(x, 64, branches=(0.5, 1.0))
    louder = torch.cat([100 * x[:, :24], x[:, 24:]], 1)
    torch.testing.assert_close(fine.project(louder), fine.project(x), rtol=1e-4, atol=1e-5)
    # The second branch alone tells images apart that are the same in the first.
    same = torch.cat([x[:1, :24].expand(300, -1), x[:, 24:]], 1)
    assert len(np.unique(fine.codes(same.half().numpy()), axis=0)) > 200


def test_a_branch_without_weight_changes_no_code() -> None:
    x = torch.cat([features(300, seed=1), features(300, seed=2)], 1).half()
    fine = FineHash.fit(x, 32, branches=(0.0, 1.0))
    other = torch.cat([features(300, seed=3).half(), x[:, 24:]], 1)
    np.testing.assert_array_equal(fine.codes(x.numpy()), fine.codes(other.numpy()))


def test_numpy_gives_what_torch_gives_for_several_branches() -> None:
    x = torch.cat([features(200, seed=1), features(200, seed=2)], 1).half()
    fine = FineHash.fit(x, 64, branches=(0.5, 1.0))
    mean, rotation = fine.mean.numpy(), fine.rotation.numpy()
    arrays = FineArrays(mean, rotation, fine.packed_cells, fine.fingerprint)
    ours, theirs = (one.projections(x.numpy()[:, None]) for one in (arrays, fine))
    assert ours.shape == (200, 1, 64)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
