"""Encodes images for a cluster in processes of Ray, one per core.

They get the names of files, read, decode and encode them, and return codes: pictures never travel.
Files are sent in groups, of which few are under way at a time, and what comes back is stored in the
order in which the images were given, as one process would store them.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mchindex.cluster.manifest import Manifest
from mchindex.cluster.shards import LocalOpener
from mchindex.cluster.store import ClusterStore
from mchindex.errors import StoreError
from mchindex.index.adding import PATIENCE, Adding, Codes, Encoding, groups
from mchindex.index.inputs import Item
from mchindex.index.model import IndexModel

TOGETHER = 32  # files that are encoded by one call
AHEAD = 2  # calls under way per encoder
TRIES = 3  # for files whose encoder dies
WAIT = 300.0  # seconds in which Ray must start an encoder


class Outcome(NamedTuple):
    """What an encoder found out about a file; the fields are those of `Item`."""

    size: int | None
    time: int | None
    hash: bytes | None
    width: int
    height: int
    error: str | None
    extra: str | None
    decoded: bool

    @classmethod
    def of(cls, item: Item) -> Outcome:
        return cls(*(getattr(item, name) for name in cls._fields))

    def put(self, item: Item) -> None:
        for name, value in zip(self._fields, self, strict=True):
            setattr(item, name, value)
        item.source = None


class Encoder:
    """Encodes files with the model of a cluster. It runs in a process of its own."""

    def __init__(self, folder: str, manifest: Manifest, device: str | None, threads: int) -> None:
        from mchindex.inference.threads import set_threads

        set_threads(threads)
        store = ClusterStore(Path(folder), manifest, LocalOpener())
        self._model = IndexModel(store, None, None, 0.0, device, None).model

    def pid(self) -> int:
        return os.getpid()

    def encode(
        self, items: Sequence[Item], update: bool, again: bool
    ) -> tuple[list[Outcome], list[Codes]]:
        """What became of each file, and the codes of those that were decoded."""
        encoding = Encoding(self._model, len(items), update, again)
        done = list(encoding.encoded(iter(items)))
        return (
            [Outcome.of(item) for batch, _ in done for item in batch],
            [codes for _, some in done for codes in some],
        )


class _Call:
    """Files that an encoder reads."""

    def __init__(self, items: Sequence[Item], tries: int = TRIES) -> None:
        self.items, self.left = list(items), tries
        self.answer: Any = None
        self.encoder: Any = None


class Pool:
    """Encoders that run. One that dies is replaced; another encodes its files meanwhile."""

    def __init__(self, package: Any, size: int, arguments: Sequence[Any], gpu: bool) -> None:
        """`arguments` are those of `Encoder`."""
        self.size = size
        self._ray, self._arguments = package, arguments
        self._options = {"num_cpus": 1, "num_gpus": int(gpu)}
        self._starting: dict[Any, Any] = {}  # encoders by the call that says that they run
        self._running: Counter[Any] = Counter()  # encoders, and the calls that they have to answer
        for _ in range(size):
            self._start()

    def _start(self) -> None:
        encoder = self._ray.remote(Encoder).options(**self._options).remote(*self._arguments)
        self._starting[encoder.pid.remote()] = encoder

    def _ready(self) -> Any:
        """The encoder with the least to do."""
        if self._starting:
            wait = None if self._running else WAIT
            started, _ = self._ray.wait(list(self._starting), timeout=wait or 0)
            for call in started:
                encoder = self._starting.pop(call)
                try:
                    self._ray.get(call)
                    self._running[encoder] = 0
                except self._ray.exceptions.RayActorError as error:
                    if error.actor_init_failed:
                        raise StoreError(f"an encoder could not be started: {error}") from None
                    self._start()
        if not self._running:
            if self._starting:
                raise StoreError(
                    f"Ray started no encoder in {WAIT:g} s: an encoder needs a free core"
                )
            return self._ready()
        return min(self._running, key=self._running.__getitem__)

    def send(self, call: _Call, update: bool, again: bool) -> _Call:
        call.encoder = self._ready()
        self._running[call.encoder] += 1
        call.answer = call.encoder.encode.remote(call.items, update, again)
        return call

    def result(self, call: _Call, update: bool, again: bool) -> tuple[list[Outcome], list[Codes]]:
        """What became of the files of a call. A file that ends every encoder fails."""
        while True:
            try:
                found: tuple[list[Outcome], list[Codes]] = self._ray.get(call.answer)
                self._running[call.encoder] -= 1
                return found
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.RayError:
                if self._running.pop(call.encoder, None) is not None:
                    self._start()
            call.left -= 1
            if call.left:
                self.send(call, update, again)
            elif len(call.items) > 1:  # one of them may be the reason
                each = [
                    self.result(self.send(_Call([item], 2), update, again), update, again)
                    for item in call.items
                ]
                return [o for some, _ in each for o in some], [c for _, some in each for c in some]
            else:
                reason = "the process that read it ended: it may need too much memory"
                return [Outcome(None, None, None, 0, 0, reason, None, False)], []

    def close(self) -> None:
        for encoder in (*self._running, *self._starting.values()):
            self._ray.kill(encoder)


class ClusterAdding(Adding):
    """One run of `add`, which encodes files in other processes."""

    def __init__(self, *arguments: Any, start: Callable[[], Pool]) -> None:
        """`start` starts the processes."""
        super().__init__(*arguments)
        self._start = start
        self._pool: Pool | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def encoded(self, items: Iterator[Item]) -> Iterator[tuple[list[Item], list[Codes]]]:
        first = list(itertools.islice(items, 1 + TOGETHER))
        items = itertools.chain(first, items)
        if len(first) <= TOGETHER:  # not worth the start of a process
            yield from super().encoded(items)
        else:
            self._pool = self._start()
            yield from self._from(self._pool, items)

    def _from(self, pool: Pool, items: Iterator[Item]) -> Iterator[tuple[list[Item], list[Codes]]]:
        waiting: deque[tuple[list[Item], _Call | None]] = deque()
        batch: list[Item] = []
        codes: list[Codes] = []
        last = time.monotonic()
        several = groups(items, TOGETHER)
        while True:
            while len(waiting) < AHEAD * pool.size and (group := next(several, None)):
                waiting.append((group, self._sent(pool, group)))
            if not waiting:
                break
            for done, some in self._received(pool, *waiting.popleft()):
                batch += done
                codes += some
            if len(batch) >= self._batch or time.monotonic() - last > PATIENCE:
                yield batch, codes
                batch, codes, last = [], [], time.monotonic()
        if batch:
            yield batch, codes

    def _sent(self, pool: Pool, items: list[Item]) -> _Call | None:
        """The call that reads the items that have changed; None if this process encodes them."""
        if any(item.path is None for item in items):  # pictures in memory
            return None
        call = _Call([item for item in items if not self._skip(item)])
        return pool.send(call, self._update, self._again) if call.items else call

    def _received(
        self, pool: Pool, items: list[Item], call: _Call | None
    ) -> Iterator[tuple[list[Item], list[Codes]]]:
        if call is None:
            yield from super().encoded(iter(items))
            return
        codes: list[Codes] = []
        if call.items:
            outcomes, codes = pool.result(call, self._update, self._again)
            for item, outcome in zip(call.items, outcomes, strict=True):
                outcome.put(item)
        yield items, codes
