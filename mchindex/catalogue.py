"""Models by name: those that ship with mchindex, and those in the user's folder of models."""

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
    """`$MCH_MODELS`, or a folder among the user's data."""
    if own := os.environ.get("MCH_MODELS"):
        return Path(own)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "mchindex/models"


def find(name: str | PathLike[str]) -> Path:
    """The folder of a model: a name that ships, one of the user's folder, or a folder itself."""
    text = os.fspath(name)
    if os.path.basename(text) == text:
        for root in (SHIPPED, own_models()):
            if (root / text / CONFIG).is_file() and not Path(text, CONFIG).is_file():
                return root / text
    return Path(text)


def listed(*more: Path) -> Iterator[Listed]:
    """All models that ship, those in the user's folder, and those in other folders."""
    for root in (SHIPPED, own_models(), *more):
        if not root.is_dir():
            continue
        for config in sorted([*root.glob(CONFIG), *root.glob(f"*/{CONFIG}")]):
            try:
                facts = json.loads(config.read_text("utf-8"))
                if isinstance(facts, dict) and "fingerprint" in facts and "method" in facts:
                    name = str(config.parent) if root in more else config.parent.name
                    yield Listed(name, config.parent, root == SHIPPED, facts)
            except (OSError, ValueError):
                continue  # somebody else's config.json


def shipped_name(fingerprint: str) -> str | None:
    """The name of the model with this fingerprint, if it comes with mchindex."""
    same = (m.name for m in listed() if m.ships and m.config["fingerprint"] == fingerprint)
    return next(same, None)


def names() -> list[str]:
    return [m.name for m in listed()]
