"""Searches of many callers: their pictures are encoded together, and searched together."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from PIL import Image
from pydantic_core import to_json

from mchindex.errors import ImageError
from mchindex.images import read_picture
from mchindex.index.arguments import Limits as Options
from mchindex.index.facade import MCHIndex
from mchindex.index.ranking import Query
from mchindex.index.results import Answers, Hit
from mchindex.index.same_picture import reduced_for_comparison
from mchindex.inference.encoder import cut_out
from mchindex.inference.extract import BATCH
from mchindex.inference.threads import cores
from mchindex.inference.words import read_text
from mchindex.server.batching import Batcher, Pool
from mchindex.server.lines import Lines
from mchindex.server.metrics import Metrics
from mchindex.server.models import Example, SearchRequest
from mchindex.server.pictures import read_indexed
from mchindex.server.problems import ProblemError, no_image, problem_of, too_large
from mchindex.server.settings import Limits
from mchindex.server.tokens import Tokens
from mchindex.server.why import COMPARED, Reasons, Why
from mchindex.storage.records import Id

TOGETHER = 64  # searches, at most, that are done together
WAIT = 0.003  # seconds that a picture waits for others
SMALL = 1 << 20  # bytes of a JPEG file, at most, that is decoded in a few milliseconds
JPEG = b"\xff\xd8\xff"  # how one starts


@dataclass
class Clock:
    """Where the time of a search went, in seconds."""

    began: float = field(default_factory=time.perf_counter)
    queue: float = 0.0
    encode: float = 0.0
    search: float = 0.0

    def to_dict(self) -> dict[str, float]:
        seconds = {
            "total_ms": time.perf_counter() - self.began,
            "queue_ms": self.queue,
            "encode_ms": self.encode,
            "search_ms": self.search,
        }
        return {name: round(1000 * value, 3) for name, value in seconds.items()}


@dataclass
class _Picture:
    """A picture on its way through the network."""

    image: Image.Image | bytes
    clock: Clock
    job: _Job | None = None  # the search by it, if it is to be done at once
    since: float = field(default_factory=time.perf_counter)


@dataclass
class _Job:
    """A search on its way through the index: by an id or by an encoded query."""

    request: SearchRequest
    clock: Clock
    query: Query | None = None  # None: it is the stored image `stored`
    stored: tuple[Id, str | None] | None = None
    leave_out: list[Id] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)


@dataclass
class _Found:
    """What a search found."""

    answers: Answers
    row: int  # in the answers
    lines: list[bytes]  # the hits as JSON
    images: int  # in the index
    query: Query | None  # None: words
    id: Id | None = None  # of the query, if it is in the index
    picture: Image.Image | None = None  # of the query, small


class Searches:
    """Answers searches."""

    def __init__(self, index: MCHIndex, limits: Limits, metrics: Metrics) -> None:
        self._index, self._limits = index, limits
        self._queries = index.queries
        fingerprint = index.identity.fingerprint
        self._tokens = Tokens(index.bits, self._queries.fine_bits, fingerprint)
        self._reasons = Reasons(index.bits)
        self._lines = Lines(self._queries, index.identity)
        self._decoding = Pool("pictures", 2, limits.queue)
        self._slow = Pool("searches", 2, limits.queue)
        self._encoding: Batcher[_Picture, Query | _Found] = Batcher(
            "pictures", self._encode, BATCH, limits.queue, WAIT, metrics.batch("encode"), cores()
        )
        self._count_searches = metrics.batch("search")
        self._searching: Batcher[_Job, _Found] = Batcher(
            "searches", self._search, TOGETHER, limits.queue, 0.0, self._count_searches
        )
        metrics.gauge("mch_pictures_waiting", "Pictures to encode", lambda: len(self._encoding))
        metrics.gauge("mch_searches_waiting", "Searches to do", lambda: len(self._searching))

    def close(self) -> None:
        for part in (self._decoding, self._encoding, self._slow, self._searching):
            part.close()

    async def answer(self, request: SearchRequest, picture: bytes | None = None) -> bytes:
        """The answer to one search as JSON. `picture` is one that was sent as a file."""
        clock = Clock()
        self._check(request, picture)
        found = await self._find(request, picture, clock)
        if request.explain and found.lines:
            found.lines = await self._slow(partial(self._explained, request, found))
        return self._json(request, found, clock)

    async def several(self, requests: Sequence[SearchRequest]) -> list[bytes]:
        """The answers to several searches; a search that fails has a problem for an answer."""
        if len(requests) > self._limits.batch:
            raise ProblemError(
                422,
                "too-many-searches",
                f"a request may have at most {self._limits.batch} searches",
            )
        done = await asyncio.gather(*map(self.answer, requests), return_exceptions=True)
        return [one if isinstance(one, bytes) else problem_of(one).body() for one in done]

    def _check(self, request: SearchRequest, picture: bytes | None) -> None:
        given = [
            name
            for name in ("id", "image", "codes", "text", "like")
            if getattr(request, name) is not None
        ] + (["file"] if picture is not None else [])
        if len(given) != 1:
            raise ProblemError(
                422, "invalid",
                "a search takes one of id, image, codes, text and like, or a file, but "
                + (f"{' and '.join(given)} were given" if given else "none of them was given"),
            )  # fmt: skip
        if request.unlike and request.like is None:
            raise ProblemError(422, "invalid", "unlike needs like: name an image to look for")
        if request.region is not None and given[0] in ("codes", "text", "like"):
            raise ProblemError(422, "invalid", f"{given[0]} takes no region")
        if isinstance(request.region, str) and given[0] != "id":
            raise ProblemError(422, "invalid", "the region of a picture that is sent must be a box")
        for name, most in (("k", self._limits.k), ("offset", self._limits.offset)):
            if (value := getattr(request, name)) > most:
                raise ProblemError(
                    422, f"large-{name}", f"{name} may be at most {most:,}, not {value}"
                )
        examples = len(request.like or ()) + len(request.unlike or ())
        if examples > self._limits.like:
            raise ProblemError(
                422, "too-many-examples",
                f"like and unlike may have at most {self._limits.like} images, not {examples}",
            )  # fmt: skip
        if len(request.exclude or ()) > self._limits.ids:
            raise ProblemError(
                422, "too-many-ids", f"exclude may have at most {self._limits.ids:,} ids"
            )

    async def _find(self, request: SearchRequest, picture: bytes | None, clock: Clock) -> _Found:
        if request.text is not None:
            return await self._slow(partial(self._by_words, request, clock))
        job = _Job(request, clock)
        # Others need not wait for what is slow.
        slow = request.filter is not None or request.exclude is not None or request.k > 100
        small: Image.Image | None = None
        if request.id is not None and not isinstance(request.region, list):
            job.stored = (request.id, request.region)
        elif request.codes is not None:
            job.query = self._tokens.read(request.codes)
        elif request.like is not None:
            job.query, job.leave_out = await self._mixed(request, clock)
        else:
            part = Example(id=request.id, image=request.image, region=request.region)
            sent = self._sent(part, picture)
            if sent is not None and self._is_quick(sent, request) and not slow:
                return await self._at_once(_Picture(sent, clock, job))
            image = await self._opened(part, sent, clock)
            job.query = await self._encoded(_Picture(image, clock))
            if request.id is not None:
                job.leave_out = [request.id]
            small = image if request.explain else None
        job.since = time.perf_counter()
        if slow:
            (found,) = await self._slow(partial(self._search, [job]))
            if isinstance(found, Exception):
                raise found
        else:
            found = await self._searching(job)
        found.picture = None if small is None else reduced_for_comparison(small)
        return found

    # Pictures.

    def _sent(self, part: Example, sent: bytes | None) -> bytes | None:
        """The file of a picture that was sent, as a file of its own or in Base64."""
        if sent is None and part.image is not None:
            sent = self._from_base64(part.image)
        if sent is not None and len(sent) > self._limits.bytes:
            raise too_large("a picture", self._limits.bytes)
        return sent

    def _is_quick(self, sent: bytes, request: SearchRequest) -> bool:
        """Whether a picture can be decoded and searched by in one step, which saves time."""
        whole = request.region is None and not request.explain
        return whole and len(sent) <= SMALL and sent.startswith(JPEG)

    async def _at_once(self, picture: _Picture) -> _Found:
        found = await self._encoding(picture)
        assert isinstance(found, _Found)
        return found

    async def _encoded(self, picture: _Picture) -> Query:
        query = await self._encoding(picture)
        assert isinstance(query, Query)
        return query

    async def _opened(self, part: Example, sent: bytes | None, clock: Clock) -> Image.Image:
        """The picture of a query, or a part of it, decoded."""
        began = time.perf_counter()
        image = await self._decoding(partial(self._decode, part.id, sent, part.region))
        clock.encode += time.perf_counter() - began
        return image

    def _from_base64(self, text: str) -> bytes:
        if len(text) > self._limits.bytes * 4 // 3 + 4:
            raise too_large("a picture", self._limits.bytes)
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise ProblemError(
                422, "invalid", "image must be the bytes of a picture in Base64"
            ) from None

    def _decode(self, id: Id | None, sent: bytes | None, region: Any) -> Image.Image:
        # A part may be small, so the picture is decoded at its full size.
        least = self._index.model.least if region is None else None
        if sent is None:
            assert id is not None
            row = self._queries.row(id)
            if row is None:
                raise no_image(id)
            image = read_indexed(row, least).image
        else:
            try:
                image = read_picture(sent, least).image
            except ImageError as error:
                raise _unreadable(error) from None
        return image if region is None else cut_out(image, region)

    def _encode(self, pictures: Sequence[_Picture]) -> list[Query | _Found | Exception]:
        began = time.perf_counter()
        done: list[Any] = self._try_encode([picture.image for picture in pictures])
        spent = time.perf_counter() - began
        jobs: dict[int, _Job] = {}
        for place, picture in enumerate(pictures):
            picture.clock.queue += began - picture.since
            picture.clock.encode += spent
            if picture.job is not None and not isinstance(done[place], Exception):
                jobs[place] = picture.job
                picture.job.query, picture.job.since = done[place], time.perf_counter()
        if jobs:
            self._count_searches(len(jobs))
            for place, found in zip(jobs, self._search(list(jobs.values())), strict=True):
                done[place] = found
        return done

    def _try_encode(self, images: Sequence[Image.Image | bytes]) -> list[Query | Exception]:
        """A query, or what is wrong, for each picture."""
        try:
            query = self._queries.encode(images)
        except Exception as error:
            if len(images) > 1:  # the others are all right
                return [one for image in images for one in self._try_encode([image])]
            return [_unreadable(error) if isinstance(error, ImageError) else error]
        return [_row(query, place) for place in range(len(images))]

    # Several pictures as one query.

    async def _mixed(self, request: SearchRequest, clock: Clock) -> tuple[Query, list[Id]]:
        like = [_example(one) for one in request.like or ()]
        unlike = [_example(one) for one in request.unlike or ()]
        if not like:
            raise ProblemError(422, "invalid", "like is empty: name an image to look for")
        found = await asyncio.gather(*(self._part(one, clock) for one in (*like, *unlike)))
        queries = [query for query, _ in found]
        rank = request.rank
        if unlike and rank is None:
            request.rank = "best"  # the codes alone would ignore what to push away
        query = self._queries.mixed(queries[: len(like)], queries[len(like) :], rank)
        return query, [id for _, id in found if id is not None]

    async def _part(self, one: Example, clock: Clock) -> tuple[Query, Id | None]:
        if [one.id is None, one.image is None, one.codes is None].count(False) != 1:
            raise ProblemError(422, "invalid", "each image needs one of id, image and codes")
        if one.codes is not None:
            return self._tokens.read(one.codes), None
        if one.id is not None and not isinstance(one.region, list):
            return await self._slow(partial(self._stored, one.id, one.region))
        if isinstance(one.region, str):
            raise ProblemError(422, "invalid", "the region of a picture that is sent must be a box")
        image = await self._opened(one, self._sent(one, None), clock)
        return await self._encoded(_Picture(image, clock)), one.id

    def _stored(self, id: Id, region: str | None) -> tuple[Query, Id]:
        (found,) = self._queries.stored([(id, region)])
        if isinstance(found, Exception):
            raise _not_stored(id, found)
        return found

    # The index.

    def _search(self, jobs: Sequence[_Job]) -> list[_Found | Exception]:
        """Searches by codes: those with the same options are done in one call."""
        began = time.perf_counter()
        results: list[Any] = [None] * len(jobs)
        named = [(place, job.stored) for place, job in enumerate(jobs) if job.stored is not None]
        ids: dict[int, Id] = {}
        for (place, stored), found in zip(
            named, self._queries.stored([stored for _, stored in named]) if named else (),
            strict=True,
        ):  # fmt: skip
            if isinstance(found, Exception):
                results[place] = _not_stored(stored[0], found)
            else:
                jobs[place].query, ids[place] = found
        groups: dict[Any, list[int]] = {}
        for place, job in enumerate(jobs):
            if results[place] is None:
                asked, query = job.request, job.query
                alone = asked.filter is not None or asked.exclude is not None
                key = (
                    asked.k, asked.offset, asked.rank, asked.max_radius,
                    query is not None and query.fine is None, place if alone else -1,
                )  # fmt: skip
                groups.setdefault(key, []).append(place)
        for places in groups.values():
            try:
                answers = self._together([jobs[place] for place in places], ids, places)
            except Exception as error:
                answers = [error] * len(places)
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        spent = time.perf_counter() - began
        for job in jobs:
            job.clock.queue += began - job.since
            job.clock.search += spent
        return results

    def _together(
        self, jobs: Sequence[_Job], ids: dict[int, Id], places: Sequence[int]
    ) -> list[Any]:
        queries = [job.query for job in jobs if job.query is not None]
        leave_out = [
            [*job.leave_out, *([ids[place]] if place in ids else [])]
            for job, place in zip(jobs, places, strict=True)
        ]
        asked = jobs[0].request
        options: Options = {"offset": asked.offset, "rank": asked.rank, "filter": asked.filter}
        if asked.max_radius is not None:
            options["max_radius"] = asked.max_radius
        if asked.exclude is not None:
            options["exclude"] = asked.exclude
        fine = [query.fine for query in queries if query.fine is not None]
        together = Query(
            np.concatenate([query.codes for query in queries]),
            np.concatenate(fine) if fine else None,
        )
        # One hit more than asked for tells whether there are more.
        answers = self._queries.search(
            together, asked.k + 1, leave_out if any(leave_out) else (), **options
        )
        images = len(self._index)
        return [
            _Found(answers, row, lines, images, queries[row], ids.get(places[row]))
            for row, lines in enumerate(self._lines.write(answers.found))
        ]

    def _by_words(self, request: SearchRequest, clock: Clock) -> _Found:
        began = time.perf_counter()
        clock.queue = began - clock.began
        assert request.text is not None
        options: Options = {"offset": request.offset, "filter": request.filter}
        if request.exclude is not None:
            options["exclude"] = request.exclude
        if request.max_radius is not None:
            options["max_radius"] = request.max_radius
        if request.rank == "code":
            options["rank"] = request.rank  # refused, and told why
        answers = self._queries.by_words(request.text, request.k + 1, **options)
        (lines,) = self._lines.write(answers.found)
        clock.search = time.perf_counter() - began
        return _Found(answers, 0, lines, len(self._index), None)

    # Answers.

    def _explained(self, request: SearchRequest, found: _Found) -> list[bytes]:
        """The hits as JSON, each with why it is one."""
        hits = found.answers[found.row][: request.k]
        reasons = self._explain(request, found, hits)
        lines = [
            # The box of the region is replaced by what matched, if that is known.
            line[: line.rindex(b',"box":')]
            + b',"box":%b,"why":%b,"same":%b}'
            % (to_json(why.box), to_json(why.text), to_json(why.same))
            for line, why in zip(found.lines, reasons, strict=False)
        ]
        return lines + found.lines[request.k :]

    def _explain(self, request: SearchRequest, found: _Found, hits: Sequence[Hit]) -> list[Why]:
        words: dict[Id, list[str]] = {}
        if request.text is not None:
            named = [word for word, wanted in read_text(request.text) if wanted]
            words = {hit.id: named for hit in hits}
        whole = found.id if request.region is None else None
        if found.query is not None:
            words = self._queries.in_common(found.query, whole, [hit.id for hit in hits])
        picture = found.picture
        if picture is None and whole is not None:
            picture = self._reasons.small(self._queries.row(whole))
        rows = {}
        if picture is not None:
            alike = [hit.id for hit in hits if hit.similarity is not None][: 4 * COMPARED]
            rows = self._queries.rows(alike)
        return self._reasons.explain(hits, picture, rows, words)

    def _json(self, request: SearchRequest, found: _Found, clock: Clock) -> bytes:
        answers, row = found.answers, found.row
        hits = answers.effort(row)
        query = found.query if found.id is None or isinstance(request.region, list) else None
        rest = {
            "offset": request.offset,
            "k": request.k,
            "more": len(found.lines) > request.k,
            "rank": hits.rank,
            "visited": {
                "buckets": hits.buckets,
                "radius": hits.radius,
                "candidates": hits.candidates,
                "exact": hits.exact,
                "limited_by": hits.limited_by,
                "partial": hits.partial,
                "images": found.images,
                "text": hits.effort(),
            },
            "took": clock.to_dict(),
            "query": {"codes": None if query is None else self._tokens.write(query)},
        }
        lines = b",".join(found.lines[: request.k])
        return b'{"hits":[%b],%b' % (lines, to_json(rest)[1:])


def _example(one: Any) -> Example:
    return one if isinstance(one, Example) else Example(id=one)


def _unreadable(error: ImageError) -> ProblemError:
    reason = str(error).partition(": ")[2] or str(error)
    return ProblemError(422, "unreadable-picture", f"the picture cannot be read: {reason}")


def _row(query: Query, place: int) -> Query:
    fine = None if query.fine is None else query.fine[place : place + 1]
    return Query(query.codes[place : place + 1], fine)


def _not_stored(id: Id, error: Exception) -> Exception:
    return no_image(id) if isinstance(error, KeyError) else error
