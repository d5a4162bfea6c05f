"""Connections from a caller to the processes of shards, past Ray.

A call through Ray takes a millisecond of several processes. A shard's process therefore also
listens on a port, which it tells, with a random key, whoever asks through Ray. Only calls that
change nothing go this way. What is not answered here is asked through Ray: while a shard is being
restarted, or where a firewall closes the port.

Messages are read only from a caller that has sent the key, and are no pickles: see `wire.py`.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mchindex.cluster.wire import decode, encode

KEY_BYTES = 32
PATIENCE = 5.0  # seconds that a caller may take to send the key, or a shard to accept a caller
REST = 60.0  # seconds after which a port that could not be reached is tried again

Place = tuple[int, int]  # a shard, and which copy of it


class Door(NamedTuple):
    """Where a shard's process listens, and what it wants to hear first."""

    host: str
    port: int
    key: bytes


class Listener:
    """Answers calls that come in over connections."""

    def __init__(self, call: Callable[..., Any], host: str) -> None:
        """`call` gets the name of a method and its arguments, in a thread of each connection."""
        key = secrets.token_bytes(KEY_BYTES)

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                _answer(self.request, key, call)

        class Server(socketserver.ThreadingTCPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A caller that is gone is no news."""

        self._server = Server((host, 0), Handler)
        self.door = Door(host, self._server.server_address[1], key)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answer(line: socket.socket, key: bytes, call: Callable[..., Any]) -> None:
    """Answers the calls of one caller until it hangs up."""
    line.settimeout(PATIENCE)
    if not hmac.compare_digest(_exactly(line, KEY_BYTES), key):
        return
    line.settimeout(None)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        name, arguments = _receive(line)
        try:
            outcome = True, call(name, *arguments)
        except Exception as error:
            outcome = False, error
        _send(line, encode(outcome))


class Lines:
    """A caller's connections to shards. Several threads may use it, each with its own."""

    def __init__(self, package: Any, handle: Callable[[int, int], Any]) -> None:
        """`handle` returns the actor of a shard's copy."""
        self._ray, self._handle = package, handle
        self._lock = threading.Lock()
        self._idle: dict[Place, list[socket.socket]] = {}
        self._asked: dict[Place, Any] = {}  # calls of Ray that will tell the door
        self._doors: dict[Place, Door] = {}
        self._resting: dict[Place, float] = {}  # until when a port is not tried

    def ask(
        self, name: str, arguments: Mapping[Place, Sequence[Any]], wait: float
    ) -> dict[Place, Any]:
        """The answers that came within `wait` seconds. Raises what a shard raised."""
        end = time.monotonic() + wait
        under_way: dict[socket.socket, Place] = {}
        messages: dict[int, bytes] = {}  # shards often get the same arguments
        for place, given in arguments.items():
            if (line := self._take(place, end)) is None:
                continue
            if (message := messages.get(id(given))) is None:
                message = messages[id(given)] = encode((name, tuple(given)))
            try:
                _send(line, message, end)
            except OSError:
                self._drop(place, line)
            else:
                under_way[line] = place
        answers: dict[Place, Any] = {}
        error: Exception | None = None
        waiting = select.poll()
        numbers = {line.fileno(): line for line in under_way}
        for number in numbers:
            waiting.register(number, select.POLLIN)
        while under_way and (left := end - time.monotonic()) > 0:
            for number, _ in waiting.poll(1000 * left):
                waiting.unregister(number)
                line = numbers[number]
                place = under_way.pop(line)
                try:
                    done, answer = _receive(line, end)
                except (OSError, EOFError, ValueError):
                    self._drop(place, line)
                    continue
                with self._lock:
                    self._idle.setdefault(place, []).append(line)
                if done:
                    answers[place] = answer
                else:
                    error = answer
        for line, place in under_way.items():  # its answer would be taken for that to another call
            self._drop(place, line)
        if error is not None:
            raise error
        return answers

    def _take(self, place: Place, end: float) -> socket.socket | None:
        """A connection that nobody uses, or a new one; None if there cannot be one now, or not
        until a moment."""
        with self._lock:
            if idle := self._idle.get(place):
                return idle.pop()
            if time.monotonic() < self._resting.get(place, 0.0):
                return None
            door = self._door(place)
        if door is None:
            return None
        try:
            wait = max(0.001, min(PATIENCE, end - time.monotonic()))
            line = socket.create_connection((door.host, door.port), wait)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.sendall(door.key)
        except OSError:
            with self._lock:
                self._doors.pop(place, None)
                self._resting[place] = time.monotonic() + REST
            return None
        return line

    def _door(self, place: Place) -> Door | None:
        """Where a shard listens, as soon as Ray has told it."""
        if place not in self._doors:
            if place not in self._asked:
                self._asked[place] = self._handle(*place).call.remote("door")
            ready, _ = self._ray.wait([self._asked[place]], timeout=0)
            if not ready:
                return None
            try:
                self._doors[place] = self._ray.get(self._asked.pop(place))
            except self._ray.exceptions.RayError:  # it has died: Ray knows more
                return None
        return self._doors[place]

    def _drop(self, place: Place, line: socket.socket) -> None:
        """Closes all connections to a shard: its process has ended, or does not answer."""
        with self._lock:
            self._doors.pop(place, None)
            lines = [line, *self._idle.pop(place, ())]
        for each in lines:
            each.close()

    def close(self) -> None:
        with self._lock:
            lines = [line for idle in self._idle.values() for line in idle]
            self._idle.clear()
        for line in lines:
            line.close()


def _send(line: socket.socket, message: bytes, end: float | None = None) -> None:
    """Sends a message, until a moment at most. Raises OSError."""
    _limit(line, end)
    line.sendall(len(message).to_bytes(8, "little") + message)


def _receive(line: socket.socket, end: float | None = None) -> Any:
    """The value of a message. Raises OSError, EOFError at the end of the connection, and
    ValueError."""
    _limit(line, end)
    size = int.from_bytes(_exactly(line, 8), "little")
    return decode(_exactly(line, size))


def _limit(line: socket.socket, end: float | None) -> None:
    if end is not None:
        line.settimeout(max(0.001, end - time.monotonic()))


def _exactly(line: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = line.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return found
