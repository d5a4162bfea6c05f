"""What is sent for each method of an index, and how the answer is read. Nothing here waits."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from PIL import Image

from mchindex.errors import ImageError, ServiceError, ServiceRefusedError
from mchindex.files import open_file, read_file
from mchindex.folders import is_image_name, walk
from mchindex.images import BYTES, Source, is_file_object, open_rgb, read_all, source_name
from mchindex.index.adding import Added, Failure
from mchindex.index.duplicates import Decision, Duplicate, DuplicateGroup, Duplicates, Level
from mchindex.index.inputs import one_image
from mchindex.index.results import Hit, Hits
from mchindex.storage.records import Id

T = TypeVar("T")
OPTIONS = ("offset", "rank", "filter", "exclude", "max_radius")
TOGETHER, MEGABYTES = 32, 32 << 20  # pictures, and bytes of them, that are sent in one request
PAGE = 1000  # images listed in one request


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and what reads its answer."""

    method: str
    path: str
    read: Callable[[Any], T]
    json: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[tuple[str, tuple[str, bytes]]] = ()
    form: Mapping[str, str] = field(default_factory=dict)


def search(
    query: Any, k: int, id: Id | None, region: Any, like: Any, unlike: Any, text: str | None,
    codes: str | None, options: Mapping[str, Any],
) -> Call[Hits]:  # fmt: skip
    """One search."""
    asked = body(query, k, id, region, like, unlike, text, codes, options)
    return Call("POST", "/v1/search", read_hits, json=asked)


def searches(
    queries: Iterable[Any], k: int, region: Any, options: Mapping[str, Any]
) -> Call[list[Hits]]:
    """Searches by several pictures."""
    asked = [body(one, k, None, region, None, (), None, None, options) for one in queries]
    return Call(
        "POST", "/v1/search/batch", lambda answer: [_hits_or_raise(a) for a in answer["answers"]],
        json={"searches": asked},
    )  # fmt: skip


