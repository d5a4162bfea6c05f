"""HTTP as uvicorn speaks it, with limits on headers: their size, and how long they may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from mchindex.server.guard import HEADERS
from mchindex.server.problems import MEDIA_TYPE, ProblemError

LARGEST_HEAD = 64 << 10  # bytes of a request before its body
SECONDS = 10.0  # for these, and for what a refused client goes on sending
CONNECTIONS = 2_048  # at the same time


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head = 0  # bytes received while headers are incomplete
        self._in_head = True
        self._refused = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
            return
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._in_head and not self._over:
            self._head += len(data)
            if self._head > LARGEST_HEAD:
                self._refuse(431, f"the headers may have at most {LARGEST_HEAD:,} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head = True, 0
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_waiting()
        if self._refused:  # an earlier request in the same data
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > LARGEST_HEAD:
            self._refuse(431, f"the headers may have at most {LARGEST_HEAD:,} bytes")
            return
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if not self._over:
            self._refuse(400, "this is not a valid HTTP request")

    @property
    def _over(self) -> bool:
        return self._refused or self.transport.is_closing()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        if self._in_head and not self._over:
            self._refuse(408, f"the headers must arrive within {SECONDS:.0f} seconds")

    def _refuse(self, status: int, detail: str) -> None:
        """Answers, and closes the connection.

        A client that is still sending would get a reset instead of the answer if the connection
        were closed at once. So what it sends is read and thrown away for a while.
        """
        self._refused = True
        self._stop_waiting()
        body = ProblemError(status, "refused", detail).body()
        headers = [
            *HEADERS,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(SECONDS, self.transport.close)
        else:
            self.transport.close()
