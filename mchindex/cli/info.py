"""`mch info`: print figures about an index."""

from __future__ import annotations

from typing import Any

from mchindex.cli import show
from mchindex.cli.options import INDEX_PATH, AsJson, Filter, Index, conditions, open_index


def info(index: Index = INDEX_PATH, filter: Filter = None, as_json: AsJson = False) -> None:
    """Print what an index holds and how much space it takes.

    With --filter, also the number of images that match.

    Examples:
      mch info
      mch info --filter album=summer
      mch info --index scans.mch --json | jq .images
    """
    with open_index(index) as opened:
        facts = opened.stats()
        if filter:
            facts["matching"] = opened.count(conditions(filter))
    if as_json:
        show.print_json(facts)
        return
    model = facts["model"] or ("its own" if facts["fingerprint"] else "none: your own codes")
    rows = {
        "index": str(facts["path"]),
        "images": f"{facts['images']:,}",
        "matching": f"{facts['matching']:,}" if "matching" in facts else "",
        "codes": f"{facts['codes']:,} of {facts['bits']} bits, {facts['anhc']:.2f} per image",
        "fine codes": _fine(facts),
        "buckets": f"{facts['buckets']:,}",
        "regions": ", ".join(facts["regions"]),
        "model": f"{model} ({facts['fingerprint']})" if facts["fingerprint"] else model,
        "precision": facts["precision"] or "",
        "on disk": show.size(facts["bytes"]),
        "in memory": show.size(facts["memory"]),
        "segments": f"{facts['segments']:,}",
        "shards": _shards(facts),
    }
    cells = {name: value for name, value in rows.items() if value}
    show.output(show.LONG_WIDTH).print(show.facts(cells))


def _shards(facts: dict[str, Any]) -> str:
    """Of a cluster: how many images each shard holds."""
    if "shards" not in facts:
        return ""
    images = ", ".join(f"{shard['images']:,}" for shard in facts["shards"])
    return f"{len(facts['shards'])} of {images} images; {facts['replicas']} replicas of each"


def _fine(facts: dict[str, Any]) -> str:
    """Which images have fine codes, and what would give them to the others."""
    images, filled, bits = facts["images"], facts["fine_images"], facts["fine_bits"]
    if not bits:
        return "none: hits are ordered by their codes alone"
    if images == filled:
        return f"of {bits} bits, for every image"
    return f"of {bits} bits, for {filled:,} images. {show.without_fine(images - filled)}"
