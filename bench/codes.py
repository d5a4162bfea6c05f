"""Writes the codes of real images to files that `search.py --data codes:FILE` reads.

    python bench/codes.py --data DIR --out FOLDER     # COCO images, as for `mch train`
    python bench/codes.py --data DIR --out FOLDER --names semantic-64 fine-256

The codes are those that the shipped model stores (semantic, with the regions that its policy
keeps), its fine codes of all six regions, and codes of all six regions by methods that are trained
here. The images of the database are stored, and those of the query split are asked for. A million
windows stand for a larger database, as in `answers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from answer_data import Components, Features, Images, Photos, many_images
from common import Codes, Ids, progress, script
from file_codes import ImageCodes, write_codes
from mchindex.datasets import open_dataset
from mchindex.inference.region_codes import Encoded, RegionCodes
from mchindex.models import MCHModel
from mchindex.training.features import FeatureCache, Fixed, default_cache, unreadable
from mchindex.training.options import TrainingOptions
from mchindex.training.run import fit_from_views, labelled
from ship import RECIPES, parts

MODEL = "coco-64"
WINDOWS = 1_000_000
METHODS = ("dch", "hashnet")
WIDTHS = (32, 64, 128, 256)
GAMMA = 16  # DCH's gamma is the width divided by this: with a fixed one, wide codes become equal
OWN = ("semantic-64", "fine-256")
MANY = tuple(f"{name}-million" for name in OWN)
LEARNT = tuple(f"{method}-{bits}" for method in METHODS for bits in WIDTHS)
NAMES = (*OWN, *MANY, *LEARNT)


@dataclass(frozen=True)
class Source:
    """Images, and all that is computed of them once."""

    photos: Photos
    seed: int
    epochs: int
    windows: int

    @property
    def model(self) -> MCHModel:
        return self.photos.model

    @cached_property
    def known(self) -> tuple[Ids, Features]:
        """The images that the shipped model was trained on, and (n, regions, dim) features."""
        photos, model = self.photos, self.model
        rows = parts(photos.dataset, model.about["seed"])[0].splits["train"]
        progress(f"features of {len(rows):,} images")
        features = photos.cache.features(
            model.extractor, photos.dataset.images, rows, Fixed(model.layout)
        )
        good = ~unreadable(features)
        return rows[good], features[good]

    @cached_property
    def database(self) -> Features:
        """(n, regions, dim): of every image of the database, in the order of the data set."""
        rows, features = self.known
        unseen = np.array(sorted(set(self.photos.features) - set(self.queries.tolist())))
        order = np.argsort(np.concatenate([rows, unseen]))
        return np.concatenate([features, self.photos.regions(unseen)])[order]

    @cached_property
    def queries(self) -> Ids:
        """Rows of the images that are asked for."""
        asked = self.photos.dataset.splits["query"].tolist()
        return np.array([row for row in asked if row in self.photos.features])

    @cached_property
    def many(self) -> Images:
        """Windows of images that are no query."""
        photos = self.photos
        short = Components.fit(photos.regions(photos.validation))
        return many_images(photos, photos.sources, self.windows, self.seed, short)

    @property
    def no_windows(self) -> Ids:
        """Rows of the images that no window is taken of, which are asked for instead."""
        return np.concatenate([self.photos.queries, self.photos.choosing[0]])

    def whole(self, rows: Ids) -> torch.Tensor:
        """(n, dim): the features of whole images."""
        return torch.from_numpy(self.photos.regions(rows)[:, 0])

    def fine_queries(self, rows: Ids) -> Codes:
        assert self.model.fine is not None
        return self.model.fine.codes(self.photos.regions(rows)[:, 0])


def semantic(source: Source) -> ImageCodes:
    """The codes that the shipped model stores."""
    model = source.model
    stored = model.choose(model.regions_of(source.database))
    return as_file(stored, model.codes_of(source.whole(source.queries)))


def fine(source: Source) -> ImageCodes:
    """The fine codes of all regions."""
    assert source.model.fine is not None
    codes = source.model.fine.codes(source.database)
    return all_regions(codes, source.fine_queries(source.queries))


def many_semantic(source: Source) -> ImageCodes:
    many, asked = source.many, source.whole(source.no_windows)
    return ImageCodes(many.codes, many.owners, source.model.codes_of(asked), many.regions)


def many_fine(source: Source) -> ImageCodes:
    return all_regions(source.many.fine, source.fine_queries(source.no_windows))


def learnt(source: Source, method: str, bits: int) -> ImageCodes:
    """The distinct codes of each image's regions, by a method trained on the same regions."""
    own = RECIPES["coco-64"].settings if method == "hashnet" else {"gamma": bits / GAMMA}
    options = TrainingOptions(
        method, bits, regions="pooled", seed=source.seed, agent=False, fine=0,
        settings={**own, "epochs": source.epochs},
    )  # fmt: skip
    rows, features = source.known
    labels = torch.from_numpy(source.photos.dataset.labels[rows])
    views = labelled(torch.from_numpy(features), labels, options)
    trained, _, _ = fit_from_views(views, options)
    model = MCHModel(
        source.model.backbone, trained, None, mode="pooled", device=torch.device("cpu")
    )
    codes = model.regions_of(source.database).codes
    every = np.ones(codes.shape[:2], np.float32)
    stored = RegionCodes(codes, every).chosen(every > 0)
    return as_file(stored, model.codes_of(source.whole(source.queries)))


def as_file(stored: Encoded, queries: Codes) -> ImageCodes:
    return ImageCodes(stored.codes, stored.images, queries, stored.regions)


def all_regions(codes: Codes, queries: Codes) -> ImageCodes:
    """Codes (n, regions, bytes), each under its image."""
    n, regions, width = codes.shape
    return ImageCodes(
        codes.reshape(-1, width),
        np.repeat(np.arange(n), regions),
        queries,
        np.tile(np.arange(regions, dtype=np.int16), n),
    )


def codes_named(name: str, source: Source) -> ImageCodes:
    own = dict(zip(NAMES[:4], (semantic, fine, many_semantic, many_fine), strict=True))
    if name in own:
        return own[name](source)
    method, bits = name.split("-")
    return learnt(source, method, int(bits))


def main() -> None:
    p = script(__doc__)
    p.add_argument("--data", required=True, help="the data set, as for `mch train --data`")
    p.add_argument("--out", type=Path, required=True, help="the folder for the files")
    p.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES), help="which (all)")
    p.add_argument("--windows", type=int, default=WINDOWS, help="of the -million (%(default)s)")
    p.add_argument("--epochs", type=int, default=5, help="of trained methods (%(default)s)")
    p.add_argument("--seed", type=int, default=0, help="%(default)s")
    p.add_argument("--cache", type=Path, default=default_cache(), help="features (%(default)s)")
    args = p.parse_args()
    model, dataset = MCHModel.load(MODEL), open_dataset(args.data)
    photos = Photos.read(model, dataset, FeatureCache(args.cache), args.seed)
    source = Source(photos, args.seed, args.epochs, args.windows)
    for name in args.names:
        path = write_codes(args.out / f"{name}.npz", codes_named(name, source))
        progress(f"wrote {path}")


if __name__ == "__main__":
    main()
