"""Who may call, from where, and what can be read: nothing that is not in the index."""

import contextlib
import os
import shutil
import socket
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.service import KEY, READ_KEY, Service, draw, problem, running
from mchindex.server.settings import Limits, Settings
from mchindex.server.uploads import safe_path

READS = ["/v1/info", "/v1/images", "/v1/words", "/v1/duplicates", "/v1/decisions", "/metrics"]
HOSTILE = [
    "/etc/passwd",
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "file:///etc/passwd",
    "http://127.0.0.1:1/x.jpg",
    "' OR 1=1 --",
    '"; DROP TABLE images; --',
    "<script>alert(1)</script>",
    "{{7*7}}",
    "a" * 5000,
    "-1",
    "9" * 40,
    "\x01\x7f",
    "..\\..\\windows",
    "",
]


def raw(service: Service, request: bytes, wait: float = 20.0) -> bytes:
    """What the service answers to bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=wait) as connection:
        connection.sendall(request)
        parts = []
        with contextlib.suppress(ConnectionResetError):  # it has not read everything
            while part := connection.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_an_address_that_others_reach_needs_a_key(host: str) -> None:
    with pytest.raises(ValueError, match="a key is needed"):
        Settings(host=host)
    Settings(host=host, key=KEY)


def test_weak_keys_and_deleting_without_a_key_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Settings(key="short")
    with pytest.raises(ValueError, match="ASCII"):
        Settings(key="é" * 20)
    with pytest.raises(ValueError, match="must differ"):
        Settings(key=KEY, read_key=KEY)
    with pytest.raises(ValueError, match="needs a key"):
        Settings(allow_delete=True)
    assert KEY not in repr(Settings(key=KEY))


def test_keys_decide_what_a_caller_may_do(own: Path) -> None:
    with running(own, key=KEY, read_key=READ_KEY) as service:
        bare = httpx.Client(base_url=service.url)
        first = service.ids()[0]
        for path in [*READS, f"/v1/thumbnail?id={first}", f"/v1/picture?id={first}"]:
            answer = bare.get(path)
            assert "a key is needed" in problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
            for wrong in (
                "x",
                KEY + "x",
                KEY[:-1],
                READ_KEY.upper(),
                "é".encode().decode("latin-1"),
            ):
                problem(bare.get(path, headers={b"api-key": wrong.encode("latin-1")}), 401)
            for key in (KEY, READ_KEY):
                assert bare.get(path, headers={"api-key": key}).status_code == 200
                assert bare.get(path, headers={"authorization": f"Bearer {key}"}).status_code == 200
        reader = {"api-key": READ_KEY}
        info = bare.get("/v1/info", headers=reader).json()
        assert info["access"] == {"write": False, "delete": False, "key_required": True}
        ids = {"ids": [first]}
        may_not = bare.request("DELETE", "/v1/images", json=ids, headers=reader)
        assert "may only read" in problem(may_not, 403)
        files = [("file", ("a.jpg", b"x"))]
        problem(bare.post("/v1/images", files=files, headers=reader), 403)
        decision = {"decisions": [{"id": first, "decision": "keep"}]}
        problem(bare.put("/v1/decisions", json=decision, headers=reader), 403)
        assert bare.post("/v1/search", json={"id": first}, headers=reader).status_code == 200
        assert first in service.index
        for path in ("/livez", "/readyz", "/docs", "/openapi.json"):
            assert bare.get(path).status_code == 200
        bare.close()


def test_files_are_deleted_only_if_that_is_allowed(own: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    new = draw(tmp_path / "new", 12, 2)
    files = [("file", (file.name, file.read_bytes())) for file in new]
    with running(own, key=KEY, uploads=kept) as service:
        ids = service.client.post("/v1/images", files=files).json()["added"]
        answer = service.client.request("DELETE", "/v1/images", json={"ids": ids, "files": True})
        assert "--allow-delete" in problem(answer, 403)
        assert all(os.path.exists(id) for id in ids)
    with running(own, key=KEY, uploads=kept, allow_delete=True) as service:
        Path(ids[1]).write_bytes(b"something else")
        answer = service.client.request("DELETE", "/v1/images", json={"ids": ids, "files": True})
        assert answer.json()["removed"] == answer.json()["files"] == 1
        assert answer.json()["failed"][0]["name"] == ids[1]
        assert not os.path.exists(ids[0])
        assert Path(ids[1]).read_bytes() == b"something else"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("192.168.0.7:8000", 200),
        ("photos.example.org", 200), ("evil.example", 421), ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421), ("", 421),
    ],
)  # fmt: skip
def test_only_names_of_the_service_are_answered(library: Path, host: str, status: int) -> None:
    with running(library, hosts=("photos.example.org",)) as service:
        answer = service.client.get("/v1/info", headers={"host": host})
        assert answer.status_code == status
        assert service.client.get("/", headers={"host": host}).status_code in (
            (200, 404) if status == 200 else (421,)
        )


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_sites_are_refused(service: Service, headers: dict[str, str]) -> None:
    first = service.ids()[0]
    for answer in (
        service.client.post("/v1/search", json={"id": first}, headers=headers),
        service.client.post("/v1/images", files=[("file", ("a", b"x"))], headers=headers),
        service.client.get("/v1/thumbnail", params={"id": first}, headers=headers),
    ):
        assert "other sites" in problem(answer, 403)
    own = service.url.rstrip("/")
    mine = {"origin": own, "sec-fetch-site": "same-origin"}
    assert service.client.post("/v1/search", json={"id": first}, headers=mine).status_code == 200


def test_every_answer_has_the_headers_that_keep_a_page_safe(service: Service) -> None:
    for path in ("/livez", "/v1/info", "/nothing", "/v1/thumbnail?id=no"):
        headers = service.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"]
        assert "server" not in headers


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_but_indexed_images_can_be_read(service: Service, text: str) -> None:
    for path in ("/v1/image", "/v1/picture", "/v1/thumbnail"):
        answer = service.client.get(path, params={"id": text})
        assert answer.status_code in (404, 422)
        problem(answer, answer.status_code)
        assert "root:" not in answer.text
    for asked in (
        {"id": text}, {"id": text, "region": [0, 0, 1, 1]}, {"like": [text]}, {"codes": text},
        {"like": [{"id": text, "region": [0, 0, 5, 5]}]}, {"text": text}, {"image": text},
        {"id": service.ids()[0], "region": text}, {"id": service.ids()[0], "filter": {text: text}},
        {"id": service.ids()[0], "exclude": [text]}, {"id": service.ids()[0], "rank": text},
    ):  # fmt: skip
        answer = service.client.post("/v1/search", json=asked)
        assert answer.status_code in (200, 404, 422), (asked, answer.text)
        assert "root:" not in answer.text
    for name in ("cursor", "filter", "limit"):
        answer = service.client.get("/v1/images", params={name: text})
        assert answer.status_code in (200, 422)
    for path in ("/assets/", "/", "/v1/"):
        answer = service.client.get(path + text.replace("\x01", "").replace("\x7f", ""))
        assert answer.status_code in (200, 404, 405, 431)
        assert "root:" not in answer.text
    assert len(service.index) == service.client.get("/v1/info").json()["images"]


@given(st.text(max_size=60))
def test_names_of_files_stay_inside_their_folder(name: str) -> None:
    try:
        path = safe_path(name)
    except ValueError:
        return
    assert not path.is_absolute()
    assert os.path.normpath(path) == str(path)
    assert ".." not in path.parts
    assert (Path("/folder") / path).is_relative_to("/folder")


@pytest.mark.parametrize(
    "name",
    [
        "../a.jpg",
        "/etc/a.jpg",
        "a/../../b.jpg",
        "..\\a.jpg",
        ".hidden",
        "a//b.jpg",
        "x" * 300,
        " a",
    ],
)
def test_uploads_that_lead_elsewhere_are_refused(own: Path, tmp_path: Path, name: str) -> None:
    picture = draw(tmp_path / "new", 12, 1)[0].read_bytes()
    with running(own, uploads=tmp_path / "kept") as service:
        before = len(service.index)
        answer = service.client.post("/v1/images", files=[("file", (name, picture))])
        assert answer.status_code in (200, 422)
        if answer.status_code == 200:
            assert answer.json()["failed"] or all(
                Path(id).is_relative_to(tmp_path / "kept") for id in answer.json()["added"]
            )
        assert not (tmp_path / "a.jpg").exists()
        assert len(service.index) <= before + 1


def test_a_link_in_the_folder_for_uploads_is_not_followed(own: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "kept" / "album").symlink_to(tmp_path / "outside")
    picture = draw(tmp_path / "new", 12, 1)[0].read_bytes()
    with running(own, uploads=tmp_path / "kept") as service:
        answer = service.client.post("/v1/images", files=[("file", ("album/a.jpg", picture))])
        assert "leads elsewhere" in answer.json()["failed"][0]["reason"]
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_file_that_was_replaced_or_is_a_link_to_another_is_not_read(tmp_path: Path) -> None:
    from mchindex import MCHIndex

    files = draw(tmp_path / "pictures", 0, 3)
    other = draw(tmp_path / "private", 5, 1)[0]
    with MCHIndex.open(tmp_path / "photos.mch") as index:
        index.add(files, progress=False)
    facts = os.stat(files[0])
    shutil.copy(other, files[0])  # another picture under the same name
    os.utime(files[0], ns=(facts.st_atime_ns, facts.st_mtime_ns))
    files[1].unlink()
    files[1].symlink_to(other)
    files[2].unlink()
    os.mkfifo(files[2])  # reading it would block
    with running(tmp_path / "photos.mch") as service:
        for file in files:
            for path in ("/v1/thumbnail", "/v1/picture"):
                answer = service.client.get(path, params={"id": str(file)})
                assert "moved or changed" in problem(answer, 404)
            asked = {"id": str(file), "region": [0, 0, 50, 50]}
            problem(service.client.post("/v1/search", json=asked), 404)
            assert service.search(id=str(file), k=2, explain=True)["hits"]


def test_huge_headers_are_refused(service: Service) -> None:
    start = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n"
    for head in (b"x: " + b"a" * 80_000, b"".join(b"x%d: a\r\n" % i for i in range(10_000))):
        answer = raw(service, start + head + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 431")
        assert raw(service, start + 20 * head).startswith(b"HTTP/1.1 431")  # while it still sends
    answer = raw(service, b"GET /" + b"a" * 80_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431")
    assert service.client.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nconnection: close\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        b"GET /%00%ff HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(service: Service, request_: bytes) -> None:
    answer = raw(service, request_)
    assert answer.split(b" ")[1] in (b"400", b"404", b"421"), answer
    assert b"application/problem+json" in answer
    assert service.client.get("/livez").status_code == 200


def test_slow_clients_are_cut_off(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mchindex.server import protocol

    monkeypatch.setattr(protocol, "SECONDS", 0.5)
    with running(library, limits=Limits(seconds=1.0)) as service:
        assert raw(service, b"").startswith(b"HTTP/1.1 408")
        assert raw(service, b"GET /livez HTT").startswith(b"HTTP/1.1 408")
        body = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        answer = raw(service, body + b'content-length: 100\r\n\r\n{"id"')
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"took too long to arrive" in answer
        assert service.client.get("/livez").status_code == 200
