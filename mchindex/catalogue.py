"""Finds models by name: those that ship with mchindex, and those in the user's models folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).parent / "models" / "shipped"
CONFIG = "config.json"


@dataclass(frozen=True)
class Listed:
    """A model that can be used by its name."""

    name: str
    path: Path
    ships: bool
    config: dict[str, Any]


def own_models() -> Path:
    """The user's models folder: `$MCH_MODELS`, or one in the user's data folder."""
    if folder := os.environ.get("MCH_MODELS"):
        return Path(folder)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "mchindex/models"


def read_config(folder: Path) -> dict[str, Any]:
    """A model's settings. Raises OSError or ValueError if they cannot be read."""
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text("utf-8"))
    return config


def find(name: str | PathLike[str]) -> Path:
    """The folder of a model, given its name (of one that ships or is in the user's models folder)
    or the folder itself."""
    text = os.fspath(name)
    if os.path.basename(text) == text:
        for root in (SHIPPED, own_models()):
            if (root / text / CONFIG).is_file() and not Path(text, CONFIG).is_file():
                return root / text
    return Path(text)


def listed(*more: Path) -> Iterator[Listed]:
    """All models that ship, those in the user's models folder, and those in other folders."""
    for root in (SHIPPED, own_models(), *more):
        if not root.is_dir():
            continue
        for config in sorted([*root.glob(CONFIG), *root.glob(f"*/{CONFIG}")]):
            try:
                facts = read_config(config.parent)
                if isinstance(facts, dict) and "fingerprint" in facts and "method" in facts:
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
