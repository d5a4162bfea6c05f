"""What defines the codes of an index: their width, their model and their regions."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mchindex._core import BucketTable, FineTable
from mchindex.catalogue import Precision, check_precision
from mchindex.errors import ModelMismatchError
from mchindex.regions import Box, Layout, PixelBox, in_pixels
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.inference.encoder import Encoder


@dataclass(frozen=True)
class Identity:
    """What defines the codes of an index. Codes with equal identities can be compared."""

    bits: int
    fingerprint: str | None = None  # of the model; None for your own codes
    name: str | None = None  # of the model, if it has one
    regions: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    xi: float | None = None  # from which probability regions are kept; None: the model's own
    precision: Precision = "float"  # of the backbone
    int8_graph: str | None = None  # the SHA-256 of the graph, if the precision is int8

    @classmethod
    def of_model(cls, model: Encoder, name: str | None) -> Identity:
        regions, boxes = tuple(model.layout.names), tuple(model.layout.boxes)
        xi = None if model.xi == model.own_xi else model.xi
        return cls(
            model.bits, model.fingerprint, name, regions, boxes, xi, model.precision,
            model.int8_graph,
        )  # fmt: skip

    @classmethod
    def of_codes(cls, bits: int) -> Identity:
        """The identity of your own codes. Raises ValueError if `bits` is not supported."""
        BucketTable(bits)
        return cls(bits)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Identity:
        """Reads what `to_json` wrote. Raises KeyError, TypeError or ValueError if it is invalid."""
        boxes = []
        for box in facts["boxes"]:
            x0, y0, x1, y1 = map(float, box)
            boxes.append((x0, y0, x1, y1))
        regions = tuple(map(str, facts["names"]))
        if len(regions) != len(boxes) or facts["bits"] not in range(8, 257, 8):
            raise ValueError("an identity needs one box per region, and codes of 8 to 256 bits")
        xi = facts.get("xi")
        if xi is not None and not (isinstance(xi, (int, float)) and 0 <= xi <= 1):
            raise ValueError("xi is a probability")
        precision = facts.get("precision", "float")  # early versions had no other
        check_precision(precision)
        int8_graph = facts.get("int8_graph")
        if int8_graph is not None and not (isinstance(int8_graph, str) and len(int8_graph) == 64):
            raise ValueError("int8_graph is a SHA-256")
        return cls(
            facts["bits"], facts["fingerprint"], facts["name"], regions, tuple(boxes), xi,
            precision, int8_graph,
        )  # fmt: skip

    @classmethod
    def of_store(cls, store: Store) -> Identity | None:
        """What a store records; None if it records nothing. Raises StoreDamagedError."""
        facts = store.get("model")
        if facts is None:
            return None
        try:
            return cls.from_json(facts)
        except (KeyError, TypeError, ValueError):
            raise store.unreadable("model") from None

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "bits": self.bits,
            "fingerprint": self.fingerprint,
            "name": self.name,
            "names": list(self.regions),
            "boxes": [list(box) for box in self.boxes],
        }
        if self.xi is not None:
            facts["xi"] = self.xi
        if self.precision != "float":
            facts |= {"precision": self.precision, "int8_graph": self.int8_graph}
        return facts

    @property
    def has_model(self) -> bool:
        return self.fingerprint is not None

    @property
    def title(self) -> str:
        """The model as error messages name it."""
        if self.fingerprint is None:
            return "no model (it holds your own codes)"
        suffix = (
            f" ({self.fingerprint})"
            if self.precision == "float"
            else f" ({self.fingerprint}, {self.precision})"
        )
        return f"the model {self.name}{suffix}" if self.name else f"another model{suffix}"

    @cached_property
    def layout(self) -> Layout | None:
        """The regions of an image that may have codes; None for your own codes."""
        return Layout(self.regions, self.boxes) if self.regions else None

    def region_name(self, region: int) -> str:
        if 0 <= region < len(self.regions):
            return self.regions[region]
        return "whole" if region == 0 else f"region {region}"

    def region_box(self, region: int, width: int | None, height: int | None) -> PixelBox | None:
        """A region's box in an image of this size, in pixels; None if either is unknown."""
        if not 0 <= region < len(self.boxes) or not width or not height:
            return None
        return in_pixels(self.boxes[region], width, height)

    def check_same(self, other: Identity, mine: str, theirs: str) -> None:
        """Raises ModelMismatchError unless the codes of both can be compared.

        `mine` and `theirs` name the two in the message.
        """
        if self.bits != other.bits:
            raise ModelMismatchError(
                f"{theirs} has codes of {other.bits} bits, but {mine} has codes of {self.bits}"
            )
        if self.fingerprint != other.fingerprint:
            raise ModelMismatchError(
                f"{theirs} was filled by {other.title}, but {mine} by {self.title}"
            )
        if self.precision != other.precision:
            raise ModelMismatchError(
                f"{theirs} was filled with precision {other.precision}, but {mine} with precision "
                f"{self.precision}: create a new index with precision {other.precision}"
            )
        if self.int8_graph != other.int8_graph:
            raise ModelMismatchError(
                f"{theirs} and {mine} were filled by different versions of mchindex, whose int8 "
                "codes differ: add the images again"
            )
        if (self.regions, self.boxes) != (other.regions, other.boxes):
            raise ModelMismatchError(f"{theirs} and {mine} have different regions")


@dataclass(frozen=True, eq=False)
class FineIdentity:
    """What defines the fine codes of an index."""

    bits: int
    fingerprint: str  # of the model's fine hash
    cells: NDArray[np.uint8]  # (cells, bits // 8), see `FineTable`

    @classmethod
    def of_model(cls, model: Encoder) -> FineIdentity | None:
        """None if the model has no fine codes."""
        fine = model.fine
        if fine is None:
            return None
        return cls(fine.bits, fine.fingerprint, fine.packed_cells)

    @classmethod
    def of_store(cls, store: Store) -> FineIdentity | None:
        """What a store records; None if it has no fine codes. Raises StoreDamagedError."""
        facts = store.get("fine")
        if facts is None:
            return None
        try:
            bits = facts["bits"]
            cells = np.frombuffer(base64.b64decode(facts["cells"], validate=True), np.uint8)
            cells = cells.reshape(-1, bits // 8)
            FineTable(8, bits, 1, cells if len(cells) else None)
            return cls(bits, str(facts["fingerprint"]), cells)
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise store.unreadable("fine") from None

    def to_json(self) -> dict[str, Any]:
        cells = base64.b64encode(self.cells.tobytes()).decode()
        return {"bits": self.bits, "fingerprint": self.fingerprint, "cells": cells}

    def table(self, bits: int, regions: int) -> FineTable:
        """An empty table, for images with codes of `bits` bits."""
        return FineTable(bits, self.bits, regions, self.cells if len(self.cells) else None)
