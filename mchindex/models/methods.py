"""The base methods by name. A new built-in method is a file beside this one and a line in here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from mchindex.models.adsh import ADSH
from mchindex.models.dch import DCH
from mchindex.models.hashing import HashMethod
from mchindex.models.hashnet import HashNet
from mchindex.models.itq import ITQ
from mchindex.models.ksh import KSH
from mchindex.models.lsh import LSH
from mchindex.models.mmhh import MMHH
from mchindex.models.pca import PCARotation
from mchindex.models.registry import Registry
from mchindex.models.settings import Settings

M = TypeVar("M", bound=type[HashMethod])


def _check(method: type[HashMethod]) -> None:
    if missing := sorted(getattr(method, "__abstractmethods__", ())):
        raise TypeError(f"{method.__name__} does not define {', '.join(missing)}")
    settings = method.settings_type
    if not (inspect.isclass(settings) and issubclass(settings, Settings)):
        raise TypeError(
            f"{method.__name__}.settings_type is a subclass of Settings, not {settings!r}"
        )


METHODS: Registry[HashMethod] = Registry("method", HashMethod, _check)  # type: ignore[type-abstract]
for _method in (LSH, ITQ, PCARotation, KSH, HashNet, ADSH, DCH, MMHH):
    METHODS.register(_method)


def register_method(cls: M) -> M:
    """Makes a hashing method available under its `name`; usable as a decorator.

    `cls` is a subclass of `HashMethod` that defines `fit` and `last`. Raises TypeError or
    ValueError if it cannot be used, or if another class has its name.
    """
    METHODS.register(cls)
    return cls


def create_method(
    name: str, dim: int, bits: int, settings: Mapping[str, Any] | None = None
) -> HashMethod:
    """A method that has not been fitted yet, for features of `dim` numbers.

    `settings` replaces some of the method's defaults.
    """
    kind = METHODS.find(name)
    return kind(dim, bits, kind.settings_type().updated(settings or {}))
