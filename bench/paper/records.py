"""What the experiments record, as dataclasses that are written to JSON and read from it.

The field names are those of the JSON files. Fields that are None are left out of them.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Curve = list[tuple[float, float]]  # F1 by the number of buckets visited, on a log scale


@dataclass
class Figures:
    """What `mchindex.evaluation` measures of one selection of codes; `_std` is over the seeds."""

    map: float
    map_tie_aware: float
    p0: float
    r0: float
    empty: float
    anhc: float  # codes per image, equal ones counted once
    anhc_raw: float
    f1_own: float  # F1 within the query's bucket (H=0)
    f1_buckets: Curve
    p0_nonempty: float | None = None
    map_std: float | None = None
    r0_std: float | None = None
    p0_std: float | None = None
    f1_own_std: float | None = None
    f1_own_gain_se: float | None = None  # standard error of MCH's gain; None with one seed


@dataclass
class CellResult:
    """One cell: a base method at a code width, trained and measured with one seed."""

    method: str
    bits: int
    seed: int
    base: Figures
    seconds: dict[str, float]
    settings: dict[str, Any]
    mch: Figures | None = None  # this and the next two only for supervised methods
    random_keep: Figures | None = None
    keep_all: Figures | None = None
    agent: dict[str, Any] | None = None  # its settings


@dataclass
class Row:  # a base method at a code width: means over the seeds
    method: str
    bits: int
    seeds: int
    base: Figures


@dataclass
class MCHRow(Row):
    """A base method with MCH beside it, and two controls with other selections of regions."""

    mch: Figures
    random_keep: Figures
    keep_all: Figures


@dataclass
class Sensitivity:
    """Curves by group of queries ("all" or a class), then by the value of sigma or xi."""

    classes: dict[str, int]  # queries that show each
    rule: str
    queries: int
    database: int
    part: int  # database images in the sigma study
    sigma: dict[str, dict[str, Curve]]
    xi: dict[str, dict[str, Curve]]
    anhc: dict[str, dict[str, float]]  # by sigma, then xi
    anhc_raw: dict[str, dict[str, float]]
    xi_anhc: dict[str, float]


@dataclass
class PairGroup:  # pairs of a query and an image: mean distance, and the share at distance 0
    pairs: int
    distance: float
    distance_mch: float
    at0: float
    at0_mch: float


@dataclass
class TwoClasses:
    """Images that show two given classes, and how many are found by queries of either class."""

    classes: list[str]
    images: int
    several: int  # with several distinct codes
    found: dict[str, int]


@dataclass
class Pairs:
    by_classes: dict[str, PairGroup | None]  # similar pairs by the image's number of classes
    similar: PairGroup | None
    other: PairGroup | None
    several_codes: float
    by_two: dict[str, int]  # images that two queries without a common class find at distance 0
    images: int
    both: TwoClasses | None = None


@dataclass
class TimePoint:
    k: int
    f1: float
    microseconds: float
    buckets: float = 0.0
    probed: float = 0.0  # share of the queries that were answered by probing alone


@dataclass
class TimeCurve:
    cell: str
    way: str  # base or mch
    engine: str
    points: list[TimePoint]
    left_out: int


@dataclass
class BucketTime:  # time to look into the query's bucket alone
    cell: str
    way: str
    images: int
    microseconds: float


@dataclass
class Advantage:  # how many times MCH-X's buckets and time X needs for the same F1
    cell: str
    engine: str
    points: int
    buckets: float
    microseconds: float


@dataclass
class Timing:
    curves: list[TimeCurve] = field(default_factory=list)
    own_bucket: list[BucketTime] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    queries: int = 0
    largest_k: int = 0
    against: list[Advantage] = field(default_factory=list)


@dataclass
class Picture:
    jpeg: str  # base64
    width: int
    height: int


@dataclass
class Neighbour:
    """A similar image: its distance under X and MCH-X, and the region that brings it nearer."""

    classes: list[str]
    base: int
    mch: int
    region: str
    red: bool  # found at distance 0 by two of the queries shown that have no class in common
    box: list[float] | None = None
    picture: Picture | None = None


@dataclass
class Query:
    classes: list[str]
    moved: int
    similar: int
    images: list[Neighbour]
    picture: Picture | None = None


@dataclass
class Visual:
    rows: list[Query]
    queries_with_moved: int
    queries: int
    about: str | None = None


@dataclass
class StepFigures:
    f1_own: float
    map: float
    r0: float
    p0: float
    anhc: float


@dataclass
class StepCell:
    method: str
    bits: int
    seeds: int
    mch: StepFigures
    step: StepFigures
    anhc_off: float


@dataclass
class Step:
    """A step beyond the paper, compared with the paper's MCH at the same number of codes."""

    name: str
    what: str
    cells: list[StepCell]
    f1_ratio: float  # ratio of the means
    f1_mean_ratio: float  # mean of the ratios
    map_change: float
    anhc_change: float
    anhc_off: float  # the largest difference in codes per image
    kept: bool


