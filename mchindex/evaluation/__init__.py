"""Retrieval quality of codes: mAP, precision and recall by radius, F1 by number of buckets."""

from mchindex.evaluation.database import Codes
from mchindex.evaluation.plots import (
    Line,
    plot_cells,
    plot_f1_buckets,
    plot_learning_curve,
    plot_panels,
)
from mchindex.evaluation.retrieval import AtRadius, Evaluation, at_radius, evaluate

__all__ = [
    "AtRadius",
    "Codes",
    "Evaluation",
    "Line",
    "at_radius",
    "evaluate",
    "plot_cells",
    "plot_f1_buckets",
    "plot_learning_curve",
    "plot_panels",
]
