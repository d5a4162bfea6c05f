"""The settings of a saved model: whoever made its folder, nothing in it is taken on trust.

config.json is strict JSON of limited size, and every field has a type. The weights are a
safetensors file, which holds numbers and no code.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mchindex.catalogue import CONFIG, names, read_config
from mchindex.errors import ModelError
from mchindex.files import open_file

FORMAT = 3  # 2: without tuned blocks; 1: without fine codes, too
WEIGHTS = "model.safetensors"
LARGEST_HEADER = 8 << 20  # bytes of a safetensors file that describe its tensors


@dataclass(frozen=True)
class Config:
    """What config.json says. `read` checks the type of every field."""

    backbone: str
    size: int
    pretrained: bool
    tuned: int  # how many of its last blocks were tuned for codes; 0: none
    mode: Any  # checked by the model
    layout: str
    method: str
    bits: int
    settings: dict[str, Any]
    policy_width: int | None  # None: no policy
    policy_reads: Any  # checked by the policy
    sigma: float
    xi: float
    about: dict[str, Any]
    plugins: dict[str, Any]
    fine: tuple[int, int, str | None] | None  # bits, number of cells, fingerprint if it was saved
    words: tuple[list[str], str] | None  # their names and their fingerprint; None: no words
    fingerprint: str

    @classmethod
    def read(cls, config: dict[str, Any]) -> Config:
        """Raises ValueError for a field that is missing or has the wrong type."""
        backbone = field_of(config, "backbone", dict)
        policy = field_of(config, "policy", dict, type(None))
        fine = field_of({"fine": None} | config, "fine", dict, type(None))
        words = field_of({"words": None} | config, "words", dict, type(None))
        return cls(
            field_of(backbone, "name", str),
            field_of(backbone, "size", int),
            field_of(backbone, "pretrained", bool),
            field_of({"tuned": 0} | backbone, "tuned", int),
            field_of(config, "regions", str),
            field_of({"layout": "corners"} | config, "layout", str),
            field_of(config, "method", str),
            field_of(config, "bits", int),
            field_of(config, "settings", dict),
            None if policy is None else field_of(policy, "width", int),
            field_of({"reads": "method"} | (policy or {}), "reads", str),
            field_of(config, "sigma", float, int),
            field_of(config, "xi", float, int),
            field_of({"about": {}} | config, "about", dict),
            field_of({"plugins": {}} | config, "plugins", dict),
            None if fine is None else _fine(fine),
            None if words is None else (_names(words), field_of(words, "fingerprint", str)),
            field_of(config, "fingerprint", str),
        )


def _fine(fine: dict[str, Any]) -> tuple[int, int, str | None]:
    fingerprint = field_of({"fingerprint": None} | fine, "fingerprint", str, type(None))
    return field_of(fine, "bits", int), field_of(fine, "cells", int), fingerprint


_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def field_of(config: Mapping[str, Any], name: str, *kinds: type, where: str = CONFIG) -> Any:
    """A field of config.json, or another file, which must be one of `kinds`."""
    if name not in config:
        raise ValueError(f"its {where} has no {name!r}")
    value = config[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ValueError(
            f"{name!r} in its {where} must be {_KINDS[kinds[0]]}, not {reprlib.repr(value)}"
        )
    return value


def _names(words: Mapping[str, Any]) -> list[str]:
    """The names of words, each of which must be text."""
    names: list[str] = field_of(words, "names", list)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f"a word in its {CONFIG} must be text, not {reprlib.repr(name)}")
    return names


def read_settings(folder: Path) -> dict[str, Any]:
    """What config.json holds. Raises ModelError if it cannot be read or is too new."""
    try:
        config = read_config(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            f"{folder} is not a model: it has no {CONFIG} (models by name: {', '.join(names())})"
        ) from None
    except OSError as error:
        raise ModelError(f"{folder / CONFIG} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{folder / CONFIG} is damaged: {error}") from error
    try:
        version = field_of(config, "format", int)
        if version < 1:
            raise ValueError(f"there is no format {version}")
    except ValueError as error:
        raise ModelError(f"{folder / CONFIG} is damaged: {error}") from error
    if version > FORMAT:
        raise ModelError(
            f"{folder} was written by a newer mchindex (format {reprlib.repr(version)})"
        )
    return config


def check_header(path: str | os.PathLike[str]) -> None:
    """Raises ValueError for a safetensors file whose header is too large, or OSError."""
    with open_file(path) as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(
            f"its header has {length:,} bytes, and {LARGEST_HEADER:,} are allowed at most"
        )
