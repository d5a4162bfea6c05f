"""Hostile pictures and bodies, and limits, each of which has an answer of its own."""

import base64
import io
import struct
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from helpers.service import KEY, Service, draw, problem, running
from mchindex.server.settings import Limits


def png(width: int, height: int) -> bytes:
    """A PNG that says to be of some size, with almost no bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    pixels = zlib.compress(b"\0" * min(width * height, 1 << 20))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def picture(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((64, 48), 80).convert("RGB").save(stream, kind)
    return stream.getvalue()


def archive() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("a.txt", "x" * 1000)
    return stream.getvalue()


HOSTILE = {
    "empty": b"",
    "text": b"hello",
    "bomb": png(60_000, 60_000),
    "wide bomb": png(2_000_000_000, 1),
    "truncated": picture("JPEG")[:400],
    "truncated png": picture("PNG")[:200],
    "html": b"<html><script>alert(1)</script></html>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file",
    "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj",
    "zip": archive(),
    "elf": b"\x7fELF" + b"\0" * 200,
    "gif without pixels": b"GIF89a" + b"\xff" * 20,
    "tiff with wild offsets": b"II*\0" + b"\xff" * 60,
    "path": b"/etc/passwd",
}
POLYGLOTS = {
    "picture and archive": picture("PNG") + archive(),
    "picture and page": picture("GIF") + HOSTILE["html"],
}


@pytest.mark.parametrize("key", [None, KEY])
def test_hostile_pictures_are_refused_and_the_service_goes_on(
    own: Path, tmp_path: Path, key: str | None
) -> None:
    with running(own, uploads=tmp_path / "kept", key=key) as service:
        before = len(service.index)
        for name, data in HOSTILE.items():
            sent = service.client.post("/v1/search", files={"file": ("x.jpg", data)})
            text = problem(sent, 422)
            assert "cannot be read" in text, name
            assert "/tmp" not in text
            encoded = base64.b64encode(data).decode()
            problem(service.client.post("/v1/search", json={"image": encoded}), 422)
            asked = {"like": [{"image": encoded}]}
            problem(service.client.post("/v1/search", json=asked), 422)
        files = [("file", (f"{name}.jpg", data)) for name, data in HOSTILE.items()]
        added = service.client.post("/v1/images", files=files).json()
        assert {one["name"] for one in added["failed"]} == {f"{name}.jpg" for name in HOSTILE}
        assert len(service.index) == before
        assert list((tmp_path / "kept").rglob("*")) == []
        for data in POLYGLOTS.values():  # pictures, and nothing but pictures come out
            added = service.client.post("/v1/images", files=[("file", ("p.png", data))]).json()
            (id,) = added["added"]
            shown = service.client.get("/v1/picture", params={"id": id})
            assert shown.headers["content-type"] == "image/jpeg"
            assert b"<script>" not in shown.content
            assert b"a.txt" not in shown.content
        assert service.client.get("/readyz").status_code == 200


def test_forms_that_are_not_forms(service: Service) -> None:
    send = service.client.post
    kind = {"content-type": "multipart/form-data"}
    assert send("/v1/search", content=b"xyz", headers=kind).status_code == 400
    kind = {"content-type": "multipart/form-data; boundary=a"}
    for body in (
        b"",
        b"--a",
        b"--a\r\n\r\n",
        b"--a\r\ncontent-disposition: form-data\r\n\r\nx\r\n--a--",
    ):
        assert send("/v1/search", content=body, headers=kind).status_code in (400, 422)
    two = [("file", ("a", b"x")), ("file", ("b", b"x"))]
    problem(send("/v1/search", files=two), 422)
    problem(send("/v1/search", files={"other": ("a", b"x")}), 422)
    problem(send("/v1/search", files={"file": ("a", b"x")}, data={"request": "{"}), 400)
    problem(send("/v1/search", files={"file": ("a", b"x")}, data={"request": '{"id": 1}'}), 422)
    problem(send("/v1/images", files={"file": ("a", b"x")}, data={"metadata": "[]"}), 422)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"x"', '{"id": NaN}', "{" * 100_000, '{"id": "\\ud800"}', "\0", "{}"],
)
def test_bodies_that_are_no_searches(service: Service, text: str) -> None:
    kind = {"content-type": "application/json"}
    answer = service.client.post("/v1/search", content=text.encode(), headers=kind)
    assert answer.status_code in (400, 422)
    problem(answer, answer.status_code)


def test_each_limit_has_an_answer_of_its_own(library: Path) -> None:
    limits = Limits(bytes=10_000, request=50_000, k=20, offset=30, batch=3, like=2, ids=5)
    with running(library, limits=limits) as service:
        send, ids = service.client.post, service.ids()
        large = base64.b64encode(b"x" * 20_000).decode()
        assert "10,000 bytes" in problem(send("/v1/search", json={"image": large}), 413)
        files = {"file": ("a.jpg", b"x" * 20_000)}
        assert "10,000 bytes" in problem(send("/v1/search", files=files), 413)
        assert "50,000 bytes" in problem(send("/v1/search", json={"image": 4 * large}), 413)

        def chunks() -> Any:
            for _ in range(100):
                yield b"x" * 1000

        kind = {"content-type": "application/json"}
        problem(send("/v1/search", content=chunks(), headers=kind), 413)
        assert "k may be at most 20" in problem(
            send("/v1/search", json={"id": ids[0], "k": 21}), 422
        )
        problem(send("/v1/search", json={"id": ids[0], "offset": 31}), 422)
        problem(send("/v1/search", json={"like": ids[:3]}), 422)
        problem(send("/v1/search", json={"id": ids[0], "exclude": ids[:6]}), 422)
        several = {"searches": [{"id": ids[0]}] * 4}
        problem(send("/v1/search/batch", json=several), 422)
        many = [("file", (f"{i}.jpg", b"x")) for i in range(4)]
        problem(send("/v1/images", files=many), 422)
        assert service.search(id=ids[0], k=20)["hits"]


def test_pixels_are_limited(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    answer = service.client.post("/v1/search", files={"file": ("a.png", picture("PNG"))})
    assert "too large" in problem(answer, 422)


def test_a_full_queue_turns_callers_away(library: Path) -> None:
    with running(library, limits=Limits(queue=2)) as service:
        data = Path(service.ids()[0]).read_bytes()

        def send(_: int) -> httpx.Response:
            return httpx.post(
                f"{service.url}v1/search", files={"file": ("a.jpg", data)}, timeout=60
            )

        with ThreadPoolExecutor(24) as threads:
            answers = list(threads.map(send, range(48)))
        codes = {answer.status_code for answer in answers}
        assert codes == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert "try again later" in problem(refused, 429)
        assert refused.headers["retry-after"] == "1"
        assert service.search(id=service.ids()[0])["hits"]


def test_too_many_bytes_and_requests_at_once_are_turned_away(library: Path) -> None:
    with running(library, limits=Limits(held=5_000)) as service:
        answer = service.client.post("/v1/search", files={"file": ("a.jpg", b"x" * 20_000)})
        assert "too much is being sent" in problem(answer, 429)
        assert service.search(id=service.ids()[0])["hits"]  # what was held is free again
    with running(library, limits=Limits(requests=0)) as service:
        assert "too much to do" in problem(service.client.get("/livez"), 503)


def test_a_search_that_takes_too_long_is_given_up(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    from mchindex.index.queries import Queries

    with running(library, limits=Limits(seconds=0.5)) as service:
        real = Queries.stored

        def slow(self: Queries, wanted: Any) -> Any:
            time.sleep(1.5)
            return real(self, wanted)

        id = service.ids()[0]
        service.client.get("/readyz")
        monkeypatch.setattr(Queries, "stored", slow)
        answer = service.client.post("/v1/search", json={"id": id})
        assert "took too long" in problem(answer, 503)
        monkeypatch.undo()
        time.sleep(1.5)  # until the thread is free again
        assert service.search(id=id)["hits"]


def test_an_unexpected_error_tells_a_caller_nothing(
    library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mchindex.index.queries import Queries

    def broken(self: Queries, wanted: Any) -> Any:
        raise RuntimeError("secret")

    with running(library) as service:
        monkeypatch.setattr(Queries, "stored", broken)
        answer = service.client.post("/v1/search", json={"id": "x"})
        assert "secret" not in answer.text
        problem(answer, 500)
    assert "secret" in caplog.text


def test_uploads_that_are_not_added_leave_nothing_behind(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = draw(tmp_path / "new", 12, 1)[0].read_bytes() + b"\0" * (3 << 20)
    with running(own, uploads=tmp_path / "kept") as service:
        service.client.post("/v1/search", files={"file": ("a.jpg", data)})
        left = {file.name for file in tmp_path.iterdir()}
    assert left == {"new", "photos.mch"}
