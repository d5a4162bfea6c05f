"""Every endpoint, on a real socket, compared with the index itself."""

import base64
import io
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from helpers.service import PICTURES, Service, draw, problem, running
from mchindex.errors import StoreError
from mchindex.server.tokens import Tokens


def ids_of(answer: Any) -> list[Any]:
    return [hit["id"] for hit in answer["hits"]]


def test_info_says_what_there_is_and_what_the_caller_may_do(service: Service) -> None:
    info = service.client.get("/v1/info").json()
    assert info["images"] == PICTURES + 1
    assert info["rank_modes"] == ["best", "fine", "code"]
    assert info["words"] is True
    assert info["access"] == {"write": True, "delete": False, "key_required": False}
    assert {one["name"]: one["kind"] for one in info["metadata"]} == {
        "album": "text",
        "year": "number",
    }
    assert info["regions"][0] == {"name": "whole", "box": [0, 0, 1, 1]}


@pytest.mark.parametrize("rank", [None, "best", "fine", "code"])
@pytest.mark.parametrize(("k", "offset"), [(1, 0), (3, 0), (3, 2), (50, 0)])
def test_a_search_by_id_gives_what_the_index_gives(
    service: Service, rank: Any, k: int, offset: int
) -> None:
    id = service.ids()[2]
    answer = service.search(id=id, k=k, offset=offset, rank=rank)
    want = service.index.search(id=id, k=k, offset=offset, rank=rank)
    assert ids_of(answer) == want.ids
    for line, hit in zip(answer["hits"], want, strict=True):
        assert line["distance"] == hit.distance
        assert line["score"] == hit.score
        assert line["similarity"] == hit.similarity
        assert line["region"] == hit.region
        assert line["box"] == list(hit.box or ())
        assert (line["width"], line["height"]) == hit.size
        assert line["metadata"] == hit.metadata
        assert line["name"] == Path(str(hit.id)).name
    assert answer["more"] is (offset + len(want) < PICTURES)
    one_more = service.index.search(id=id, k=k + 1, offset=offset, rank=rank)
    assert answer["visited"]["candidates"] == one_more.candidates
    assert answer["took"]["total_ms"] > 0


def test_the_same_picture_is_found_however_it_is_sent(service: Service) -> None:
    path = service.ids()[5]
    data = Path(path).read_bytes()
    by_text = service.search(image=base64.b64encode(data).decode(), k=4)
    form = service.client.post(
        "/v1/search", files={"file": ("x.jpg", data)}, data={"request": '{"k": 4}'}
    ).json()
    want = service.index.search(data, 4)
    assert ids_of(by_text) == ids_of(form) == want.ids
    assert want.ids[0] == path
    again = service.search(codes=by_text["query"]["codes"], k=4)
    assert again["hits"] == by_text["hits"]


def test_a_box_is_searched_for(service: Service) -> None:
    path = service.ids()[4]
    data, box = Path(path).read_bytes(), [10, 20, 90, 120]
    want = service.index.search(data, 3, region=box)
    sent = service.search(image=base64.b64encode(data).decode(), k=3, region=box)
    assert ids_of(sent) == want.ids
    stored = service.search(id=path, k=3, region=box)
    assert ids_of(stored) == service.index.search(data, 3, region=box, exclude=[path]).ids
    assert ids_of(service.search(codes=stored["query"]["codes"], k=3, exclude=[path])) == ids_of(
        stored
    )
    outside = service.client.post("/v1/search", json={"id": path, "region": [0, 0, 9999, 5]})
    assert "not within the picture" in problem(outside, 422)


def test_words_like_unlike_filters_and_exclusion(service: Service) -> None:
    index, ids = service.index, service.ids()
    word = index.words()[0]
    assert ids_of(service.search(text=word, k=5)) == index.search(text=word, k=5).ids
    assert service.search(text=word, k=5)["hits"][0]["distance"] == -1
    mixed = service.search(like=[ids[0], {"id": ids[1]}], unlike=[ids[2]], k=5)
    assert ids_of(mixed) == index.search(like=ids[:2], unlike=ids[2:3], k=5).ids
    year = {"year": {">=": 2000 + len("scene 10.jpg")}}
    assert ids_of(service.search(id=ids[0], k=50, filter=year)) == [
        hit.id for hit in index.search(id=ids[0], k=50) if hit.metadata["year"] >= 2012
    ]
    first = ids_of(service.search(id=ids[0], k=3))
    assert ids_of(service.search(id=ids[0], k=2, exclude=first[:1])) == first[1:]


