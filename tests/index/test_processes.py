"""Many processes and threads use one index: readers see committed states and never wait."""

import contextlib
import os
import shutil
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
from mchindex.index.verify import verify

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


CLOSE = """
import random, sys, threading, time
import numpy as np
from mchindex import MCHIndex
folder, codes, turn = sys.argv[1], np.zeros((3, 8), np.uint8), 0
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    turn += 1
    index = MCHIndex.open(folder, bits=64, wait=600) if turn % 3 else MCHIndex(bits=64, wait=600)
    index.add_codes([0, 1, 2], codes)
    wrong = []

    def repeat(work):
        try:
            while True:
                work()
        except ValueError as error:
            if "is closed" not in str(error):
                wrong.append(repr(error))
        except BaseException as error:
            wrong.append(repr(error))

    works = [
        lambda: index.add_codes([0, 1, random.randrange(50)], codes),
        lambda: index.remove([1, 5, 6]),
        lambda: index.set_metadata(0, {"a": 1}),
        lambda: list(index.search_codes(codes)),
        lambda: index.count({"a": 1}),
        lambda: list(index.images()),
    ]
    threads = [threading.Thread(target=repeat, args=[w], daemon=True) for w in works]
    for thread in threads:
        thread.start()
    time.sleep(random.random() * 0.03)
    closing = [threading.Thread(target=index.close, daemon=True) for _ in range(2)]
    for thread in closing:
        thread.start()
    for thread in [*closing, *threads]:
        thread.join(120)
        if thread.is_alive():
            sys.exit("a thread hangs")
    if wrong:
        sys.exit(str(wrong))
print(turn)
"""


def test_an_index_can_be_closed_while_threads_write(tmp_path: Path) -> None:
    (tmp_path / "close.py").write_text(CLOSE)
    closing = process("-X", "faulthandler", tmp_path / "close.py", tmp_path / "i", 4)
    out, error = closing.communicate()
    assert closing.returncode == 0, error
    assert int(out) > 3
    with MCHIndex.open(tmp_path / "i") as index:
        assert_as_fresh(index)
    assert verify(tmp_path / "i").problems == []


CLOSED_BY_SIGNAL = """
import signal, sys
import numpy as np
import numpy.ma  # NumPy would import it in the handler
from mchindex import MCHIndex
codes = np.zeros((500, 8), np.uint8)
for turn in range(30):
    index = MCHIndex.open(sys.argv[1], bits=64)
    signal.signal(signal.SIGALRM, lambda *_: index.close())
    signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0007 * turn)
    try:
        while True:
            index.add_codes(range(500), codes, metadata=[{"a": i} for i in range(500)])
            index.remove(range(100))
            list(index.search_codes(codes[0], filter={"a": 3}))
    except ValueError as error:
        assert "is closed" in str(error), error
"""


def test_an_index_can_be_closed_by_a_signal_handler(tmp_path: Path) -> None:
    (tmp_path / "closed.py").write_text(CLOSED_BY_SIGNAL)
    closing = process("-X", "faulthandler", tmp_path / "closed.py", tmp_path / "i")
    error = closing.communicate()[1]
    assert closing.returncode == 0, error
    assert verify(tmp_path / "i").problems == []


@pytest.mark.parametrize("memory", [True, False])
def test_closing_twice_and_after_an_error(tmp_path: Path, memory: bool) -> None:
    index = MCHIndex(bits=BITS) if memory else MCHIndex.open(tmp_path / "i", bits=BITS)
    with pytest.raises(KeyError), index:
        index.set_metadata(2, {})
    index.close()
    uses: list[Any] = [lambda: len(index), lambda: index.remove([1]), lambda: list(index)]
    for use in uses:
        with pytest.raises(ValueError, match="is closed"):
            use()


def test_closing_while_adding_keeps_what_is_stored(tmp_path: Path) -> None:
    index = MCHIndex.open(tmp_path / "i", tiny_model())
    with pytest.raises(ValueError, match="is closed"):
        index.add([drawn(i) for i in range(20)], batch=5, progress=lambda step: index.close())
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        assert len(index) == 5
        assert_as_fresh(index)


