"""The base methods by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mchindex.models.adsh import ADSH
from mchindex.models.dch import DCH
from mchindex.models.hashing import HashMethod
from mchindex.models.hashnet import HashNet
from mchindex.models.itq import ITQ
from mchindex.models.ksh import KSH
from mchindex.models.lsh import LSH
from mchindex.models.mmhh import MMHH
from mchindex.models.pca import PCARotation

METHODS: dict[str, type[HashMethod]] = {
    method.name: method for method in (LSH, ITQ, PCARotation, KSH, HashNet, ADSH, DCH, MMHH)
}


def create_method(
    name: str, dim: int, bits: int, settings: Mapping[str, Any] | None = None
) -> HashMethod:
    """A method to be fitted, with some of its settings changed."""
    if name not in METHODS:
        raise ValueError(f"no method is called {name!r}: there are {', '.join(METHODS)}")
    kind = METHODS[name]
    return kind(dim, bits, kind.settings_type().updated(settings or {}))
