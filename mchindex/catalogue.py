"""Finds models by name: those that ship with mchindex, and those in the user's models folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from mchindex.files import read_file
from mchindex.json_text import loads

SHIPPED = Path(__file__).parent / "models" / "shipped"
Precision = Literal["float", "int8"]  # of the numbers that a backbone computes with
CONFIG = "config.json"
LARGEST_CONFIG = 4 << 20  # bytes


@dataclass(frozen=True)
class Listed:
    """A model that can be used by its name."""

    name: str
    path: Path
    ships: bool
    config: dict[str, Any]


def own_models() -> Path | None:
    """The user's models folder: `$MCH_MODELS`, or one in the user's data folder.

    None if the user has no home folder, as in some containers.
    """
    if folder := os.environ.get("MCH_MODELS"):
        return Path(folder)
    if data := os.environ.get("XDG_DATA_HOME"):
        return Path(data) / "mchindex/models"
    try:
        return Path.home() / ".local/share/mchindex/models"
    except RuntimeError:
        return None


def _roots() -> list[Path]:
    """The folders whose models have names."""
    own = own_models()
    return [SHIPPED] if own is None else [SHIPPED, own]


def check_precision(precision: str | None) -> None:
    """Raises ValueError unless it is one that a model may have, or None."""
    if precision not in (None, *get_args(Precision)):
        raise ValueError(f"precision is {' or '.join(get_args(Precision))}, not {precision!r}")


def read_config(folder: Path) -> dict[str, Any]:
    """A model's settings. Raises OSError or ValueError if they cannot be read."""
    config = loads(read_file(folder / CONFIG, LARGEST_CONFIG))
    if not isinstance(config, dict):
        raise ValueError("it is not a JSON object")
    return config


def find(name: str | PathLike[str]) -> Path:
    """The folder of a model, given its name (of one that ships or is in the user's models folder)
    or the folder itself."""
    text = os.fspath(name)
    if os.path.basename(text) == text and not os.path.isfile(os.path.join(text, CONFIG)):
        for root in _roots():
            if os.path.isfile(root / text / CONFIG):
                return root / text
    return Path(text)


def listed(*more: Path) -> Iterator[Listed]:
    """All models that ship, those in the user's models folder, and those in other folders."""
    for root in (*_roots(), *more):
        if not os.path.isdir(root):
            continue
        for config in sorted([*root.glob(CONFIG), *root.glob(f"*/{CONFIG}")]):
            try:
                facts = read_config(config.parent)
                if all(isinstance(facts.get(name), str) for name in ("fingerprint", "method")):
                    name = str(config.parent) if root in more else config.parent.name
                    yield Listed(name, config.parent, root == SHIPPED, facts)
            except (OSError, ValueError):
                continue  # some other program's config.json


def shipped_name(fingerprint: str) -> str | None:
    """The name of the model with this fingerprint, if it ships with mchindex."""
    same = (m.name for m in listed() if m.ships and m.config["fingerprint"] == fingerprint)
    return next(same, None)


def names() -> list[str]:
    return [m.name for m in listed()]
