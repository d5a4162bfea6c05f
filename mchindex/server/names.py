"""What images are called for people."""

from __future__ import annotations

import os

from mchindex.storage.records import Id


def file_name(id: Id, path: str | None) -> str:
    """The name of an image's file, or its id."""
    return os.path.basename(path or str(id)) or str(id)
