"""The HTTP API and the page, as an ASGI application."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from PIL import Image
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mchindex import __version__
from mchindex.errors import MCHError
from mchindex.index.facade import MCHIndex
from mchindex.server import models
from mchindex.server.batching import Pool
from mchindex.server.bodies import json_body, search_body, upload_body
from mchindex.server.contents import Contents
from mchindex.server.docs import STYLE, docs_page
from mchindex.server.duplicates import Groups
from mchindex.server.guard import ACCESS, Access, Guard, Receive, Scope, Send
from mchindex.server.metrics import Metrics
from mchindex.server.pictures import LARGE, Format, Pictures
from mchindex.server.problems import MEDIA_TYPE, ProblemError, log, problem_of, validation_text
from mchindex.server.searches import Searches
from mchindex.server.settings import Settings
from mchindex.server.uploads import Writing
from mchindex.storage.records import Row

SEARCH = "/v1/search"
PAGE = Path(__file__).parent / "page"
R = TypeVar("R")

IdParameter = Annotated[str, Query(max_length=4096, description="of an image in the index")]
Cursor = Annotated[str | None, Query(max_length=100, description="the `next` of an earlier answer")]
FilterParameter = Annotated[
    str | None, Query(max_length=4096, description="conditions on the metadata, as JSON")
]
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}},
    }
    for status, text in {
        400: "The request cannot be read",
        401: "A key is needed",
        403: "Not allowed",
        404: "There is no such image",
        405: "Not a method of this path",
        408: "The request took too long to arrive",
        413: "Too many bytes",
        415: "A body of another type is needed",
        421: "Not a name of this service",
        422: "A value is not allowed",
        429: "Too much is waiting",
        431: "The address or the headers are too long",
        503: "Not at present",
    }.items()
}


class Service:
    """One index, and everything that answers for it."""

    def __init__(self, index: MCHIndex, settings: Settings) -> None:
        self.index, self.settings = index, settings
        self.metrics = Metrics()
        self.searches = Searches(index, settings.limits, self.metrics)
        self.contents = Contents(index, settings)
        self.pictures = Pictures()
        self.groups = Groups(index)
        self.writing = Writing(index, _uploads(index, self.settings), settings.limits, self.metrics)
        self._comparing = Pool("comparisons", 1, settings.limits.queue)
        self._reading = Pool("requests", 2, settings.limits.queue)
        self._drawing = Pool("pictures", 2, settings.limits.queue)
        self.ready = False
        self.failure: BaseException | None = None  # why it will not be ready
        self.metrics.gauge("mch_images", "Images in the index", lambda: len(index))

    async def read(self, work: Callable[[], R]) -> R:
        """Runs what reads the index in a thread."""
        return await self._reading(work)

    async def compare(self, work: Callable[[], R]) -> R:
        """Runs what looks for duplicates in a thread."""
        return await self._comparing(work)

    async def draw(self, work: Callable[[], R]) -> R:
        """Runs what decodes pictures in a thread."""
        return await self._drawing(work)

    def warm_up(self) -> None:
        """Loads what the first search would have to wait for."""
        if self.index.identity.has_model:
            queries = self.index.queries
            _ = queries.words
            queries.search(queries.encode([Image.new("RGB", (64, 64))]), 1, [[]])

    def loaded(self, task: asyncio.Task[None]) -> None:
        """Remembers how loading ended."""
        if task.cancelled():
            return
        self.failure = task.exception()
        self.ready = self.failure is None
        if self.failure is not None:
            log.error("the model cannot be loaded: %s", self.failure)

    def close(self) -> None:
        """Waits for what has begun."""
        self.searches.close()
        self.writing.close()
        self._comparing.close()
        self._reading.close()
        self._drawing.close()


def _uploads(index: MCHIndex, settings: Settings) -> Path | None:
    """Where pictures that are added are kept: by default, in a folder beside the index."""
    if index.path is None or not index.identity.has_model:
        return None
    folder = settings.uploads or index.path.with_name(f"{index.path.stem}-uploads")
    return Path(os.path.abspath(folder))


def create_app(index: MCHIndex, settings: Settings | None = None) -> Guard:
    """The application for an index, which stays open: the caller closes it afterwards."""
    service = Service(index, settings or Settings())
    api = FastAPI(
        title="mchindex",
        version=__version__,
        description="Image search with several hash codes per image.",
        docs_url=None,  # its scripts would come from another host
        redoc_url=None,
        lifespan=_lifespan(service),
        responses=_PROBLEMS,
    )
    api.state.service = service
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _refused)
    for kind in (ProblemError, MCHError, ValueError, OSError, Exception):
        api.add_exception_handler(kind, _failed)
    _add_health(api, service)
    search = _add_searches(api, service)
    _add_contents(api, service)
    _add_changes(api, service)
    _add_duplicates(api, service)
    _add_page(api)
    _describe(api, service.settings)
    service.metrics.know({getattr(route, "path", "") for route in api.routes})
    return Guard(_Direct(api, search), service.settings, service.metrics)


class _Direct:
    """Answers searches without the layers of FastAPI, which would add about a quarter to the CPU
    time of a search by id."""

    def __init__(self, api: FastAPI, search: Callable[[Request], Awaitable[Response]]) -> None:
        self._api, self._search = api, search

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == SEARCH and scope["method"] == "POST":
            response = await self._search(Request(scope, receive))
            await response(scope, receive, send)
        else:
            if scope["type"] == "http" and scope["method"] == "HEAD":
                scope = {**scope, "method": "GET"}  # uvicorn leaves the body out
            await self._api(scope, receive, send)


def _lifespan(service: Service) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.create_task(service.read(service.warm_up))
        loading.add_done_callback(service.loaded)
        yield
        await asyncio.to_thread(service.close)

    return lifespan


async def _failed(request: Request, error: Exception) -> Response:
    return _problem(problem_of(error))


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _problem(ProblemError(422, "invalid", validation_text(error.errors())))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    details = {
        404: "there is nothing at this path: /docs lists what there is",
        405: "this path does not take this method: /docs lists what it takes",
    }
    detail = details.get(error.status_code, str(error.detail))
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 405:  # the route that refused it knows only its own methods
        routes = [route for route in request.app.routes if isinstance(route, Route)]
        same = [route.methods or () for route in routes if route.path == request.url.path]
        allowed = {method for methods in same for method in methods}
        headers["allow"] = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
    return _problem(ProblemError(error.status_code, "refused", detail, headers))


def _problem(problem: ProblemError) -> Response:
    return Response(problem.body(), problem.status, problem.headers, MEDIA_TYPE)


def _json(value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(value), 200, headers, "application/json")


def _add_health(api: FastAPI, service: Service) -> None:
    @api.get("/livez", tags=["health"], summary="Whether the service runs")
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/readyz", tags=["health"], summary="Whether the service can search")
    @api.get("/healthz", tags=["health"], summary="Whether the service can search")
    async def readyz() -> Response:
        if service.failure is not None:
            raise ProblemError(
                503, "unavailable", "the model cannot be loaded: the log of the service says why"
            )
        if not service.ready:
            raise ProblemError(
                503, "unavailable", "the model is being loaded", {"retry-after": "1"}
            )
        await service.read(service.index.refresh)
        return _json({"status": "ok"})

    @api.get(
        "/metrics",
        tags=["health"],
        summary="Counts for Prometheus",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_searches(api: FastAPI, service: Service) -> Callable[[Request], Awaitable[Response]]:
    """Returns what answers a search."""
    limits = service.settings.limits

    @api.post(
        SEARCH,
        tags=["search"],
        summary="Search by an image, a picture, codes or words",
        responses={200: {"model": models.SearchAnswer}},
    )
    async def search(request: Request) -> Response:
        asked, picture = await search_body(request, limits)
        return Response(
            await service.searches.answer(asked, picture), media_type="application/json"
        )

    @api.post(
        "/v1/search/batch",
        tags=["search"],
        summary="Several searches at once",
        responses={200: {"model": models.BatchAnswer}},
    )
    async def search_batch(request: Request) -> Response:
        asked = await json_body(request, models.BatchRequest, limits.request)
        answers = await service.searches.several(asked.searches)
        return Response(b'{"answers":[' + b",".join(answers) + b"]}", media_type="application/json")

    @api.get(
        "/v1/words",
        tags=["search"],
        summary="The words that start with a text, short ones first",
        responses={200: {"model": models.WordsAnswer}},
    )
    async def words(
        q: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    ) -> Response:
        return _json(await service.read(partial(service.contents.words, q, limit)))

    return search


def _add_contents(api: FastAPI, service: Service) -> None:
    contents, pictures = service.contents, service.pictures

    @api.get(
        "/v1/info",
        tags=["index"],
        summary="The index, and what the caller may do",
        responses={200: {"model": models.InfoAnswer}},
    )
    async def info(request: Request) -> Response:
        return _json(await service.read(partial(contents.info, access_of(request))))

    @api.get(
        "/v1/images",
        tags=["index"],
        summary="The images, oldest first",
        responses={200: {"model": models.ImagesAnswer}},
    )
    async def images(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        cursor: Cursor = None,
        filter: FilterParameter = None,
    ) -> Response:
        return _json(await service.read(partial(contents.images, limit, cursor, filter)))

    @api.get(
        "/v1/image",
        tags=["index"],
        summary="One image, its regions and codes",
        responses={200: {"model": models.ImageAnswer}},
    )
    async def image(id: IdParameter) -> Response:
        return _json(await service.read(partial(contents.image, id)))

    picture_content: dict[int | str, dict[str, Any]] = {
        200: {"content": {"image/webp": {}, "image/jpeg": {}}},
        304: {"description": "Not changed"},
    }

    @api.get(
        "/v1/thumbnail",
        tags=["index"],
        summary="An image, small",
        responses=picture_content,
        response_class=Response,
    )
    async def thumbnail(
        request: Request, id: IdParameter, size: Annotated[int, Query(ge=16, le=512)] = 256
    ) -> Response:
        return await shown(request, id, size)

    @api.get(
        "/v1/picture",
        tags=["index"],
        summary="An image, as large as a screen",
        responses=picture_content,
        response_class=Response,
    )
    async def picture(request: Request, id: IdParameter) -> Response:
        return await shown(request, id, LARGE)

    async def shown(request: Request, id: str, side: int) -> Response:
        row: Row = await service.read(partial(contents.row, id))
        format: Format = "webp" if "image/webp" in request.headers.get("accept", "") else "jpeg"
        etag = pictures.etag(row, side, format)
        headers = {"etag": etag, "cache-control": "private, max-age=300", "vary": "accept"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        found = await service.draw(partial(pictures.get, row, side, format))
        return Response(found.data, 200, headers, found.media_type)


def _add_changes(api: FastAPI, service: Service) -> None:
    limits = service.settings.limits

    @api.post(
        "/v1/images",
        tags=["changes"],
        summary="Add pictures",
        responses={200: {"model": models.AddedAnswer}},
    )
    async def add(request: Request) -> Response:
        _check_may_write(request)
        async with upload_body(request, limits) as uploads:
            return _json(await service.writing.add(uploads))

    @api.delete(
        "/v1/images",
        tags=["changes"],
        summary="Remove images from the index, and their files if that is allowed",
        responses={200: {"model": models.RemovedAnswer}},
    )
    async def remove(request: Request) -> Response:
        _check_may_write(request)
        asked = await json_body(request, models.RemoveRequest, limits.json)
        _check_count(asked.ids, limits.ids)
        if asked.files and not access_of(request).delete:
            raise ProblemError(
                403,
                "delete",
                "this service deletes no files: start it with --allow-delete and a key",
            )
        return _json(await service.writing.remove(asked.ids, asked.files))

    @api.put(
        "/v1/decisions",
        tags=["duplicates"],
        summary="Remember which duplicates to keep",
        responses={200: {"model": models.DecisionsAnswer}},
    )
    async def decide(request: Request) -> Response:
        _check_may_write(request)
        asked = await json_body(request, models.DecisionsRequest, limits.json)
        _check_count(asked.decisions, limits.ids)
        await service.writing.decide({one.id: one.decision for one in asked.decisions})
        return _json(await service.read(service.groups.decisions))


def _check_may_write(request: Request) -> None:
    if not access_of(request).write:
        raise ProblemError(403, "read-only", "this key may only read: use the other one")


def _check_count(several: Sequence[Any], most: int) -> None:
    if len(several) > most:
        raise ProblemError(422, "too-many-ids", f"a request may have at most {most:,} ids")


def _add_duplicates(api: FastAPI, service: Service) -> None:
    @api.get(
        "/v1/duplicates",
        tags=["duplicates"],
        summary="Groups of images of the same picture",
        responses={200: {"model": models.DuplicatesAnswer}},
    )
    async def duplicates(
        level: models.Level = "copy",
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        cursor: Cursor = None,
    ) -> Response:
        work = partial(service.groups.page, level, cursor, limit)
        return _json(await service.compare(work))

    @api.get(
        "/v1/decisions",
        tags=["duplicates"],
        summary="Which duplicates to keep, as far as decided",
        responses={200: {"model": models.DecisionsAnswer, "content": {"text/csv": {}}}},
    )
    async def decisions(format: Literal["json", "csv"] = "json") -> Response:
        if format == "json":
            return _json(await service.read(service.groups.decisions))
        headers = {"content-disposition": 'attachment; filename="decisions.csv"'}
        text = await service.read(service.groups.as_csv)
        return Response(text, 200, headers, "text/csv; charset=utf-8")


def access_of(request: Request) -> Access:
    found: Access = request.scope[ACCESS]
    return found


def _add_page(api: FastAPI) -> None:
    files = {file.name: file for file in (*PAGE.iterdir(), STYLE) if file.is_file()}

    def sent(request: Request, name: str) -> Response:
        if name not in files:  # never a path
            raise HTTPException(404)
        content = files[name].read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"etag": etag, "cache-control": "no-cache"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
        return Response(content, 200, headers, kind or "application/octet-stream")

    @api.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return sent(request, "index.html")

    @api.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        page = docs_page(api.openapi(), str(request.base_url))
        return Response(page, media_type="text/html; charset=utf-8")

    @api.get("/assets/{name}", include_in_schema=False)
    async def asset(request: Request, name: str) -> Response:
        return sent(request, name)


_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def _describe(api: FastAPI, settings: Settings) -> None:
    """Completes the OpenAPI description: bodies that are read by hand, and the keys."""
    made = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is not None:
            return api.openapi_schema
        schema = made()
        parts = schema.setdefault("components", {}).setdefault("schemas", {})
        _put_schema(parts, models.ProblemAnswer)
        file = {"type": "string", "format": "binary"}
        asked = {"type": "string", "description": "the fields of a JSON body, as JSON"}
        about = {"type": "string", "description": "what to store with all of them, as JSON"}
        for path, method, model in (
            ("/v1/search/batch", "post", models.BatchRequest),
            ("/v1/images", "delete", models.RemoveRequest),
            ("/v1/decisions", "put", models.DecisionsRequest),
        ):
            _put_schema(parts, model)
            body = {"$ref": f"#/components/schemas/{model.__name__}"}
            _set_body(schema, path, method, {"application/json": body})
        pictures = {
            "type": "array", "items": file, "minItems": 1,
            "description": "a file name may be a relative path",
        }  # fmt: skip
        _set_body(
            schema,
            "/v1/images",
            "post",
            {
                "multipart/form-data": {
                    "type": "object",
                    "properties": {"file": pictures, "metadata": about},
                    "required": ["file"],
                }
            },
        )
        _set_body(
            schema,
            "/v1/search",
            "post",
            {
                "application/json": {"$ref": "#/components/schemas/SearchRequest"},
                "multipart/form-data": {
                    "type": "object",
                    "properties": {"file": file, "request": asked},
                    "required": ["file"],
                },
            },
        )
        if settings.has_key:
            schema["components"]["securitySchemes"] = {
                "key": {"type": "apiKey", "in": "header", "name": "api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            }
            for path, item in schema["paths"].items():
                if path.startswith("/v1/") or path == "/metrics":
                    for operation in item.values():
                        operation["security"] = [{"key": []}, {"bearer": []}]
        api.openapi_schema = schema
        return schema

    api.openapi = openapi  # type: ignore[method-assign]


def _put_schema(parts: dict[str, Any], model: type[BaseModel]) -> None:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    parts.update(schema.pop("$defs", {}))
    parts[model.__name__] = schema


def _set_body(
    schema: dict[str, Any], path: str, method: str, content: dict[str, dict[str, Any]]
) -> None:
    schema["paths"][path][method]["requestBody"] = {
        "required": True,
        "content": {kind: {"schema": one} for kind, one in content.items()},
    }


__all__ = ["Service", "create_app"]
