"""What users of MCHIndex rely on besides adding and searching: pages, counts, copies, limits."""

import io
import json
import threading
from dataclasses import fields
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from helpers.indexes import BITS, assert_as_fresh, codes_for, content, drawn, painted, tiny_model
from helpers.pictures import encoded
from mchindex import ImageError, MCHIndex
from mchindex.index.verify import verify

CODE = np.zeros(BITS // 8, np.uint8)


def numbered(rows: int, bits: int = BITS) -> NDArray[np.uint8]:
    """Codes at the distances 0, 1, 2 … from zero."""
    signs = np.arange(bits)[None] < np.arange(rows)[:, None]
    return np.packbits(signs, axis=1)


@pytest.fixture
def index(tmp_path: Path) -> MCHIndex:
    index = MCHIndex.open(tmp_path / "i", bits=BITS)
    notes: list[Any] = [
        {"year": 2018 + i, "camera": {"model": "X" if i % 2 else "Y"}} for i in range(10)
    ]
    index.add_codes(range(10), numbered(10), metadata=notes)
    return index


# Pages, radii, limits.


@given(st.integers(1, 12), st.integers(0, 14))
def test_a_page_is_a_slice_of_all_hits(k: int, offset: int) -> None:
    with MCHIndex(bits=BITS) as index:
        index.add_codes(range(10), numbered(10))
        whole = index.search_codes(CODE, 30).ids
        page = index.search_codes(CODE, k, offset=offset)
        assert page.ids == whole[offset : offset + k]
        several = index.search_codes(np.stack([CODE, ~CODE]), k, offset=offset)
        assert several.counts.tolist() == [len(page), len(page)]
        assert several[0].ids == page.ids
        more = index.search(id=3, k=k, offset=offset)
        assert more.ids == index.search(id=3, k=30).ids[offset : offset + k]


@given(st.integers(0, BITS))
def test_within_finds_everything_inside_the_radius(radius: int) -> None:
    rng = np.random.default_rng(radius)
    codes = rng.integers(0, 256, (40, BITS // 8), np.uint8)
    codes[:20] = codes_for(0)[0] ^ np.packbits(rng.random((20, BITS)) < 0.1, axis=1)
    with MCHIndex(bits=BITS) as index:
        index.add_codes(range(40), codes)
        d = np.bitwise_count(codes ^ codes[7]).sum(1)
        hits = index.within(id=7, radius=radius)
        want = sorted(i for i in range(40) if d[i] <= radius and i != 7)
        assert sorted(map(int, hits.ids)) == want
        assert hits.distances == sorted(hits.distances)
        assert hits.exact
        assert hits.limited_by is None
        some = index.within(id=7, radius=radius, allowed=[1, 2, 3])
        assert sorted(map(int, some.ids)) == [i for i in want if i in (1, 2, 3)]


def test_within_takes_a_picture(tmp_path: Path) -> None:
    with MCHIndex(tiny_model()) as index:
        index.add([drawn(i) for i in range(20)])
        hits = index.within(drawn(3), 0)
        assert 3 in hits.ids
        assert set(hits.distances) == {0}
        assert len(index.within(drawn(3), BITS)) == 20
        with pytest.raises(TypeError, match="one query"):
            index.within([drawn(3)], 1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="at least 0"):
            index.within(drawn(3), -1)


def test_hits_name_the_limit_that_was_reached(index: MCHIndex) -> None:
    plain = index.search_codes(CODE, 50)
    assert (plain.exact, plain.limited_by) == (True, None)
    near = index.search_codes(CODE, 50, max_radius=2)
    assert (len(near), near.exact, near.limited_by) == (3, False, "max_radius")
    few = index.search_codes(CODE, 50, max_buckets=1)
    assert (len(few), few.exact, few.limited_by) == (1, False, "max_buckets")
    # There are 33 buckets within radius 1. The limit that is reached first is named.
    both = index.search_codes(CODE, 50, max_radius=1, max_buckets=33)
    assert both.limited_by == "max_radius"
    both = index.search_codes(CODE, 50, max_radius=1, max_buckets=32)
    assert both.limited_by == "max_buckets"
    enough = index.search_codes(CODE, 2, max_radius=2)
    assert (enough.exact, enough.limited_by) == (True, None)
    assert "stopped by max_radius" in repr(near)


def test_effort_is_described_in_words(index: MCHIndex) -> None:
    assert index.search_codes(CODE, 1).effort() == "1 bucket, radius 0"
    far = index.search_codes(CODE, 10)
    # All buckets up to radius 8, and the first one of radius 9.
    assert far.buckets == sum(comb(BITS, radius) for radius in range(9)) + 1
    assert far.effort() == (
        "radius 9: a walk through all buckets would have visited 1.5e07; "
        "the engine looked at 10 codes at most"
    )


def test_a_negative_offset_is_refused(index: MCHIndex) -> None:
    with pytest.raises(ValueError, match="offset must be at least 0"):
        index.search_codes(CODE, offset=-1)


# Counting, listing and removing by filter.


def test_counting_and_listing_by_filter(index: MCHIndex) -> None:
    recent = {"year": {">=": 2024}}
    assert index.count() == 10
    assert index.count(recent) == 4
    assert index.ids(recent) == [6, 7, 8, 9]
    assert index.ids({**recent, "camera.model": "X"}) == [7, 9]
    assert index.ids() == list(range(10))
    assert index.search_codes(CODE, filter={"camera.model": "X"}).ids == [1, 3, 5, 7, 9]


def test_removing_by_filter(index: MCHIndex) -> None:
    assert index.remove(filter={"year": {"<": 2020}}) == 2
    assert index.ids() == list(range(2, 10))
    assert_as_fresh(index)
    assert index.remove(filter={"year": 1}) == 0
    with pytest.raises(ValueError, match="empty filter"):
        index.remove(filter={})
    with pytest.raises(TypeError, match="ids or a filter"):
        index.remove()
    with pytest.raises(TypeError, match="ids or a filter"):
        index.remove([1], filter={"year": 1})
    assert len(index) == 8


# Path and backups.


def test_path_is_the_folder_of_the_index(index: MCHIndex, tmp_path: Path) -> None:
    assert index.path == tmp_path / "i"
    with MCHIndex(bits=8) as other:
        assert other.path is None


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_backup_is_a_complete_index(
    tmp_path: Path, snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mchindex.index.table.SNAPSHOT_AFTER", 1 if snapshot else 10**6)
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        index.add([drawn(i) for i in range(12)], metadata={"a": 1})
        index.backup(tmp_path / "deep" / "copy.mch")
        want = content(index)
        index.remove([1, 2])
    assert verify(tmp_path / "deep" / "copy.mch").problems == []
    with MCHIndex.open(tmp_path / "deep" / "copy.mch", tiny_model()) as copy:
        assert content(copy) == want
        assert_as_fresh(copy)
        assert 4 in copy.within(drawn(4), 0).ids
        copy.add([drawn(99)], [99])
    assert [f.name for f in (tmp_path / "deep").iterdir()] == ["copy.mch"]


def test_an_index_in_memory_can_be_backed_up(tmp_path: Path) -> None:
    with MCHIndex(tiny_model()) as index:
        index.add([drawn(i) for i in range(5)])
        index.backup(tmp_path / "copy.mch")
        want = content(index)
    with MCHIndex.open(tmp_path / "copy.mch") as copy:
        assert content(copy) == want
        assert copy.model.fingerprint == tiny_model().fingerprint


def test_a_backup_does_not_replace_a_folder(index: MCHIndex, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError, match="choose a new folder"):
        index.backup(tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_backups_are_consistent_while_another_thread_adds(tmp_path: Path) -> None:
    """Every copy is intact and holds complete batches."""
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        over = threading.Event()

        def write() -> None:
            for batch in range(40):
                rows = range(batch * 10, batch * 10 + 10)
                index.add_codes(rows, np.concatenate([codes_for(i)[:1] for i in rows]))
            over.set()

        writer = threading.Thread(target=write)
        writer.start()
        number = 0
        while not over.is_set() or number == 0:
            index.backup(tmp_path / f"{number}.mch")
            number += 1
        writer.join()
    for i in range(number):
        assert verify(tmp_path / f"{i}.mch").problems == []
        with MCHIndex.open(tmp_path / f"{i}.mch") as copy:
            assert len(copy) % 10 == 0


# File objects and images that cannot be read.


def test_file_objects_are_images(tmp_path: Path) -> None:
    data = encoded(painted(1), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    with MCHIndex(tiny_model()) as index:
        with open(tmp_path / "a.png", "rb") as stream:
            assert index.add(stream) == [str(tmp_path / "a.png")]
        assert index.add(io.BytesIO(data)) == [0]
        assert index.add([io.BytesIO(data), io.BytesIO(data)], ["x", "y"]) == ["x", "y"]
        codes = {index[i].codes.tobytes() for i in index}
        assert len(codes) == 1
        assert index.search(io.BytesIO(data), 1)[0].distance == 0
        with open(tmp_path / "a.png", encoding="latin-1") as text, pytest.raises(ImageError):
            index.add(text)


@pytest.mark.parametrize("wrong", ["none.png", b"nonsense", io.BytesIO(b"nonsense")])
def test_a_single_image_that_cannot_be_read_raises(wrong: Any, tmp_path: Path) -> None:
    with MCHIndex(tiny_model()) as index:
        source = tmp_path / wrong if isinstance(wrong, str) else wrong
        with pytest.raises(ImageError):
            index.add(source)
        (tmp_path / "bad[1].png").write_bytes(b"nonsense")  # its name is a pattern, too
        with pytest.raises(ImageError, match="not an image"):
            index.add(str(tmp_path / "bad[1].png"))
        with pytest.raises(ImageError, match="no image"):
            index.update(drawn(1), "missing")
        assert len(index) == 0


def test_unreadable_images_among_several_are_reported(tmp_path: Path) -> None:
    with MCHIndex(tiny_model()) as index:
        assert len(index.add([tmp_path / "none.png"]).failed) == 1
        assert len(index.add([str(tmp_path / "none.png")]).failed) == 1
        assert len(index.add(str(tmp_path / "*.png")).failed) == 1
        assert index.add(tmp_path).failed == []
        (tmp_path / "bad.png").write_bytes(b"nonsense")
        assert len(index.add(tmp_path).failed) == 1


# Hits for other programs.


@pytest.fixture
def photos(tmp_path: Path) -> MCHIndex:
    folder = tmp_path / "<b>"
    folder.mkdir()
    for i in range(4):
        painted(i).resize((40, 30)).save(folder / f"{i}&.png")
    index = MCHIndex.open(tmp_path / "photos.mch", tiny_model())
    index.add(folder, metadata={"tags": ["a"]})
    index.add([drawn(9)], ["in memory"])
    return index


def test_to_dict_gives_json(photos: MCHIndex) -> None:
    hits = photos.search(drawn(9), 5)
    answer = json.loads(json.dumps(hits.to_dict()))
    assert answer["hits"][0]["id"] == "in memory"
    assert [hit["id"] for hit in answer["hits"]] == hits.ids
    assert set(answer) == {field.name for field in fields(hits)}
    assert hits[0].to_dict() == answer["hits"][0]
    assert photos.search([drawn(9)], 5).to_dict() == [hits.to_dict()]


def test_fastapi_serialises_hits(photos: MCHIndex) -> None:
    fastapi = pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    from mchindex import Hit, Hits

    app = fastapi.FastAPI()
    hits = photos.search(drawn(9), 3)

    def plain() -> Any:
        return hits

    def typed() -> Hits:
        return hits

    def one() -> Hit:
        return hits[0]

    def every() -> list[Hit]:
        return hits[:]

    for function in (plain, typed, one, every):
        app.get(f"/{function.__name__}")(function)
    photos.close()
    with testclient.TestClient(app) as client:
        assert client.get("/one").json() == hits[0].to_dict()
        assert client.get("/every").json() == [hit.to_dict() for hit in hits]
        for path in ("/plain", "/typed"):
            assert client.get(path).json() == hits.to_dict()
        assert "Hits" in client.get("/openapi.json").json()["components"]["schemas"]


def test_hits_are_shown_as_a_grid_in_a_notebook(photos: MCHIndex) -> None:
    from helpers.html import Reader

    hits = photos.search(drawn(9), 5)
    page = Reader(hits._repr_html_())
    pictures = page.all("img")
    assert len(page.all("figure")) == 5
    assert len(pictures) == 4
    assert all(str(p["src"]).startswith("data:image/jpeg;base64,") for p in pictures)
    assert "in memory" in page.words
    assert "no picture" in page.words
    assert "3&.png" in page.words
    assert "<b>" not in hits._repr_html_().replace("<b>", "", 5)  # one per figure, none from a name
    none = photos.search_codes(CODE, filter={"x": 1})
    assert "0 hits" in Reader(none._repr_html_()).words


def test_types_catch_a_misspelling(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from numpy.typing import NDArray\n"
        "from mchindex import MCHIndex\n"
        "def f(index: MCHIndex, codes: NDArray[np.uint8]) -> None:\n"
        "    index.search('a.jpg')[0].distance\n"
        "    index.search(['a.jpg'])[0][0].distance\n"
        "    index.search('a.jpg')[0].distnace\n"
        "    index.search(['a.jpg'])[0][0].distnace\n"
        "    index.search_codes(codes)[0][0].distnace\n"
        "    index.search(id='a', max_radius=2)[0].distnace\n"
    )
    out, error, _ = api.run(["--strict", "--no-incremental", str(script)])
    wrong = [line for line in out.splitlines() if "error" in line and "distnace" in line]
    assert [int(line.split(":")[1]) for line in wrong] == [7, 8, 9, 10], out + error


def test_the_box_of_a_hit_crops_its_image(photos: MCHIndex) -> None:
    hit = next(h for h in photos.search(drawn(9), 5) if h.path is not None)
    assert hit.box is not None
    with Image.open(str(hit.path)) as image:
        assert image.crop(hit.box).size[0] > 0
