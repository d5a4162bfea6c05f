"""What docs/cluster.md and docs/scaling.md say, from the records of cluster.py, cluster_kills.py
and capacity.py."""

from __future__ import annotations

from typing import Any

from answer_blocks import lines_of, paragraph, read_record

GB = 1e9
KINDS = {
    "uniform": "random",
    "small clusters": "clusters of 20",
    "clustered": "clusters of 200, mean",
}
FIGURES = {
    "disk": ("on disk", GB, "GB"),
    "memory": ("in memory", GB, "GB"),
    "code core seconds per query": ("time of cores per query, `code`", 1e-3, "ms"),
    "best core seconds per query": ("time of cores per query, `best`", 1e-3, "ms"),
    "code bytes per query and shard": ("moved per query and shard, `code`", 1e3, "kB"),
    "best bytes per query and shard": ("moved per query and shard, `best`", 1e3, "kB"),
}


def cluster_block() -> str:
    """Throughput and time of a cluster on one machine, beside one process."""
    record = read_record("cluster_search.json", "bench/cluster.py")
    first = record["rows"][0]
    head = [
        "codes", "one process, queries/s", "cluster, queries/s", "ratio",
        "single query: one process", "cluster",
    ]  # fmt: skip
    table = lines_of(head, [_searched(row) for row in record["rows"]])
    machine = record["machine"]
    text = paragraph(
        f"{first['images']:,} images by 64-bit codes in {first['shards']} shards, K = 10, batches",
        f"of {first['batch']} queries from one caller; {machine['cpu']}, {machine['cores']} cores,",
        f"which caller and shards share, at a load of {machine['load']:.0f} by other work:",
    )
    return "\n".join([text, "", *table, ""])


def _searched(row: dict[str, Any]) -> list[str]:
    rate, single = row["queries_per_second"], row["milliseconds_per_single_query"]
    return [
        KINDS[row.get("data", "small clusters")], f"{rate['one']:,.0f}", f"{rate['cluster']:,.0f}",
        f"{row['throughput_ratio']:.2f}", f"{single['one']:.2f} ms", f"{single['cluster']:.2f} ms",
    ]  # fmt: skip


def added_block() -> str:
    """How fast a cluster takes in pictures, and in how much memory."""
    record = read_record("cluster_add.json", "bench/cluster.py add")
    (row,) = record["rows"]
    rate, memory = row["images_per_second"], row["megabytes"]
    text = paragraph(
        f"{row['pictures']:,} photographs, added to an empty cluster with an encoder for each",
        f"of its {record['machine']['cores']} cores, and to one index: {rate['cluster']:.0f} and",
        f"{rate['one']:.0f} per second, a ratio of {row['ratio']:.2f}. In the four quarters of the",
        f"time, the caller had at most {_all(memory['driver'])} MB of memory, and the largest",
        f"encoder {_all(memory['largest encoder'])} MB (`python bench/cluster.py add`).",
    )
    return f"{text}\n"


def _all(numbers: list[float]) -> str:
    *most, last = (f"{number:.0f}" for number in numbers)
    return f"{', '.join(most)} and {last}"


def kills_block() -> str:
    """What became of a cluster whose parts were killed."""
    record = read_record("cluster_kills.json", "bench/cluster_kills.py")
    (row,) = record["rows"]
    table = lines_of(
        ["killed", "times", "answers again after: median", "longest"],
        [
            [target, str(own["kills"]), f"{own['median']:.2f} s", f"{own['largest']:.2f} s"]
            for target, own in row["seconds_to_answer"].items()
            if own["kills"]
        ],
    )
    text = paragraph(
        f"{row['kills']} kills beside {row['searches']:,} searches: each of the",
        f"{row['reported']:,} images that were reported as added was there at the end, none twice,",
        "and no search missed one or returned a partial answer as complete. The load of the",
        f"machine was {record['machine']['load']:.0f}:",
    )
    return "\n".join([text, "", *table, ""])


def capacity_block() -> str:
    """What images need, and how well a straight line says so."""
    record = read_record("capacity.json", "bench/capacity.py")
    *fits, measured, expected, _ = record["rows"]
    few, many = fits
    sizes = f"{few['images']:,} and {many['images']:,} images in one index"
    table = lines_of(
        ["", _images(few), _images(many), "model", "measured", "measured / model"],
        [
            [
                title, _shown(few[name], scale, unit), _shown(many[name], scale, unit),
                _shown(expected[name], scale, unit), _shown(measured[name], scale, unit),
                f"{measured[name] / expected[name]:.2f}",
            ]
            for name, (title, scale, unit) in FIGURES.items()
        ],
    )  # fmt: skip
    text = paragraph(
        f"The model is a straight line through {sizes}. It is compared with",
        f"{measured['images']:,} images in {measured['shards']} shards:",
    )
    return "\n".join([text, "", *table, ""])


def _images(row: dict[str, Any]) -> str:
    return f"{row['images']:,} images"


def _shown(value: float, scale: float, unit: str) -> str:
    return f"{value / scale:,.3g} {unit}"


def billion_capacity_block() -> str:
    """What a billion images need, by the model."""
    record = read_record("capacity.json", "bench/capacity.py")
    *_, row = record["rows"]
    images, shards = row["images"], row["shards"]
    lines = lines_of(
        [f"{images / 1e9:g} billion images in {shards} shards", "per image", "in all", "per shard"],
        [
            [
                FIGURES[name][0], f"{row[name] / images:,.0f} bytes", f"{row[name] / GB:,.0f} GB",
                f"{row[name] / shards / GB:.1f} GB",
            ]
            for name in ("memory", "disk")
        ]
        + [
            [
                f"moved per query, `{rank}`", "",
                f"{shards * row[f'{rank} bytes per query and shard'] / 1e3:,.0f} kB",
                f"{row[f'{rank} bytes per query and shard'] / 1e3:,.1f} kB",
            ]
            for rank in ("code", "best")
        ],
    )  # fmt: skip
    return "\n".join([*lines, ""])
