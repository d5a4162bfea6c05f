"""Models whose fine codes need no training."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from helpers.small_model import photo, small_model
from mchindex.models import MCHModel
from mchindex.models.fine import FineHash

FINE_BITS = 64


def with_fine(model: MCHModel, bits: int = FINE_BITS, seed: int = 0) -> MCHModel:
    """The same model with fine codes, fitted to the regions of a few photos."""
    features = model.extractor([photo(i) for i in range(40)], model.layout.array())
    flat = torch.from_numpy(features.reshape(-1, features.shape[-1]).astype(np.float32))
    return replace(model, fine=FineHash.fit(flat, bits, seed))


@cache
def fine_model() -> MCHModel:
    return with_fine(small_model())
