"""The index: images in, hits out, nothing lost."""

from mchindex.index.facade import MCHIndex, Stored

__all__ = ["MCHIndex", "Stored"]
