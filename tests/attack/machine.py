"""A state machine over an index on disk, with faults, checked against a dictionary.

`python -m attack.machine FOLDER SEED EXAMPLES STEPS` runs it in FOLDER; `faults.preloaded` gives
the environment. Hypothesis draws steps: adding, removing, importing, forking, closing in the midst
of writing, and more. Many steps run while the file system fails or a signal arrives. After each
step, the index must hold what the dictionary says and answer searches as a brute-force search of
the dictionary does. An operation that failed may have committed the first few of its batches, and
must have committed those that it had reported; nothing else may have changed. Only MCHError, or
KeyboardInterrupt after SIGINT, may be raised.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from numpy.typing import NDArray

import mchindex.index.adding
import mchindex.index.facade
import mchindex.index.table
import mchindex.storage.schema
import mchindex.storage.store
from attack.faults import CHANGES, FOREVER, NAME, OPEN, READ, RESIZE, SYNC, WRITE, Faults
from helpers.indexes import BITS, codes_for, drawn, fields_of, painted, tiny_fine_model
from helpers.oracle import Oracle
from helpers.threads import run
from mchindex import MCHIndex
from mchindex.errors import MCHError, StoreError
from mchindex.index.export import created, export_index
from mchindex.index.importing import import_index
from mchindex.index.verify import verify

Id = int | str
BULK = 3  # images per commit of `add_codes` and of an import
FAILED = 3  # exit status of a child whose operation raised MCHError


class Image(NamedTuple):
    """What the dictionary knows of an image."""

    fields: tuple[Any, ...]  # as `fields_of` gives them
    picture: tuple[str, int, int] | None = None  # what it was made of; None for codes
    fine: bytes | None = None  # its fine codes; codes that were given have none

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.fields[1])

    def with_metadata(self, metadata: dict[str, Any]) -> Image:
        return self._replace(fields=(self.fields[0], metadata, *self.fields[2:]))


State = dict[Id, Image]  # oldest first


class Fault(NamedTuple):
    """Calls of some kinds fail, after some have succeeded."""

    calls: int
    after: int
    error: int = 0
    signal: int = 0
    times: int = FOREVER


class Room(NamedTuple):
    """A small disk is filled until only this many bytes are free."""

    left: int


@cache
def coded(id: Id, version: int) -> Image:
    """The image that `add_codes` stores, without metadata."""
    with MCHIndex(tiny_fine_model()) as index:
        add_codes(index, [id], version, None)
        return Image(fields_of(index[id]))


@cache
def pictured(kind: str, seed: int, version: int) -> Image:
    """The image that `add` stores for a picture in memory, without metadata."""
    with MCHIndex(tiny_fine_model()) as index:
        index.add([drawn(seed, version)], [seed], progress=False)
        ((_, fine),) = fine_codes(index).items()
        return Image(fields_of(index[seed]), (kind, seed, version), fine)


def fine_codes(index: MCHIndex) -> dict[Id, bytes]:
    """The fine codes in the store, by id."""
    keys = {known.key: id for id, known in index._store.known(list(index)).items()}
    return {keys[key]: blob[:-4] for key, blob in index._store.fine(list(keys)).items()}


def number(id: Id) -> int:
    return id % 1000 if isinstance(id, int) else sum(id.encode())


def add_codes(
    index: MCHIndex, ids: Sequence[Id], version: int, metadata: dict[str, Any] | None
) -> None:
    rows = [codes_for(number(id), version) for id in ids]
    index.add_codes(
        [id for id, codes in zip(ids, rows, strict=True) for _ in codes],
        np.concatenate(rows),
        np.concatenate([np.arange(len(codes)) for codes in rows]),
        metadata=[metadata] * len(ids),
    )


def put(state: State, id: Id, image: Image) -> State:
    return {i: old for i, old in state.items() if i != id} | {id: image}


def without(state: State, ids: Sequence[Id]) -> State:
    return {i: image for i, image in state.items() if i not in ids}


def in_batches(state: State, images: Sequence[tuple[Id, Image]], size: int) -> list[State]:
    """The states after each batch of images has been stored, beginning with none."""
    states = [state]
    for start in range(0, len(images), size):
        for id, image in images[start : start + size]:
            state = put(state, id, image)
        states.append(state)
    return states


def answer(state: State, code: NDArray[np.uint8], k: int, allowed: set[Id] | None) -> list[Any]:
    """What a search for a code must find: ids, distances and regions."""
    oracle, names = Oracle(BITS), list(state)
    regions = tiny_fine_model().layout.names
    for key, image in enumerate(state.values()):
        codes = np.frombuffer(image.fields[-1], np.uint8).reshape(-1, BITS // 8)
        oracle.add([key] * len(codes), codes, map(regions.index, image.fields[3]))
    keys = None if allowed is None else [names.index(i) for i in allowed if i in state]
    found = oracle.search(code[None], k, allowed=keys)
    rows = zip(found["ids"][0], found["distances"][0], found["regions"][0], strict=True)
    return [(names[key], int(d), regions[r]) for key, d, r in rows if key >= 0]


def searched(index: MCHIndex, code: NDArray[np.uint8], k: int, **limits: Any) -> list[Any]:
    return [(hit.id, hit.distance, hit.region) for hit in index.search_codes(code, k, **limits)]


def matches(metadata: dict[str, Any], filter: dict[str, Any]) -> bool:
    """Whether metadata matches a filter of one condition, as docs describe filters."""
    ((key, wanted),) = filter.items()
    value = metadata.get(key)
    if wanted is None:
        return value is None
    if isinstance(wanted, list):
        return value in wanted
    if isinstance(wanted, dict):
        ((operator, limit),) = wanted.items()
        return value != limit if operator == "!=" else value is not None and value >= limit
    return bool(value == wanted)


IDS = st.one_of(st.integers(0, 9), st.sampled_from(["a", "b", "c", "é", "x y"]))
MANY = st.lists(IDS, min_size=1, max_size=8, unique=True)
SEEDS = st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True)
VERSIONS = st.integers(0, 2)
TAGS = st.sampled_from(["x", "x\0y", "é"])
METADATA = st.none() | st.fixed_dictionaries({"n": st.integers(0, 2)}, optional={"tag": TAGS})
FILTERS = st.one_of(
    st.fixed_dictionaries({"n": st.integers(0, 2)}),
    st.fixed_dictionaries({"n": st.fixed_dictionaries({">=": st.integers(0, 2)})}),
    st.fixed_dictionaries({"tag": st.none() | TAGS | st.lists(TAGS, max_size=2)}),
    st.fixed_dictionaries({"tag": st.fixed_dictionaries({"!=": TAGS})}),
)
CALLS = st.sampled_from([READ, WRITE, SYNC, RESIZE, OPEN, NAME, CHANGES])
AFTER = st.integers(0, 3) | st.integers(0, 30)
ERRORS = st.sampled_from([errno.ENOSPC, errno.EIO])
BROKEN = st.builds(Fault, CALLS, AFTER, ERRORS, st.just(0), st.sampled_from([1, FOREVER]))
UNREADABLE = st.builds(Fault, st.just(READ), AFTER, st.just(errno.EIO), st.just(0), st.just(1))
INTERRUPTED = st.builds(Fault, CALLS, AFTER, st.just(0), st.just(signal.SIGINT), st.just(1))
KILLED = st.builds(Fault, CALLS, AFTER, st.just(0), st.just(signal.SIGKILL), st.just(1))
FULL = st.builds(Room, st.sampled_from([0, 1, 5, 20]).map(lambda pages: pages * 4096))
FAULTS = st.one_of(st.none(), BROKEN, INTERRUPTED, FULL)


class IndexMachine(RuleBasedStateMachine):
    """Uses one index in every way, and knows what it must hold."""

    folder: Path  # in which it works: faults strike here
    faults: Faults
    struck = 0  # operations that met a fault, over all examples

    def __init__(self) -> None:
        super().__init__()
        self.root = self.folder / "work"
        shutil.rmtree(self.root, ignore_errors=True)
        # Two folders with an index of the same name: a relative path must keep its meaning.
        for name in ("here", "there"):
            shutil.copytree(self.folder / "template", self.root / name)
        self.decoy = _files(self.root / "there")
        self.pictures = Path(os.environ["FAULTS_CONTROL"]).with_name("pictures")
        shutil.rmtree(self.pictures, ignore_errors=True)
        self.pictures.mkdir()
        self.path = self.root / "here/index.mch"
        self.state: State = {}
        self.exports: list[tuple[Path, State]] = []
        self.names = itertools.count()
        os.chdir(self.root / "here")
        self.index = self._opened(relative=True)

    def teardown(self) -> None:
        self.index.close()
        if sys.exc_info()[0] is not None:
            return  # a step has failed already, and says more
        assert _files(self.root / "there") == self.decoy, "an index in another folder was touched"
        self._verify()
        with self._opened() as self.index:
            self._check()

    def _opened(self, relative: bool = False) -> MCHIndex:
        path = Path(os.path.relpath(self.path)) if relative else self.path
        return MCHIndex.open(path, tiny_fine_model(), wait=10)

    # What must hold after each step.

    def _check(self) -> None:
        assert self._found() == list(self._expected(self.state))
        assert len(self.index) == len(self.state)
        code = codes_for(1)[0]
        assert searched(self.index, code, 30) == answer(self.state, code, 30, None)
        fine = {id: image.fine for id, image in self.state.items() if image.fine is not None}
        assert fine_codes(self.index) == fine
        self._check_fine(fine)

    def _check_fine(self, fine: dict[Id, bytes]) -> None:
        """The table has the fine codes of the store; a search needs those of all images."""
        table, known = self.index._live.fine, self.index._store.known(list(fine))
        assert table is not None
        assert len(table) == len(fine)
        keys = [known[id].key for id in fine]
        assert table.read(keys).tobytes() == b"".join(fine.values())
        if len(fine) == len(self.state) > 0:
            last = next(reversed(self.state))
            hits = self.index.search(id=last, rank="fine", k=30)
            assert sorted(map(str, [*hits.ids, last])) == sorted(map(str, self.state))

    def _found(self) -> list[tuple[Id, tuple[Any, ...]]]:
        return [(stored.id, fields_of(stored)) for stored in self.index.images()]

    @staticmethod
    def _expected(state: State) -> Iterator[tuple[Id, tuple[Any, ...]]]:
        return ((id, image.fields) for id, image in state.items())

    def _verify(self) -> None:
        problems = verify(self.path, model=False).problems
        assert not problems, problems

    def _recover(self, possible: Sequence[State]) -> None:
        """After a failed operation: finds out which of the possible states it left."""
        found = self._found()
        for state in possible:
            if list(self._expected(state)) == found:
                self.state = state
                break
        else:
            raise AssertionError(f"{found} is none of the possible states {possible}")
        self._verify()

    # Faults.

    @contextlib.contextmanager
    def _striking(self, fault: Fault | Room | None) -> Iterator[None]:
        if isinstance(fault, Fault):
            with self.faults.during(**fault._asdict()):
                yield
        elif isinstance(fault, Room) and shutil.disk_usage(self.folder).total < 1 << 26:
            filler = self.folder / "filler"
            try:
                filler.write_bytes(bytes(max(0, shutil.disk_usage(self.folder).free - fault.left)))
                yield
            finally:
                filler.unlink()
        else:
            yield

    def _attempt(
        self,
        fault: Fault | Room | None,
        act: Callable[[], object],
        possible: Sequence[State],
        reported: Callable[[], int] = lambda: 0,
    ) -> None:
        """Carries out an operation. `possible` are the states it may leave if it fails, the last
        one if it succeeds; the first `reported()` of them are excluded."""
        try:
            with self._striking(fault):
                act()
        except MCHError:
            if fault is None:
                raise
        except KeyboardInterrupt:
            assert isinstance(fault, Fault)
            assert fault.signal == signal.SIGINT
        else:
            self.state = possible[-1]
            self._check()
            return
        type(self).struck += 1
        self._recover(possible[reported() :])
        self._check()

    # Writing.

    @rule(ids=MANY, version=VERSIONS, metadata=METADATA, fault=FAULTS)
    def add_codes(
        self, ids: list[Id], version: int, metadata: dict[str, Any] | None, fault: Any
    ) -> None:
        images = [(id, coded(id, version).with_metadata(metadata or {})) for id in ids]
        self._attempt(
            fault,
            lambda: add_codes(self.index, ids, version, metadata),
            in_batches(self.state, images, BULK),
        )

    @rule(
        ids=SEEDS, version=VERSIONS, metadata=METADATA, fault=FAULTS,
        kind=st.sampled_from(["add", "update", "file"]), batch=st.sampled_from([1, 2, 100]),
    )  # fmt: skip
    def add_pictures(
        self, ids: list[int], version: int, metadata: Any, fault: Any, kind: str, batch: int
    ) -> None:
        images: Any = [drawn(i, version) for i in ids]
        names: list[Id] = [*ids]
        if kind == "file":
            names = [str(self.pictures / f"{i}.png") for i in ids]
            for i, name in zip(ids, names, strict=True):
                painted(i, version).save(str(name))
            images = [os.path.relpath(name) for name in map(str, names)]
        stored: list[Id] = []
        self._attempt(
            fault,
            lambda: (self.index.update if kind == "update" else self.index.add)(
                images, None if kind == "file" else names, metadata=metadata, batch=batch,
                progress=lambda commit: stored.extend(commit.ids),
            ),
            self._after_adding(names, ids, kind, version, metadata),
            lambda: self._least(names, stored),
        )  # fmt: skip

    def _after_adding(
        self, names: Sequence[Id], seeds: Sequence[int], kind: str, version: int, metadata: Any
    ) -> list[State]:
        """The states that `add` may leave: after its first few images, and with the metadata of
        the next few unchanged images, which are written first."""
        new: list[tuple[Id, Image, bool]] = []
        for name, seed in zip(names, seeds, strict=True):
            old = self.state.get(name)
            if kind == "update" and old is None:
                continue
            source = "file" if kind == "file" else "memory"
            image = pictured(source, seed, version)
            if source == "file":
                image = image._replace(fields=(name, *image.fields[1:]))
            kept = {} if old is None else old.metadata
            image = image.with_metadata(kept if metadata is None else metadata)
            same = old is not None and old.picture == image.picture and kind != "update"
            new.append((name, image, same))
        states = []
        for done in range(len(new) + 1):
            state = self.state
            for name, image, same in new[:done]:
                state = {**state, name: image} if same else put(state, name, image)
            for touched in range(done, len(new) + 1):
                more = {name: image for name, image, same in new[done:touched] if same}
                states.append(state | more)
        return states

    def _least(self, names: Sequence[Id], stored: Sequence[Id]) -> int:
        """How many of the states of `_after_adding` come before that of the last stored image."""
        if not stored:
            return 0
        there = [name for name in names if name in self.state or name in stored]
        first = there.index(stored[-1]) + 1
        return sum(len(there) + 1 - done for done in range(first))

    @rule(ids=MANY, fault=FAULTS)
    def remove(self, ids: list[Id], fault: Any) -> None:
        self._attempt(fault, lambda: self.index.remove(ids), self._after_removing(ids))

    @rule(filter=FILTERS, fault=FAULTS)
    def remove_by_filter(self, filter: dict[str, Any], fault: Any) -> None:
        matching = [id for id, image in self.state.items() if matches(image.metadata, filter)]
        self._attempt(
            fault, lambda: self.index.remove(filter=filter), self._after_removing(matching)
        )

    def _after_removing(self, ids: Sequence[Id]) -> list[State]:
        """On a full disk, images may be removed in several commits."""
        return [without(self.state, ids[:done]) for done in range(len(ids) + 1)]

    @rule(id=IDS, metadata=METADATA, fault=FAULTS)
    def set_metadata(self, id: Id, metadata: Any, fault: Any) -> None:
        metadata = metadata or {}
        after = {
            i: image.with_metadata(metadata) if i == id else image
            for i, image in self.state.items()
        }

        def act() -> None:
            try:
                self.index.set_metadata(id, metadata)
            except KeyError:
                assert id not in self.state

        self._attempt(fault, act, [self.state, after])

    # Files of the index.

    @rule(zipped=st.booleans())
    def export(self, zipped: bool) -> None:
        file = self.pictures / f"{next(self.names)}.jsonl{'.gz' if zipped else ''}"
        with created(file) as out:
            assert export_index(self.path, out).images == len(self.state)
        self.exports.append((file, self.state))

    @rule(which=st.integers(0, 3), fault=FAULTS)
    def import_(self, which: int, fault: Any) -> None:
        if self.exports:
            file, state = self.exports[which % len(self.exports)]
            self._attempt(
                fault,
                lambda: import_index(file, self.path, wait=10),
                in_batches(self.state, list(state.items()), BULK),
            )

    @rule(fault=st.none() | BROKEN | FULL)
    def backup(self, fault: Any) -> None:
        copy = self.root / f"copy{next(self.names)}"
        try:
            with self._striking(fault):
                self.index.backup(copy)
        except (MCHError, OSError):
            assert fault is not None
            assert not copy.exists()
        else:
            with MCHIndex.open(copy, tiny_fine_model(), create=False) as index:
                stored = [(image.id, fields_of(image)) for image in index.images()]
            assert stored == list(self._expected(self.state))
            shutil.rmtree(copy)
        self._check()

    @rule()
    def verify(self) -> None:
        self._verify()

    @rule(fault=st.none() | BROKEN | FULL)
    def create(self, fault: Any) -> None:
        new = self.root / f"new{next(self.names)}"
        with contextlib.suppress(*((MCHError,) if fault else ())), self._striking(fault):
            MCHIndex.open(new, bits=BITS).close()
        with MCHIndex.open(new, bits=BITS) as index:
            assert len(index) == 0
        shutil.rmtree(new)

    @rule(relative=st.booleans(), fault=FAULTS)
    def reopen(self, relative: bool, fault: Any) -> None:
        self.index.close()
        try:
            with self._striking(fault):
                self.index = self._opened(relative)
        except (MCHError, KeyboardInterrupt):
            assert fault is not None
            self.index = self._opened(relative)
        self._check()
        if isinstance(fault, Fault) and fault.calls & OPEN:
            # SQLite may have opened a file only to be read, and stays with it as long as the index
            # is open.
            self.index.close()
            self.index = self._opened(relative)

    @rule(fault=st.none() | BROKEN | FULL)
    def close_on_a_broken_disk(self, fault: Any) -> None:
        with self._striking(fault), contextlib.suppress(*((MCHError,) if fault else ())):
            self.index.close()
        self.index.close()
        self._verify()
        self.index = self._opened()
        self._check()

    @rule(code=IDS)
    def read_only(self, code: Id) -> None:
        self.index.close()
        query = codes_for(number(code))[0]
        with self._striking(Fault(CHANGES, 0, errno.EROFS)):
            with MCHIndex.open(self.path, create=False) as index:
                assert [(i.id, fields_of(i)) for i in index.images()] == list(
                    self._expected(self.state)
                )
                assert searched(index, query, 5) == answer(self.state, query, 5, None)
            with open(os.devnull, "wb") as out:
                assert export_index(self.path, out).images == len(self.state)
            self._verify()
        self.index = self._opened()
        self._check()

    @rule(where=st.sampled_from(["here", "there"]))
    def chdir(self, where: str) -> None:
        os.chdir(self.root / where)
        self._check()

    # Searching.

    @rule(
        id=IDS, version=VERSIONS, k=st.integers(1, 6), filter=st.none() | FILTERS,
        allowed=st.none() | MANY, fault=st.none() | UNREADABLE,
    )  # fmt: skip
    def search(
        self, id: Id, version: int, k: int, filter: Any, allowed: list[Id] | None, fault: Any
    ) -> None:
        code = codes_for(number(id), version)[0]
        chosen = None
        if filter is not None:
            chosen = {i for i, image in self.state.items() if matches(image.metadata, filter)}
        if allowed is not None:
            chosen = set(allowed) if chosen is None else chosen & set(allowed)
        try:
            with self._striking(fault):
                found = searched(self.index, code, k, filter=filter, allowed=allowed)
        except MCHError:
            assert fault is not None
        else:
            assert found == answer(self.state, code, k, chosen)

    # Processes and threads.

    @rule(id=IDS)
    def fork_a_reader(self, id: Id) -> None:
        code = codes_for(number(id))[0]

        def read(report: Callable[[Any], None]) -> None:
            try:
                searched(self.index, code, 5)
            except StoreError:
                report("refused")
            with self._opened() as index:
                report(searched(index, code, 5))

        status, reports = self._forked(read)
        assert status == 0, reports
        assert reports[0] == "refused"
        assert reports[1] == [list(hit) for hit in answer(self.state, code, 5, None)]
        self._check()

    @rule(
        ids=MANY, version=VERSIONS, metadata=METADATA, closed=st.booleans(),
        fault=st.none() | BROKEN | KILLED | KILLED,
    )  # fmt: skip
    def fork_a_writer(
        self, ids: list[Id], version: int, metadata: Any, closed: bool, fault: Any
    ) -> None:
        def write(report: Callable[[Any], None]) -> None:
            with self._opened() as index:
                for id in ids:
                    add_codes(index, [id], version, metadata)
                    report(id)

        images = [(id, coded(id, version).with_metadata(metadata or {})) for id in ids]
        possible = in_batches(self.state, images, 1)
        if closed:
            self.index.close()
        with self._striking(fault):
            status, reports = self._forked(write)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        failed = os.WIFEXITED(status) and os.WEXITSTATUS(status) == FAILED
        assert status == 0 or (fault is not None and (killed or failed)), (status, reports)
        if closed:
            self.index = self._opened()
        type(self).struck += status != 0
        self._recover(possible[-1:] if status == 0 else possible[len(reports) :])
        self._check()

    def _forked(self, work: Callable[[Callable[[Any], None]], None]) -> tuple[int, list[Any]]:
        """Runs `work(report)` in a child; returns its status and what it reported."""
        reading, writing = os.pipe()

        def report(what: Any) -> None:
            os.write(writing, json.dumps(what).encode() + b"\n")

        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(report)
                status = 0
            except MCHError:
                status = FAILED
            except BaseException as error:
                report(repr(error))
            os._exit(status)
        os.close(writing)
        with open(reading, encoding="utf-8") as lines:
            reports = [json.loads(line) for line in lines]
        return os.waitpid(child, 0)[1], reports

    @rule(ids=MANY, version=VERSIONS, id=IDS)
    def search_while_writing(self, ids: list[Id], version: int, id: Id) -> None:
        code = codes_for(number(id))[0]
        possible = in_batches(self.state, [(i, coded(i, version)) for i in ids], 1)
        expected = [answer(state, code, 5, None) for state in possible]

        def write() -> None:
            for i in ids:
                add_codes(self.index, [i], version, None)

        def read() -> None:
            found = searched(self.index, code, 5)
            assert found in expected, found

        run([write], [read, read])
        self.state = possible[-1]
        self._check()

    @rule(ids=MANY, version=VERSIONS, first=st.integers(0, 3))
    def close_while_writing(self, ids: list[Id], version: int, first: int) -> None:
        stored: list[Id] = []
        enough, errors = threading.Event(), []

        def write() -> None:
            try:
                for id in ids:
                    if len(stored) >= first:
                        enough.set()
                    add_codes(self.index, [id], version, None)
                    stored.append(id)
            except (MCHError, ValueError) as error:
                errors.append(error)
            finally:
                enough.set()

        thread = threading.Thread(target=write)
        thread.start()
        enough.wait()
        self.index.close()
        thread.join()
        possible = in_batches(self.state, [(id, coded(id, version)) for id in ids], 1)
        assert len(stored) == len(ids) or len(errors) == 1
        self.index = self._opened()
        self._recover(possible[len(stored) : len(stored) + 2])
        self._check()


def _files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def prepare(folder: Path) -> None:
    """Makes snapshots, checkpoints and batches small, and creates the index to start from."""
    small: list[tuple[ModuleType, str, float]] = [
        (mchindex.index.table, "SNAPSHOT_AFTER", 8),
        (mchindex.storage.schema, "CHECKPOINT", 20),
        (mchindex.storage.store, "GONE_KEPT", 15),
        (mchindex.storage.store, "RESERVE", 0),  # so that the disk fills up in the midst of a write
        (mchindex.index.facade, "BULK", BULK),
        (mchindex.index.facade, "RECORDS", BULK),
        (mchindex.index.adding, "PATIENCE", 1e9),
    ]
    for module, name, value in small:
        setattr(module, name, value)
    template = folder / "template"
    with MCHIndex.open(template / "index.mch", tiny_fine_model()) as index:
        add_codes(index, [*range(12)], 0, None)  # a snapshot is saved
        index.remove([*range(12)])


def main() -> None:
    folder, seed, examples, steps = sys.argv[1], *map(int, sys.argv[2:5])
    prepare(Path(folder))
    IndexMachine.folder, IndexMachine.faults = Path(folder), Faults()
    machine = hypothesis.seed(seed)(IndexMachine)
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), print_blob=False,
        # Shrinking a failure that depends on timing would take hours.
        phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=chosen)
    print(IndexMachine.struck)


if __name__ == "__main__":
    main()
