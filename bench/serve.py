"""How fast is `mch serve`, with many callers at once, while another adds?

    python bench/serve.py --index photos.mch   # its pictures must be on this machine
    python bench/serve.py --photos DIR --seconds 60

It serves a copy of the index on loopback. 32 callers send pictures for a minute while another adds
pictures, one at a time; the reference is how many pictures per second the encoder takes in batches
by itself, decoding included, in a process that does nothing else. It is measured before and after
the minute, because the machine may do other things, too; the CPU time per picture does not depend
on them. Searches by id are measured with wrk (Debian's package), which runs on the same cores: the
median of several runs. A single caller's search by id, with 30 hits and the reasons for them, says
how soon the first hits are there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from common import RESULTS, progress, record, script, write_json
from mchindex import MCHIndex, connect

PYTHON = [sys.executable, "-P", "-c"]  # the installed package, not the folder it is run in
CALLERS = 32
BATCH = 256  # pictures that the encoder gets at a time
BY_ID = 3  # runs of wrk
WANTED = {"share": 0.8, "tail": 20.0, "by_id": 2_000.0, "first_ms": 150.0}

ENCODE = """
import json, sys, time
from pathlib import Path
from mchindex import MCHIndex
files = [Path(name).read_bytes() for name in json.load(sys.stdin)]
with MCHIndex.open(sys.argv[1], create=False) as index:
    index.queries.encode(files[:16])
    start, used = time.perf_counter(), time.process_time()
    for place in range(0, len(files), {batch}):
        index.queries.encode(files[place : place + {batch}])
    took, used = time.perf_counter() - start, time.process_time() - used
    print(json.dumps([len(files) / took, used / len(files)]))
