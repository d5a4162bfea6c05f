"""Does the page stay smooth with many images, and how soon are the first hits on the screen?

    python bench/page.py                                 # 1,000 and 100,000 images in the library
    python bench/page.py --trace trace.json              # keep the trace of the last, for Perfetto
    python bench/page.py --index photos.mch --record     # and the hits of a search by id in it

Records of a few drawn pictures are stored many times, so that the library is long. Chromium scrolls
it by the wheel, jumps to far places, and goes to the end, while it records a trace. What counts is
the CPU time of the page's main thread, because the clock depends on what else the machine does: a
task of more than 50 ms is what browsers call a long task, and people notice it. Both libraries are
measured in one run, so that their ratio says what the length costs.

Hits are timed by the clock, from the click on "Find similar" to the first frame that shows a hit
with its picture; the median of several images counts. The CPU time of Chromium's threads and of
the service in between is told, too, because the clock depends on what else the machine does.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from playwright.sync_api import Browser

from browser import DESKTOP, Served, chromium
from common import RESULTS, progress, record, script, verdict, write_json
from mchindex import MCHIndex
from mchindex.datasets.scenes import SceneSource
from mchindex.storage.records import Row, code_type

DRAWN = 200  # different pictures
LONG = 50.0  # milliseconds of a long task
SOON = 150.0  # milliseconds until the first hits
SEARCHES = 9
SCROLL = """async () => {
    const frame = () => new Promise(requestAnimationFrame);
    const until = async (text) => {  // the cell of a place has its picture
        for (let i = 0; i < 2000; i++) {
            if (document.querySelector(text)) return;
            await frame();
        }
        throw new Error(`${text} did not come`);
    };
    let frames = 0;
    for (; frames < 300; frames++) { scrollBy(0, 120); await frame(); }
    for (const share of [0.2, 0.5, 0.35, 0.8, 0.1, 0.95]) {
        scrollTo(0, share * document.documentElement.scrollHeight);
        for (let i = 0; i < 20; i++, frames++) await frame();
    }
    scrollTo(0, document.documentElement.scrollHeight);
    const last = document.querySelector(".library li").getAttribute("aria-setsize");
    await until(`[aria-posinset="${last}"] .there`);
    return {frames, elements: document.querySelectorAll("*").length, last: Number(last)};
}"""
HITS = """async () => {
    const began = performance.now();
    document.querySelector(".facts .primary").click();
    for (;;) {
        await new Promise(requestAnimationFrame);
        const img = document.querySelector("main > .hits .hit img");
        if (img?.complete && img.naturalWidth) return performance.now() - began;
    }
}"""


def rows(folder: Path, count: int, bits: int) -> Iterator[Row]:
    """Records of `count` images that share a few files."""
    source, rng = SceneSource(DRAWN, size=256), np.random.default_rng(0)
    files = []
    for i in range(DRAWN):
        path = folder / f"{i:03d}.jpg"
        source.image(i).save(path)
        content = path.read_bytes()
        files.append((str(path), len(content), hashlib.sha256(content).digest()))
    entry = np.zeros(1, code_type(bits))
    for i in range(count):
        path_of, size, digest = files[i % DRAWN]
        entry["code"] = rng.integers(0, 256, bits // 8, np.uint8)
        yield Row(f"image-{i:06d}.jpg", entry.tobytes(), path_of, size, 0, digest, 256, 256)


def tasks(trace: bytes, main_only: bool = True) -> list[float]:
    """The CPU time of each task of the page's main thread, or of all threads of Chromium, in
    milliseconds."""
    events = json.loads(trace)["traceEvents"]
    main = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event["tdur"] / 1000
        for event in events
        if event["name"].endswith("RunTask")
        and (not main_only or (event["pid"], event["tid"]) in main)
        and "tdur" in event
    ]


def scrolled(browser: Browser, count: int, keep: Path | None) -> dict[str, Any]:
    """Scrolls through a library of `count` images."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with MCHIndex.open(folder / "long.mch") as index:
            index.add_records(rows(folder, count, index.bits))
            with Served(index) as served, browser.new_context(**DESKTOP) as context:
                page = context.new_page()
                page.goto(served.url)
                page.wait_for_selector(".there")
                browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
                seen = page.evaluate(SCROLL)
                trace = browser.stop_tracing()
    if keep is not None:
        keep.write_bytes(trace)
    assert seen["last"] == count
    spent = tasks(trace)
    return {
        "images": count,
        "frames": seen["frames"],
        "tasks": len(spent),
        "longest_ms": round(max(spent), 2),
        "p99_ms": round(float(np.percentile(spent, 99)), 2),
        "total_ms": round(sum(spent), 1),
        "elements": seen["elements"],
    }


def first_hits(browser: Browser, path: Path) -> dict[str, Any]:
    """How soon the first hits of a search by id are on the screen."""
    with MCHIndex.open(path, create=False) as index:
        ids = list(index.ids())
        with Served(index) as served, browser.new_context(**DESKTOP) as context:
            page = context.new_page()
            times, searches, used = [], [], []
            for id in ids[:: max(1, len(ids) // (SEARCHES + 1))][: SEARCHES + 1]:
                page.goto("about:blank")
                page.goto(f"{served.url}#/image?id={id}")
                page.wait_for_selector(".near .hit")
                page.wait_for_load_state("networkidle")
                browser.start_tracing(page=page, categories=["toplevel"])
                ours = time.process_time()
                with page.expect_response("**/v1/search") as answer:
                    times.append(float(page.evaluate(HITS)))
                ours = 1000 * (time.process_time() - ours)
                used.append(ours + sum(tasks(browser.stop_tracing(), main_only=False)))
                searches.append(float(answer.value.json()["took"]["total_ms"]))
    return {
        "images": len(ids),
        "searches": SEARCHES,
        "first_hits_ms": round(median(times[1:]), 1),  # the first search loads what later ones use
        "search_ms": round(median(searches[1:]), 1),
        "cpu_ms": round(median(used[1:]), 1),
    }


def main() -> None:
    parser = script(__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--index", type=Path, help="an index of photos, to search by id")
    parser.add_argument("--trace", type=Path, help="where to write the trace of the last library")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}/page.json")
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with chromium() as browser:
        for count in options.images:
            progress(f"{count:,} images")
            keep = options.trace if count == options.images[-1] else None
            lines.append({"case": "scroll", **scrolled(browser, count, keep)})
            longest = lines[-1]["longest_ms"]
            print(
                f"{count:>9,} images: longest task {longest} ms of CPU time, 99 % of tasks below "
                f"{lines[-1]['p99_ms']} ms, {lines[-1]['total_ms']} ms in all for "
                f"{lines[-1]['frames']} frames, {lines[-1]['elements']} elements: "
                f"{verdict(longest <= LONG)}"
            )
        if options.index is not None:
            lines.append({"case": "hits", **first_hits(browser, options.index)})
            soon = lines[-1]["first_hits_ms"]
            print(
                f"{lines[-1]['images']:>9,} images: first hits of a search by id after {soon} ms, "
                f"of which the service took {lines[-1]['search_ms']} ms; {lines[-1]['cpu_ms']} ms "
                f"of CPU time in all threads: {verdict(soon <= SOON)}"
            )
    if options.record:
        settings = {"images": options.images, "searches": SEARCHES}
        write_json(RESULTS / "page.json", record(settings, 0, lines))


if __name__ == "__main__":
    main()
