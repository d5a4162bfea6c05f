"""Many processes and threads use one index: readers see committed states and never wait."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mchindex.index.facade
import mchindex.index.table
import mchindex.storage.schema
import mchindex.storage.store
from helpers.index_reader import GROUP, group_code, look
from helpers.indexes import BITS, answers, assert_as_fresh, content, drawn, tiny_model
from helpers.threads import run
from mchindex import MCHIndex
from mchindex.errors import StoreBusyError, StoreError

TESTS = Path(__file__).parents[1]
BATCH = 40


def process(*arguments: object) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


class Writer:
    """Adds batches, and replaces a group of images whose codes and metadata must match."""

    def __init__(self, index: MCHIndex) -> None:
        self.index, self.rng, self.rounds = index, np.random.default_rng(0), 0
        self.group()

    def group(self) -> None:
        version = 1 + self.rounds % 200
        self.index.add_codes(
            [f"g{i}" for i in range(GROUP)],
            np.repeat(group_code(self.index.bits)[None], GROUP, axis=0),
            [version] * GROUP,
            metadata=[{"kind": "group", "version": version}] * GROUP,
        )

    def round(self) -> None:
        first = self.rounds * BATCH
        codes = self.rng.integers(0, 256, (BATCH, self.index.bits // 8), np.uint8)
        self.index.add_codes(range(first, first + BATCH), codes)
        self.rounds += 1
        self.group()

    def end(self) -> None:
        self.index.add_codes(
            ["end"], self.rng.integers(0, 256, (1, self.index.bits // 8), np.uint8)
        )


def write_among_readers(folder: Path, readers: int, rounds: int) -> None:
    with MCHIndex.open(folder / "i", bits=64) as index:
        writer = Writer(index)
        others = [
            process(TESTS / "helpers/index_reader.py", folder / "i", BATCH) for _ in range(readers)
        ]
        try:
            for other in others:
                assert other.stdout is not None
                assert other.stdout.readline() == "ready\n", other.communicate()[1]
            for _ in range(rounds):
                writer.round()
            writer.end()
            for other in others:
                out, error = other.communicate()
                assert other.returncode == 0, error
                assert int(out) > 2  # it saw new images without opening the index again
        finally:
            for other in others:
                other.kill()
                other.communicate()
        assert len(index) == rounds * BATCH + GROUP + 1
        assert_as_fresh(index)


@pytest.fixture(autouse=True)
def snapshots_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 300)
    monkeypatch.setattr(mchindex.storage.schema, "CHECKPOINT", 50)


def test_eight_reading_processes_see_only_committed_states(tmp_path: Path) -> None:
    write_among_readers(tmp_path, readers=8, rounds=60)


@pytest.mark.slow
def test_eight_reading_processes_see_only_committed_states_for_long(tmp_path: Path) -> None:
    write_among_readers(tmp_path, readers=8, rounds=1500)


def test_a_reader_that_lags_too_far_behind_reads_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store remembers only the last few removals."""
    monkeypatch.setattr(mchindex.storage.store, "GONE_KEPT", 25)
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 30)
    path = tmp_path / "i"
    with MCHIndex.open(path, bits=64) as index, MCHIndex.open(path) as other:
        writer = Writer(index)
        again = []
        for sleep in (1, 2, 3, 5, 8, 1, 1, 13):
            for _ in range(sleep):
                writer.round()
            table = other._live._table
            assert look(other, BATCH) == len(index)
            again.append(other._live._table is not table)
            assert_as_fresh(other)
        assert True in again
        assert False in again


def test_hits_removed_long_ago_must_be_searched_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mchindex.storage.store, "GONE_KEPT", 5)
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    with MCHIndex.open(tmp_path / "i", bits=64) as index:
        index.add_codes([1, 2], np.zeros((2, 8), np.uint8), metadata=[{"a": 1}, None])
        answers = index.search_codes(np.zeros((1, 8), np.uint8))
        index.remove(1)
        assert [(hit.id, hit.metadata) for hit in answers[0]] == [(1, {}), (2, {})]
        old = index.search_codes(np.zeros((1, 8), np.uint8))
        for i in range(10, 30):
            index.add_codes([i], np.zeros((1, 8), np.uint8))
            index.remove([2, i])
        with pytest.raises(StoreError, match="search again"):
            list(old)


