"""`mch serve` on a cluster: the service of one index, with the same answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from helpers.service import KEY, draw, running
from mchindex import MCHIndex
from mchindex.cluster import ClusterIndex

pytest.importorskip("fastapi")


def test_a_service_answers_from_a_cluster_as_from_one_index(tmp_path: Path) -> None:
    files = draw(tmp_path / "pictures", 0, 8)
    in_process = partial(ClusterIndex.open, address=None)
    with MCHIndex.open(tmp_path / "one") as one, in_process(tmp_path / "many", shards=3) as many:
        for index in (one, many):
            index.add(files, progress=False)
    with (
        running(tmp_path / "one", key=KEY) as first,
        running(tmp_path / "many", opened=in_process, key=KEY) as second,
    ):
        names = first.ids()
        assert second.ids() == names
        for service in (first, second):
            gone = service.client.request("DELETE", "/v1/images", json={"ids": names[:1]})
            assert gone.status_code == 200, gone.text
            assert service.ids() == names[1:]
        for asked in ({"id": names[3], "k": 5}, {"text": "person", "k": 4}):
            answers = [service.search(**asked) for service in (first, second)]
            hits = [
                [(hit["id"], hit["score"], hit["region"]) for hit in found["hits"]]
                for found in answers
            ]
            assert hits[0] == hits[1]
            assert len(hits[0]) == asked["k"]
