"""Training: from labelled images to a model, and what the model is worth."""

from mchindex.training.measure import Coded, encode_dataset, measure
from mchindex.training.run import Trained, TrainingError, TrainingOptions, train_model

__all__ = [
    "Coded",
    "Trained",
    "TrainingError",
    "TrainingOptions",
    "encode_dataset",
    "measure",
    "train_model",
]
