"""The index: `MCHIndex`, and `Stored`, an image in it."""

from mchindex.index.facade import MCHIndex, Stored

__all__ = ["MCHIndex", "Stored"]
