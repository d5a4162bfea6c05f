"""Many callers at once: batches, adding while others search, stopping, and a killed server."""

import asyncio
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mchindex
from helpers.hostile import png
from helpers.service import PICTURES, Service, draw, running
from mchindex.index.queries import Queries
from mchindex.index.ranking import Query
from mchindex.inference.extract import BATCH
from mchindex.inference.threads import cores
from mchindex.server.batching import Batcher
from mchindex.server.problems import ProblemError

ROOT = Path(mchindex.__file__).parents[1]


@contextmanager
def process(
    folder: Path, *options: str, port: int = 0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`mch serve` as a process of its own, and its address."""
    command = [
        sys.executable,
        "-P",
        "-c",
        "from mchindex.cli import main; main()",
        "serve",
        str(folder),
    ]
    started = subprocess.Popen(
        [*command, "--port", str(port), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert started.stdout is not None
    try:
        line = started.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, started.communicate()
        yield started, found[0]
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 100), max_size=40), st.integers(1, 8))
def test_a_batcher_gives_everyone_their_own_outcome(items: list[int], most: int) -> None:
    sizes: list[int] = []

    def work(batch: Sequence[int]) -> list[int | Exception]:
        return [ValueError(item) if item % 7 == 3 else -item for item in batch]

    async def run() -> list[int | BaseException]:
        batcher: Batcher[int, int] = Batcher("x", work, most, 1000, 0.001, sizes.append)
        try:
            return await asyncio.gather(*map(batcher, items), return_exceptions=True)
        finally:
            batcher.close()

    found = asyncio.run(run())
    for item, outcome in zip(items, found, strict=True):
        if item % 7 == 3:
            assert isinstance(outcome, ValueError)
            assert outcome.args == (item,)
        else:
            assert outcome == -item
    assert sum(sizes) == len(items)
    assert all(size <= most for size in sizes)
    assert len(sizes) == -(-len(items) // most)  # all were there before the first batch


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(2, 4))
def test_a_batcher_uses_its_threads_at_once_and_no_more(
    count: int, most: int, threads: int
) -> None:
    lock = threading.Lock()
    busy, peak = 0, 0
    wanted = min(threads, -(-count // most))  # batches that can run at the same time
    met = threading.Barrier(wanted)
    first = threading.Semaphore(wanted)

    def work(batch: Sequence[int]) -> list[int | Exception]:
        nonlocal busy, peak
        with lock:
            busy += 1
            peak = max(peak, busy)
        if first.acquire(blocking=False):
            met.wait(10)  # raises, unless as many batches run at once
        with lock:
            busy -= 1
        if 13 in batch and most == 1:
            raise RuntimeError("the whole batch")
        return [-item for item in batch]

    async def run() -> list[int | BaseException]:
        batcher: Batcher[int, int] = Batcher("x", work, most, 1000, threads=threads)
        try:
            return await asyncio.gather(*map(batcher, range(count)), return_exceptions=True)
        finally:
            batcher.close()

    for item, outcome in enumerate(asyncio.run(run())):
        if item == 13 and most == 1:
            assert isinstance(outcome, RuntimeError)
        else:
            assert outcome == -item
    assert peak == wanted


def test_a_batcher_turns_away_what_does_not_fit_and_forgets_who_gave_up() -> None:
    done: list[int] = []

    def work(batch: Sequence[int]) -> list[int]:
        time.sleep(0.05)
        done.extend(batch)
        return list(batch)

    async def run() -> None:
        batcher: Batcher[int, int] = Batcher("x", work, 3, 2)
        first = asyncio.create_task(batcher(0))
        await asyncio.sleep(0.02)
        others = [asyncio.create_task(batcher(i)) for i in (1, 2)]
        await asyncio.sleep(0)
        with pytest.raises(ProblemError) as refused:
            await batcher(3)
        assert refused.value.status == 429
        others[0].cancel()
        assert await first == 0
        assert await others[1] == 2
        batcher.close()

    asyncio.run(run())
    assert done == [0, 2]


def test_a_batcher_queues_one_full_batch_ahead_per_thread() -> None:
    go = threading.Event()

    def work(batch: Sequence[int]) -> list[int]:
        go.wait(10)
        return list(batch)

    async def run() -> None:
        batcher: Batcher[int, int] = Batcher("x", work, 2, 100, threads=2)
        tasks = [asyncio.create_task(batcher(i)) for i in range(11)]
        await asyncio.sleep(0.05)
        assert len(batcher) == 3  # two batches are worked on, and two are queued
        go.set()
        assert await asyncio.gather(*tasks) == list(range(11))
        batcher.close()

    asyncio.run(run())


def batches(service: Service, work: str) -> tuple[float, float]:
    """How many batches there were, and how many items in them."""
    text = service.client.get("/metrics").text
    found = [
        float(match[1])
        for name in ("count", "sum")
        if (match := re.search(rf'mch_batch_size_{name}{{work="{work}"}} (\S+)', text))
    ]
    return found[0], found[1]


def waiting(service: Service) -> float:
    """How many pictures wait to be encoded."""
    found = re.search(r"\nmch_pictures_waiting (\S+)", service.client.get("/metrics").text)
    assert found is not None
    return float(found[1])


def test_pictures_of_several_callers_are_encoded_together(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    encode = Queries.encode

    def encode_later(self: Queries, images: Iterable[Any]) -> Query:
        assert gate.wait(60)
        return encode(self, images)

    with running(library) as service:
        data = [Path(id).read_bytes() for id in service.ids()]
        want = [service.index.search(one, 5).ids for one in data]

        def send(one: bytes) -> list[str]:
            answer = httpx.post(
                f"{service.url}v1/search",
                files={"file": ("a.jpg", one)}, data={"request": '{"k": 5}'}, timeout=60,
            )  # fmt: skip
            return [hit["id"] for hit in answer.json()["hits"]]

        monkeypatch.setattr(Queries, "encode", encode_later)
        with ThreadPoolExecutor(len(data)) as threads:
            answers = [threads.submit(send, one) for one in data]
            # All threads have a batch, and the other pictures wait.
            while batches(service, "encode")[1] + waiting(service) < len(data):
                time.sleep(0.01)
            gate.set()
            assert [answer.result() for answer in answers] == want
        count, total = batches(service, "encode")
        assert total == len(data)
        assert count <= cores() + math.ceil(len(data) / BATCH)


def test_searches_are_answered_while_pictures_are_added(own: Path, tmp_path: Path) -> None:
    new = draw(tmp_path / "new", PICTURES, 24)
    with running(own, uploads=tmp_path / "kept") as service:
        first = service.ids()[0]
        stop = threading.Event()
        counts: list[int] = []

        def search() -> int:
            done = 0
            with httpx.Client(base_url=service.url, timeout=60) as client:
                while not stop.is_set():
                    answer = client.post("/v1/search", json={"id": first, "k": 100})
                    assert answer.status_code == 200, answer.text
                    counts.append(len(answer.json()["hits"]))
                    done += 1
            return done

        with ThreadPoolExecutor(4) as threads:
            searching = [threads.submit(search) for _ in range(4)]
            try:
                for file in new:
                    files = [("file", (file.name, file.read_bytes()))]
                    added = service.client.post("/v1/images", files=files).json()
                    assert len(added["added"]) == 1
            finally:
                stop.set()
            assert all(one.result() for one in searching)
        assert min(counts) >= PICTURES
        assert len(service.search(id=first, k=100)["hits"]) == PICTURES + len(new)


def test_stopping_finishes_what_has_begun(own: Path, tmp_path: Path) -> None:
    new, kept = draw(tmp_path / "new", PICTURES, 8), tmp_path / "kept"
    with process(own, "--uploads", str(kept)) as (server, url):
        files = [("file", (file.name, file.read_bytes())) for file in new]
        answers: list[httpx.Response] = []

        def add() -> None:
            answers.append(httpx.post(f"{url}v1/images", files=files, timeout=60))

        thread = threading.Thread(target=add)
        thread.start()
        while not any(kept.rglob("*.jpg")):  # it has not begun
            assert thread.is_alive()
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        thread.join(60)
        assert len(answers[0].json()["added"]) == len(new)
        server.wait(60)
    with mchindex.MCHIndex.open(own) as index:
        assert len(index) == PICTURES + 1 + len(new)


def test_every_answered_addition_survives_kill_9_and_the_client_reconnects(
    own: Path, tmp_path: Path
) -> None:
    new = draw(tmp_path / "new", PICTURES, 12)
    kept = ("--uploads", str(tmp_path / "kept"))
    answered: list[str] = []
    with process(own, *kept) as (server, url):
        port = httpx.URL(url).port
        assert port is not None
        client = mchindex.connect(url, patience=60)
        done = threading.Event()
        errors: list[BaseException] = []

        def add() -> None:
            try:
                for file in new:
                    answered.extend(map(str, client.add(file)))
                    if file == new[5]:  # while the next one is being added
                        threading.Timer(0.005, server.kill).start()
            except BaseException as error:
                errors.append(error)
            done.set()

        thread = threading.Thread(target=add)
        thread.start()
        server.wait(60)
        before = list(answered)
        assert len(before) >= 6
        with mchindex.MCHIndex.open(own) as index:
            assert [id for id in before if id not in index] == []
        with process(own, *kept, port=port):
            assert done.wait(120)
            thread.join()
            assert errors == []
            assert len(answered) == len(new)
            assert len(client) == PICTURES + 1 + len(new)
        client.close()
    with mchindex.MCHIndex.open(own) as index:
        assert [id for id in answered if id not in index] == []
        assert len(set(answered)) == len(new)


def peak(server: subprocess.Popen[str]) -> int:
    """The most memory that a process has taken, in MiB."""
    text = Path(f"/proc/{server.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) // 1024


def test_memory_is_bounded_whatever_is_sent(own: Path, tmp_path: Path) -> None:
    """Bombs, and much more at once than the service holds."""
    large = b"x" * (40 << 20)
    sent: list[tuple[str, bytes]] = [("bomb.png", png(9_000, 9_000)), ("x.jpg", large)]
    with process(own, "--uploads", str(tmp_path / "kept")) as (server, url):
        first = draw(tmp_path / "new", PICTURES, 1)[0]
        httpx.post(f"{url}v1/search", files={"file": ("a.jpg", first.read_bytes())}, timeout=60)
        before = peak(server)

        def send(number: int) -> int:
            path = ("v1/search", "v1/images")[number // 2 % 2]
            with httpx.Client(base_url=url, timeout=120) as client:
                try:
                    return client.post(path, files={"file": sent[number % 2]}).status_code
                except httpx.TransportError:  # it was turned away while it was sending
                    return 429

        with ThreadPoolExecutor(16) as threads:
            codes = set(threads.map(send, range(24)))
        assert codes <= {200, 408, 413, 422, 429, 503}
        # Two pictures of 64 MiB, what they are decoded to, and the bytes of a few requests.
        assert peak(server) - before < 1_500
        assert httpx.get(f"{url}readyz").status_code == 200
    assert list((tmp_path / "kept").rglob("*.jpg")) == []
