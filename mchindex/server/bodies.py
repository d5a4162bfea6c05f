"""Reads the bodies of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from mchindex import json_text
from mchindex.server.models import SearchRequest
from mchindex.server.problems import ProblemError, too_large, validation_text
from mchindex.server.settings import Limits
from mchindex.server.uploads import Upload

M = TypeVar("M", bound=BaseModel)
JSON, FORM = "application/json", "multipart/form-data"


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def body(request: Request, most: int) -> bytes:
    """The bytes of a body. Raises a 413 problem."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large("a body of this kind", most)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def json_body(request: Request, model: type[M], most: int) -> M:
    """A JSON body."""
    if media_type(request) != JSON:
        raise wrong_type(request, JSON)
    return read_json(await body(request, most), model)


def read_json(data: bytes | str, model: type[M]) -> M:
    """JSON text as a model. Raises a 400 problem if it is no JSON, and 422 if it is not allowed."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        if errors[0]["type"] == "json_invalid":
            raise ProblemError(400, "invalid-json", errors[0]["msg"]) from None
        raise ProblemError(422, "invalid", validation_text(errors)) from None


def wrong_type(request: Request, *allowed: str) -> ProblemError:
    given = media_type(request) or "nothing"
    return ProblemError(
        415, "media-type", f"the content type must be {' or '.join(allowed)}, not {given[:100]}"
    )


async def search_body(request: Request, limits: Limits) -> tuple[SearchRequest, bytes | None]:
    """A search, and the picture that was sent with it as a file."""
    if media_type(request) == JSON:
        return read_json(await body(request, limits.request), SearchRequest), None
    if media_type(request) != FORM:
        raise wrong_type(request, JSON, FORM)
    async with Form(request, limits, files=1, fields=1) as form:
        unknown = set(form.fields) - {"request"} | {name for name, _ in form.files} - {"file"}
        if unknown or len(form.files) != 1:
            raise ProblemError(
                422, "invalid", "a form has the part file, and may have the part request (JSON)"
            )
        upload = form.files[0][1]
        if (upload.size or 0) > limits.bytes:
            raise too_large("a picture", limits.bytes)
        picture = await upload.read()
    asked = read_json(form.fields.get("request", "{}"), SearchRequest)
    return asked, picture


@asynccontextmanager
async def upload_body(request: Request, limits: Limits) -> AsyncIterator[list[Upload]]:
    """Pictures to add: parts `file`, and a part `metadata` with JSON by file name."""
    if media_type(request) != FORM:
        raise wrong_type(request, FORM)
    async with Form(request, limits, files=limits.batch, fields=1) as form:
        if set(form.fields) - {"metadata"} or {name for name, _ in form.files} != {"file"}:
            raise ProblemError(
                422, "invalid", "a form has parts file, and may have the part metadata (JSON)"
            )
        metadata = _metadata(form.fields.get("metadata", "{}"))
        uploads = []
        for _, upload in form.files:
            if (upload.size or 0) > limits.bytes:
                raise too_large("a picture", limits.bytes)
            name = upload.filename or ""
            uploads.append(Upload(name, upload.file, metadata.get(name)))
        yield uploads


def _metadata(text: str) -> dict[str, dict[str, Any]]:
    try:
        metadata = json_text.loads(text)
    except ValueError as error:
        raise ProblemError(400, "invalid-json", f"metadata: {error}") from None
    if not isinstance(metadata, dict) or not all(isinstance(m, dict) for m in metadata.values()):
        raise ProblemError(
            422, "invalid", 'metadata must be an object by file name: {"a.jpg": {"album": "2024"}}'
        )
    return metadata


class Form:
    """The parts of a form. What is large is in temporary files, which are deleted at the end."""

    def __init__(self, request: Request, limits: Limits, files: int, fields: int) -> None:
        self._request = request
        self._parser = MultiPartParser(
            request.headers, request.stream(), max_files=files, max_fields=fields,
            max_part_size=limits.json,
        )  # fmt: skip
        self.files: list[tuple[str, UploadFile]] = []
        self.fields: dict[str, str] = {}

    async def __aenter__(self) -> Form:
        try:
            form = await self._parser.parse()
        except MultiPartException as error:
            raise _of_form(error) from None
        except (KeyError, UnicodeDecodeError, ValueError) as error:
            raise ProblemError(400, "invalid-form", "the form cannot be read") from error
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                self.files.append((name, value))
            elif name in self.fields:
                raise ProblemError(422, "invalid", "a part of the form is there twice")
            else:
                self.fields[name] = value
        return self

    async def __aexit__(self, *error: object) -> None:
        for _, upload in self.files:
            await upload.close()


def _of_form(error: MultiPartException) -> ProblemError:
    text = str(error.message)
    if text.startswith("Too many"):
        return ProblemError(422, "too-many-parts", f"the form has too many parts: {text[:200]}")
    if "maximum size" in text:
        return ProblemError(413, "too-large", text[:200])
    return ProblemError(400, "invalid-form", f"the form cannot be read: {text[:200]}")
