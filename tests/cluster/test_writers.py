"""Who may change the shards of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from helpers.clusters import KIND, cluster, row
from mchindex.errors import StaleWriteError

LATE: list[tuple[str, tuple[Any, ...]]] = [
    ("insert", ([row(1, 9, 3)], [50])),
    ("remove", ([1],)),
    ("touch", ({1: {"metadata": "{}"}},)),
    ("decide", ({1: "discard"},)),
    ("set_facts", ({"model": None},)),
]


@pytest.mark.parametrize(("name", "arguments"), LATE)
def test_what_a_writer_sent_off_before_another_came_is_not_done(
    tmp_path: Path, name: str, arguments: tuple[Any, ...]
) -> None:
    """A call may wait in a shard until after the end of the process that sent it."""
    with cluster(tmp_path / "c", 1) as index:
        shards: Any = index._store._shards
        index.add_records([row(1, 1, 3), row(2, 2, 3)], KIND)
        late = index._store._token
        index.remove([1])
        index.add_records([row(1, 3, 3)], KIND)
        before = [stored.metadata for stored in index.images()], index.decisions()
        with pytest.raises(StaleWriteError):
            shards.ask(name, {0: (late, *arguments)}, change=True)
        assert ([stored.metadata for stored in index.images()], index.decisions()) == before
        assert sorted(index) == [1, 2]


def test_a_shard_that_was_opened_again_is_told_who_writes(tmp_path: Path) -> None:
    with cluster(tmp_path / "c", 2) as index:
        index.add_records([row(i, i, 3) for i in range(20)], KIND)
        kind: Any = type(index._store._shards._shards[0])  # type: ignore[union-attr]
        check, restarts = kind._check_writer, [0]

        def after_a_restart(shard: Any, token: str) -> None:
            if restarts[0]:
                restarts[0] -= 1
                shard._writer = ""
            check(shard, token)

        with mock.patch.object(kind, "_check_writer", after_a_restart):
            for change in (
                lambda: index.remove([3, 4]),
                lambda: index.decide({5: "keep"}),
                lambda: index.set_metadata(6, {"kind": "new"}),
                lambda: index.add_records([row(30, 1, 3)], KIND),
            ):
                restarts[0] = 2
                change()
                assert restarts[0] == 0
        assert sorted(index) == sorted({*range(20), 30} - {3, 4})
        assert index.decisions() == {5: "keep"}
        assert index[6].metadata == {"kind": "new"}
