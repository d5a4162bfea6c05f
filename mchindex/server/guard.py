"""Stands before everything else: who may call, from where, how much, and for how long.

It also sets the headers that browsers need to keep a page safe, counts requests, and makes sure
that no exception reaches a caller as anything but a problem.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mchindex.server.metrics import Metrics
from mchindex.server.problems import MEDIA_TYPE, ProblemError, busy, problem_of, too_large
from mchindex.server.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ACCESS = "mchindex.access"  # the key of a request's `Access` in its scope
# What anyone may get: it says nothing about the index.
OPEN = {"/", "/healthz", "/livez", "/readyz", "/docs", "/openapi.json", "/favicon.ico"}
OPEN_FOLDER = "/assets/"
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_OWN_SITES = {b"same-origin", b"none"}  # "same-site" is another port of the same machine

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]

log = logging.getLogger("mchindex.server")


@dataclass(frozen=True)
class Access:
    """What a caller may do."""

    read: bool = True
    write: bool = True
    delete: bool = False  # files


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._limits = settings.limits
        self._keys = [
            (key.encode(), Access(write=write, delete=write and settings.allow_delete))
            for key, write in ((settings.key, True), (settings.read_key, False))
            if key is not None
        ]
        names = {"localhost", settings.host.lower(), socket.gethostname().lower()}
        self._hosts = names | {name.lower() for name in settings.hosts}
        self._running = 0  # requests
        self._held = 0  # bytes of requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
            return
        began = time.perf_counter()
        body = _Body(self, receive)
        answer = _Answer(send)
        self._running += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                self._admit(scope)
                await self._app(scope, body.receive, answer.send)
        except Exception as error:
            problem = body.problem or problem_of(error)
            if isinstance(error, TimeoutError) and body.begun and not body.complete:
                problem = ProblemError(408, "slow", "the request took too long to arrive")
            await answer.fail(problem, close=body.begun and not body.complete)
        finally:
            self._running -= 1
            self._held -= body.held
            self._metrics.request(scope, answer.status, time.perf_counter() - began)

    def _admit(self, scope: Scope) -> None:
        """Raises a problem for a request that is not to be answered."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in headers and name in (b"host", b"origin", b"api-key", b"content-length"):
                raise ProblemError(400, "invalid", f"the header {name.decode()} is there twice")
            headers[name] = value
        self._check_host(headers.get(b"host"))
        path, method = scope["path"], scope["method"]
        open_to_all = path in OPEN or path.startswith(OPEN_FOLDER)
        if not open_to_all or method not in _SAFE_METHODS:
            _check_site(headers)
        if open_to_all and path not in ("/livez", "/healthz"):
            scope[ACCESS] = Access(read=False, write=False)
        elif not open_to_all:
            scope[ACCESS] = self._access(headers)
        if self._running > self._limits.requests:
            raise busy("the service has too much to do: try again later")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise ProblemError(400, "invalid", "the header content-length must be a number")
        if int(length) > self._limits.request:
            raise too_large("a request", self._limits.request)

    def _check_host(self, host: bytes | None) -> None:
        """Refuses names that are not the service's own. Otherwise, a page of another site could
        make its own name lead here, and read what the service answers (DNS rebinding). Numbers are
        no names, so nobody can do that with them."""
        if host is None:
            raise ProblemError(400, "invalid", "the header host is missing")
        name = _name_of(host.decode("latin-1"))
        if name in self._hosts or _is_address(name):
            return
        raise ProblemError(
            421, "unknown-host",
            "this service is not called by this name: start it with --allow-host NAME to allow it",
        )  # fmt: skip

    def _access(self, headers: dict[bytes, bytes]) -> Access:
        if not self._keys:
            return Access()
        given = headers.get(b"api-key")
        bearer = headers.get(b"authorization", b"")
        if given is None and bearer[:7].lower() == b"bearer ":
            given = bearer[7:].strip()
        found = None
        for key, access in self._keys:  # all of them, so that the time tells nothing
            if hmac.compare_digest(key, given or b""):
                found = access
        if found is None:
            what = "a key is needed" if given is None else "the key is wrong"
            raise ProblemError(
                401, "key", f"{what}: send it in the header api-key, or as a bearer token",
                {"www-authenticate": "Bearer"},
            )  # fmt: skip
        return found

    def hold(self, count: int) -> None:
        """Counts bytes of a request that are in memory or in a temporary file."""
        if self._held + count > self._limits.held:
            raise ProblemError(
                429, "too-many", "too much is being sent at the same time: try again later",
                {"retry-after": "1"},
            )  # fmt: skip
        self._held += count

    @property
    def most(self) -> int:
        """Bytes of a request."""
        return self._limits.request


class _Body:
    """The body of a request, within the limits."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self._guard, self._receive = guard, receive
        self.held = 0
        self.begun = self.complete = False
        self.problem: ProblemError | None = (
            None  # what was wrong with it, whatever others make of it
        )

    async def receive(self) -> Message:
        self.begun = True
        message = await self._receive()
        self.complete = not message.get("more_body", False)
        if size := len(message.get("body", b"")):
            try:
                if self.held + size > self._guard.most:
                    raise too_large("a request", self._guard.most)
                self._guard.hold(size)
            except ProblemError as problem:
                self.problem = problem
                raise
            self.held += size
        return message


class _Answer:
    """What is sent back, with the headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self._complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            if not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers + HEADERS}
        elif not message.get("more_body"):
            self._complete = True
        await self._send(message)

    async def fail(self, problem: ProblemError, close: bool) -> None:
        """Sends a problem. `close`: what is left of the request is not read."""
        if self._complete:
            return
        if self.status:  # too late for an answer: the connection ends
            log.error("an answer broke off: %s", problem.detail)
            raise ConnectionError("an answer broke off")
        body = problem.body()
        more = [(name.encode(), value.encode()) for name, value in problem.headers.items()]
        if close:
            more.append((b"connection", b"close"))
        kind, length = MEDIA_TYPE.encode(), str(len(body)).encode()
        start = {
            "type": "http.response.start",
            "status": problem.status,
            "headers": [(b"content-type", kind), (b"content-length", length), *more],
        }
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})


def _check_site(headers: dict[bytes, bytes]) -> None:
    """Refuses what a browser sends on behalf of a page of another site."""
    site = headers.get(b"sec-fetch-site")
    origin = headers.get(b"origin")
    own = headers.get(b"host", b"").decode("latin-1").lower()
    if (site is not None and site not in _OWN_SITES) or (
        origin is not None and urlsplit(origin.decode("latin-1")).netloc.lower() != own
    ):
        raise ProblemError(403, "cross-site", "pages of other sites may not call this service")


def _name_of(host: str) -> str:
    """The host without its port."""
    if host.startswith("["):
        return host[: host.find("]") + 1].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