FORK_AMONG_THREADS = """
import os, sys, threading, warnings
import numpy as np
from mchindex import MCHIndex, StoreError
warnings.simplefilter("ignore")
codes = np.zeros((20, 8), np.uint8)
index = MCHIndex.open(sys.argv[1], bits=64, wait=600)
index.add_codes(range(20), codes)
over = threading.Event()

def repeat(work):
    while not over.is_set():
        work()

def write():
    index.add_codes(range(20), codes, metadata=[{"a": 1}] * 20)

def read():
    list(index.search_codes(codes, filter={"a": 1}))

threads = [threading.Thread(target=repeat, args=[work]) for work in (write, read, read)]
for thread in threads:
    thread.start()
for _ in range(40):
    child = os.fork()
    if child == 0:
        import signal
        signal.alarm(60)  # ends a process that hangs
        for use in (
            lambda: index.search_codes(codes), lambda: index.search_codes(codes, filter={"a": 1}),
            lambda: index.add_codes([1], codes[:1]), lambda: len(index), lambda: index["x"],
        ):
            try:
                use()
                os._exit(1)
            except StoreError as error:
                if "forked" not in str(error):
                    os._exit(2)
        index.close()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        over.set()
        sys.exit(f"the forked process ended with {status}")
over.set()
for thread in threads:
    thread.join()
index.close()
"""


def test_a_process_forked_among_threads_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "fork.py").write_text(FORK_AMONG_THREADS)
    forking = process("-X", "faulthandler", tmp_path / "fork.py", tmp_path / "i")
    error = forking.communicate()[1]
    assert forking.returncode == 0, error
    assert verify(tmp_path / "i").problems == []


LEAVE_IN_CHILD = """
import os, sys, warnings
from mchindex import MCHIndex, StoreBusyError
warnings.simplefilter("ignore")
index, other = MCHIndex.open(sys.argv[1], bits=64), MCHIndex.open(sys.argv[1])
with index._store.writer():
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        try:
            other.remove([1])
            sys.exit("the lock of the parent is gone")
        except StoreBusyError:
            pass
if not child:
    os._exit(0)  # after leaving the block of the parent
"""