def test_a_batch_answers_each_search_on_its_own(service: Service) -> None:
    ids = service.ids()
    asked = [{"id": ids[0], "k": 2}, {"id": "nothing"}, {"text": "no such word"}, {"id": ids[1]}]
    answers = service.client.post("/v1/search/batch", json={"searches": asked}).json()["answers"]
    assert ids_of(answers[0]) == service.index.search(id=ids[0], k=2).ids
    assert answers[1]["status"] == 404
    assert answers[2]["status"] == 422
    assert "does not know the word" in answers[2]["detail"]
    assert ids_of(answers[3]) == service.index.search(id=ids[1]).ids


def test_a_hit_says_why_it_is_one(service: Service) -> None:
    copy = next(id for id in service.ids() if "copy" in id)
    first = service.search(id=copy, k=3, explain=True)["hits"][0]
    assert first["name"] == "scene 3.jpg"
    assert first["same"] is True
    assert first["why"] == "same picture"
    image = Image.open(first["id"])
    stream = io.BytesIO()
    image.crop((0, 0, image.width // 2, image.height // 2)).save(stream, "PNG")
    part = base64.b64encode(stream.getvalue()).decode()
    hits = service.search(image=part, k=3, explain=True)["hits"]
    same = [hit for hit in hits if hit["same"]]
    assert same
    assert same[0]["why"].startswith("same picture, top-left")
    word = service.index.words()[0]
    assert service.search(text=word, explain=True)["hits"][0]["why"].startswith(word)


def test_images_are_listed_page_by_page(service: Service) -> None:
    seen: list[Any] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 5} | ({"cursor": cursor} if cursor else {})
        page = service.client.get("/v1/images", params=params).json()
        assert page["total"] == PICTURES + 1
        seen += [image["id"] for image in page["images"]]
        if (cursor := page["next"]) is None:
            break
    assert seen == service.ids()
    some = service.client.get("/v1/images", params={"filter": '{"year": {"<": 2012}}'}).json()
    assert some["total"] == len(some["images"]) == service.index.count({"year": {"<": 2012}})


def test_one_image_shows_its_regions_and_how_many_share_their_buckets(service: Service) -> None:
    for id in service.ids():
        shown = service.client.get("/v1/image", params={"id": id}).json()
        stored = service.index[id]
        assert [region["region"] for region in shown["regions"]] == list(stored.regions)
        for region, code in zip(shown["regions"], stored.codes, strict=True):
            assert region["code"] == code.tobytes().hex()
            same = service.index.search_codes(code, 50, max_radius=0, rank="code")
            assert region["images_in_bucket"] == len(same)


@pytest.mark.parametrize("path", ["/v1/thumbnail", "/v1/picture"])
@pytest.mark.parametrize(("accept", "kind"), [("image/webp,*/*", "WEBP"), ("*/*", "JPEG")])
def test_pictures_come_in_a_format_that_the_caller_takes(
    service: Service, path: str, accept: str, kind: str
) -> None:
    id = service.ids()[0]
    got = service.client.get(path, params={"id": id}, headers={"accept": accept})
    image = Image.open(io.BytesIO(got.content))
    assert image.format == kind
    assert got.headers["content-type"] == f"image/{kind.lower()}"
    again = service.client.get(
        path, params={"id": id}, headers={"accept": accept, "if-none-match": got.headers["etag"]}
    )
    assert again.status_code == 304
    assert again.content == b""


def test_thumbnails_have_the_size_that_is_asked_for(service: Service) -> None:
    got = service.client.get("/v1/thumbnail", params={"id": service.ids()[0], "size": 64})
    assert max(Image.open(io.BytesIO(got.content)).size) == 64
    wrong = service.client.get("/v1/thumbnail", params={"id": service.ids()[0], "size": 9999})
    assert "size" in problem(wrong, 422)


def test_words_are_completed(service: Service) -> None:
    words = service.client.get("/v1/words", params={"q": "do", "limit": 7}).json()["words"]
    assert words == sorted(service.index.words("do"), key=lambda word: (len(word), word))[:7]
    assert words[0] == "dog"  # and not "doberman"


def test_duplicates_and_decisions(own: Path) -> None:
    with running(own) as service:
        page = service.client.get("/v1/duplicates").json()
        want = [group.ids for group in service.index.duplicates(progress=False)]
        groups = [[image["id"] for image in group["images"]] for group in page["groups"]]
        assert groups == want
        assert page["total"] == len(want)
        first = service.client.get("/v1/duplicates", params={"limit": 1}).json()
        assert first["groups"] == page["groups"][:1]
        place = next(i for i, ids in enumerate(want) if any("copy" in str(id) for id in ids))
        images = page["groups"][place]["images"]
        # Drawn scenes look alike, so that there may be others.
        assert {"scene 3.jpg", "copy of 3.jpg"} <= {image["name"] for image in images}
        others = [None] * (len(images) - 1)
        assert [image["keep"] for image in images] == [True] + [False] * len(others)
        assert [image["decision"] for image in images] == [None, *others]
        asked = [{"id": images[1]["id"], "decision": "discard"}]
        done = service.client.put("/v1/decisions", json={"decisions": asked})
        assert done.json()["decisions"] == asked
        again = service.client.get("/v1/duplicates").json()["groups"][place]["images"]
        assert [image["decision"] for image in again] == [None, "discard", *others[1:]]
        table = service.client.get("/v1/decisions", params={"format": "csv"})
        assert table.text.splitlines() == ["decision,id", f"discard,{images[1]['id']}"]
        unknown = {"decisions": [{"id": "nothing", "decision": "keep"}]}
        assert "no image 'nothing'" in problem(
            service.client.put("/v1/decisions", json=unknown), 404
        )
    with running(own) as service:
        assert service.client.get("/v1/decisions").json()["decisions"] == asked


def test_pictures_are_added_and_removed_while_others_search(own: Path, tmp_path: Path) -> None:
    new = draw(tmp_path / "new", PICTURES, 3)
    with running(own, uploads=tmp_path / "kept") as service:
        files = [("file", (f"album/{file.name}", file.read_bytes())) for file in new]
        files.append(("file", ("broken.jpg", b"not a picture")))
        metadata = json.dumps({f"album/{new[0].name}": {"album": "new"}})
        added = service.client.post("/v1/images", files=files, data={"metadata": metadata}).json()
        want = [str(tmp_path / "kept" / "album" / file.name) for file in new]
        assert sorted(added["added"]) == sorted(want)
        assert added["failed"] == [
            {"name": "broken.jpg", "reason": "not an image of a known format"}
        ]
        assert not (tmp_path / "kept" / "broken.jpg").exists()
        assert service.index[want[0]].metadata == {"album": "new"}
        assert ids_of(service.search(id=want[0], k=1))
        again = service.client.post("/v1/images", files=files[:1]).json()
        assert again == {"added": [], "replaced": [], "unchanged": want[:1], "failed": []}
        other = service.client.post(
            "/v1/images", files=[("file", (f"album/{new[0].name}", new[1].read_bytes()))]
        ).json()
        assert other["added"] == [str(Path(want[0]).with_stem(f"{new[0].stem}-2"))]
        removed = service.client.request("DELETE", "/v1/images", json={"ids": [want[0], "x"]})
        assert removed.json() == {"removed": 1, "files": 0, "failed": []}
        assert Path(want[0]).exists()
        assert problem(service.client.get("/v1/image", params={"id": want[0]}), 404)


def test_a_model_that_cannot_be_loaded_is_not_said_to_be_loading(
    own: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: object) -> None:
        raise StoreError("int8 codes differ")

    monkeypatch.setattr("mchindex.server.app.Service.warm_up", fail)
    with running(own) as service:
        for _ in range(100):
            detail = problem(service.client.get("/readyz"), 503)
            if "being loaded" not in detail:
                break
            time.sleep(0.05)
        assert detail == "the model cannot be loaded: the log of the service says why"
        assert service.client.get("/livez").status_code == 200
    assert "the model cannot be loaded: int8 codes differ" in caplog.text


def test_health_metrics_and_description(service: Service) -> None:
    for path in ("/livez", "/readyz", "/healthz"):
        assert service.client.get(path).json() == {"status": "ok"}
    service.search(id=service.ids()[0])
    metrics = service.client.get("/metrics").text
    assert 'mch_requests_total{method="POST",route="/v1/search",status="200"}' in metrics
    assert f"mch_images {PICTURES + 1}.0" in metrics
    schema = service.client.get("/openapi.json").json()
    for path in ("/v1/search", "/v1/images", "/v1/thumbnail", "/v1/duplicates"):
        assert path in schema["paths"]
    docs = service.client.get("/docs")
    assert docs.status_code == 200
    assert "/v1/search/batch" in docs.text
    assert "http://" not in docs.text.replace(service.url, "")
    for model in ("SearchRequest", "BatchRequest", "SearchAnswer"):  # where they are used
        assert f'id="{model}"' not in docs.text
    assert 'id="Hit"' in docs.text
    style = service.client.get("/assets/docs.css")
    assert style.headers["content-type"] == "text/css; charset=utf-8"


def test_an_index_without_a_model_is_searched_by_its_codes(tmp_path: Path) -> None:
    from helpers.indexes import codes_for
    from mchindex import MCHIndex

    with MCHIndex.open(tmp_path / "codes.mch", bits=32) as index:
        for number in range(8):
            codes = codes_for(number)
            index.add_codes([number] * len(codes), codes)
    with running(tmp_path / "codes.mch") as service:
        info = service.client.get("/v1/info").json()
        assert (info["rank_modes"], info["words"], info["regions"]) == (["code"], False, [])
        want = service.index.search(id=3, k=4).ids
        assert ids_of(service.search(id=3, k=4)) == want
        code = service.index[3].codes[0]
        found = service.search(codes=code.tobytes().hex(), k=4)
        assert ids_of(found) == service.index.search_codes(code, 4).ids
        assert service.client.get("/v1/image", params={"id": 3}).json()["id"] == 3
        picture = base64.b64encode(b"x").decode()
        problem(service.client.post("/v1/search", json={"image": picture}), 422)
        problem(service.client.get("/v1/thumbnail", params={"id": 3}), 404)
        problem(service.client.get("/v1/duplicates"), 422)
        files = [("file", ("a.jpg", b"x"))]
        problem(service.client.post("/v1/images", files=files), 422)


@settings(max_examples=60)
@given(st.binary(min_size=8, max_size=8), st.lists(st.floats(-9, 9, width=32), min_size=64))
def test_tokens_keep_what_the_engine_uses(code: bytes, fine: list[float]) -> None:
    import numpy as np

    from mchindex._core import FineTable
    from mchindex.index.ranking import Query

    values = np.array(fine[:64], np.float32)[None]
    query = Query(np.frombuffer(code, np.uint8)[None], values)
    tokens = Tokens(64, 64, "model")
    read = tokens.read(tokens.write(query))
    assert read.codes.tobytes() == code
    table = FineTable(8, 64, 1)
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 256, (20, 1, 8), np.uint8)
    table.add(np.arange(20), stored, np.ones(20, np.int64), rng.integers(0, 256, (20, 1), np.uint8))
    assert read.fine is not None
    mine, theirs = table.rank(values, 20), table.rank(read.fine, 20)
    assert mine.keys.tolist() == theirs.keys.tolist()
    assert theirs.scores == pytest.approx(mine.scores, abs=1e-6)


