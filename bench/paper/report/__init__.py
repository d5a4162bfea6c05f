"""The report: HTML, Markdown and JSON, made from a record by the templates in this folder."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common import progress, write_json
from mchindex.files import write_file
from mchindex.progress import seconds
from paper import figures, plots, statements
from paper.records import MCHRow, Picture, Record, Row, to_json

CURVE_BITS = (16, 32, 64)  # widths whose F1 curves are drawn, if they were computed


def write_report(record: Record, out: Path) -> None:
    """Writes paper.html, paper.md, paper.json and f1-32.svg to a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("paper.html", "paper.md"):
        write_file(out / name, render(f"{name}.j2", record))
        progress(f"wrote {out / name}")
    write_json(out / "paper.json", to_json(record, without=("picture",)))
    if plots.f1_file(record, out / "f1-32.svg"):
        progress(f"wrote {out / 'f1-32.svg'}")


def render(template: str, record: Record) -> str:
    """What a template of this folder makes of a record."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"num": format, "mean": fmean, "named": statements.named}
    environment.tests["mch"] = lambda row: isinstance(row, MCHRow)
    widths = sorted({row.bits for row in record.rows})
    gains = [r.mch.r0 / max(r.base.r0, 1e-9) for r in record.compared]
    by_method: dict[str, dict[int, Row]] = {}
    for row in record.rows:
        by_method.setdefault(row.method, {})[row.bits] = row
    return environment.get_template(template).render(
        r=record,
        settings=record.settings,
        widths=widths,
        curve_widths=[b for b in CURVE_BITS if b in widths] or widths,
        by_method=by_method,
        recall_gain=statements.geometric(gains) if gains else 1.0,
        took=seconds(sum(record.seconds.values())),
        theirs=partial(figures.theirs, record.settings.paper),
        figures=figures,
        plots=plots,
        said=statements,
    )


def add_pictures(record: Record, page: Path) -> None:
    """Takes the visual study's pictures, which a record lacks, from the page beside it."""
    if record.visual is None or not page.exists():
        return
    tags = re.findall(r'<img src="data:image/jpeg;base64,[^>]*>', page.read_text("utf-8"))
    wanted: list[Any] = [x for query in record.visual.rows for x in (query, *query.images)]
    if len(tags) == len(wanted):
        for one, tag in zip(wanted, tags, strict=True):
            jpeg, width, height = re.findall(r'(?:base64,|width="|height=")([^"]+)', tag)
            one.picture = Picture(jpeg, int(width), int(height))
