"""What the codes of an index are: how wide, from which model, of which regions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mchindex._core import BucketTable
from mchindex.errors import ModelMismatchError
from mchindex.regions import Box, Layout, PixelBox, in_pixels
from mchindex.storage.store import Store

if TYPE_CHECKING:
    from mchindex.models import MCHModel


@dataclass(frozen=True)
class Identity:
    """Codes of two indexes can be compared if their identities are equal."""

    bits: int
    fingerprint: str | None = None  # of the model; None: codes that the user brought
    name: str | None = None  # what people call the model
    regions: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()

    @classmethod
    def of_model(cls, model: MCHModel, name: str | None) -> Identity:
        layout = model.layout
        return cls(model.bits, model.fingerprint, name, tuple(layout.names), tuple(layout.boxes))

    @classmethod
    def of_codes(cls, bits: int) -> Identity:
        """Codes that the user brings. Raises ValueError for a width that is not possible."""
        BucketTable(bits)
        return cls(bits)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Identity:
        """Raises KeyError, TypeError or ValueError if the facts are not an identity's."""
        boxes = []
        for box in facts["boxes"]:
            x0, y0, x1, y1 = map(float, box)
            boxes.append((x0, y0, x1, y1))
        regions = tuple(map(str, facts["names"]))
        if len(regions) != len(boxes) or facts["bits"] not in range(8, 257, 8):
            raise ValueError("an identity has one box per region, and codes of 8 to 256 bits")
        return cls(facts["bits"], facts["fingerprint"], facts["name"], regions, tuple(boxes))

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
        return {
            "bits": self.bits,
            "fingerprint": self.fingerprint,
            "name": self.name,
            "names": list(self.regions),
            "boxes": [list(box) for box in self.boxes],
        }

    @property
    def has_model(self) -> bool:
        return self.fingerprint is not None

    @property
    def title(self) -> str:
        """The model as an error message names it."""
        if self.fingerprint is None:
            return "no model, but your own codes"
        known = f" ({self.fingerprint})"
        return f"the model {self.name}{known}" if self.name else f"another model{known}"

    @cached_property
    def layout(self) -> Layout | None:
        """The regions that codes are of; None for the user's own codes."""
        return Layout(self.regions, self.boxes) if self.regions else None

    def region_name(self, region: int) -> str:
        if region < len(self.regions):
            return self.regions[region]
        return "whole" if region == 0 else f"region {region}"

    def region_box(self, region: int, width: int | None, height: int | None) -> PixelBox | None:
        """A region in pixels of an image of this size; None where it is not known."""
        if region >= len(self.boxes) or not width or not height:
            return None
        return in_pixels(self.boxes[region], width, height)

    def check_same(self, other: Identity, mine: str, theirs: str) -> None:
        """Raises ModelMismatchError unless codes of `other` mean the same as codes of this one.

        `mine` and `theirs` name the two in the message.
        """
        if self.bits != other.bits:
            raise ModelMismatchError(
                f"{theirs} has codes of {other.bits} bits, and {mine} of {self.bits}"
            )
        if self.fingerprint != other.fingerprint:
            raise ModelMismatchError(
                f"{theirs} was filled by {other.title}, and {mine} by {self.title}"
            )
        if (self.regions, self.boxes) != (other.regions, other.boxes):
            raise ModelMismatchError(f"{theirs} has other regions than {mine}")
