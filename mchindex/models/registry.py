"""Classes found by name: built-in ones, registered ones, and those that other packages offer.

A name is looked up among the classes registered in this process, then in the modules that the
environment variable MCH_PLUGINS lists, then among the entry points of installed packages. A model's
config.json never causes an import: a model from elsewhere must not be able to run code.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from mchindex.errors import ModelError

PLUGINS = "MCH_PLUGINS"  # modules to import, separated by commas

T = TypeVar("T")


class Registry(Mapping[str, type[T]], Generic[T]):
    """A mapping from names to classes that grows by registration.

    Plugins are loaded when a name is unknown, or when all names are listed.
    """

    def __init__(self, kind: str, base: type[T], check: Callable[[type[T]], None]) -> None:
        """`kind` is what the classes are called in messages: "backbone"; `check` raises TypeError
        or ValueError for a class that cannot be used."""
        self.kind = kind
        self._base, self._check = base, check
        self._classes: dict[str, type[T]] = {}
        self._lock = threading.RLock()

    def register(self, cls: type[T]) -> None:
        """Adds a class under its `name`.

        A class that was defined again under the same module and name, as in a notebook, replaces
        the earlier one. Raises TypeError or ValueError for a class that cannot be used, and
        ValueError if the name belongs to another class.
        """
        if not (isinstance(cls, type) and issubclass(cls, self._base)):
            raise TypeError(
                f"a {self.kind} is registered as a subclass of {self._base.__name__}, not {cls!r}"
            )
        name = getattr(cls, "name", None)
        if not isinstance(name, str) or not name or name.split() != [name]:
            raise ValueError(
                f"{cls.__name__}.name is what the {self.kind} is called: text without spaces, "
                f"not {name!r}"
            )
        self._check(cls)
        with self._lock:
            known = self._classes.get(name)
            if known is not None and origin(known) != origin(cls):
                raise ValueError(
                    f"the name {name!r} already belongs to the {self.kind} {origin(known)}: give "
                    f"{cls.__name__} a `name` of its own"
                )
            self._classes[name] = cls

    def unregister(self, name: str) -> None:
        """Forgets a registered class; does nothing if the name is not registered."""
        with self._lock:
            self._classes.pop(name, None)

    def find(self, name: str) -> type[T]:
        """The class with this name. Raises ValueError that lists the names there are."""
        try:
            return self[name]
        except KeyError:
            names = ", ".join(self)
            raise ValueError(f"no {self.kind} is called {name!r}: there are {names}") from None

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._classes and isinstance(name, str):
            self._import_modules()
        if name not in self._classes and isinstance(name, str):
            self._load_entry_points(name)
        return self._classes[name]

    def __contains__(self, name: object) -> bool:
        try:
            self[name]  # type: ignore[index]
        except (KeyError, TypeError):
            return False
        return True

    def __iter__(self) -> Iterator[str]:
        self._import_modules()
        self._load_entry_points()
        return iter(list(self._classes))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _import_modules(self) -> None:
        """Imports what MCH_PLUGINS lists; the modules register their classes."""
        for module in os.environ.get(PLUGINS, "").split(","):
            if module := module.strip():
                try:
                    import_module(module)
                except Exception as error:
                    raise ModelError(
                        f"{PLUGINS} lists the module {module!r}, which cannot be imported: {error}"
                    ) from error

    def _load_entry_points(self, name: str | None = None) -> None:
        """Registers what installed packages offer: under one name, or, for None, all of it."""
        for point in entry_points(group=f"mchindex.{self.kind}s"):
            if point.name in self._classes or name not in (None, point.name):
                continue
            try:
                self.register(point.load())
            except Exception as error:
                message = f"the {self.kind} {point.name!r} ({point.value}) cannot be used: {error}"
                if name is not None:
                    raise ModelError(message) from error
                warnings.warn(message, stacklevel=3)  # the others can still be used


def origin(cls: type) -> str:
    """Where a class is defined: "package.module:Class"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def built_in(cls: type) -> bool:
    """Whether a class is part of mchindex."""
    return cls.__module__.partition(".")[0] == "mchindex"


def not_registered(kind: str, name: Any, where: Any) -> str:
    """The message for a model whose backbone or method is unknown here.

    `where` is the origin that config.json records. It is only shown, never imported.
    """
    if not isinstance(where, str):
        return f"this model uses the {kind} {name!r}, which is not registered"
    module = where.partition(":")[0]
    if module == "__main__":
        return (
            f"this model uses the {kind} {name!r}, which was defined in a script ({where}) and is "
            f"not registered: move it to a module and set {PLUGINS} to that module's name, or "
            "register it before loading"
        )
    return (
        f"this model uses the {kind} {name!r} from {where}, which is not registered: install its "
        f"package, or set {PLUGINS}={module}, or import {module} before loading"
    )
