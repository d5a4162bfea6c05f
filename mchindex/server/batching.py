"""Work of many callers, done together in threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from mchindex.server.problems import too_many

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """Collects what callers ask for and does it in batches, one after the other in each thread.

    While all threads work on batches, the next ones gather. If a thread is free, a batch waits
    `wait` seconds for company. Full batches are queued ahead, one per thread, so that no thread
    waits for the event loop.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[T]], Sequence[R | Exception]],
        most: int,
        queue: int,
        wait: float = 0.0,
        done: Callable[[int], None] = lambda size: None,
        threads: int = 1,
    ) -> None:
        """`work` gets at most `most` items and returns the outcome of each. Beyond `queue` waiting
        items, callers are turned away. `done` is told the size of each batch."""
        self._name, self._work, self._most = name, work, most
        self._queue, self._wait, self._done = queue, wait, done
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._gathering = False  # a batch waits for company
        self._free = threads  # less than 0 while batches are queued ahead
        self._ahead = threads
        self._threads = ThreadPoolExecutor(threads, f"mch-{name}")

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    async def __call__(self, item: T) -> R:
        """The outcome of one item. Raises what the work raised for it, or a 429 problem."""
        if len(self._waiting) >= self._queue:
            raise too_many(self._name)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append((item, future))
        if self._may_start() and not self._gathering:
            self._gathering = True
            if self._wait and self._free > 0:
                loop.call_later(self._wait, self._start)
            else:
                loop.call_soon(self._start)
        return await future

    def _may_start(self) -> bool:
        full = len(self._waiting) >= self._most
        return self._free > 0 or (full and self._free > -self._ahead)

    def _start(self) -> None:
        """Gives what waits to the threads."""
        self._gathering = False
        while self._may_start() and (batch := self._batch()):
            self._free -= 1
            self._done(len(batch))
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, self._work, [item for item, _ in batch])
            work.add_done_callback(partial(self._finish, batch))

    def _batch(self) -> list[tuple[T, asyncio.Future[R]]]:
        batch: list[tuple[T, asyncio.Future[R]]] = []
        while self._waiting and len(batch) < self._most:
            item, future = self._waiting.popleft()
            if not future.done():  # its caller has given up
                batch.append((item, future))
        return batch

    def _finish(
        self,
        batch: list[tuple[T, asyncio.Future[R]]],
        outcome: asyncio.Future[Sequence[R | Exception]],
    ) -> None:
        self._free += 1
        error = outcome.exception()
        results = [error] * len(batch) if error is not None else outcome.result()
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._start()

    def close(self) -> None:
        """Waits for the batches that are being worked on."""
        self._threads.shutdown()


class Pool:
    """Threads for work of one kind, with a limit on how much of it waits."""

    def __init__(self, name: str, threads: int, queue: int) -> None:
        self._name, self._queue = name, queue
        self._threads = ThreadPoolExecutor(threads, f"mch-{name}")
        self._count = 0

    def __len__(self) -> int:
        """How much is waiting or being worked on."""
        return self._count

    async def __call__(self, work: Callable[[], R]) -> R:
        if self._count >= self._queue:
            raise too_many(self._name)
        self._count += 1
        # Counted until it ends, even if its caller has given up: a thread cannot be stopped.
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        future.add_done_callback(self._ended)
        return await asyncio.shield(future)

    def _ended(self, future: asyncio.Future[R]) -> None:
        self._count -= 1
        if not future.cancelled():
            future.exception()  # seen, even if its caller has given up

    def close(self) -> None:
        """Waits for what is being worked on."""
        self._threads.shutdown(cancel_futures=True)
