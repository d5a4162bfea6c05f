"""Adding images: from every kind of source, once each, in order, in bounded memory."""

import enum
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mchindex.index.facade
import mchindex.index.inputs
import mchindex.index.table
import mchindex.progress
import mchindex.storage.schema
from helpers.indexes import BITS, assert_as_fresh, content, drawn, painted, tiny_model
from helpers.pictures import encoded
from mchindex import Commit, Failure, MCHIndex


@pytest.fixture
def index(tmp_path: Path) -> Iterator[MCHIndex]:
    with MCHIndex.open(tmp_path / "index.mch", tiny_model()) as made:
        yield made


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five pictures, two of them in a subfolder."""
    root = tmp_path / "photos"
    for number, name in enumerate(["a.png", "b.png", "c.png", "sub/d.png", "sub/e.png"]):
        write(root / name, number)
    return root


def write(path: Path, number: int, version: int = 0, old: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(painted(number, version), "PNG"))
    if old:  # a file that was just written is read again, whatever its time
        os.utime(path, ns=(version, 10**18 + version))
    return path


def test_unchanged_files_wake_no_thread(
    index: MCHIndex, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = index.add(photos, progress=False)
    write(photos / "b.png", 1, version=7)
    (photos / "broken.png").write_bytes(b"nothing")
    loaded: list[str] = []
    inner = mchindex.index.inputs.Item.load

    def load(item: Any, *rest: Any, **more: Any) -> Any:
        loaded.append(item.name)
        return inner(item, *rest, **more)

    monkeypatch.setattr(mchindex.index.inputs.Item, "load", load)
    monkeypatch.setattr(index.model.extractor, "step", lambda regions: 1)
    again = index.add(photos, progress=False)
    assert sorted(loaded) == [str(photos / "b.png"), str(photos / "broken.png")]
    assert list(again) == list(added)
    assert again.replaced == [str(photos / "b.png")]
    assert [failure.name for failure in again.failed] == [str(photos / "broken.png")]
    loaded.clear()
    assert len(index.update([photos / "a.png"], progress=False)) == 1
    assert loaded == [str(photos / "a.png")]  # `update` encodes unchanged files, too


class Encodings:
    """Records the ids of the images that are decoded and encoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[Any] = []
        inner = mchindex.index.inputs.Item.load

        def load(item: Any, *rest: Any, **more: Any) -> Any:
            picture = inner(item, *rest, **more)
            if picture is not None:
                self.names.append(item.id)
            return picture

        monkeypatch.setattr(mchindex.index.inputs.Item, "load", load)

    def take(self) -> list[Any]:
        names, self.names = sorted(self.names, key=str), []
        return names


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> Encodings:
    return Encodings(monkeypatch)


# Kinds of sources.


def test_every_form_of_an_image_gives_the_same_codes(index: MCHIndex, tmp_path: Path) -> None:
    array = drawn(1)
    path = write(tmp_path / "one.png", 1)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    forms: list[Any] = [
        path, str(path), path.read_bytes(), Image.fromarray(array), array, tensor, tensor / 255
    ]  # fmt: skip
    for number, form in enumerate(forms):
        assert index.add(form, number) == [number]
    assert len({index[number].codes.tobytes() for number in range(len(forms))}) == 1
    assert index[0].path == str(path)
    assert index[4].path is None
    want = tiny_model().encode([array])
    np.testing.assert_array_equal(index[4].codes, want.codes)
    np.testing.assert_array_equal(index[4].keep, want.keep[0, want.regions])
    assert index[4].size == (8, 6)


def test_folders_patterns_and_lists_are_expanded(index: MCHIndex, photos: Path) -> None:
    (photos / "notes.txt").write_text("not an image, by its name")
    (photos / ".hidden.png").write_bytes(b"x")
    (photos / ".git").mkdir()
    (photos / ".git" / "f.png").write_bytes(b"x")
    added = index.add(photos)
    every = [str(photos / name) for name in ("a.png", "b.png", "c.png", "sub/d.png", "sub/e.png")]
    assert added == every
    assert added.added == every
    assert added.ignored == [str(photos / "notes.txt")]
    assert added.failed == []
    index.remove(every)
    assert index.add(str(photos / "*.png")) == every[:3]
    assert index.add([photos / "sub", str(photos / "**/a.png")]) == [*every[3:], every[0]]
    assert index.add(np.array([every[0], every[1]])).skipped == every[:2]
    missing = index.add(str(photos / "*.tif"))
    assert [str(f) for f in missing.failed] == [f"{photos}/*.tif: no file matches this pattern"]