"""

WRK = """
local ids = {{}}
for line in io.lines("{ids}") do ids[#ids + 1] = line end
request = function()
  return wrk.format("POST", "/v1/search", {{["content-type"] = "application/json"}},
                    ids[math.random(#ids)])
end
"""


class Row(TypedDict):
    what: str
    value: float
    wanted: float | None


@contextmanager
def served(index: Path, uploads: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """`mch serve` in a process of its own: its address, and the CPU seconds that it has used."""
    command = [*PYTHON, "from mchindex.cli import main; main()", "serve", str(index)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--uploads", str(uploads)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SystemExit("the service did not start")
        with connect(found[0], patience=60) as client:
            client.words("a")  # the model is loaded
        yield found[0], lambda: cpu_seconds(process.pid)
    finally:
        process.terminate()
        process.wait()


def cpu_seconds(process: int) -> float:
    """CPU time of another process and its threads."""
    fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def encoder(index: Path, files: Sequence[str]) -> tuple[float, float]:
    """Pictures per second that the encoder takes in batches, in a process of its own, and the CPU
    seconds for each."""
    done = subprocess.run(
        [*PYTHON, ENCODE.format(batch=BATCH), str(index)],
        input=json.dumps(list(files)), capture_output=True, text=True, check=True,
    )  # fmt: skip
    rate, used = json.loads(done.stdout)
    return float(rate), float(used)


def form(host: str, path: str, name: str, picture: bytes) -> bytes:
    """A request that sends a picture."""
    start = (
        f'--b\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    ).encode()
    body = start + picture + b"\r\n--b--\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n"
        "content-type: multipart/form-data; boundary=b\r\n\r\n"
    )
    return head.encode() + body


async def ask(stream: tuple[Any, Any], request: bytes) -> tuple[int, bytes]:
    """Sends a request; returns the status and the body. A client that does more would take the
    service's time."""
    reader, writer = stream
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    body = await reader.readexactly(int(length[1])) if length else b""
    return int(head.split(b" ", 2)[1]), body


async def load(
    url: str, files: Sequence[str], new: Sequence[str], seconds: float
) -> tuple[list[float], list[str], list[str]]:
    """Latencies of searches, ids that were added, and errors."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    end = time.perf_counter() + seconds
    latencies: list[float] = []
    added: list[str] = []
    errors: list[str] = []

    async def searcher(caller: int) -> None:
        stream = await asyncio.open_connection(host, int(port))
        rng = np.random.default_rng(caller)
        while time.perf_counter() < end:
            data = Path(files[int(rng.integers(len(files)))]).read_bytes()
            began = time.perf_counter()
            status, body = await ask(stream, form(host, "/v1/search", "x.jpg", data))
            latencies.append(time.perf_counter() - began)
            if status != 200:
                errors.append(body.decode())
        stream[1].close()

    async def adder() -> None:
        stream = await asyncio.open_connection(host, int(port))
        for place, name in enumerate(new):
            if time.perf_counter() > end:
                break
            data = Path(name).read_bytes() + b"\0" * (place + 1)  # no other file is the same
            status, body = await ask(stream, form(host, "/v1/images", f"{place}.jpg", data))
            answer = json.loads(body)
            if status != 200 or len(answer["added"]) != 1:
                errors.append(body.decode())
            else:
                added.extend(answer["added"])
        stream[1].close()

    await asyncio.gather(adder(), *map(searcher, range(CALLERS)))
    return latencies, added, errors


def by_id(
    url: str, ids: Sequence[str], seconds: float, folder: Path, used: Callable[[], float]
) -> tuple[float, float]:
    """Searches per second by id, as wrk counts them, and the service's CPU seconds for each."""
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt-get install wrk")
    (folder / "ids").write_text("".join(json.dumps({"id": id}) + "\n" for id in ids))
    (folder / "wrk.lua").write_text(WRK.format(ids=folder / "ids"))
    start = used()
    done = subprocess.run(
        ["wrk", "-t1", "-c64", f"-d{round(seconds)}s", "-s", str(folder / "wrk.lua"), url],  # noqa: S607
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    count = re.search(r"(\d+) requests in", done.stdout)
    if found is None or count is None or "Non-2xx" in done.stdout:
        raise SystemExit(done.stdout)
    return float(found[1]), (used() - start) / int(count[1])


def measure(index: Path, files: Sequence[str], seconds: float, folder: Path) -> list[Row]:
    rng = np.random.default_rng(0)
    some = [files[place] for place in rng.permutation(len(files))[:1024]]
    progress("the encoder by itself")
    alone = [encoder(index, some)]
    with served(index, folder / "uploads") as (url, used), connect(url) as client:
        before = len(client)
        progress(f"{CALLERS} callers for {seconds:.0f} seconds")
        start = used()
        latencies, added, errors = asyncio.run(load(url, files, some, seconds))
        per_picture = (used() - start) / (len(latencies) + len(added))
        progress("the encoder by itself, again")
        alone.append(encoder(index, some))
        if errors:
            raise SystemExit(f"{len(errors)} errors, the first: {errors[0]}")
        lost = len(client) - before - len(added)
        progress("by id")
        ids = rng.permutation(files)[:20_000].tolist()
        runs = [by_id(url, ids, min(seconds, 10), folder, used) for _ in range(BY_ID)]
        firsts = []
        for id in ids[:50]:
            began = time.perf_counter()
            client._client.post("/v1/search", json={"id": id, "k": 30, "explain": True})
            firsts.append(time.perf_counter() - began)
    rate, apiece = np.mean(alone, axis=0).tolist()
    per_second, per_search = np.median(runs, axis=0).tolist()
    together = (len(latencies) + len(added)) / seconds
    middle = statistics.median(latencies)
    tail = float(np.quantile(latencies, 0.99))
    return [
        Row(what="images", value=before, wanted=None),
        Row(what="encoder, pictures per second", value=rate, wanted=None),
        Row(what="service, pictures per second", value=together, wanted=None),
        Row(what="share of the encoder's rate", value=together / rate, wanted=WANTED["share"]),
        Row(what="encoder, CPU ms per picture", value=1000 * apiece, wanted=None),
        Row(what="service, CPU ms per picture", value=1000 * per_picture, wanted=None),
        Row(what="searches", value=len(latencies), wanted=None),
        Row(what="added", value=len(added), wanted=None),
        Row(what="added, but not in the index", value=-lost, wanted=0.0),
        Row(what="median, ms", value=1000 * middle, wanted=None),
        Row(what="99th percentile over median", value=tail / middle, wanted=WANTED["tail"]),
        Row(what="by id, searches per second", value=per_second, wanted=WANTED["by_id"]),
        Row(what="by id, CPU ms per search", value=1000 * per_search, wanted=None),
        Row(
            what="30 explained hits by id, median ms", value=1000 * statistics.median(firsts),
            wanted=WANTED["first_ms"],
        ),
    ]  # fmt: skip


def main() -> None:
    parser = script(__doc__)
    parser.add_argument("--index", type=Path, help="an index; a copy of it is served")
    parser.add_argument("--photos", type=Path, help="or a folder of pictures, which is indexed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, default=RESULTS / "serve.json")
    options = parser.parse_args()
    if (options.index is None) == (options.photos is None):
        parser.error("give --index or --photos")
    with tempfile.TemporaryDirectory() as place:
        index = Path(place, "photos.mch")
        if options.index is not None:
            shutil.copytree(options.index, index)
        else:
            with MCHIndex.open(index) as new:
                new.add(options.photos)
        with MCHIndex.open(index, create=False) as opened:
            files = [str(id) for id in opened if Path(str(id)).is_file()]
        rows = measure(index, files, options.seconds, Path(place))
    for row in rows:
        wanted = "" if row["wanted"] is None else f"  (wanted: {row['wanted']:g})"
        print(f"{row['what']:40} {row['value']:12,.2f}{wanted}")
    write_json(options.json, record({"seconds": options.seconds, "callers": CALLERS}, 0, rows))


if __name__ == "__main__":
    main()
