"""Cached features and live views: computed once, never stale, and equal."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from helpers.pictures import encoded, picture, write_pictures
from mchindex.datasets import FileSource
from mchindex.inference.extract import MODES, Extracted, Job, Mode
from mchindex.models.backbones import Backbone, SmallNet, Wrapped
from mchindex.models.extract import Engine, Extractor
from mchindex.regions import WHOLE, corners_and_centre, grid
from mchindex.training.features import (
    WHOLE_ONLY,
    FeatureCache,
    Fixed,
    WithCrops,
    default_cache,
    unreadable,
)
from mchindex.training.live_views import LiveViews

CPU = torch.device("cpu")
N = 10
T = TypeVar("T")
SIX = Fixed(corners_and_centre(0.5))
modes = pytest.mark.parametrize("mode", MODES)


class Counting(Extractor):
    """Counts the images whose features it computes."""

    def __init__(self, backbone: Backbone, mode: Mode = "pooled", engine: Engine = "torch") -> None:
        super().__init__(backbone, mode, CPU, engine)
        self.seen = 0

    def stream(
        self,
        sources: Iterable[T],
        load: Callable[[T], Job | None],
        regions: int,
        bytes_of: Callable[[T], int] = lambda source: 0,
        skip: Callable[[T], bool] = lambda source: False,
    ) -> Iterator[Extracted[T]]:
        for part in super().stream(sources, load, regions, bytes_of, skip):
            self.seen += sum(part.loaded)
            yield part

    def since(self) -> int:
        """How many since the last call."""
        seen, self.seen = self.seen, 0
        return seen


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mchindex.training.features.SHARD", 4)


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    names = [f"{i}.jpg" for i in range(N)]
    write_pictures(tmp_path / "images", names)
    return FileSource(tmp_path / "images", names)


@pytest.fixture
def extractor() -> Counting:
    return Counting(small_net())


def small_net(size: int = 32) -> SmallNet:
    torch.manual_seed(0)
    return SmallNet(size).eval()


def assert_close(a: NDArray[Any], b: NDArray[Any]) -> None:
    """Equal up to the last bit of float16, which may be rounded otherwise in another batch."""
    np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=2e-3, atol=2e-3)


def shards(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def test_features_are_the_extractors(
    tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    rows = np.array([7, 2, 9, 0, 4])
    want = extractor([source.image(int(i)) for i in rows], SIX.layout.array())
    for root in (None, tmp_path / "cache"):
        got = FeatureCache(root).features(extractor, source, rows, SIX)
        assert_close(got, want)
        assert got.dtype == np.float16
    assert not unreadable(got).any()


def test_the_second_time_nothing_is_computed(
    tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    first = cache.features(extractor, source, range(N), SIX)
    assert extractor.since() == N
    assert len(shards(tmp_path / "cache")) == 3
    steps: list[tuple[str, int, int | None]] = []
    again = cache.features(
        extractor,
        source,
        range(N),
        SIX,
        lambda step: steps.append((step.stage, step.done, step.total)),
    )
    assert extractor.since() == 0
    np.testing.assert_array_equal(first, again)
    assert steps == [("features", done, N) for done in (4, 8, N)]
    # nor by another extractor with the same network
    np.testing.assert_array_equal(
        FeatureCache(tmp_path / "cache").features(Counting(small_net()), source, range(N), SIX),
        first,
    )


def test_without_a_folder_nothing_is_kept(
    tmp_path: Path, source: FileSource, extractor: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = shards(tmp_path)
    for _ in range(2):
        FeatureCache(None).features(extractor, source, range(N), SIX)
        assert extractor.since() == N
    assert shards(tmp_path) == before


@pytest.mark.parametrize("left", [0, 5, 40, 127, 128, 1000, -1])
def test_a_shard_cut_short_is_computed_again(
    tmp_path: Path, source: FileSource, extractor: Counting, left: int
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    first = cache.features(extractor, source, range(N), SIX)
    extractor.since()
    for shard in sorted(shards(tmp_path / "cache"))[:1]:
        data = shard.read_bytes()
        shard.write_bytes(data[:left])
        np.testing.assert_array_equal(cache.features(extractor, source, range(N), SIX), first)
        assert extractor.since() in (2, 4)
        assert shard.read_bytes() == data  # and has been written again
    assert len(shards(tmp_path / "cache")) == 3


def test_a_shard_that_is_something_else_is_computed_again(
    tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    first = cache.features(extractor, source, range(4), SIX)
    (shard,) = shards(tmp_path / "cache")
    np.save(shard, np.array([{"a": 1}], object), allow_pickle=True)
    np.testing.assert_array_equal(cache.features(extractor, source, range(4), SIX), first)


def test_a_changed_picture_is_computed_again(
    tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    first = cache.features(extractor, source, range(N), SIX)
    extractor.since()
    os.utime(source.path(5), (0, 0))
    np.testing.assert_array_equal(cache.features(extractor, source, range(N), SIX), first)
    assert extractor.since() == 0  # the file is another, the picture is not
    source.path(5).write_bytes(encoded(picture(99), "JPEG"))
    changed = cache.features(extractor, source, range(N), SIX)
    assert extractor.since() == 4  # its shard
    same = np.arange(N) != 5
    np.testing.assert_array_equal(changed[same], first[same])
    assert (changed[5] != first[5]).any()


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.conv(x)
        return maps


def test_other_regions_and_other_networks_are_kept_apart(
    tmp_path: Path, source: FileSource
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    net, other = small_net(), small_net()
    other.state_dict()["layers.1.bias"][0] += 1e-3
    torch.manual_seed(0)
    flat = Flat()
    ways: list[tuple[Counting, Any]] = [
        (Counting(net), SIX),
        (Counting(net), Fixed(corners_and_centre(0.4))),
        (Counting(net), Fixed(grid(2, 2, 0.5))),
        (Counting(net), WHOLE_ONLY),
        (Counting(net), WithCrops(2, 0.5)),
        (Counting(net), WithCrops(3, 0.5)),
        (Counting(net), WithCrops(2, 0.4)),
        (Counting(net), WithCrops(2, (0.4, 0.5))),
        (Counting(net), WithCrops(2, 0.5, seed=1)),
        (Counting(net, "crops"), SIX),
        (Counting(other), SIX),
        (Counting(small_net(40)), SIX),
        (Counting(Wrapped(flat, 32)), SIX),
        (Counting(Wrapped(flat, 32, mean=0.0)), SIX),
        (Counting(Wrapped(flat, 32, std=(1.0, 2.0, 3.0))), SIX),
        (Counting(Wrapped(flat, 40)), SIX),
    ]
    for count, (extractor, regions) in enumerate(ways, 1):
        got = cache.features(extractor, source, range(4), regions)
        assert extractor.since() == 4
        assert len(shards(tmp_path / "cache")) == count
        images = [source.image(i) for i in range(4)]
        boxes = np.stack([regions.boxes(source.key(i)) for i in range(4)])
        np.testing.assert_array_equal(got, extractor(images, boxes))


def test_pictures_that_cannot_be_read_have_no_features(
    tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    whole = cache.features(extractor, source, range(N), SIX)
    extractor.since()
    sound = source.path(3).read_bytes()
    source.path(3).write_bytes(encoded(picture(3, 64, 64), "JPEG")[:400])
    source.path(6).unlink()
    source.path(8).write_text("not a picture")
    source.path(9).write_bytes(b"")
    for computed in (6, 0):  # unreadable images are cached, too
        got = cache.features(extractor, source, range(N), SIX)
        assert extractor.since() == computed
        assert np.flatnonzero(unreadable(got)).tolist() == [3, 6, 8, 9]
        assert np.isnan(got[unreadable(got)]).all()
        assert_close(got[~unreadable(got)], whole[~unreadable(got)])
    source.path(3).write_bytes(sound)
    back = cache.features(extractor, source, range(N), SIX)
    np.testing.assert_array_equal(back[3], whole[3])


def test_when_no_picture_can_be_read(tmp_path: Path, extractor: Counting) -> None:
    source = FileSource(tmp_path, ["a.jpg", "b.jpg"])
    got = FeatureCache(tmp_path / "cache").features(extractor, source, [0, 1], SIX)
    assert got.shape == (2, 6, extractor.backbone.dim)
    assert unreadable(got).all()
    assert extractor.since() == 0


def test_no_pictures_have_no_features(
    tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    for regions in (SIX, WithCrops(5, 0.5)):
        got = FeatureCache(tmp_path / "cache").features(extractor, source, [], regions)
        assert got.shape == (0, 6, extractor.backbone.dim)


def test_an_extraction_cut_off_goes_on_where_it_was(
    tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    class Failing(FileSource):
        def image(self, i: int) -> Image.Image:
            if i == 6:
                raise KeyboardInterrupt
            return super().image(i)

    cache = FeatureCache(tmp_path / "cache")
    with pytest.raises(KeyboardInterrupt):
        cache.features(extractor, Failing(source.root, source.names), range(N), SIX)
    assert extractor.since() == 4
    got = cache.features(extractor, source, range(N), SIX)
    assert extractor.since() == N - 4
    np.testing.assert_array_equal(
        got, FeatureCache(None).features(extractor, source, range(N), SIX)
    )


def test_a_full_disk_leaves_no_half_of_a_shard(
    tmp_path: Path, source: FileSource, extractor: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(file: Any, array: NDArray[np.float16]) -> None:
        file.write(array.tobytes()[:50])
        raise OSError("no space left on device")

    cache = FeatureCache(tmp_path / "cache")
    monkeypatch.setattr(np, "save", half)
    with pytest.raises(OSError, match="no space"):
        cache.features(extractor, source, range(4), SIX)
    monkeypatch.undo()
    assert not [path for path in shards(tmp_path / "cache") if path.suffix == ".npy"]


# Regions.


def test_crops_follow_the_picture_and_not_its_place(
    tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    regions = WithCrops(3, 0.5)
    cache = FeatureCache(tmp_path / "cache")
    forth = cache.features(extractor, source, range(N), regions)
    back = cache.features(extractor, source, range(N - 1, -1, -1), regions)
    assert_close(forth, back[::-1])
    boxes = regions.boxes(source.key(0))
    assert boxes.shape == (4, 4)
    assert tuple(boxes[0]) == WHOLE
    assert (boxes[1:] != regions.boxes(source.key(1))[1:]).any()
    assert (boxes[1:] != WithCrops(3, 0.5, seed=1).boxes(source.key(0))[1:]).any()


def test_where_features_are_kept_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCH_CACHE", "/a/b")
    assert default_cache() == Path("/a/b")
    monkeypatch.delenv("MCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert default_cache() == Path("/x/mchindex")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache() == Path("/home/someone/.cache/mchindex")

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert default_cache() is None


@pytest.mark.parametrize("kind", ["pipe", "shape", "type"])
def test_a_shard_that_cannot_be_used_is_computed_again(
    kind: str, tmp_path: Path, source: FileSource, extractor: Counting
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    want = cache.features(extractor, source, range(3), WithCrops(2, 0.5))
    (path,) = shards(tmp_path / "cache")
    if kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        np.save(path, want[:2] if kind == "shape" else want.astype(np.float32))
    again = cache.features(extractor, source, range(3), WithCrops(2, 0.5))
    np.testing.assert_array_equal(again, want)
    assert path.is_file()


# Live views.


@modes
def test_views_on_the_fly_are_the_features_on_disk(source: FileSource, mode: Mode) -> None:
    net, regions = small_net(), WithCrops(3, 0.5)
    rows = [8, 1, 5, 3]
    labels = torch.zeros(4, 2, dtype=torch.bool)
    live = LiveViews(net, source, rows, labels, regions, mode)
    stored = FeatureCache(None).features(Counting(net, mode), source, rows, regions)
    assert (len(live), live.views, live.dim) == (4, 4, net.dim)
    some, views = torch.tensor([2, 0, 3]), torch.tensor([1, 3, 0])
    with torch.no_grad():
        for view in range(4):
            got = live.batch(torch.arange(4), view).numpy()
            assert_close(got, stored[:, view])
        mixed = live.batch(some, views).numpy()
    assert_close(mixed, stored[some, views])


@modes
def test_gradients_reach_the_backbone(source: FileSource, mode: Mode) -> None:
    net = small_net().train()
    labels = torch.zeros(N, 2, dtype=torch.bool)
    live = LiveViews(net, source, range(N), labels, WithCrops(2, 0.5), mode)
    live.batch(torch.arange(N), torch.arange(N) % 3).sum().backward()
    assert {id(p) for p in live.parameters()} == {id(p) for p in net.parameters()}
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in live.parameters())


def test_pictures_are_decoded_once_while_there_is_room(
    source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Decoding(FileSource):
        decoded = 0

        def image(self, i: int) -> Image.Image:
            Decoding.decoded += 1
            return super().image(i)

    labels = torch.zeros(N, 2, dtype=torch.bool)
    pixels = []
    decoded = []
    for room in (1 << 30, 4 * (8 * 6 * 3), 0):  # for all, for about four, for none
        monkeypatch.setattr("mchindex.training.live_views.IN_MEMORY", room)
        files = Decoding(source.root, source.names)
        live = LiveViews(small_net(), files, range(N), labels, WithCrops(2, 0.5), "crops")
        Decoding.decoded = 0
        pixels.append(torch.cat([live.pixels(torch.arange(N), view) for view in range(3)]))
        decoded.append(Decoding.decoded)
    assert decoded[0] == N < decoded[1] < decoded[2] == 3 * N
    assert torch.equal(pixels[0], pixels[1])
    assert torch.equal(pixels[0], pixels[2])
