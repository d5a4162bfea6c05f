"""The client gives what the index itself gives."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import mchindex
from helpers.service import KEY, PICTURES, READ_KEY, Service, draw, running
from mchindex import ImageError, ServiceError, ServiceRefusedError
from mchindex.index.results import Hits


def same(mine: Hits, theirs: Hits) -> None:
    assert [hit.to_dict() for hit in mine] == [hit.to_dict() for hit in theirs]
    assert mine.rank == theirs.rank


def test_searches(service: Service) -> None:
    index, ids = service.index, service.ids()
    with mchindex.connect(service.url) as client:
        assert len(client) == len(index)
        assert list(client) == client.ids() == ids
        same(client.search(id=ids[1], k=4), index.search(id=ids[1], k=4))
        same(client.search(ids[1], 4), index.search(ids[1], 4))
        data = Path(ids[1]).read_bytes()
        for query in (data, io.BytesIO(data), Path(ids[1])):
            same(client.search(query, 3), index.search(data, 3))
        picture = Image.open(ids[2]).convert("RGB")
        same(client.search(picture, 3), index.search(picture, 3))
        box = (0, 0, 80, 80)
        same(client.search(data, 3, region=box), index.search(data, 3, region=box))
        word = index.words()[0]
        same(client.search(text=word, k=3), index.search(text=word, k=3))
        like: Any = {"like": ids[:2], "unlike": ids[2:3]}
        same(client.search(**like, k=3), index.search(**like, k=3))
        options: Any = {"filter": {"year": {"<": 2012}}, "rank": "code", "offset": 1}
        same(client.search(id=ids[0], **options), index.search(id=ids[0], **options))
        several = client.search([data, picture], 2)
        assert [hits.ids for hits in several] == index.search([data, picture], 2).ids
        assert client.words("do") == index.words("do")
        assert client.count({"year": {"<": 2012}}) == index.count({"year": {"<": 2012}})
        assert ids[0] in client
        assert "nothing" not in client
        assert client[ids[0]]["name"] == "scene 0.jpg"
        found = client.duplicates()
        assert [group.ids for group in found] == [g.ids for g in index.duplicates(progress=False)]
        assert Image.open(io.BytesIO(client.thumbnail(ids[0], 64))).size[0] <= 64


def test_mistakes_are_the_exceptions_of_an_index(service: Service) -> None:
    with mchindex.connect(service.url, patience=0) as client:
        with pytest.raises(KeyError, match="no image 'nothing'"):
            client.search(id="nothing")
        with pytest.raises(ImageError, match="cannot be read"):
            client.search(b"no picture")
        with pytest.raises(ImageError, match="No such file"):
            client.search("missing.jpg")
        with pytest.raises(ValueError, match="does not know the word"):
            client.search(text="no such word")
        with pytest.raises(ServiceRefusedError, match="k may be at most"):
            client.search(id="x", k=10**6)
        with pytest.raises(TypeError, match="no option 'limit'"):
            client.search(id="x", limit=3)
    with mchindex.connect("http://127.0.0.1:9", patience=0.2) as client:
        with pytest.raises(ServiceError, match="cannot be reached") as gone:
            len(client)
        assert gone.value.status is None


def test_changes_and_keys(own: Path, tmp_path: Path) -> None:
    new = draw(tmp_path / "album", PICTURES, 3)
    with running(own, key=KEY, read_key=READ_KEY, uploads=tmp_path / "kept") as service:
        with mchindex.connect(service.url, READ_KEY, patience=0) as reader:
            with pytest.raises(ServiceRefusedError, match="may only read"):
                reader.add(new[0])
            assert reader.stats()["access"]["write"] is False
        with (
            mchindex.connect(service.url, "x" * 20, patience=0) as nobody,
            pytest.raises(ServiceRefusedError, match="key is wrong"),
        ):
            len(nobody)
        with mchindex.connect(service.url, KEY) as client:
            added = client.add(tmp_path / "album", metadata={"album": "new"})
            assert [Path(str(id)).relative_to(tmp_path / "kept") for id in added] == [
                Path("album", file.name) for file in new
            ]
            assert client.count({"album": "new"}) == 3
            assert client.add(tmp_path / "album").skipped == list(added)
            named = client.add([Image.open(new[0]).resize((50, 40))], ids=["small.png"])
            assert client[named[0]]["width"] == 50
            assert client.add(b"x", ids="broken.png").failed[0].name == "broken.png"
            client.decide({added[0]: "discard"})
            assert client.decisions() == {added[0]: "discard"}
            assert client.remove(added) == 3
            assert client.decisions() == {}


def test_the_same_with_await(service: Service) -> None:
    async def run() -> None:
        async with mchindex.connect_async(service.url) as client:
            ids = [image["id"] async for image in client.images()]
            assert ids == service.ids()
            several = await asyncio.gather(*(client.search(id=id, k=3) for id in ids))
            for id, hits in zip(ids, several, strict=True):
                same(hits, service.index.search(id=id, k=3))
            assert await client.words("do") == service.index.words("do")
            assert (await client.stats())["images"] == len(ids)
            assert await client.count() == len(ids)
            with pytest.raises(KeyError):
                await client.image("nothing")

    asyncio.run(run())