@dataclass
class UnlabelledCell(StepFigures):
    name: str
    bits: int


@dataclass
class Unsupervised:
    cells: list[UnlabelledCell]
    holds: bool | None = None  # MCH beats ITQ and PCA; None: neither was computed


@dataclass
class Beyond:
    steps: list[Step] = field(default_factory=list)
    unsupervised: Unsupervised | None = None


@dataclass
class DataFacts:
    name: str
    classes: list[str] = field(default_factory=list)
    query: int | None = None  # images in each split; None if the features stage is missing
    train: int | None = None
    database: int | None = None
    classes_an_image: float | None = None


@dataclass
class RunSettings:
    data: str
    paper: str  # one of the paper's data sets, or none
    regions: str
    size: int
    sigma: float
    xi: float
    crops: int
    backbone: str
    seeds: int
    cells: int
    cells_wanted: int
    workers: int
    visual: str


@dataclass
class Statement:
    """One statement of the paper, its test in words, and the verdict on our figures."""

    where: str
    quote: str
    test: str
    verdict: str
    evidence: str
    figure: str = ""  # the section of the report that shows it
    fails: list[str] = field(default_factory=list)
    paper: str | None = None  # the same test on the paper's figures, where it prints them
    constructed: bool = False  # true by construction: only a bug could make it fail


@dataclass
class Record:
    """All that a report shows: paper.json."""

    commit: str | None
    dirty: bool
    date: str
    machine: dict[str, Any]
    settings: RunSettings
    rows: list[MCHRow | Row]
    engine: str | None = None
    seed: int = 0
    data: DataFacts = field(default_factory=lambda: DataFacts("unknown"))
    cells: dict[str, int] | None = None
    study: tuple[str, int] | None = None  # the cell of the sensitivity and pair studies
    sensitivity: Sensitivity | None = None
    pairs: Pairs | None = None
    time: Timing | None = None
    visual: Visual | None = None
    beyond: Beyond | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)

    @property
    def compared(self) -> list[MCHRow]:
        """The rows that have MCH beside the base method."""
        return [row for row in self.rows if isinstance(row, MCHRow)]


def to_json(record: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """A record as plain dicts and lists, without the fields of these names."""

    def named(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in items if value is not None and name not in without}

    return asdict(record, dict_factory=named)


def from_json(kind: type[T], value: Any) -> T:
    """The inverse of `to_json`. Raises ValueError if the value does not have this type's shape.

    Fields that the type does not know are ignored.
    """
    found: T = _read(kind, value)
    return found


def _read(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        for one in inner:  # the first that fits
            with suppress(ValueError):
                return _read(one, value)
    elif is_dataclass(kind) and isinstance(value, dict):
        known = {n: _read(t, value[n]) for n, t in get_type_hints(kind).items() if n in value}
        with suppress(TypeError):  # a field is missing
            return kind(**known)  # type: ignore[operator]
    elif origin is dict and isinstance(value, dict):
        return {key: _read(inner[1], v) for key, v in value.items()}
    elif origin is list and isinstance(value, list):
        return [_read(inner[0], v) for v in value]
    elif origin is tuple and isinstance(value, list) and len(value) == len(inner):
        return tuple(_read(one, v) for one, v in zip(inner, value, strict=True))
    elif kind is Any or isinstance(value, (int, float) if kind is float else origin):
        return value
    raise ValueError(f"expected {kind}, not {str(value)[:60]}")
