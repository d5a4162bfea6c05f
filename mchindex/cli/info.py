"""`mch info`: what is in an index."""

from __future__ import annotations

import json

import typer

from mchindex.cli import show
from mchindex.cli.options import INDEX_PATH, AsJson, Index, open_index


def info(index: Index = INDEX_PATH, as_json: AsJson = False) -> None:
    """Say what is in an index, and what it takes.

    Examples:
      mch info
      mch info --index scans.mch --json | jq .images
    """
    with open_index(index) as opened:
        facts = opened.stats()
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    from rich.markup import escape

    model = facts["model"] or ("its own" if facts["fingerprint"] else "none: codes of one's own")
    rows = {
        "index": str(facts["path"]),
        "images": f"{facts['images']:,}",
        "codes": f"{facts['codes']:,} of {facts['bits']} bits, {facts['anhc']:.2f} an image",
        "buckets": f"{facts['buckets']:,}",
        "regions": ", ".join(facts["regions"]),
        "model": f"{model} ({facts['fingerprint']})" if facts["fingerprint"] else model,
        "on disk": show.size(facts["bytes"]),
        "in memory": show.size(facts["memory"]),
    }
    shown = {name: escape(value) for name, value in rows.items() if value}
    show.output(show.LONG_WIDTH).print(show.facts(shown))
