"""What requests and answers hold. Requests are checked by these; answers are only described."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

Text = Annotated[str, StringConstraints(max_length=8192)]
Number = Annotated[int, Field(ge=-(2**63), lt=2**63, strict=True)]
AnyId = Text | Number
Coordinate = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False, strict=True)]
PictureBox = Annotated[
    list[Coordinate],
    Field(min_length=4, max_length=4, description="x0, y0, x1, y1 in pixels of the full picture"),
]
Rank = Literal["best", "fine", "code"]
Level = Literal["copy", "similar"]
Decision = Literal["keep", "discard"]


class Body(BaseModel):
    """A body that has no unknown fields, so that no misspelt option is ignored."""

    model_config = ConfigDict(extra="forbid")


class Example(Body):
    """One picture of several: an image in the index or a picture that is sent."""

    id: AnyId | None = None
    image: str | None = Field(default=None, description="the bytes of a picture, in Base64")
    codes: Text | None = Field(default=None, description="the `query.codes` of an earlier answer")
    region: PictureBox | Text | None = None


class SearchRequest(Body):
    """A search by one of `id`, `image`, `codes`, `text` and `like`."""

    id: AnyId | None = Field(default=None, description="of an image in the index")
    image: str | None = Field(default=None, description="the bytes of a picture, in Base64")
    codes: Text | None = Field(
        default=None, description="the `query.codes` of an earlier answer, or a code in hexadecimal"
    )
    text: Text | None = Field(default=None, description="names of things: dog, sofa, -person")
    like: list[AnyId | Example] | None = Field(
        default=None, description="images that hits should be like, all of them"
    )
    unlike: list[AnyId | Example] | None = Field(
        default=None, description="images that hits should not be like"
    )
    region: PictureBox | Text | None = Field(
        default=None, description="a part of the picture: a box, or for `id` the name of a region"
    )
    k: Annotated[int, Field(ge=1, strict=True)] = Field(default=10, description="hits, at most")
    offset: Annotated[int, Field(ge=0, strict=True)] = Field(
        default=0, description="the best hits that are left out"
    )
    rank: Rank | None = Field(
        default=None, description="the default is best, if there are fine codes"
    )
    filter: dict[str, Any] | None = Field(default=None, description="conditions on the metadata")
    exclude: list[AnyId] | None = Field(default=None, description="ids that are not to be hits")
    max_radius: Annotated[int, Field(ge=0, le=256, strict=True)] | None = Field(
        default=None, description="bits in which a hit's code may differ, at most"
    )
    explain: StrictBool = Field(default=False, description="whether to say why each hit is one")


class BatchRequest(Body):
    searches: list[SearchRequest] = Field(min_length=1)


class RemoveRequest(Body):
    ids: list[AnyId] = Field(min_length=1)
    files: StrictBool = Field(default=False, description="whether to delete the files, too")


class DecisionRequest(Body):
    id: AnyId
    decision: Decision | None = Field(description="null forgets the decision")


class DecisionsRequest(Body):
    decisions: list[DecisionRequest] = Field(min_length=1)


# Answers.


class Hit(BaseModel):
    id: str | int
    score: float
    similarity: float | None
    distance: int = Field(description="of the codes; -1 for words, which have none")
    region: str
    box: list[float] | None = Field(description="the part that matched, in pixels of the picture")
    name: str = Field(description="of the file")
    width: int | None
    height: int | None
    metadata: dict[str, Any]
    why: str | None = Field(default=None, description="in words, if the search asks to explain")
    same: bool | None = Field(
        default=None, description="whether it is the query's picture or a part of it"
    )


class Visited(BaseModel):
    buckets: int
    radius: int
    candidates: int
    exact: bool
    limited_by: str | None
    partial: bool = Field(description="whether a part of a cluster did not answer")
    images: int = Field(description="in the index")
    text: str = Field(description="the same in words")


class Took(BaseModel):
    total_ms: float
    queue_ms: float
    encode_ms: float
    search_ms: float


class AskedQuery(BaseModel):
    codes: str | None = Field(description="repeats the search of a picture without sending it")


class SearchAnswer(BaseModel):
    hits: list[Hit]
    offset: int
    k: int
    more: bool
    rank: Rank
    visited: Visited
    took: Took
    query: AskedQuery


class ProblemAnswer(BaseModel):
    type: str
    title: str
    status: int
    detail: str


class BatchAnswer(BaseModel):
    answers: list[SearchAnswer | ProblemAnswer]


class FailedFile(BaseModel):
    name: str
    reason: str


class AddedAnswer(BaseModel):
    added: list[str | int]
    replaced: list[str | int]
    unchanged: list[str | int]
    failed: list[FailedFile]


class RemovedAnswer(BaseModel):
    removed: int
    files: int = Field(description="deleted")
    failed: list[FailedFile]


class ListedImage(BaseModel):
    id: str | int
    name: str
    width: int | None
    height: int | None
    bytes: int | None
    modified: str | None
    metadata: dict[str, Any]


class ImagesAnswer(BaseModel):
    images: list[ListedImage]
    next: str | None
    total: int


class StoredRegion(BaseModel):
    region: str
    box: list[float] | None
    code: str = Field(description="in hexadecimal")
    images_in_bucket: int
    keep: float


class ImageAnswer(ListedImage):
    path: str | None
    regions: list[StoredRegion]
    fine: bool


class DuplicateImage(BaseModel):
    id: str | int
    name: str
    width: int | None
    height: int | None
    bytes: int | None
    modified: str | None
    similarity: float
    keep: bool
    decision: Decision | None


class DuplicateGroupAnswer(BaseModel):
    images: list[DuplicateImage]


class DuplicatesAnswer(BaseModel):
    level: Level
    groups: list[DuplicateGroupAnswer]
    next: str | None
    total: int
    compared: int


class DecisionAnswer(BaseModel):
    id: str | int
    decision: Decision


class DecisionsAnswer(BaseModel):
    decisions: list[DecisionAnswer]


class WordsAnswer(BaseModel):
    words: list[str]


class Region(BaseModel):
    name: str
    box: list[float] = Field(description="as fractions of the sides")


class MetadataKey(BaseModel):
    name: str
    kind: Literal["text", "number", "boolean"]
    values: list[Any] | None
    min: float | None
    max: float | None


class Access(BaseModel):
    write: bool
    delete: bool
    key_required: bool


class InfoAnswer(BaseModel):
    version: str
    images: int
    codes: int
    buckets: int
    bits: int
    fine_bits: int
    model: str | None
    rank_modes: list[Rank]
    words: bool
    regions: list[Region]
    metadata: list[MetadataKey]
    access: Access
    limits: dict[str, float]