def test_threads_search_while_one_adds(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        writer = Writer(index)
        picture = drawn(0)
        index.add([picture], ["picture"])

        def write() -> None:
            for _ in range(40):
                writer.round()

        def read() -> None:
            hits = index.search_codes(group_code(BITS), 2 * GROUP, max_radius=0)
            assert sorted(map(str, hits.ids)) == [f"g{i}" for i in range(GROUP)]
            assert len({hit.region for hit in hits}) == 1
            hits = index.search_codes(group_code(BITS), GROUP, filter={"kind": "group"})
            assert len(set(hits.ids)) == GROUP
            assert index.search(picture, 1)[0].distance == 0
            assert len(index) >= GROUP

        run([write], [read] * 3)
        assert_as_fresh(index)


def test_writing_threads_take_turns(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS, wait=600) as index, ThreadPoolExecutor(4) as pool:

        def add(number: int) -> None:
            for i in range(5):
                index.add_codes([5 * number + i], np.full((1, BITS // 8), number, np.uint8))

        list(pool.map(add, range(8)))
        assert sorted(map(int, index)) == list(range(40))
        assert_as_fresh(index)


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "i"
    with MCHIndex.open(path, bits=BITS) as index:
        index.add_codes([1], np.zeros((1, BITS // 8), np.uint8))
        store = index._store
        with store.writer(), store.transaction() as db:
            store._drop(db, mchindex.storage.store._known(db, [1]), store._state(db))
            # Readers see the last committed state, whether opened before the transaction or now.
            with MCHIndex.open(path) as other:
                for reader in (index, other):
                    assert len(reader) == 1
                    assert reader.search_codes(np.zeros(BITS // 8, np.uint8)).ids == [1]
        assert len(index) == 0


def test_a_second_writer_is_refused_or_waits(tmp_path: Path) -> None:
    path = tmp_path / "i"
    code = np.zeros((1, BITS // 8), np.uint8)
    with MCHIndex.open(path, bits=BITS) as first, MCHIndex.open(path) as second:
        with first._store.writer():
            with pytest.raises(StoreBusyError, match="process"):
                second.add_codes([1], code)
            with pytest.raises(StoreBusyError, match="process"):
                second.remove([1])
            with pytest.raises(StoreBusyError), MCHIndex.open(path, wait=0.05) as third:
                third.add_codes([1], code)
            assert len(second) == 0
        second.add_codes([1], code)
        assert list(first) == [1]

        second.wait = 600
        begun = threading.Event()

        def hold() -> None:
            with first._store.writer():
                begun.set()
                threading.Event().wait(0.05)

        thread = threading.Thread(target=hold)
        thread.start()
        begun.wait()
        second.add_codes([2], code)  # waits for `hold` to finish
        thread.join()
        assert list(first) == [1, 2]


CREATE = """
import sys, numpy as np
from mchindex import MCHIndex
print("ready", flush=True)
sys.stdin.readline()
number = int(sys.argv[2])
with MCHIndex.open(sys.argv[1], bits=64, wait=600) as index:
    for i in range(5):
        index.add_codes([f"{number} {i}"], np.full((1, 8), number, np.uint8))
"""


def test_processes_can_create_the_same_index_at_once(tmp_path: Path) -> None:
    (tmp_path / "create.py").write_text(CREATE)
    for turn in range(2):
        path = tmp_path / f"{turn}"
        others = [process(tmp_path / "create.py", path, number) for number in range(4)]
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
        for other in others:
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
        for other in others:
            error = other.communicate()[1]
            assert other.returncode == 0, error
        with MCHIndex.open(path, create=False) as index:
            assert sorted(map(str, index)) == [f"{n} {i}" for n in range(4) for i in range(5)]
            assert_as_fresh(index)
        assert not list(path.glob(".new-*"))


def test_threads_can_create_the_same_index_at_once(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)

    def create(turn: int) -> None:
        barrier.wait()
        with MCHIndex.open(tmp_path / f"{turn}", bits=64, wait=600) as index:
            assert len(index) == 0

    with ThreadPoolExecutor(6) as pool:
        for turn in range(5):
            list(pool.map(create, [turn] * 6))


FORK = """
import os, sys, numpy as np
from mchindex import MCHIndex, StoreError
def say(what):
    os.write(1, f"{what}\\n".encode())  # in one piece: two processes write here
with MCHIndex.open(sys.argv[1], bits=64) as index:
    index.add_codes([1], np.zeros((1, 8), np.uint8))
    with index._store.writer():
        child = os.fork()
        if child == 0:
            try:
                len(index)
            except StoreError as error:
                say("forked" in str(error))
            with MCHIndex.open(sys.argv[1]) as again:
                say(len(again))
            sys.stdin.read()
            os._exit(0)
    index.add_codes([2], np.zeros((1, 8), np.uint8))  # although the child has the lock file open
    with MCHIndex.open(sys.argv[1]) as other:
        other.add_codes([3], np.zeros((1, 8), np.uint8))
    say(len(index))
"""


def test_a_forked_process_must_open_the_index_again(tmp_path: Path) -> None:
    (tmp_path / "fork.py").write_text(FORK)
    parent = process("-W", "ignore", tmp_path / "fork.py", tmp_path / "i")
    out, error = parent.communicate()
    assert parent.returncode == 0, error
    seen_by_child, seen_by_parent, forked = sorted(out.split())
    assert (seen_by_parent, forked) == ("3", "True")
    assert seen_by_child in "123"  # depends on what the parent had committed by then


INTERRUPT = """
import sys
from helpers.indexes import drawn, tiny_model
from mchindex import MCHIndex
def endless():
    number = 0
    while True:
        yield drawn(number)
        number += 1
def report(step):
    print(len(step.ids), flush=True)
with MCHIndex.open(sys.argv[1], tiny_model()) as index:
    try:
        index.add(endless(), batch=5, progress=report)
    except KeyboardInterrupt:
        print("stopped", len(index), flush=True)
        index.add([drawn(0)], ["after"])
"""


def test_ctrl_c_keeps_what_is_stored(tmp_path: Path) -> None:
    (tmp_path / "interrupt.py").write_text(INTERRUPT)
    adding = process(tmp_path / "interrupt.py", tmp_path / "i")
    assert adding.stdout is not None
    for _ in range(3):
        assert int(adding.stdout.readline()) >= 5
    adding.send_signal(signal.SIGINT)
    out, error = adding.communicate()
    assert adding.returncode == 0, error
    *steps, last = out.splitlines()
    stored = int(last.removeprefix("stopped "))
    assert stored >= 15 + sum(map(int, steps))
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        assert len(index) == stored + 1
        assert_as_fresh(index)


def test_an_image_can_be_found_while_it_is_being_replaced(tmp_path: Path) -> None:
    """At every moment, the image is in the index exactly once."""
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index, MCHIndex.open(tmp_path / "i") as other:
        code = np.zeros((1, BITS // 8), np.uint8)
        index.add_codes(["it"], code)

        def replace() -> None:
            for turn in range(50):
                index.add_codes(["it"], code, [turn], metadata=[{"kind": "it"}])

        def look_in(reader: MCHIndex) -> Any:
            def read() -> None:
                assert reader.search_codes(code[0], 5).ids == ["it"]
                assert reader.search_codes(code[0], 5, allowed=["it"]).ids == ["it"]
                assert len(reader.search(id="it")) == 0
                assert "it" in reader
                assert len(reader) == 1

            return read

        run([replace], [look_in(index), look_in(other), look_in(other)])


def test_an_index_can_be_closed_during_a_search(tmp_path: Path) -> None:
    for _ in range(10):
        index = MCHIndex.open(tmp_path / "i", bits=BITS)
        closed = threading.Event()

        def search(index: MCHIndex = index, closed: threading.Event = closed) -> None:
            while True:
                try:
                    index.search_codes(np.zeros(BITS // 8, np.uint8), filter={"a": 1})
                except ValueError:
                    assert closed.is_set()
                    return

        with ThreadPoolExecutor(2) as pool:
            searching = [pool.submit(search) for _ in range(2)]
            with contextlib.suppress(TimeoutError):
                searching[0].result(0.005)
            closed.set()
            index.close()
            for future in searching:
                future.result()


def test_two_open_indexes_are_independent(tmp_path: Path) -> None:
    with (
        MCHIndex.open(tmp_path / "a", bits=BITS) as a,
        MCHIndex.open(tmp_path / "b", bits=BITS) as b,
    ):
        a.add_codes([1], np.zeros((1, BITS // 8), np.uint8))
        b.add_codes([2], np.zeros((1, BITS // 8), np.uint8))
        assert list(a) == [1]
        assert list(b) == [2]
        assert content(a).keys().isdisjoint(content(b))
        assert answers(a, np.zeros((1, BITS // 8), np.uint8))[0][0] == [(1, 0, "whole")]
