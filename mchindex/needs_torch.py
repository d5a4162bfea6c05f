"""Imported first by the packages that need torch, so that an error says how to install it."""

from importlib.util import find_spec

from mchindex.errors import MissingExtraError

if find_spec("torch") is None:
    raise MissingExtraError("training, evaluation and new models need torch")
