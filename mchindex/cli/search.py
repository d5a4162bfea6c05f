"""`mch search`: find the images nearest to an image, or those that show what a word names."""

from __future__ import annotations

import io
import math
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mchindex.cli import show
from mchindex.cli.errors import FINE, INCOMPLETE, say
from mchindex.cli.options import (
    INDEX_PATH,
    QUERY,
    RESULT,
    Device,
    Filter,
    Index,
    Threads,
    conditions,
    open_index,
    stored_id,
    use_threads,
)
from mchindex.errors import UnknownWordError
from mchindex.files import replaceable, write_file

if TYPE_CHECKING:
    from PIL import Image

    from mchindex.index import MCHIndex
    from mchindex.index.page import ShownAnswer
    from mchindex.index.results import Hits
    from mchindex.storage.records import Id

BATCH = 32  # queries encoded at a time
DRAWN = 1000  # hits in one drawing, at most


def search(
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY...", help="Images to search by.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of images to find.")] = 10,
    offset: Annotated[
        int, typer.Option(min=0, help="Skip this many hits: -k 10 --offset 10 is the second page.")
    ] = 0,
    id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Instead of a query: find more images like this one in the index.",
            rich_help_panel=QUERY,
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option(
            metavar="BOX",
            help="Search by a part of the query: left,top,right,bottom in pixels, such as "
            "120,80,360,300, or, with --id, the name of a region, such as top-left.",
            rich_help_panel=QUERY,
        ),
    ] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IMAGE",
            help="Instead of a query, several times: find what is like all of these files or ids.",
            show_default=False,
            rich_help_panel=QUERY,
        ),
    ] = None,
    unlike: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IMAGE",
            help="With --like: push away what is like these files or ids.",
            show_default=False,
            rich_help_panel=QUERY,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help='Instead of a query: find things by their names. "dog, sofa" means both, "dog, '
            '-person" a dog without a person. Names of things only, no sentences.',
            rich_help_panel=QUERY,
        ),
    ] = None,
    words: Annotated[
        bool,
        typer.Option(
            "--words", help="List the words that --text takes, and exit.", rich_help_panel=QUERY
        ),
    ] = False,
    rank: Annotated[
        Literal["best", "code", "fine"] | None,
        typer.Option(
            help="Put first: what looks most like the query and shows the same things (best), what "
            "has the nearest code (code), or copies and parts of the query's picture (fine).",
            show_default="best, or code in an index without fine codes",
            rich_help_panel=QUERY,
        ),
    ] = None,
    filter: Filter = None,
    max_radius: Annotated[
        int | None,
        typer.Option(min=0, help="The largest Hamming distance.", rich_help_panel=QUERY),
    ] = None,
    max_buckets: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after this many buckets.", rich_help_panel=QUERY),
    ] = None,
    index: Index = INDEX_PATH,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per query.", rich_help_panel=RESULT),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Show the hits in a file: a page that says why each is one (.html), or a drawing "
            "(.png, .jpg …).",
            rich_help_panel=RESULT,
        ),
    ] = None,
    show_it: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Draw the hits and show the drawing, or show the page of --out.",
            rich_help_panel=RESULT,
        ),
    ] = False,
    columns: Annotated[
        int, typer.Option(min=1, help="Hits per row of the drawing.", rich_help_panel=RESULT)
    ] = 5,
    device: Device = "auto",
    threads: Threads = None,
) -> int:
    """Find images by a picture, by a part of one, or by words.

    Each hit reports its score from 0 to 1, the distance of its nearest code in bits, and the region
    that matched. Exit code 1: nothing was found.

    Examples:
      mch search dog.jpg
      mch search dog.jpg -k 20 --filter album=summer --filter 'year>=2023' --open
      mch search street.jpg --region 120,80,360,300 --out hits.html
      mch search copy.jpg --rank fine -k 3
      mch search --text "dog, sofa, -person"
      mch search --words | grep dog
      mch search --id photos/cat.jpg --json | jq -r '.hits[].path'
      mch search --like beach.jpg --like dog.jpg --unlike crowd.jpg
    """
    if words:
        return _list_words(index)
    if [bool(queries), id is not None, text is not None, bool(like)].count(True) != 1:
        raise ValueError(
            "give images to search by, or --id ID of an image in the index, or --text WORDS, or "
            "--like IMAGE"
        )
    if unlike and not like:
        raise ValueError("--unlike needs --like: name at least one image to look for")
    if like and region is not None:
        raise ValueError("--region is a part of a single query, not of images given with --like")
    if text is not None and region is not None:
        raise ValueError("--region is a part of a picture: it cannot be used with --text")
    if out is not None:
        _check_suffix(out)
    _check_queries(queries or [])
    wanted = conditions(filter or [])
    options = {
        "max_radius": max_radius,
        "max_buckets": max_buckets,
        "rank": rank,
        "filter": wanted,
        "offset": offset,
        "threads": use_threads(threads),
    }
    found_any, drawn = False, 0
    grids: list[Image.Image] = []
    shown: list[ShownAnswer] = []
    with open_index(index, device=device) as opened:
        most = max(1, len(opened))
        options["offset"] = min(offset, most)  # memory is needed for as many hits as are asked for
        if like:
            answers = iter([_mixed(opened, like, unlike or [], min(k, most), options)])
        else:
            answers = _answers(opened, queries or [], id, text, region, min(k, most), options)
        for answer in answers:
            found_any |= len(answer.hits) > 0
            if as_json:
                show.print_json(answer.to_json())
            else:
                _print(answer, titled=len(queries or []) > 1, first=offset + 1)
            if out is not None or show_it:
                drawn += len(answer.hits)
                if drawn > DRAWN:
                    raise ValueError(
                        f"a drawing can show {DRAWN:,} hits, and there are more: ask for fewer "
                        "with -k, or leave out --out and --open"
                    )
                if _is_page(out):
                    shown.append(answer.shown(opened, offset + 1))
                else:
                    grids.append(answer.draw(opened, columns))
        if not found_any:
            if not len(opened):
                say(f"{index} is empty")
            elif wanted and not opened.count(wanted):
                say(f"no image in {index} matches --filter")
    if out is not None and shown:
        _deliver_page(shown, out, show_it)
    elif grids:
        _deliver(grids, out, show_it)
    return FINE if found_any else INCOMPLETE


