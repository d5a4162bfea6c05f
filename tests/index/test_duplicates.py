"""Groups of duplicates, and what happens to their files."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.fine_models import fine_model, write_copies
from helpers.small_model import photo
from mchindex import MCHIndex
from mchindex.index.duplicates import (
    AROUND,
    LEVELS,
    REACH,
    DuplicateGroup,
    Level,
    find_groups,
    mirrored,
)
from mchindex.regions import corners_and_centre

BITS, REGIONS = 256, 3
NO_CELLS = np.empty((0, BITS // 8), np.uint8)
Codes = NDArray[np.uint8]


def random_codes(n: int, seed: int, regions: int = REGIONS) -> Codes:
    return np.random.default_rng(seed).integers(0, 256, (n, regions, BITS // 8), np.uint8)


def changed(codes: Codes, share: float, seed: int) -> Codes:
    """Codes in which this share of the bits differs."""
    flips = np.random.default_rng(seed).random((*codes.shape[:-1], BITS)) < share
    return codes ^ np.packbits(flips, axis=-1)


def groups(
    codes: Codes, cells: Codes = NO_CELLS, level: Level = "copy", aspects: Any = None, **more: Any
) -> list[list[int]]:
    aspects = np.full(len(codes), np.nan) if aspects is None else np.log(aspects)
    return [
        [row for row, _ in group] for group in find_groups(codes, cells, level, aspects, **more)
    ]


def reference(codes: Codes, cells: Codes, level: Level) -> list[list[int]]:
    """The definition, pair by pair."""
    share = np.arange(AROUND + 1) / AROUND
    copies, others = 0.03 + 0.24 * (1 - share), 0.06 + 0.88 * (1 - share)

    def shared(code: Codes) -> NDArray[np.int64]:
        near = np.argsort(np.bitwise_count(cells ^ code).sum(1), kind="stable")[:AROUND]
        same = np.unpackbits(cells[near], axis=1) == np.unpackbits(code)
        return np.asarray(same.sum(0), np.int64)

    def matches(a: int, b: int) -> bool:
        differ = np.unpackbits(codes[a] ^ codes[b], axis=1).astype(bool)
        if not differ.any():
            return True
        for image in (a, b):
            known = np.array([shared(code) for code in codes[image]])
            expected = REACH * copies[known[0]].sum()
            evidence = np.where(
                differ,
                np.log(copies[known] / others[known]),
                np.log((1 - copies[known]) / (1 - others[known])),
            ).mean()
            near = differ[0].sum() <= expected and differ.sum(1).mean() <= expected
            if not near or evidence < LEVELS[level]:
                return False
        return True

    free, found = list(range(len(codes))), []
    while free:
        group = [free[0], *(b for b in free[1:] if matches(free[0], b))]
        free = [row for row in free if row not in group]
        if len(group) > 1:
            found.append(group)
    return found


# Which images are put together.


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(["copy", "similar"]))
def test_groups_are_those_of_the_definition(seed: int, level: Level) -> None:
    rng = np.random.default_rng(seed)
    cells = changed(np.repeat(random_codes(4, seed, 1)[:, 0], 6, axis=0), 0.1, seed)
    codes = np.repeat(cells[rng.integers(0, len(cells), 8)][:, None], REGIONS, axis=1)
    copies = [changed(codes, share, seed + i) for i, share in enumerate((0.0, 0.05, 0.1, 0.2))]
    everything = np.concatenate([codes, *copies])
    found = [sorted(group) for group in groups(everything, cells, level)]
    assert found == [sorted(group) for group in reference(everything, cells, level)]


def test_copies_are_found_and_others_are_not() -> None:
    codes = random_codes(500, 0)
    copies = changed(codes[:50], 0.1, 1)
    assert groups(np.concatenate([codes, copies])) == [[i, 500 + i] for i in range(50)]


def test_pictures_that_look_alike_are_no_copies_although_their_codes_are_near() -> None:
    """Around one code there are many pictures, which the cells say; around others there are few."""
    centre = random_codes(1, 0, 1)[:, 0]
    cells = np.concatenate(
        [changed(np.repeat(centre, 60, 0), 0.08, 1), random_codes(60, 2, 1)[:, 0]]
    )
    alike = changed(np.repeat(centre[:, None], REGIONS, 1).repeat(30, 0), 0.08, 3)
    alone = random_codes(30, 4)
    copies = changed(alone, 0.2, 5)
    assert np.bitwise_count(alike[1:] ^ alike[0]).mean() < np.bitwise_count(alone ^ copies).mean()
    found = groups(np.concatenate([alike, alone, copies]), cells)
    assert found == [[30 + i, 60 + i] for i in range(30)]


def test_a_flipped_copy_is_found_by_the_regions_on_the_other_side() -> None:
    layout = corners_and_centre(0.5)
    mirror = mirrored(layout.boxes)
    assert mirror == [0, 2, 1, 4, 3, 5]
    codes = random_codes(20, 0, len(layout))
    both = np.concatenate([codes, changed(codes, 0.05, 1)[:, mirror]])
    assert groups(both, mirror=mirror) == [[i, 20 + i] for i in range(20)]
    assert groups(both) == []
    assert mirrored([(0.0, 0.0, 1.0, 1.0), (0.0, 0.0, 0.4, 1.0)]) is None


def test_each_image_in_a_group_matches_the_keeper() -> None:
    """A chain of small changes does not put its two ends together."""
    chain = [random_codes(1, 0)]
    for step in range(1, 6):
        chain.append(changed(chain[-1], 0.12, step))
    found = groups(np.concatenate(chain))
    assert found[0][0] == 0
    assert 1 in found[0]
    assert 5 not in found[0]


def test_thousands_of_equal_images_are_one_group() -> None:
    codes = random_codes(3, 0)
    many = np.concatenate([codes, np.repeat(codes[:1], 60_000, axis=0)])
    (group,) = groups(many)
    assert group == [0, *range(3, 60_003)]


def test_thousands_of_nearly_equal_images_are_one_group() -> None:
    many = changed(np.repeat(random_codes(1, 0), 4_000, axis=0), 0.01, 1)
    (group,) = groups(many)
    assert sorted(group) == list(range(4_000))


def test_copies_have_about_the_same_aspect_ratio() -> None:
    codes = np.concatenate([random_codes(1, 0), changed(random_codes(1, 0), 0.05, 1)])
    equal = np.repeat(codes[:1], 2, axis=0)
    assert groups(codes, aspects=[1.5, 1.49]) == [[0, 1]]
    for two in (codes, equal):
        assert groups(two, aspects=[1.5, 1.0]) == []
        assert groups(two, aspects=[1.5, np.nan]) == [[0, 1]]
        assert groups(two, aspects=[1.5, 1.0], level="similar") == [[0, 1]]


def test_the_number_of_threads_does_not_matter() -> None:
    codes = random_codes(300, 0)
    codes = np.concatenate([codes, changed(codes, 0.2, 1), changed(codes, 0.25, 2)])
    cells = random_codes(50, 3, 1)[:, 0]
    assert groups(codes, cells, threads=1) == groups(codes, cells, threads=3) != []


def test_nothing_and_one_image_have_no_duplicates() -> None:
    assert groups(random_codes(0, 0)) == []
    assert groups(random_codes(1, 0)) == []


# In an index.


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return write_copies(tmp_path / "photos", 12)


@pytest.fixture
def index(tmp_path: Path, files: dict[str, Path]) -> Any:
    with MCHIndex.open(tmp_path / "photos.mch", fine_model(128, 300)) as index:
        index.add(tmp_path / "photos", metadata=lambda path: {"first": Path(path).name[0] == "0"})
        yield index


def names(group: DuplicateGroup) -> list[str]:
    return [Path(str(id)).name for id in group.ids]


def test_an_index_names_groups_with_the_largest_image_to_keep(index: MCHIndex) -> None:
    found = index.duplicates()
    assert sorted(map(sorted, map(names, found))) == [
        ["0-saved.jpg", "0-small.png", "0.png"],
        ["1-saved.jpg", "1-small.png", "1.png"],
    ]
    for group in found:
        assert Path(str(group.keeper.id)).suffixes == [".png"]
        assert group.keeper.size == (90, 60)
        assert group.keeper.similarity == 1
        assert {image.size for image in group.others} == {(90, 60), (72, 48)}
    assert (found.compared, found.without_fine, found.images) == (len(index), 0, 4)
    assert found == index.duplicates()
    assert found.to_dict()["groups"][0]["keeper"]["id"] == found[0].keeper.id
    assert "2 groups, 16 images compared" in repr(found)


def test_of_equal_images_the_oldest_file_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "same"
    folder.mkdir()
    for name, time in (("a.png", 3_000), ("b.png", 1_000), ("c.png", 2_000)):
        photo(0).save(folder / name)
        os.utime(folder / name, (time, time))
    with MCHIndex(fine_model(128, 300)) as index:
        index.add(folder)
        (group,) = index.duplicates()
        assert names(group)[0] == "b.png"


def test_a_filter_limits_what_is_compared(index: MCHIndex) -> None:
    found = index.duplicates(filter={"first": True})
    assert [sorted(names(group)) for group in found] == [["0-saved.jpg", "0-small.png", "0.png"]]
    assert found.compared == 3
    assert len(index.duplicates(filter={"first": "never"})) == 0


def test_progress_reaches_the_end(index: MCHIndex) -> None:
    steps: list[tuple[int, int | None]] = []
    index.duplicates(progress=lambda step: steps.append((step.done, step.total)))
    assert steps[-1][0] == steps[-1][1]


def test_wrong_levels_and_indexes_without_fine_codes_are_refused(index: MCHIndex) -> None:
    with pytest.raises(ValueError, match="one of copy, similar, not 'same'"):
        index.duplicates("same")  # type: ignore[arg-type]
    with MCHIndex(bits=32) as other:
        other.add_codes([1, 2], np.zeros((2, 4), np.uint8))
        with pytest.raises(ValueError, match="no fine codes"):
            other.duplicates()
    with MCHIndex(fine_model(128, 300)) as empty:
        assert len(empty.duplicates()) == 0


# Files.


def test_finding_duplicates_touches_no_file(index: MCHIndex, files: dict[str, Path]) -> None:
    index.duplicates("similar")
    assert all(file.exists() for file in files.values())


def test_deleting_keeps_the_keepers(index: MCHIndex, files: dict[str, Path]) -> None:
    result = index.discard(index.duplicates(), delete=True)
    gone = {"0-saved.jpg", "0-small.png", "1-saved.jpg", "1-small.png"}
    assert {name for name, file in files.items() if not file.exists()} == gone
    assert sorted(result.deleted) == sorted(str(files[name]) for name in gone)
    assert result.failed == []
    assert set(index) == {str(file) for name, file in files.items() if name not in gone}
    assert len(index.duplicates()) == 0


@pytest.mark.parametrize("other_disk", [False, True])
def test_moving_never_overwrites(
    index: MCHIndex,
    files: dict[str, Path],
    tmp_path: Path,
    other_disk: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if other_disk:

        def rename(*paths: Any) -> None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

        monkeypatch.setattr(os, "rename", rename)
    target = tmp_path / "aside"
    target.mkdir()
    (target / "0-saved.jpg").write_bytes(b"mine")
    content = {name: file.read_bytes() for name, file in files.items()}
    result = index.discard(index.duplicates(), move_to=target)
    assert (target / "0-saved.jpg").read_bytes() == b"mine"
    assert (target / "0-saved-2.jpg").read_bytes() == content["0-saved.jpg"]
    assert (target / "1-small.png").read_bytes() == content["1-small.png"]
    assert len(list(target.iterdir())) == 5
    assert result.moved[str(files["0-saved.jpg"])] == str(target / "0-saved-2.jpg")
    assert not files["0-saved.jpg"].exists()
    assert files["0.png"].exists()
    assert str(files["0-saved.jpg"]) not in index


def test_a_file_that_changed_stays(index: MCHIndex, files: dict[str, Path]) -> None:
    found = index.duplicates()
    time = files["0-small.png"].stat().st_mtime_ns
    photo(77, 72, 48).save(files["0-small.png"])
    os.utime(files["0-small.png"], ns=(time, time))
    files["1-small.png"].unlink()
    result = index.discard(found, delete=True)
    assert files["0-small.png"].exists()
    assert sorted(Path(failure.name).name for failure in result.failed) == [
        "0-small.png", "1-small.png",
    ]  # fmt: skip
    assert any("has changed since it was added" in str(failure) for failure in result.failed)
    assert str(files["0-small.png"]) in index
    assert str(files["1-small.png"]) in index
    assert len(result.deleted) == 2


@pytest.mark.parametrize("what", ["missing", "changed", "replaced by a link"])
def test_nothing_is_deleted_if_the_keeper_is_not_there(
    what: str, index: MCHIndex, files: dict[str, Path]
) -> None:
    found = index.duplicates(filter={"first": True})
    files["0.png"].unlink()
    if what == "changed":
        photo(77, 90, 60).save(files["0.png"])
    elif what == "replaced by a link":
        files["0.png"].symlink_to(files["0-saved.jpg"])
    result = index.discard(found, delete=True)
    assert result.deleted == []
    assert len(result.failed) == 2
    assert all("the image to keep" in str(failure) for failure in result.failed)
    assert files["0-saved.jpg"].exists()
    assert files["0-small.png"].exists()


def test_another_name_of_the_keeper_is_not_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    photo(0).save(folder / "a.png")
    os.link(folder / "a.png", folder / "b.png")
    (folder / "c.png").symlink_to(folder / "a.png")
    with MCHIndex(fine_model(128, 300)) as index:
        index.add([folder / name for name in ("a.png", "b.png", "c.png")])
        result = index.discard(index.duplicates(), delete=True)
        assert len(index) == 3
    assert result.deleted == []
    reasons = sorted(failure.reason for failure in result.failed)
    assert len(reasons) == 2
    assert any("the same file" in reason for reason in reasons)


def test_images_replaced_or_removed_since_are_left_alone(
    index: MCHIndex, files: dict[str, Path]
) -> None:
    found = index.duplicates(filter={"first": True})
    index.update(files["0-small.png"])
    index.remove(str(files["0-saved.jpg"]))
    result = index.discard(found, delete=True)
    assert result.deleted == []
    assert all("find them again" in str(failure) for failure in result.failed)
    assert files["0-saved.jpg"].exists()


def test_pictures_without_files_are_left_alone() -> None:
    with MCHIndex(fine_model(128, 300)) as index:
        index.add([photo(0), photo(0), photo(1)])
        result = index.discard(index.duplicates(), delete=True)
        assert len(index) == 3
    assert "has no file" in str(result.failed[0])


def test_an_interrupted_move_loses_nothing(
    index: MCHIndex, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives right after the second file was moved."""
    real, calls = os.rename, []

    def rename(source: Any, target: Any) -> None:
        real(source, target)
        calls.append(source)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", rename)
    content = {file.read_bytes() for file in files.values()}
    before = len(index)
    with pytest.raises(KeyboardInterrupt):
        index.discard(index.duplicates(), move_to=tmp_path / "aside")
    monkeypatch.undo()
    left = [*(tmp_path / "aside").iterdir(), *(file for file in files.values() if file.exists())]
    assert {file.read_bytes() for file in left} == content
    assert len(index) == before - 1  # the second is still in the index, as `prune` will find


def test_a_failed_copy_leaves_the_file_and_no_rest(
    index: MCHIndex, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*paths: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def copy(source: Any, target: Any) -> None:
        target.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(shutil, "copyfileobj", copy)
    result = index.discard(index.duplicates(), move_to=tmp_path / "aside")
    assert result.moved == {}
    assert len(result.failed) == 4
    assert all(file.exists() for file in files.values())
    assert list((tmp_path / "aside").iterdir()) == []
    assert len(index) == len(files)


def test_discard_needs_one_of_a_folder_and_delete(index: MCHIndex, tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{}, {"move_to": tmp_path, "delete": True}]
    for arguments in wrong:
        with pytest.raises(TypeError, match="either a folder"):
            index.discard(index.duplicates(), **arguments)
