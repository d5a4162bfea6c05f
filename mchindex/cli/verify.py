"""`mch verify`: check an index for damage."""

from __future__ import annotations

from dataclasses import asdict

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE
from mchindex.cli.options import INDEX_PATH, AsJson, Index, Wait, check_index


def verify(index: Index = INDEX_PATH, wait: Wait = 10.0, as_json: AsJson = False) -> int:
    """Check an index for damage: its records, codes, snapshot and model.

    Everything is read and nothing is changed. Exit code 1: there are problems. To rescue what
    can still be read of a damaged index, run [bold]mch export[/].

    Examples:
      mch verify
      mch verify --index scans.mch --json | jq -r '.problems[]'
    """
    check_index(index)
    from mchindex.index.verify import verify as verify_index

    report = verify_index(index, wait=wait)
    if as_json:
        show.print_json(asdict(report))
        return INCOMPLETE if report.problems else FINE
    console = show.output(show.LONG_WIDTH)
    for problem in report.problems:
        console.print(show.line(("problem:", "red"), f" {problem}"), soft_wrap=True)
    for note in report.notes:
        console.print(show.line(("note:", "dim"), f" {note}"), soft_wrap=True)
    what = f"{show.number(report.images, 'image')} with {show.number(report.codes, 'code')}"
    if report.problems:
        console.print(
            f"[red]{show.number(len(report.problems), 'problem')}[/]; {what} are intact: "
            "mch export rescues them",
            soft_wrap=True,
        )
        return INCOMPLETE
    console.print(f"[green]no problems[/]: {what}", soft_wrap=True)
    return FINE