def body(
    query: Any, k: int, id: Id | None, region: Any, like: Any, unlike: Any, text: str | None,
    codes: str | None, options: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The JSON of a search."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"a search has no option {name!r}: there are {', '.join(OPTIONS)}")
    given = {"id": id, "text": text, "codes": codes}
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if query is not None:
        asked["image"] = _base64(query)
    if like is not None:
        asked["like"] = [_example(one) for one in _several(like)]
    if unlike is not None and (several := _several(unlike)):
        asked["unlike"] = [_example(one) for one in several]
    if region is not None:
        asked["region"] = region if isinstance(region, str) else [float(side) for side in region]
    asked["k"] = k
    asked |= {name: value for name, value in options.items() if value is not None}
    if "exclude" in asked:
        asked["exclude"] = list(asked["exclude"])
    return asked


def _several(given: Any) -> list[Any]:
    alone = isinstance(given, (str, int, np.integer, Mapping)) or one_image(given)
    return [given] if alone else list(given)


def _example(one: Any) -> Any:
    """An id, or a picture; a pair has a region, too. Text is always an id."""
    what, region = one if isinstance(one, tuple) and len(one) == 2 else (one, None)
    example: dict[str, Any] = (
        {"id": what} if isinstance(what, (str, int)) else {"image": _base64(what)}
    )
    if region is not None:
        example["region"] = region if isinstance(region, str) else [float(side) for side in region]
    return example


def _base64(source: Source) -> str:
    return base64.b64encode(picture_bytes(source)).decode()


def picture_bytes(source: Any) -> bytes:
    """A picture as the bytes of a file. What is not a file is saved as PNG."""
    if isinstance(source, (str, os.PathLike)):
        try:
            return read_file(source)
        except OSError as error:
            raise ImageError(f"{os.fspath(source)}: {error.strerror or error}") from error
    if isinstance(source, BYTES):
        return bytes(source)
    if is_file_object(source):
        return read_all(source)
    image = source if isinstance(source, Image.Image) else open_rgb(source)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _hits_or_raise(answer: Any) -> Hits:
    if "hits" not in answer:
        raise refused(answer)
    return read_hits(answer)


def read_hits(answer: Any) -> Hits:
    visited = answer["visited"]
    return Hits(
        tuple(map(_hit, answer["hits"])), visited["buckets"], visited["radius"],
        visited["candidates"], visited["exact"], visited["limited_by"], 0, answer["rank"],
        visited.get("partial", False),  # a service of an earlier version has no clusters
    )  # fmt: skip


def _hit(line: Any) -> Hit:
    size = (line["width"], line["height"]) if line["width"] and line["height"] else None
    box = None if line["box"] is None else tuple(line["box"])
    path = line["id"] if isinstance(line["id"], str) else None
    return Hit(
        line["id"], line["distance"], line["region"], box, path, line["metadata"],
        line["score"], line["similarity"], size,
    )  # fmt: skip


# Adding and removing.


def additions(
    images: Any, ids: Iterable[str] | None, metadata: Mapping[str, Any] | None
) -> Iterator[Call[Added]]:
    """Requests that add pictures, a few at a time."""
    group: list[tuple[str, bytes]] = []
    held = 0
    for name, data in _named(images, ids):
        if group and (len(group) == TOGETHER or held + len(data) > MEGABYTES):
            yield _addition(group, metadata)
            group, held = [], 0
        group.append((name, data))
        held += len(data)
    if group:
        yield _addition(group, metadata)


def _addition(
    group: Sequence[tuple[str, bytes]], metadata: Mapping[str, Any] | None
) -> Call[Added]:
    form = {}
    if metadata is not None:
        form["metadata"] = json.dumps({name: dict(metadata) for name, _ in group})
    return Call(
        "POST", "/v1/images", _read_added, files=[("file", pair) for pair in group], form=form
    )


def _read_added(answer: Any) -> Added:
    failed = [Failure(one["name"], one["reason"]) for one in answer["failed"]]
    ids = [*answer["added"], *answer["replaced"], *answer["unchanged"]]
    return Added(answer["added"], answer["replaced"], answer["unchanged"], failed, _ids=ids)


def joined(parts: Iterable[Added]) -> Added:
    total = Added()
    for part in parts:
        for name in ("added", "replaced", "skipped", "failed", "_ids"):
            getattr(total, name).extend(getattr(part, name))
    return total


def _named(images: Any, ids: Iterable[str] | None) -> Iterator[tuple[str, bytes]]:
    """Pictures and the names under which the service keeps them."""
    tops = [images] if one_image(images) else images
    if ids is not None:
        names = [ids] if isinstance(ids, str) else ids
        yield from ((name, picture_bytes(one)) for name, one in zip(names, tops, strict=True))
        return
    for top in tops:
        if isinstance(top, (str, os.PathLike)) and os.path.isdir(top):
            root = Path(os.path.abspath(top))
            for path in walk(str(root), [], lambda folder: False):
                if is_image_name(path):
                    yield str(Path(root.name, Path(path).relative_to(root))), picture_bytes(path)
        elif isinstance(top, (str, os.PathLike)):
            with open_file(top):
                pass  # a clear error for what is no file
            yield os.path.basename(os.fspath(top)), picture_bytes(top)
        else:
            raise TypeError(f"{source_name(top)} needs a name: give ids")


def remove(ids: Any, files: bool) -> Call[int]:
    several = [ids] if isinstance(ids, (str, int)) else list(ids)
    return Call(
        "DELETE", "/v1/images", lambda answer: int(answer["removed"]),
        json={"ids": several, "files": files},
    )  # fmt: skip


# Contents.


def page(cursor: str | None, filter: Mapping[str, Any] | None, limit: int = PAGE) -> Call[Any]:
    params: dict[str, Any] = {"limit": limit}
    if cursor is not None:
        params["cursor"] = cursor
    if filter is not None:
        params["filter"] = json.dumps(filter)
    return Call("GET", "/v1/images", lambda answer: answer, params=params)


def image(id: Id) -> Call[dict[str, Any]]:
    return Call("GET", "/v1/image", lambda answer: answer, params={"id": id})


def info() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/info", lambda answer: answer)


def words(prefix: str) -> Call[list[str]]:
    return Call(
        "GET", "/v1/words", lambda answer: sorted(answer["words"]),
        params={"q": prefix, "limit": PAGE},
    )  # fmt: skip


def thumbnail(id: Id, size: int) -> Call[bytes]:
    return Call("GET", "/v1/thumbnail", lambda data: data, params={"id": id, "size": size})


def duplicates(level: Level, cursor: str | None) -> Call[Any]:
    params: dict[str, Any] = {"level": level, "limit": 200}
    return Call(
        "GET", "/v1/duplicates", lambda answer: answer,
        params=params if cursor is None else params | {"cursor": cursor},
    )  # fmt: skip


def read_duplicates(pages: Sequence[Any]) -> Duplicates:
    groups = []
    for one in pages:
        for group in one["groups"]:
            keeper, *others = map(_duplicate, group["images"])
            groups.append(DuplicateGroup(keeper, tuple(others)))
    return Duplicates(tuple(groups), pages[0]["level"], pages[0]["compared"], 0)


def _duplicate(line: Any) -> Duplicate:
    size = (line["width"], line["height"]) if line["width"] and line["height"] else None
    path = line["id"] if isinstance(line["id"], str) else None
    return Duplicate(line["id"], path, size, line["bytes"], line["similarity"])


def decide(decisions: Mapping[Id, Decision | None]) -> Call[None]:
    asked = [{"id": id, "decision": decision} for id, decision in decisions.items()]
    return Call("PUT", "/v1/decisions", lambda answer: None, json={"decisions": asked})


def decisions() -> Call[dict[Id, Decision]]:
    return Call(
        "GET", "/v1/decisions",
        lambda answer: {one["id"]: one["decision"] for one in answer["decisions"]},
    )  # fmt: skip


def refused(problem: Any) -> Exception:
    """The exception that an index would raise, for a problem that a service sent."""
    kind = str(problem.get("type", "")).removeprefix("urn:mchindex:")
    status, detail = int(problem.get("status", 500)), str(problem.get("detail", ""))
    if kind == "no-image":
        return KeyError(detail)
    if kind == "unreadable-picture":
        return ImageError(detail)
    if status in (400, 401, 403, 413, 415, 421, 422):
        return ServiceRefusedError(status, detail)
    return ServiceError(status, detail)