def test_an_existing_file_is_preferred_to_a_pattern(index: MCHIndex, tmp_path: Path) -> None:
    path = write(tmp_path / "a[1]*.png", 0)
    write(tmp_path / "a1.png", 1)
    assert index.add(str(path)) == [str(path)]


def test_relative_paths_mean_absolute_paths(
    index: MCHIndex, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    assert index.add("a.png") == [str(photos / "a.png")]
    assert "a.png" in index
    assert Path("a.png") in index
    assert index["a.png"].id == str(photos / "a.png")
    assert index.search(id="a.png").ids == []
    assert index.remove("a.png") == 1
    assert "a.png" not in index


def test_a_stacked_array_is_several_images(index: MCHIndex) -> None:
    stack = np.stack([drawn(i) for i in range(3)])
    assert index.add(stack) == [0, 1, 2]
    assert index.add(torch.from_numpy(stack).permute(0, 3, 1, 2)) == [3, 4, 5]
    assert index.add(iter(stack), ids=["a", "b", "c"]) == ["a", "b", "c"]
    assert content(index)[0] == content(index)[3] == content(index)["a"]


@pytest.mark.parametrize("wrong", [3, None, {"a": drawn(0)}, 2.5])
def test_objects_that_are_not_images_are_refused(index: MCHIndex, wrong: Any) -> None:
    with pytest.raises(TypeError, match="images"):
        index.add(wrong)
    added = index.add([wrong, drawn(0)])
    assert added.added == [1]
    assert added.failed[0].reason.startswith("an image must be ")
    assert_as_fresh(index)


# Ids.


def test_ids_may_be_any_text_or_64_bit_integer(index: MCHIndex) -> None:
    ids: list[Any] = [
        1, "1", -5, 2**63 - 1, -(2**63), np.int8(7), np.uint64(9), np.str_("numpy"), "", " ",
        "ä 図 🖼", "a\nb\t'\"\\%_", Path("some/path"), "x" * 5000, "null", "1.0",
    ]  # fmt: skip
    index.add([drawn(i) for i in range(len(ids))], ids)
    assert len(index) == len(ids)
    for number, id_ in enumerate(ids):
        np.testing.assert_array_equal(index[id_].codes, tiny_model().encode([drawn(number)]).codes)
    assert [type(i) for i in index][:2] == [int, str]
    assert list(index)[5:7] == [7, 9]
    assert 7.0 not in index
    assert True not in index
    assert b"1" not in index


class Number(enum.IntEnum):
    SEVEN = 7


class Word(enum.StrEnum):
    CAT = "cat"


class OldWord(str, enum.Enum):  # noqa: UP042
    DOG = "dog"


class Odd(str):
    """Text that prints and compares itself as something else."""

    def __str__(self) -> str:
        return "printed"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return "formatted"

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


class OddNumber(int):
    def __repr__(self) -> str:
        return "printed"

    __str__ = __repr__

    def __int__(self) -> int:
        return 99

    __index__ = __int__


SUBCLASSES: dict[Any, str | int] = {
    Number.SEVEN: 7, Word.CAT: "cat", OldWord.DOG: "dog", Odd("odd"): "odd", OddNumber(5): 5,
    np.str_("numpy"): "numpy", np.int16(3): 3,
}  # fmt: skip


@pytest.mark.parametrize("way", ["add", "one by one", "generator", "codes", "update"])
def test_the_content_of_an_enumeration_or_another_subclass_is_stored(
    tmp_path: Path, way: str
) -> None:
    given, plain = list(SUBCLASSES), list(SUBCLASSES.values())
    pictures = [drawn(i) for i in range(len(given))]
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        if way == "add":
            index.add(pictures, given)
        elif way == "one by one":
            for picture, id_ in zip(pictures, given, strict=True):
                index.add(picture, id_, metadata={"word": Word.CAT, Word.CAT: Number.SEVEN})
        elif way == "generator":
            index.add(iter(pictures), iter(given))
        elif way == "codes":
            index.add_codes(given, tiny_model().encode_query(pictures))
        else:
            index.add(pictures[::-1], plain)
            index.update(pictures, given)
    with MCHIndex.open(tmp_path / "i", tiny_model()) as index:
        assert [(type(i), i) for i in index] == [(type(i), i) for i in plain]
        for number, (id_, name) in enumerate(SUBCLASSES.items()):
            hit = index.search(drawn(number), 1)[0]
            assert (type(hit.id), hit.id) == (type(name), name)
            assert (id_ in index, index[id_].id) == (True, name)
            assert index.search(drawn(0), 9, allowed=[id_]).ids == [name]
            assert name not in index.search(id=id_).ids
            index.set_metadata(id_, {"n": number})
        assert [stored.metadata["n"] for stored in index.images()] == list(range(len(plain)))
        for id_ in given[:3]:
            assert index.remove(id_) == 1
        assert index.remove(given) == len(given) - 3


@pytest.mark.parametrize(
    "wrong", [1.5, True, None, b"x", (1,), 2**63, -(2**63) - 1, "\ud800", "a\0b", np.True_]
)
def test_an_id_that_is_not_text_or_a_64_bit_integer_is_refused(index: MCHIndex, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"id|Unicode|null"):
        index.add([drawn(0)], [wrong])
    with pytest.raises((TypeError, ValueError), match=r"id|Unicode|null"):
        index.add_codes([wrong], np.zeros((1, BITS // 8), np.uint8))
    assert wrong not in index
    assert len(index) == 0


def test_pictures_in_memory_are_numbered(index: MCHIndex) -> None:
    assert index.add([drawn(0), drawn(1)]) == [0, 1]
    index.add(drawn(2), 10)
    assert index.add(painted(3)) == [11]
    index.add(drawn(4), -3)
    index.add(drawn(5), "text")
    assert index.add(drawn(6)) == [12]
    index.add(drawn(7), 2**63 - 1)
    with pytest.raises(ValueError, match="give ids"):
        index.add(drawn(8))
    assert index.add(drawn(8), "still fine") == ["still fine"]


@pytest.mark.parametrize(
    ("images", "ids"), [(3, 2), (2, 3), (0, 1), (1, 0)], ids=["few", "many", "none", "some"]
)
@pytest.mark.parametrize("lazy", [False, True])
def test_different_numbers_of_images_and_ids_are_refused(
    index: MCHIndex, images: int, ids: int, lazy: bool
) -> None:
    pictures: Any = [drawn(i) for i in range(images)]
    with pytest.raises(ValueError, match="ids"):
        index.add(iter(pictures) if lazy else pictures, iter(range(ids)) if lazy else range(ids))
    assert_as_fresh(index)
    with pytest.raises(TypeError, match="a list of ids"):
        index.add(pictures * 2, "ab")


# Adding again.


def test_unchanged_files_are_skipped_and_changed_ones_replaced(
    index: MCHIndex, photos: Path, encodings: Encodings
) -> None:
    every = list(index.add(photos))
    assert encodings.take() == every
    again = index.add(photos)
    assert again == again.skipped == every
    assert again.added == again.replaced == encodings.take() == []

    os.utime(photos / "a.png", ns=(5, 5))  # touched, with the same content
    write(photos / "b.png", 1, version=1)
    write(photos / "new.png", 9)
    third = index.add(photos)
    b, new = str(photos / "b.png"), str(photos / "new.png")
    assert (third.replaced, third.added) == ([b], [new])
    assert third.skipped == [name for name in every if name != b]
    assert encodings.take() == [b, new]
    np.testing.assert_array_equal(index[b].codes, tiny_model().encode([drawn(1, 1)]).codes)
    assert len(index) == 6
    assert index.add(photos).skipped == third
    assert_as_fresh(index)


def test_the_new_time_of_a_touched_file_is_stored(
    index: MCHIndex, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(photos)
    os.utime(photos / "a.png", ns=(5, 5))
    index.add(photos)
    monkeypatch.setattr(mchindex.index.inputs.Item, "_read", None)  # nothing may be read now
    assert len(index.add(photos).skipped) == 5


def test_a_file_rewritten_within_a_clock_tick_is_read_again(
    index: MCHIndex, tmp_path: Path
) -> None:
    """Its size and time stay the same while its content changes."""
    path = tmp_path / "a.bmp"
    now = time.time_ns()
    for version in range(3):
        path.write_bytes(encoded(painted(0, version), "BMP"))
        os.utime(path, ns=(now, now))
        index.add(path)
        want = tiny_model().encode([drawn(0, version)]).codes
        np.testing.assert_array_equal(index[str(path)].codes, want)


def test_pictures_in_memory_are_compared_by_their_pixels(
    index: MCHIndex, encodings: Encodings
) -> None:
    index.add([drawn(0), drawn(1)], ["a", "b"])
    encodings.take()
    again = index.add([painted(0), drawn(1, 1)], ["a", "b"])
    assert (again.skipped, again.replaced) == (["a"], ["b"])
    assert list(index) == ["a", "b"]


def test_an_id_given_to_two_images_is_refused(index: MCHIndex) -> None:
    twice: list[Any]
    for twice in (["x", "y", "x"], [1, 2, np.int64(1)], ["cat", "y", Word.CAT]):
        with pytest.raises(ValueError, match=r"(x|1|cat)'? is given twice"):
            index.add([drawn(i) for i in range(3)], twice)
        assert len(index) == 0


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_repeated_id_that_is_not_known_in_advance_fails(index: MCHIndex, batch: int) -> None:
    index.add([drawn(5)], ["x"])
    added = index.add([drawn(i) for i in range(4)], iter(["x", "y", "x", "z"]), batch=batch)
    assert (added.replaced, added.added) == (["x"], ["y", "z"])
    assert added.failed == [Failure("x", "an image before it has the id 'x', too")]
    np.testing.assert_array_equal(index["x"].codes, tiny_model().encode([drawn(0)]).codes)
    assert_as_fresh(index)


def test_two_pictures_opened_from_one_file_do_not_replace_each_other(
    index: MCHIndex, tmp_path: Path
) -> None:
    path = tmp_path / "pages.tif"
    painted(0).save(path, save_all=True, append_images=[painted(1)])
    with Image.open(path) as first, Image.open(path) as second:
        second.seek(1)
        added = index.add([first, second])
    assert (added.added, [f.name for f in added.failed]) == ([str(path)], [str(path)])


def test_a_file_given_twice_is_stored_once(index: MCHIndex, photos: Path) -> None:
    a = str(photos / "a.png")
    assert index.add([a, a, photos, a]).failed == []
    assert len(index) == 5
    assert index.add([a, photos]).added == []


def test_update_encodes_again_and_fails_for_missing_ids(
    index: MCHIndex, photos: Path, encodings: Encodings
) -> None:
    index.add(photos, metadata={"album": "x"})
    encodings.take()
    a, f = str(photos / "a.png"), str(write(photos / "f.png", 8))
    done = index.update([a, f])
    assert done.replaced == encodings.take() == [a]
    assert done.failed == [Failure(f, f"there is no image {f!r} to update")]
    assert index[a].metadata == {"album": "x"}
    assert f not in index


# Metadata.


def test_metadata_may_be_a_mapping_an_iterable_or_a_function(index: MCHIndex, photos: Path) -> None:
    note = {"ä": [1, {"b": None}], 'quote"': "x\ny", "n": 1.5, "t": True}
    index.add([drawn(0), drawn(1)], ["a", "b"], metadata=note)
    assert index["a"].metadata == index["b"].metadata == note
    index.add([drawn(2), drawn(3)], ["c", "d"], metadata=[{"n": 1}, None])
    assert (index["c"].metadata, index["d"].metadata) == ({"n": 1}, {})
    index.add(photos, metadata=lambda path: {"stem": Path(path).stem})
    assert index[str(photos / "sub" / "e.png")].metadata == {"stem": "e"}
    index.add([drawn(4)], [7], metadata=lambda id: {"id": id})
    assert index[7].metadata == {"id": 7}
    index.add(drawn(5), 8, metadata={"one": 1})
    assert index[8].metadata == {"one": 1}
    index.add((drawn(i) for i in (6, 7)), [9, 10], metadata=({"i": i} for i in (6, 7)))
    assert index[10].metadata == {"i": 7}


def test_metadata_is_kept_until_new_metadata_is_given(index: MCHIndex, photos: Path) -> None:
    a = str(photos / "a.png")
    index.add(photos, metadata={"n": 1})
    index.add(photos)
    assert index[a].metadata == {"n": 1}
    assert len(index.add(photos, metadata={"n": 2}).skipped) == 5
    assert index[a].metadata == {"n": 2}
    write(Path(a), 0, version=1)
    assert index.add(photos).replaced == [a]
    assert index[a].metadata == {"n": 2}
    write(Path(a), 0, version=2)
    index.add(photos, metadata={})
    assert index[a].metadata == {}
    index.set_metadata(a, {"n": 3})
    assert index[a].metadata == {"n": 3}
    with pytest.raises(KeyError):
        index.set_metadata("none", {})


@pytest.mark.parametrize(
    "wrong", [{"x": float("nan")}, {"x": object()}, {(1, 2): 3}, {"x": "\ud800"}, {"x": b"y"}]
)
def test_metadata_that_json_cannot_hold_is_refused(index: MCHIndex, wrong: Any) -> None:
    for attempt in (
        lambda: index.add([drawn(0)], [0], metadata=wrong),
        lambda: index.add_codes([0], np.zeros((1, 4), np.uint8), metadata=[wrong]),
        lambda: index.set_metadata("there", wrong),
    ):
        index.add([drawn(1)], ["there"])
        with pytest.raises(ValueError, match="JSON"):
            attempt()
    assert list(index) == ["there"]


@pytest.mark.parametrize("how", ["list", "generator", "function"])
def test_an_image_whose_metadata_cannot_be_stored_fails_alone(index: MCHIndex, how: str) -> None:
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    notes: list[Any] = [{"n": 0}, {"n": float("inf")}, {"n": deep}, 7, "text", {"n": b""}, {"n": 6}]
    metadata: Any = {
        "list": notes, "generator": iter(notes), "function": lambda id: notes[int(id[1:])],
    }[how]  # fmt: skip
    ids = [f"i{n}" for n in range(len(notes))]
    added = index.add([drawn(n) for n in range(len(notes))], ids, metadata=metadata)
    assert added.added == ["i0", "i6"]
    assert [f.name for f in added.failed] == ids[1:6]
    assert all("metadata" in f.reason for f in added.failed)
    assert [stored.metadata for stored in index.images()] == [{"n": 0}, {"n": 6}]


@pytest.mark.parametrize("count", [1, 3])
def test_metadata_needs_one_entry_per_image(index: MCHIndex, count: int) -> None:
    with pytest.raises(ValueError, match="one metadata entry per image"):
        index.add([drawn(0), drawn(1)], metadata=[{}] * count)
    with pytest.raises(TypeError, match="metadata"):
        index.add([drawn(0)], metadata="text")  # type: ignore[arg-type]
    assert_as_fresh(index)


# Progress, laziness and failures.


def test_progress_reports_only_stored_images(index: MCHIndex, tmp_path: Path) -> None:
    steps: list[Commit] = []
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"x")
    with MCHIndex.open(tmp_path / "index.mch") as other:

        def report(step: Commit) -> None:
            assert all(id_ in other for id_ in step.ids)
            steps.append(step)

        index.add([drawn(i) for i in range(10)] + [bad], batch=4, progress=report)
    assert [i for step in steps for i in step.ids] == list(range(10))
    assert [f.name for step in steps for f in step.failed] == [str(bad)]
    assert [step.done for step in steps][-1] == 11
    assert {step.total for step in steps} == {11}
    assert len(steps) == 3
    assert [s.seconds for s in steps] == sorted(s.seconds for s in steps)
    index.add([], progress=steps.append)
    assert steps[-1].done == 0


def test_progress_is_shown_on_request(
    index: MCHIndex, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add([drawn(0)])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(mchindex.progress, "PAUSE", 0.0)
    index.add([drawn(1)], progress=True)
    assert capsys.readouterr().err.startswith("adding: 1 of 1 in ")


def test_generators_are_consumed_lazily(index: MCHIndex) -> None:
    taken, stored, ahead = 0, 0, []

    def images() -> Iterator[Any]:
        nonlocal taken
        for i in range(400):
            taken += 1
            ahead.append(taken - stored)
            yield drawn(i)

    def report(step: Commit) -> None:
        nonlocal stored
        stored += len(step.ids)

    index.add(images(), batch=10, progress=report)
    assert stored == 400
    assert max(ahead) < 150


def fails(at: int, error: BaseException) -> Iterator[Any]:
    for i in range(at):
        yield drawn(i)
    raise error


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt(), OSError("disk")])
def test_images_before_a_failing_generator_are_kept(index: MCHIndex, error: BaseException) -> None:
    reported: list[Any] = []
    with pytest.raises(type(error)):
        index.add(fails(100, error), batch=10, progress=lambda step: reported.extend(step.ids))
    assert list(index) == reported
    assert reported == list(range(len(reported)))
    assert_as_fresh(index)
    assert index.add([drawn(1000)], ["after"]) == ["after"]
    assert not [t for t in threading.enumerate() if "ThreadPool" in t.name]


def test_images_before_a_failing_callback_are_kept(index: MCHIndex) -> None:
    def report(step: Commit) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        index.add([drawn(i) for i in range(20)], batch=5, progress=report)
    assert list(index) == [0, 1, 2, 3, 4]
    assert_as_fresh(index)
    index.add([drawn(9)], [9])


def test_a_callback_may_use_the_index(index: MCHIndex) -> None:
    seen = []

    def report(step: Commit) -> None:
        seen.append((len(index), index.search(drawn(0), 1)[0].id))

    index.add([drawn(i) for i in range(6)], batch=2, progress=report)
    assert seen == [(2, 0), (4, 0), (6, 0)]


def test_nothing_is_stored_if_a_metadata_function_raises(index: MCHIndex) -> None:
    def notes(id: Any) -> dict[str, Any]:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        index.add([drawn(0)], ["a"], metadata=notes)
    assert len(index) == 0


def test_a_batch_of_no_images_is_refused(index: MCHIndex) -> None:
    with pytest.raises(ValueError, match="batch must be at least 1, not 0"):
        index.add([drawn(0)], batch=0)


def test_prune_removes_images_whose_files_no_longer_exist(
    index: MCHIndex, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add(photos)
    index.add([drawn(0)], ["in memory"])
    assert index.prune() == []
    (photos / "a.png").unlink()
    (photos / "sub" / "d.png").unlink()
    assert index.prune(photos / "sub") == [str(photos / "sub" / "d.png")]
    assert index.prune() == [str(photos / "a.png")]
    assert len(index) == 4

    stat = os.stat

    def out_of_reach(path: str, **options: Any) -> Any:
        if options:  # a file of the index
            return stat(path, **options)
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", out_of_reach)
        lost = index.prune()
    assert lost == []
    assert_as_fresh(index)


# Memory.


def grown(folder: Path, images: int, warm: int, large_ones: int) -> float:
    """How many MiB the process grows after `warm` images; one in `large_ones` pictures is large."""
    sizes = {}

    def report(step: Commit) -> None:
        with open("/proc/self/statm") as file:
            sizes[step.done] = int(file.read().split()[1]) * resource.getpagesize() / 2**20

    large = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)

    def pictures() -> Iterator[Any]:
        for i in range(images):
            yield large ^ np.uint8(i % 256) if i % large_ones == 0 else drawn(i)

    with MCHIndex.open(folder / "i", tiny_model()) as index:
        index.add(pictures(), progress=report)
        assert len(index) == images
    start = min(done for done in sizes if done >= warm)
    return max(sizes.values()) - sizes[start]


def test_memory_does_not_grow(tmp_path: Path) -> None:
    # The large pictures alone take 36 MiB.
    assert grown(tmp_path, images=600, warm=200, large_ones=5) < 18


@pytest.mark.slow
def test_memory_does_not_grow_over_many_images(tmp_path: Path) -> None:
    # The large pictures alone take 870 MiB. Ids, codes and the table take some memory, too.
    assert grown(tmp_path, images=100_000, warm=5_000, large_ones=50) < 100


def test_pictures_are_freed_after_their_batch(index: MCHIndex) -> None:
    """No picture stays in memory after it is encoded, however many there are."""
    alive = peak = 0

    class Counted(np.ndarray[Any, Any]):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def pictures() -> Iterator[Any]:
        nonlocal alive, peak
        for i in range(300):
            alive += 1
            peak = max(peak, alive)
            yield drawn(i).view(Counted)

    index.add(pictures(), batch=300)
    assert len(index) == 300
    assert peak < 150


def test_an_index_keeps_a_copy_of_its_model(tmp_path: Path) -> None:
    tiny_model().save(tmp_path / "model")
    with MCHIndex.open(tmp_path / "i", str(tmp_path / "model")) as index:
        assert index.bits == BITS
    for file in (tmp_path / "model").iterdir():
        file.unlink()
    with MCHIndex.open(tmp_path / "i") as index:
        assert index.model.fingerprint == tiny_model().fingerprint
