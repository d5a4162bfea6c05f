"""The report: HTML, Markdown and JSON, made from a record by the templates in this folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common import progress
from mchindex.files import write_file
from mchindex.progress import seconds
from paper import figures, plots, statements
from paper.plots import ENGINES
from paper.records import Advantage, MCHRow, Picture, Record, Row, to_json
from paper.statements import FAILS, HOLDS, UNKNOWN

F1 = "F1 within the query's bucket (H=0)"
CURVE_BITS = (16, 32, 64)  # widths whose F1 curves are drawn, if they were computed


def write_report(record: Record, out: Path) -> None:
    """Writes paper.html, paper.md, paper.json and f1-32.svg to a folder."""
    out.mkdir(parents=True, exist_ok=True)
    content = json.dumps(to_json(record, without=("picture",)), indent=1)
    for name, text in (("paper.html", render("paper.html.j2", record)),
                       ("paper.md", render("paper.md.j2", record)),
                       ("paper.json", f"{content}\n")):  # fmt: skip
        write_file(out / name, text)
        progress(f"wrote {out / name}")
    if plots.f1_file(record, out / "f1-32.svg"):
        progress(f"wrote {out / 'f1-32.svg'}")


def render(template: str, record: Record) -> str:
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
    return environment.get_template(template).render(
        r=record,
        settings=record.settings,
        widths=widths,
        curve_widths=[b for b in CURVE_BITS if b in widths] or widths,
        theirs=partial(figures.theirs, record.settings.paper),
        counts=counts(record),
        took=seconds(sum(record.seconds.values())),
        seeds=seeds(record.settings.seeds),
        time_verdict=time_verdict(record.time.against if record.time else []),
        by_method=by_method,
        F1=F1,
        ENGINES=ENGINES,
        figures=figures,
        plots=plots,
        said=statements,
    )


def counts(record: Record) -> str:
    found = Counter(s.verdict for s in record.statements)
    partly = sum(n for verdict, n in found.items() if verdict not in (HOLDS, FAILS, UNKNOWN))
    sure = sum(s.verdict == HOLDS and s.constructed for s in record.statements)
    return (
        f"Of {len(record.statements)} tests of the paper's statements, {found[HOLDS]} hold "
        f"({sure} of them by construction), {partly} hold in some of the cells, {found[FAILS]} do "
        f"not hold here, and {found[UNKNOWN]} cannot be judged."
    )


def time_verdict(against: Sequence[Advantage]) -> str:
    """Whether fewer buckets mean less time, in words."""
    parts = []
    for engine, name in ENGINES.items():
        mine = [a for a in against if a.engine == engine]
        fewer = [a for a in mine if a.buckets > 1]
        if mine and engine == "faiss":  # it visits no buckets: each code is one more row
            less = sum(a.microseconds > 1 for a in mine)
            parts.append(f"With {name}, it needs less time in {less} of {len(mine)} cells.")
        elif mine:
            less = sum(a.microseconds > 1 for a in fewer)
            parts.append(
                f"With {name}, MCH-X needs fewer buckets than X in {len(fewer)} of {len(mine)} "
                f"cells, and less time in {less} of these."
            )
    return " ".join(parts)


def seeds(number: int) -> str:
    return "One seed." if number == 1 else f"Mean of {number} seeds, ± their standard deviation."


def by_method(rows: Sequence[Row]) -> dict[str, dict[int, Row]]:
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row.method, {})[row.bits] = row
    return found


def add_pictures(record: Record, page: Path) -> None:
    """Takes the visual study's pictures, which a record lacks, from the page beside it."""
    if record.visual is None or not page.exists():
        return
    tags = re.findall(r'<img [^>]*src="data:image/jpeg;base64,[^>]*>', page.read_text("utf-8"))
    wanted: list[Any] = [x for query in record.visual.rows for x in (query, *query.images)]
    if len(tags) == len(wanted):
        for one, tag in zip(wanted, tags, strict=True):
            found = dict(
                re.findall(r'(src|width|height)="(?:data:image/jpeg;base64,)?([^"]+)"', tag)
            )
            one.picture = Picture(found["src"], int(found["width"]), int(found["height"]))
