"""Errors as callers get them: problem+json (RFC 9457), with a sentence that can be acted on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from mchindex.errors import ImageError, MCHError, StoreBusyError, StoreError, UnknownWordError

MEDIA_TYPE = "application/problem+json"
_MISTAKES = {"extra_forbidden": "there is no such field"}  # said better than by pydantic
SHOWN = 3  # mistakes of one request that are named
LONGEST = 300  # characters of what a caller sent that are repeated

log = logging.getLogger("mchindex.server")


class ProblemError(MCHError):
    """An error to send to the caller."""

    def __init__(
        self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        return {
            "type": f"urn:mchindex:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }

    def body(self) -> bytes:
        return to_json(self.to_dict())


def problem_of(error: BaseException) -> ProblemError:
    """The problem that an exception is for the caller. What is not known is a mistake of ours: it
    is logged, and the caller learns nothing about it."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, ValidationError):
        return ProblemError(422, "invalid", validation_text(error.errors(include_url=False)))
    if isinstance(error, TimeoutError):
        return busy("the service took too long: try again later, or ask for less")
    if isinstance(error, StoreBusyError):
        return busy("another program is writing to the index: try again later")
    if isinstance(error, StoreError):
        log.error("the index cannot be used: %s", error)
        return busy("the index cannot be used at present: the log of the service says why")
    if isinstance(error, ImageError):
        return ProblemError(
            422, "unreadable-picture", f"the picture cannot be read: {_short(error)}"
        )
    if isinstance(error, UnknownWordError):
        return ProblemError(
            422, "unknown-word", f"{_cut(error.reason)}; GET /v1/words lists those it knows"
        )
    if isinstance(error, (MCHError, ValueError)):
        return ProblemError(422, "invalid", _short(error))
    log.error("unexpected error", exc_info=error)
    return ProblemError(500, "internal", "something went wrong in the service: its log says more")


def busy(detail: str) -> ProblemError:
    return ProblemError(503, "unavailable", detail, {"retry-after": "1"})


def too_many(what: str) -> ProblemError:
    return ProblemError(
        429, "too-many", f"too many {what} are waiting: try again later", {"retry-after": "1"}
    )


def too_large(what: str, most: int) -> ProblemError:
    return ProblemError(413, "too-large", f"{what} may have at most {most:,} bytes")


def no_image(id: Any) -> ProblemError:
    return ProblemError(404, "no-image", f"there is no image {_cut(repr(id))} in the index")


def validation_text(errors: Any) -> str:
    """The mistakes of a request in one sentence."""
    texts = []
    for error in errors[:SHOWN]:
        place = ".".join(str(part) for part in error["loc"] if part not in ("body", "query"))
        text = _MISTAKES.get(error["type"], error["msg"].removeprefix("Value error, "))
        texts.append(f"{_cut(place)}: {text}" if place else text)
    more = len(errors) - SHOWN
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")


def _short(error: BaseException) -> str:
    return _cut(str(error) or type(error).__name__)


def _cut(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
