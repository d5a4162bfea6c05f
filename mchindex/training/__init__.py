"""Training: from images to a model, and measuring the model."""

import mchindex.needs_torch  # noqa: F401
from mchindex.errors import TrainingError
from mchindex.training.measure import Coded, encode_dataset, measure
from mchindex.training.options import TrainingOptions
from mchindex.training.run import Trained, train_model

__all__ = [
    "Coded",
    "Trained",
    "TrainingError",
    "TrainingOptions",
    "encode_dataset",
    "measure",
    "train_model",
]
