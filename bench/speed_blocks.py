"""What README and docs say about starting, adding and precision, from bench/results/."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from answer_blocks import read_record
from billion_block import size_in_words
from common import RESULTS


def start_block() -> str:
    """CPU time of commands, of this version and of the one before."""
    if not (RESULTS / "start.json").exists():
        return ""
    record = read_record("start.json", "bench/start.py")
    took = {(row["what"], row["version"]): row["cpu_seconds"] for row in record["rows"]}
    images, earlier = record["settings"]["images"], record["settings"]["against"][:7]
    lines = [
        f"Seconds of CPU time with an index of {images:,} pictures and files in the page cache,",
        f"{record['machine']['cpu']}; earlier: commit {earlier}, which needed torch "
        "(`python bench/start.py`):",
        "",
        "| | earlier | now | at most |",
        "|---|---|---|---|",
    ]
    for what, most in record["allowed"].items():
        this, before = took[what, "this"], took[what, "earlier"]
        lines.append(f"| {what} | {before:.3f} | {this:.3f} | {most:g} |")
    return "\n".join(lines) + "\n"


def encode_block() -> str:
    """Images that `add` takes in per second of CPU time."""
    record = read_record("encode.json", "bench/encode.py")
    speed = {(row["what"], row["version"]): row["images_per_cpu_second"] for row in record["rows"]}
    sizes = [
        f"{speed[what, 'this']:.0f} JPEG files of {what} pixels per second of CPU time, "
        f"{ratio:.2f} times as many as commit {record['settings']['against'][:7]}"
        for what, ratio in record["ratios"].items()
    ]
    text = f"`add` takes in {', and '.join(sizes)}, which computed in floats"
    return fill(f"{text} (`python bench/encode.py`).", 120, break_on_hyphens=False) + "\n"


def precision_block() -> str:
    """What int8 costs in quality, and what it gains in speed."""
    if not (RESULTS / "precision.json").exists():
        return encode_block()
    record = read_record("precision.json", "bench/precision.py")
    names, settings = list(record["rows"][0]["figures"]), record["settings"]
    lines = [
        f"Answers of {settings['model']} to {settings['queries']} queries among "
        f"{settings['indexed']:,} images, and how often edited copies",
        "of 400 of them, and of all, find their originals first (`python bench/precision.py`):",
        "",
        f"| copies, rank, precision | {' | '.join(names)} |",
        f"|{'---|' * (len(names) + 1)}",
    ]
    # The two precisions below each other.
    for row in sorted(record["rows"], key=lambda row: (row["copies"], row["rank"])):
        values = [f"{row['figures'][name]:.4f}".lstrip("0") for name in names]
        kind = f"{row['copies']:,}, {row['rank']}, {row['precision']}"
        lines.append(f"| {kind} | {' | '.join(values)} |")
    return "\n".join([*lines, "", encode_block()])


def serve_block() -> str:
    """What the service takes on, and how its page behaves."""
    record = read_record("serve.json", "bench/serve.py")
    figures = {row["what"]: row["value"] for row in record["rows"]}
    machine, settings = record["machine"], record["settings"]
    page = read_record("page.json", "bench/page.py")
    libraries = [row for row in page["rows"] if row["case"] == "scroll"]
    small, large = min(libraries, key=_images), max(libraries, key=_images)
    hits = next(row for row in page["rows"] if row["case"] == "hits")
    share = figures["share of the encoder's rate"]
    lines = [
        f"{machine['cores']} cores of {machine['cpu']}, {figures['images']:,.0f} photographs, "
        f"{settings['callers']} callers who send",
        f"pictures for {settings['seconds']:.0f} seconds while another adds "
        "(`python bench/serve.py`; the callers run on the same cores; "
        "the model is `coco-64-frozen`):",
        "",
        "| | |",
        "|---|---|",
        f"| searches and additions by picture | {figures['service, pictures per second']:.0f} per "
        f"second, {share:.2f} of what the encoder reaches alone, in batches |",
        f"| a search | median {figures['median, ms']:.0f} ms, 99th percentile "
        f"{figures['99th percentile over median']:.1f} times that |",
        f"| added meanwhile | {figures['added']:,.0f}, of which "
        f"{figures['added, but not in the index']:.0f} were lost |",
        f"| searches by id, measured by wrk | {figures['by id, searches per second']:,.0f} per "
        "second |",
        f"| 30 hits by id, each with the reason why it is one; one caller | "
        f"{figures['30 explained hits by id, median ms']:.0f} ms |",
        "",
    ]
    text = (
        f"The page in Chromium (`python bench/page.py`): among {hits['images']:,} photographs, the "
        f"first hits of a search by id are on the screen after {hits['first_hits_ms']:.0f} ms "
        f"({hits['cpu_ms']:.0f} ms of CPU time of the browser and the service). "
        f"With {large['images']:,} images, the longest task of the page's main thread while "
        f"scrolling took {large['longest_ms']:.0f} ms of CPU time; from 50 ms on, people notice. "
        f"The time in all was {large['total_ms'] / small['total_ms']:.1f} times that with "
        f"{small['images']:,} images."
    )
    return "\n".join([*lines, fill(text, 120, break_on_hyphens=False)]) + "\n"


def _images(row: dict[str, Any]) -> int:
    return int(row["images"])


def speed_block() -> str:
    """For the README: what a user waits for, each line with its command."""
    start = read_record("start.json", "bench/start.py")
    took = {r["what"]: r["cpu_seconds"] for r in start["rows"] if r["version"] == "this"}
    encode = read_record("encode.json", "bench/encode.py")
    added = {r["what"]: r for r in encode["rows"] if r["version"] == "this"}
    answers = read_record("answers.json", "bench/answers.py")
    best = next(r for r in answers["speed"]["many"] if r["label"] == "ours, best")
    large = read_record("billion.json", "bench/billion.py")
    served = read_record("serve.json", "bench/serve.py")
    service = {row["what"]: row["value"] for row in served["rows"]}
    steps = {row["step"]: row for row in large["rows"]}
    images, many, codes = (
        start["settings"]["images"],
        answers["settings"]["many"],
        size_in_words(large["settings"]["n"]),
    )
    rows = [
        f"| add JPEG files of {size} pixels | {row['images_per_cpu_second']:.0f} per second of CPU "
        "time | `bench/encode.py` |"
        for size, row in added.items()
    ]
    rows += [
        f"| `mch search dog.jpg` among {images:,} pictures, with the start of the program | "
        f"{took['search by a picture']:.2f} s of CPU time | `bench/start.py` |",
        "| a later search by a picture in the same process | "
        f"{took['a later search by a picture'] * 1000:.0f} ms of CPU time | `bench/start.py` |",
        f"| `mch serve`: {served['settings']['callers']} callers send pictures while another "
        "adds, `coco-64-frozen`; "
        f"{served['machine']['cores']} cores | {service['service, pictures per second']:.0f} per "
        "second | `bench/serve.py` |",
        "| `mch serve`: searches by id, with the load generator on the same cores | "
        f"{service['by id, searches per second']:,.0f} per second | `bench/serve.py` |",
        f"| search among {many:,} images once the query is encoded, one thread | "
        f"{1000 / best['cpu_qps']:.1f} ms of CPU time | `bench/answers.py` |",
        f"| find the 10 nearest of {codes} 64-bit codes, exactly, one thread | "
        f"{steps['search']['median_ms']:.1f} ms (FAISS's scan: "
        f"{steps['flat']['extrapolated_ms']:,.0f} ms, extrapolated) | `bench/billion.py` |",
    ]
    head = [f"| {start['machine']['cpu']} | | measured by |", "|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def size_block() -> str:
    """What was measured of large indexes and tables."""
    answers = read_record("answers.json", "bench/answers.py")
    best = next(r for r in answers["speed"]["many"] if r["label"] == "ours, best")
    large = read_record("billion.json", "bench/billion.py")
    text = (
        f"An index of {answers['settings']['many']:,} images takes {best['bytes_per_image']:.0f} "
        f"bytes of memory per image, and a search {1000 / best['cpu_qps']:.1f} ms on one thread "
        f"(`python bench/answers.py`). A table of codes alone was built and searched with "
        f"{large['settings']['n'] / 1e6:,.0f} million codes (`python bench/billion.py`, "
        "[billion.md](billion.md))."
    )
    return fill(text, 120, break_on_hyphens=False) + "\n"