def _check_queries(queries: Sequence[str]) -> None:
    """Raises ValueError, before the search starts, for what cannot be a picture."""
    for query in queries:
        if os.path.isdir(query):
            raise ValueError(f"{query} is a folder: name one or more pictures to search by")
        if not os.path.lexists(query):
            word = not (os.path.splitext(query)[1] or os.sep in query)
            hint = f"; to search by a word: mch search --text {shlex.quote(query)}" if word else ""
            raise ValueError(f"{query}: No such file{hint}")


class _Answer:
    """A query and its hits."""

    def __init__(
        self,
        query: str | int,
        hits: Hits,
        box: Any = None,
        of_index: bool = False,
        of_text: bool = False,
        like: Sequence[str | int] = (),
        unlike: Sequence[str | int] = (),
        region: str | None = None,
    ):
        self.query, self.hits, self.box = query, hits, box
        self.of_index, self.of_text = of_index, of_text  # else the query is a file
        self.region = region  # of a query in the index
        self.like, self.unlike = list(like), list(unlike)

    def to_json(self) -> dict[str, Any]:
        if self.like:
            return {"like": self.like, "unlike": self.unlike, **self.hits.to_dict()}
        return {"query": self.query, **self.hits.to_dict()}

    @property
    def title(self) -> str:
        if self.of_text:
            return show.clean(self.query)
        if not self.like:
            return _name(self.query)
        pairs = (("like", self.like), ("unlike", self.unlike))
        return "; ".join(f"{how} {', '.join(map(_name, some))}" for how, some in pairs if some)

    def draw(self, index: MCHIndex, columns: int) -> Image.Image:
        from mchindex.index.grid import draw_grid

        picture = self._picture(index)
        return draw_grid(picture, self.hits, columns, region=self.box, title=self.title)

    def shown(self, index: MCHIndex, first: int) -> ShownAnswer:
        from mchindex.index.page import shown

        picture = self._picture(index)
        return shown(
            self.hits,
            index.bits,
            picture,
            title=self.title,
            region=self.box,
            has_picture=not self.of_text,
            words=self._words(index, picture),
            first=first,
        )

    def _words(self, index: MCHIndex, picture: Image.Image | None) -> Mapping[Id, Sequence[str]]:
        """The names of things that the query and each hit show."""
        if self.of_text:
            from mchindex.inference.words import read_text

            words = read_text(str(self.query))
            named = [word for word, wanted in words if wanted] or [
                f"no {word}" for word, _ in words
            ]
            return dict.fromkeys(self.hits.ids, named)
        if self.of_index:
            return index.in_common(self.hits, id=self.query, region=self.region)
        return {} if picture is None else index.in_common(self.hits, picture, region=self.box)

    def _picture(self, index: MCHIndex) -> Image.Image | None:
        from mchindex.errors import ImageError
        from mchindex.images import open_rgb

        if self.of_text:
            return None
        path = index[self.query].path if self.of_index else str(self.query)
        try:
            return None if path is None else open_rgb(path)
        except ImageError:
            return None  # the file of an indexed image may no longer exist


def _answers(
    index: MCHIndex,
    queries: list[str],
    id: str | None,
    text: str | None,
    region: str | None,
    k: int,
    options: dict[str, Any],
) -> Iterator[_Answer]:
    if text is not None:
        try:
            yield _Answer(text, index.search(text=text, k=k, **options), of_text=True)
        except UnknownWordError as error:
            commas = ", and several are separated by commas" if " " in error.word else ""
            raise ValueError(
                f"{error.reason}; mch search --words lists all that it knows{commas}"
            ) from None
        return
    if id is not None:
        name = stored_id(index, id)
        if name is None:
            raise ValueError(f"there is no image {id} in the index")
        stored = index[name]
        box = None
        if region is not None and region in stored.regions:
            box = stored.boxes[stored.regions.index(region)]
        hits = index.search(id=name, k=k, region=region, **options)
        yield _Answer(name, hits, box, True, region=region)
        return
    query_box = None if region is None else read_box(region)
    for start in range(0, len(queries), BATCH):
        batch = queries[start : start + BATCH]
        answers = index.search(batch, k, region=query_box, **options)
        for query, hits in zip(batch, answers, strict=True):
            yield _Answer(query, hits, query_box)


