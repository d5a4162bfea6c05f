"""An index that a service holds, as an object with the methods of `MCHIndex`.

A request that cannot be sent, or that the service has no time for, is sent again for a while, so
that a service may be restarted. That does no harm: adding the same picture twice adds it once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import httpx

from mchindex.client import calls
from mchindex.client.calls import Call
from mchindex.errors import ServiceError
from mchindex.index.adding import Added
from mchindex.index.duplicates import Decision, Duplicates, Level
from mchindex.index.inputs import one_image
from mchindex.index.results import Hits
from mchindex.storage.records import Id

T = TypeVar("T")
TIMEOUT = 60.0  # seconds for one request
PATIENCE = 10.0  # seconds during which a request is sent again
PAUSE = 0.1  # seconds before that, doubled each time
AGAIN = (429, 503)  # the service has no time


def connect(
    url: str, api_key: str | None = None, *, timeout: float = TIMEOUT, patience: float = PATIENCE
) -> RemoteIndex:
    """Connects to a service that `mch serve` runs.

    Args:
        url: Its address, such as "http://127.0.0.1:8000".
        api_key: The key that the service asks for, if any.
        timeout: How many seconds one request may take.
        patience: For how many seconds a request that cannot be sent, or that the service has no
            time for, is sent again.

    Returns:
        The index that the service holds. Close it, or use it in a `with` statement.
    """
    return RemoteIndex(httpx.Client(**_options(url, api_key, timeout)), patience)


def connect_async(
    url: str, api_key: str | None = None, *, timeout: float = TIMEOUT, patience: float = PATIENCE
) -> AsyncRemoteIndex:
    """Like `connect`, with methods to await.

    Args:
        url: As for `connect`.
        api_key: As for `connect`.
        timeout: As for `connect`.
        patience: As for `connect`.

    Returns:
        The index that the service holds.
    """
    return AsyncRemoteIndex(httpx.AsyncClient(**_options(url, api_key, timeout)), patience)


def _options(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    headers = {} if api_key is None else {"api-key": api_key}
    # No proxy of the environment gets the key.
    return {"base_url": url, "headers": headers, "timeout": timeout, "trust_env": False}


class _Remote:
    """What both kinds of client share."""

    def __init__(self, patience: float) -> None:
        self._patience = patience

    def _request(self, call: Call[T]) -> dict[str, Any]:
        request: dict[str, Any] = {"method": call.method, "url": call.path, "params": call.params}
        if call.files:
            request |= {"files": call.files, "data": dict(call.form)}
        elif call.json is not None:
            request["json"] = call.json
        return request

    def _read(self, call: Call[T], response: httpx.Response) -> T:
        if response.is_success:
            kind = response.headers.get("content-type", "")
            return call.read(response.json() if "json" in kind else response.content)
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict):
            problem = {"status": response.status_code, "detail": response.reason_phrase}
        raise calls.refused(problem)

    def _wait(self, began: float, tries: int, response: httpx.Response | None) -> float | None:
        """Seconds to wait before a request is sent again; None if it is not."""
        if response is not None and response.status_code not in AGAIN:
            return None
        pause = min(2.0, PAUSE * 2**tries)
        return pause if time.monotonic() + pause < began + self._patience else None


def _gone(url: Any, error: Exception) -> ServiceError:
    return ServiceError(None, f"the service at {url} cannot be reached: {error}")


class RemoteIndex(_Remote):
    """An index that a service holds. `connect` makes one."""

    def __init__(self, client: httpx.Client, patience: float = PATIENCE) -> None:
        super().__init__(patience)
        self._client = client

    def _do(self, call: Call[T]) -> T:
        began, tries = time.monotonic(), 0
        while True:
            response, error = None, None
            try:
                response = self._client.request(**self._request(call))
            except httpx.TransportError as failure:
                error = failure
            pause = self._wait(began, tries, response)
            if pause is None:
                if response is None:
                    raise _gone(self._client.base_url, error or RuntimeError()) from error
                return self._read(call, response)
            tries += 1
            time.sleep(pause)

    def search(
        self, query: Any = None, k: int = 10, *, id: Id | None = None, region: Any = None,
        like: Any = None, unlike: Any = (), text: str | None = None, codes: str | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Searches as `MCHIndex.search` does.

        Args:
            query: A picture or several: a file name, bytes, a file object, a Pillow image or an
                array.
            k: The number of images to find.
            id: Instead of a query: an image in the index.
            region: A box in pixels or, with `id`, a box or the name of a region.
            like: Several pictures or ids; text is an id.
            unlike: With `like`: what hits should not be like.
            text: Names of things.
            codes: The `query.codes` of an earlier answer, which repeat its search.
            **options: The further options of `MCHIndex.search`.

        Returns:
            Hits; for several pictures, a list of them.

        Raises:
            ServiceRefusedError: The service does not allow this.
            ServiceError: The service cannot be reached, or has no time.
        """
        if query is not None and not one_image(query):
            return self._do(calls.searches(query, k, region, options))
        return self._do(calls.search(query, k, id, region, like, unlike, text, codes, options))

    def add(
        self, images: Any, ids: Any = None, *, metadata: Mapping[str, Any] | None = None
    ) -> Added:
        """Sends pictures, which the service keeps and adds. What it returned for is on disk.

        Args:
            images: Files, folders, or, with names in `ids`, pictures in memory.
            ids: The names of pictures in memory.
            metadata: One mapping for all of them.

        Returns:
            What became of each picture.

        Raises:
            ServiceRefusedError: The service does not allow this.
            ServiceError: The service cannot be reached, or has no time.
        """
        return calls.joined(self._do(call) for call in calls.additions(images, ids, metadata))

    def remove(self, ids: Id | Iterable[Id], *, files: bool = False) -> int:
        """Removes images, and with `files` their files, if the service allows that."""
        return self._do(calls.remove(ids, files))

    def duplicates(self, level: Level = "copy") -> Duplicates:
        """See `MCHIndex.duplicates`."""
        pages = [self._do(calls.duplicates(level, None))]
        while pages[-1]["next"] is not None:
            pages.append(self._do(calls.duplicates(level, pages[-1]["next"])))
        return calls.read_duplicates(pages)

    def decide(self, decisions: Mapping[Id, Decision | None]) -> None:
        """See `MCHIndex.decide`."""
        self._do(calls.decide(decisions))

    def decisions(self) -> dict[Id, Decision]:
        """See `MCHIndex.decisions`."""
        return self._do(calls.decisions())

    def words(self, prefix: str = "") -> list[str]:
        """See `MCHIndex.words`."""
        return self._do(calls.words(prefix))

    def images(self, filter: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The images, oldest first: id, name, width, height, bytes, modified, metadata."""
        cursor = None
        while True:
            page = self._do(calls.page(cursor, filter))
            yield from page["images"]
            if (cursor := page["next"]) is None:
                return

    def ids(self, filter: Mapping[str, Any] | None = None) -> list[Id]:
        return [image["id"] for image in self.images(filter)]

    def count(self, filter: Mapping[str, Any] | None = None) -> int:
        return int(self._do(calls.page(None, filter, 1))["total"])

    def stats(self) -> dict[str, Any]:
        """What the service tells about the index, and what this key may do."""
        return self._do(calls.info())

    def thumbnail(self, id: Id, size: int = 256) -> bytes:
        """A small version of an image, as the bytes of a JPEG file."""
        return self._do(calls.thumbnail(id, size))

    def __getitem__(self, id: Id) -> dict[str, Any]:
        return self._do(calls.image(id))

    def __contains__(self, id: object) -> bool:
        if not isinstance(id, (str, int)):
            return False
        try:
            self._do(calls.image(id))
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[Id]:
        return (image["id"] for image in self.images())

    def __len__(self) -> int:
        return int(self._do(calls.info())["images"])

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> RemoteIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncRemoteIndex(_Remote):
    """An index that a service holds, with methods to await. `connect_async` makes one."""

    def __init__(self, client: httpx.AsyncClient, patience: float = PATIENCE) -> None:
        super().__init__(patience)
        self._client = client

    async def _do(self, call: Call[T]) -> T:
        began, tries = time.monotonic(), 0
        while True:
            response, error = None, None
            try:
                response = await self._client.request(**self._request(call))
            except httpx.TransportError as failure:
                error = failure
            pause = self._wait(began, tries, response)
            if pause is None:
                if response is None:
                    raise _gone(self._client.base_url, error or RuntimeError()) from error
                return self._read(call, response)
            tries += 1
            await asyncio.sleep(pause)

    async def search(
        self, query: Any = None, k: int = 10, *, id: Id | None = None, region: Any = None,
        like: Any = None, unlike: Any = (), text: str | None = None, codes: str | None = None,
        **options: Any,
    ) -> Hits:  # fmt: skip
        """See `RemoteIndex.search`; one query per call."""
        call = calls.search(query, k, id, region, like, unlike, text, codes, options)
        return await self._do(call)

    async def add(
        self, images: Any, ids: Any = None, *, metadata: Mapping[str, Any] | None = None
    ) -> Added:
        """See `RemoteIndex.add`."""
        parts = [await self._do(call) for call in calls.additions(images, ids, metadata)]
        return calls.joined(parts)

    async def remove(self, ids: Id | Iterable[Id], *, files: bool = False) -> int:
        return await self._do(calls.remove(ids, files))

    async def duplicates(self, level: Level = "copy") -> Duplicates:
        pages = [await self._do(calls.duplicates(level, None))]
        while pages[-1]["next"] is not None:
            pages.append(await self._do(calls.duplicates(level, pages[-1]["next"])))
        return calls.read_duplicates(pages)

    async def decide(self, decisions: Mapping[Id, Decision | None]) -> None:
        await self._do(calls.decide(decisions))

    async def decisions(self) -> dict[Id, Decision]:
        return await self._do(calls.decisions())

    async def words(self, prefix: str = "") -> list[str]:
        return await self._do(calls.words(prefix))

    async def images(
        self, filter: Mapping[str, Any] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        cursor = None
        while True:
            page = await self._do(calls.page(cursor, filter))
            for image in page["images"]:
                yield image
            if (cursor := page["next"]) is None:
                return

    async def count(self, filter: Mapping[str, Any] | None = None) -> int:
        return int((await self._do(calls.page(None, filter, 1)))["total"])

    async def stats(self) -> dict[str, Any]:
        return await self._do(calls.info())

    async def image(self, id: Id) -> dict[str, Any]:
        return await self._do(calls.image(id))

    async def thumbnail(self, id: Id, size: int = 256) -> bytes:
        return await self._do(calls.thumbnail(id, size))

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> AsyncRemoteIndex:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
