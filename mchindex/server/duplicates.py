"""Groups of duplicates, found once for each state of the index, and given page by page."""

from __future__ import annotations

import csv
import io
import threading
from typing import Any

from mchindex.index.duplicates import Duplicate, Duplicates, Level
from mchindex.index.facade import MCHIndex
from mchindex.server.contents import modified, read_cursor, write_cursor
from mchindex.server.names import file_name
from mchindex.storage.records import Row

State = tuple[int, int, int]  # of the index: what duplicates depend on


class Groups:
    """The duplicates of an index, kept until its images change."""

    def __init__(self, index: MCHIndex) -> None:
        self._index = index
        self._lock = threading.Lock()  # one caller at a time looks for them
        self._found: dict[Level, tuple[State, Duplicates]] = {}

    def page(self, level: Level, cursor: str | None, limit: int) -> dict[str, Any]:
        start = read_cursor(cursor)
        found = self._duplicates(level)
        groups = found[start : start + limit]
        decisions = self._index.decisions()
        rows = self._index.queries.rows([id for group in groups for id in group.ids])

        def shown(image: Duplicate, keep: bool) -> dict[str, Any]:
            row: Row | None = rows.get(image.id)
            return {
                "id": image.id,
                "name": file_name(image.id, image.path),
                "width": image.size and image.size[0],
                "height": image.size and image.size[1],
                "bytes": image.bytes,
                "modified": None if row is None else modified(row),
                "similarity": image.similarity,
                "keep": keep,
                "decision": decisions.get(image.id),
            }

        more = start + limit < len(found)
        return {
            "level": level,
            "groups": [
                {
                    "images": [
                        shown(group.keeper, True),
                        *(shown(image, False) for image in group.others),
                    ]
                }
                for group in groups
            ],
            "next": write_cursor(start + limit) if more else None,
            "total": len(found),
            "compared": found.compared,
        }

    def _duplicates(self, level: Level) -> Duplicates:
        with self._lock:
            state = self._index.queries.state()
            kept = self._found.get(level)
            if kept is None or kept[0] != state:
                kept = state, self._index.duplicates(level, progress=False)
                self._found[level] = kept
            return kept[1]

    def decisions(self) -> dict[str, Any]:
        return {
            "decisions": [
                {"id": id, "decision": decision} for id, decision in self._index.decisions().items()
            ]
        }

    def as_csv(self) -> str:
        """The decisions as a table. No cell can be taken for a formula by a spreadsheet."""
        stream = io.StringIO()
        table = csv.writer(stream)
        table.writerow(["decision", "id"])
        for id, decision in self._index.decisions().items():
            text = str(id)
            table.writerow([decision, f"'{text}" if text[:1] in "=+-@\t\r" else text])
        return stream.getvalue()
