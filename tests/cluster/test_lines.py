"""Connections to shards past Ray: whatever happens to them, a call is answered or left to Ray."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mchindex.cluster.lines import Door, Lines, Listener
from mchindex.cluster.wire import encode


class Ray:
    """What `Lines` needs of Ray: a call that tells a door, at once."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

    def __init__(self) -> None:
        self.doors: dict[tuple[int, int], Door | None] = {}
        self.asked = 0

    def handle(self, shard: int, copy: int) -> Any:
        ray = self

        class Handle:
            class call:  # noqa: N801
                @staticmethod
                def remote(name: str) -> tuple[int, int]:
                    assert name == "door"
                    ray.asked += 1
                    return shard, copy

        return Handle

    def wait(self, calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return calls, []

    def get(self, call: tuple[int, int]) -> Door:
        door = self.doors.get(call)
        if door is None:
            raise self.exceptions.RayError
        return door


def answer(name: str, *arguments: Any) -> Any:
    if name == "fail":
        raise KeyError(*arguments)
    if name == "sleep":
        time.sleep(arguments[0])
    return name, arguments


@pytest.fixture
def ray() -> Iterator[Ray]:
    listeners = [Listener(answer, "127.0.0.1") for _ in range(2)]
    ray = Ray()
    ray.doors = {(i, 0): listener.door for i, listener in enumerate(listeners)}
    yield ray
    for listener in listeners:
        listener.close()


def test_what_is_asked_and_answered_arrives(ray: Ray) -> None:
    lines = Lines(ray, ray.handle)

    @settings(max_examples=100, deadline=None)
    @given(values=st.lists(st.binary(max_size=300) | st.integers() | st.none(), max_size=4))
    def check(values: list[Any]) -> None:
        assert lines.ask("echo", {(0, 0): values}, 5) == {(0, 0): ("echo", tuple(values))}

    check()
    assert ray.asked == 1
    lines.close()


def test_large_messages_arrive(ray: Ray) -> None:
    lines = Lines(ray, ray.handle)
    data = bytes(20_000_000)
    assert lines.ask("echo", {(0, 0): [data]}, 20) == {(0, 0): ("echo", (data,))}
    lines.close()


def test_several_shards_are_asked_at_the_same_time(ray: Ray) -> None:
    lines = Lines(ray, ray.handle)
    began = time.monotonic()
    found = lines.ask("sleep", {(0, 0): [0.5], (1, 0): [0.5]}, 5)
    assert set(found) == {(0, 0), (1, 0)}
    assert time.monotonic() - began < 0.95
    lines.close()


def test_an_error_is_raised_and_the_connections_stay_usable(ray: Ray) -> None:
    lines = Lines(ray, ray.handle)
    with pytest.raises(KeyError, match="x"):
        lines.ask("fail", {(0, 0): ["x"], (1, 0): ["x"]}, 5)
    assert len(lines.ask("echo", {(0, 0): [1], (1, 0): [2]}, 5)) == 2
    assert ray.asked == 2
    lines.close()


def test_a_late_answer_is_not_taken_for_another(ray: Ray) -> None:
    lines = Lines(ray, ray.handle)
    assert lines.ask("sleep", {(0, 0): [0.4]}, 0.1) == {}
    assert lines.ask("echo", {(0, 0): [7]}, 5) == {(0, 0): ("echo", (7,))}
    time.sleep(0.5)
    assert lines.ask("echo", {(0, 0): [8]}, 5) == {(0, 0): ("echo", (8,))}
    lines.close()


def test_a_shard_that_is_gone_is_left_to_ray_until_it_listens_again() -> None:
    listener = Listener(answer, "127.0.0.1")
    ray = Ray()
    ray.doors[0, 0] = listener.door
    lines = Lines(ray, ray.handle)
    assert lines.ask("echo", {(0, 0): []}, 5)
    for line in lines._idle[0, 0]:
        line.shutdown(socket.SHUT_RDWR)  # as if its process had ended
    ray.doors[0, 0] = None
    assert lines.ask("echo", {(0, 0): []}, 5) == {}
    assert lines.ask("echo", {(0, 0): []}, 5) == {}
    listener.close()
    listener = Listener(answer, "127.0.0.1")
    ray.doors[0, 0] = listener.door
    assert lines.ask("echo", {(0, 0): []}, 5)
    lines.close()
    listener.close()


def test_a_port_that_cannot_be_reached_is_not_tried_all_the_time() -> None:
    ray = Ray()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        ray.doors[0, 0] = Door("127.0.0.1", taken.getsockname()[1], bytes(32))
        lines = Lines(ray, ray.handle)
        for _ in range(3):
            assert lines.ask("echo", {(0, 0): []}, 5) == {}
    assert ray.asked == 1


@pytest.mark.parametrize("key", [b"", b"short", bytes(32), None])
def test_without_the_key_nothing_is_read(key: bytes | None) -> None:
    called = threading.Event()
    listener = Listener(lambda *_: called.set(), "127.0.0.1")
    wrong = bytes(31) + bytes([listener.door.key[-1]]) if key is None else key
    message = encode(("echo", ()))
    with socket.create_connection((listener.door.host, listener.door.port)) as line:
        line.sendall(wrong + len(message).to_bytes(8, "little") + message)
        with contextlib.suppress(OSError):  # it may have hung up already
            line.shutdown(socket.SHUT_WR)
        line.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(1) == b""
    assert not called.is_set()
    listener.close()


def test_many_threads_each_get_their_own_answers(ray: Ray) -> None:
    lines = Lines(ray, ray.handle)
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(100):
            place = turn % 2, 0
            found = lines.ask("echo", {place: [number, turn]}, 5)
            if found != {place: ("echo", (number, turn))}:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    lines.close()