def test_unknown_paths_and_methods_are_problems(service: Service) -> None:
    assert "/docs" in problem(service.client.get("/v1/nothing"), 404)
    wrong = service.client.get("/v1/search")
    assert "method" in problem(wrong, 405)
    assert wrong.headers.get_list("allow") == ["POST"]
    wrong = service.client.options("/v1/images")
    assert wrong.headers.get_list("allow") == ["DELETE, GET, HEAD, POST"]
    wrong = service.client.post("/v1/search", content=b"{}", headers={"content-type": "text/plain"})
    assert "application/json" in problem(wrong, 415)


@pytest.mark.parametrize("path", ["/", "/v1/info", "/v1/images", "/v1/image?id=none"])
def test_head_answers_as_get_without_a_body(service: Service, path: str) -> None:
    got, head = service.client.get(path), service.client.head(path)
    assert head.content == b""
    ours = ("content-type", "content-length", "etag")
    assert head.status_code == got.status_code
    assert [head.headers.get(name) for name in ours] == [got.headers.get(name) for name in ours]


def test_mistakes_are_told_in_words(service: Service) -> None:
    for body, told in (
        ({"text": "xyzzyx"}, "the model does not know the word 'xyzzyx'; GET /v1/words lists"),
        ({"text": "dgo"}, "but it knows dingo, dugong, dog;"),
        ({"text": "dog", "bogus": 1}, "bogus: there is no such field"),
        ({"text": "dog", "id": "x"}, "but id and text were given"),
        ({}, "but none of them was given"),
    ):
        assert told in problem(service.client.post("/v1/search", json=body), 422)


def test_the_client_library_is_not_needed(service: Service) -> None:
    """The example of the help of `mch serve`."""
    word = service.index.words()[0]
    got = httpx.post(f"{service.url}v1/search", json={"text": word})
    assert got.status_code == 200