def _mixed(
    index: MCHIndex, like: list[str], unlike: list[str], k: int, options: dict[str, Any]
) -> _Answer:
    """The answer to several pictures; the first stands for the query in a drawing or a page."""
    near, far = ([_stored_or_file(index, text) for text in some] for some in (like, unlike))
    hits = index.search(like=near, unlike=far, k=k, **options)
    return _Answer(near[0], hits, of_index=near[0] in index, like=near, unlike=far)


def _stored_or_file(index: MCHIndex, text: str) -> str | int:
    """The id of an image in the index, or else a file. A file goes before an integer id."""
    id = stored_id(index, text)
    return text if id is None or (isinstance(id, int) and os.path.exists(text)) else id


def _name(query: str | int) -> str:
    return show.clean(os.path.basename(str(query)) or "query")


def read_box(text: str) -> tuple[float, float, float, float]:
    try:
        x0, y0, x1, y1 = map(float, text.split(","))
        if not all(map(math.isfinite, (x0, y0, x1, y1))):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"--region {text}: expected left,top,right,bottom in pixels, such as 0,0,320,240 "
            "(with --id also the name of a region)"
        ) from None
    return x0, y0, x1, y1


def _print(answer: _Answer, titled: bool, first: int) -> None:
    console, hits = show.output(show.LONG_WIDTH), answer.hits
    if titled:
        console.print()
        console.print(show.line((str(answer.query), "bold")), soft_wrap=True)
    if not len(hits):
        console.print("nothing found")
        return
    with_ids = any(hit.path is not None and hit.path != hit.id for hit in hits)
    with_codes = any(hit.distance >= 0 for hit in hits)  # words have no code
    names = (
        "score", *(("distance",) if with_codes else ()), "region",
        *(("id",) if with_ids else ()), "image",
    )  # fmt: skip
    table = show.listing("", *names)
    for place, hit in enumerate(hits, first):
        cells = (str(hit.id), hit.path or "") if with_ids else (hit.path or str(hit.id),)
        numbers = (f"{hit.score:.2f}", *((str(hit.distance),) if with_codes else ()))
        table.add_row(str(place), *numbers, *map(show.line, (hit.region, *cells)))
    console.print(table)
    limit = ""
    if hits.limited_by in ("max_radius", "max_buckets"):
        limit = f" (stopped by --{hits.limited_by.replace('_', '-')})"
    console.print(f"[dim]{hits.effort()}{limit}[/]")


def _list_words(index: Path) -> int:
    with open_index(index) as opened:
        for word in opened.words():
            typer.echo(word)
    return FINE


def _is_page(out: Path | None) -> bool:
    return out is not None and out.suffix.lower() in (".html", ".htm")


def _check_suffix(out: Path) -> None:
    """Raises ValueError, before the search starts, for a suffix of no page and no drawing."""
    from PIL import Image

    drawing = Image.registered_extensions().get(out.suffix.lower()) in Image.SAVE
    if not drawing and not _is_page(out):
        raise ValueError(f"--out {out}: the file name must end in .png, .jpg, .webp … or .html")
    replaceable(out)


def _deliver_page(answers: Sequence[ShownAnswer], out: Path, show_it: bool) -> None:
    from mchindex.index.page import hits_page

    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(replaceable(out), hits_page(answers))
    if show_it:
        _show(out, "page")


def _deliver(grids: Sequence[Image.Image], out: Path | None, show_it: bool) -> None:
    from PIL import Image

    from mchindex.index.grid import below_each_other

    picture = below_each_other(grids)
    if out is None:
        handle, name = tempfile.mkstemp(prefix="mch-", suffix=".png")
        os.close(handle)
        file = Path(name)
    else:
        file = out
        file.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    try:
        picture.save(content, Image.registered_extensions()[file.suffix.lower()])
    except (OSError, ValueError, struct.error, SystemError) as error:  # a side is too long
        size = f"{picture.width} x {picture.height} pixels"
        raise ValueError(f"--out {file}: the drawing, {size}, cannot be saved: {error}") from None
    write_file(replaceable(file), content.getvalue())
    if show_it:
        _show(file, "picture")


def _show(file: Path, what: str) -> None:
    if not _opened(file):
        say(f"there is no desktop to show the {what} on: it is in {file}")


def _opened(file: Path) -> bool:
    viewer = shutil.which("xdg-open")
    desktop = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if viewer is None or not desktop:
        return False
    done = subprocess.run(
        [viewer, str(file.absolute())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return done.returncode == 0