def test_a_forked_process_does_not_give_up_the_lock_of_its_parent(tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text(LEAVE_IN_CHILD)
    forking = process(tmp_path / "leave.py", tmp_path / "i")
    error = forking.communicate()[1]
    assert forking.returncode == 0, error


ZEROS = np.zeros((1, BITS // 8), np.uint8)


def test_an_index_opened_by_a_relative_path_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current folder may change, and another index may have the same relative path there."""
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    monkeypatch.chdir(tmp_path / "there")
    with MCHIndex.open("i", bits=BITS) as theirs:
        theirs.add_codes(range(5), np.repeat(ZEROS, 5, axis=0))
    files = {file: file.read_bytes() for file in (tmp_path / "there" / "i").iterdir()}
    monkeypatch.chdir(tmp_path / "here")
    with MCHIndex.open("i", tiny_model()) as mine:
        monkeypatch.chdir(tmp_path / "there")
        mine.add_codes([1, 2], np.repeat(ZEROS, 2, axis=0))
        mine.add([drawn(0)], ["picture"])
        assert mine.path == tmp_path / "here" / "i"
        mine.remove([1])
        mine.set_metadata(2, {"a": 1})
        mine.backup(tmp_path / "copy")
        with MCHIndex.open("i") as theirs, theirs._store.writer():
            mine.add_codes([3], ZEROS)  # the lock of the other index is not ours
        assert sorted(map(str, mine)) == ["2", "3", "picture"]
        assert mine.stats()["bytes"] > 0
    assert {f: f.read_bytes() for f in (tmp_path / "there" / "i").iterdir()} == files
    assert verify(tmp_path / "here" / "i", model=False).problems == []
    with MCHIndex.open(tmp_path / "copy", tiny_model()) as copy:
        assert sorted(map(str, copy)) == ["2", "picture"]
    with MCHIndex.open("../here/i", tiny_model()) as again:
        monkeypatch.chdir("/")
        assert again.search(drawn(0), 1).ids == ["picture"]  # the model is loaded only now


def test_an_index_that_is_moved_while_it_is_open_keeps_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    index = MCHIndex.open(tmp_path / "a", bits=BITS)
    index.add_codes(range(5), np.repeat(ZEROS, 5, axis=0))
    (tmp_path / "a").rename(tmp_path / "b")
    index.add_codes([5], ZEROS)
    with MCHIndex.open(tmp_path / "b") as moved:
        assert len(moved) == 6
        with moved._store.writer(), pytest.raises(StoreBusyError):
            index.remove([1])
    index.remove([0])
    index.backup(tmp_path / "copy")
    index.close()
    assert not (tmp_path / "a").exists()
    for folder in ("b", "copy"):
        with MCHIndex.open(tmp_path / folder, create=False) as moved:
            assert moved.ids() == [1, 2, 3, 4, 5]
        assert verify(tmp_path / folder).problems == []


def test_an_index_never_touches_another_that_took_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mchindex.index.table, "SNAPSHOT_AFTER", 1)
    mine = MCHIndex.open(tmp_path / "i", bits=BITS)
    mine.add_codes([1, 2], np.repeat(ZEROS, 2, axis=0))
    (tmp_path / "i").rename(tmp_path / "away")
    theirs = MCHIndex.open(tmp_path / "i", bits=BITS)
    theirs.add_codes(range(10, 20), np.repeat(ZEROS, 10, axis=0))
    files = sorted(file.name for file in (tmp_path / "i").iterdir())
    assert "index.sqlite-wal" in files
    mine.add_codes([3], ZEROS)
    mine.remove([1])
    with theirs._store.writer():
        mine.add_codes([4], ZEROS)
    mine.backup(tmp_path / "copy")
    mine.close()  # SQLite would delete the log of the other index, which has its path
    assert sorted(file.name for file in (tmp_path / "i").iterdir()) == files
    with MCHIndex.open(tmp_path / "i") as again:
        assert again.ids() == list(range(10, 20))
        theirs.remove([10])
        assert len(again) == 9
    theirs.close()
    for folder, ids in (("i", list(range(11, 20))), ("away", [2, 3, 4]), ("copy", [2, 3, 4])):
        with MCHIndex.open(tmp_path / folder, create=False) as index:
            assert index.ids() == ids
        assert verify(tmp_path / folder).problems == []


def test_the_model_of_an_index_that_took_its_place_is_not_used(tmp_path: Path) -> None:
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        index.add([drawn(0)], ["mine"])
    loaded, unloaded = MCHIndex.open(tmp_path / "i", tiny_model()), MCHIndex.open(tmp_path / "i")
    (tmp_path / "i").rename(tmp_path / "away")
    MCHIndex.open(tmp_path / "i", tiny_model(1)).close()
    loaded.backup(tmp_path / "copy")
    assert verify(tmp_path / "copy").problems == []
    for use in (lambda: unloaded.search(drawn(0)), lambda: unloaded.backup(tmp_path / "other")):
        with pytest.raises(StoreError, match="moved, deleted or replaced"):
            use()
    loaded.close()
    unloaded.close()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_deleted_index_takes_nothing_more(tmp_path: Path, what: str) -> None:
    with MCHIndex.open(tmp_path / "i", bits=BITS) as index:
        index.add_codes([1], ZEROS)
        if what == "folder":
            shutil.rmtree(tmp_path / "i")
        else:
            (tmp_path / "i" / "index.sqlite").unlink()
        with pytest.raises(StoreError, match=r"deleted|cannot be changed"):
            index.add_codes([2], ZEROS)
        assert index.search_codes(ZEROS[0], 1).ids == [1]


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
