"""Messages between processes: what goes in comes out, and nothing else can be read from one."""

from __future__ import annotations

import pickle
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from helpers.fine_models import FINE_BITS, fine_model, write_copies
from mchindex import errors
from mchindex.cluster.shard import PLACE, Facts, Shard
from mchindex.cluster.wire import decode, encode
from mchindex.index.arguments import Rank
from mchindex.index.facade import MCHIndex
from mchindex.index.ranking import Budget, Query, Reach
from mchindex.index.searching import Search, Selection
from mchindex.storage.records import Known, Row

NUMBERS = st.sampled_from(["u1", "<i2", "<i4", "<i8", "<u4", "<f4", "<f8", "?"])
SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
ARRAYS = NUMBERS.flatmap(lambda kind: arrays.arrays(kind, SHAPES))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same, in their types and the content of their arrays, too."""
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b or (a != a and b != b))


def copied(value: Any) -> Any:
    return decode(bytearray(encode(value)))


@given(VALUES)
@example("half a pair: \udcff")
@example([float("inf"), -0.0, 2**70])
@example([np.float32(0.1), np.int64(-1), np.bool_(True)])
def test_values_come_out_as_they_went_in(value: Any) -> None:
    assert same(copied(value), value)


@given(st.binary())
def test_noise_is_refused_or_a_value(noise: bytes) -> None:
    try:
        decode(bytearray(noise))
    except ValueError as error:
        assert str(error).startswith("not a message")  # noqa: PT017


@given(VALUES, st.data())
def test_damaged_messages_are_refused_or_values(value: Any, data: st.DataObject) -> None:
    message = bytearray(encode(value))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(0, len(message))) :]
    try:
        decode(message)
    except ValueError as error:
        assert str(error).startswith("not a message")  # noqa: PT017


@pytest.mark.parametrize(
    "head",
    [
        b'["exception", "object"]',
        b'["exception", "BaseExceptionGroup", "a", ["list"]]',
        b'["exception", "SystemExit"]',
        b'["Path", "/"]',
        b'["system", "true"]',
        b'{"Row": 1}',
        b'["array", "O", [1], 0]',
        b'["array", "u1", [9], 0]',
        b'["array", "u1", [-1], 0]',
        b'["array", "u1", [4294967296, 4294967296], 0]',
        b'["bytes", -1, 1]',
        b'["dict", 1]',
        b'["dict", ["list"], 1]',
        b"[]",
        b"[" * 100_000,
    ],
)
def test_only_known_classes_are_made(head: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        decode(bytearray(len(head).to_bytes(8, "little") + head))


@pytest.mark.parametrize(
    "value",
    [object(), {1}, Path("a"), np.array([None]), np.array(["a"]), 1j, type],
    ids=lambda value: type(value).__name__,
)
def test_what_no_message_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="a message cannot hold"):
        encode([value])


def raised() -> list[Exception]:
    return [
        ValueError("k is at least 1"),
        KeyError("a"),
        errors.ShardUnavailableError([1, 2], "no answer"),
        errors.MissingExtraError("it is gone", "heic"),
        errors.UnknownWordError("dgo", ["dog"]),
    ]


@pytest.mark.parametrize("error", raised(), ids=lambda error: type(error).__name__)
def test_exceptions_arrive_with_their_message(error: Exception) -> None:
    found = copied((False, error))[1]
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args


def test_arguments_and_answers_of_every_reading_method(tmp_path: Path) -> None:
    """Otherwise a call would always take the slow way through Ray."""
    write_copies(tmp_path / "photos", 4)
    model = fine_model()
    with MCHIndex.open(tmp_path / "a.mch", model) as index:
        index.add(tmp_path / "photos", metadata={"a": [1, None, 0.5], "b": "é"})
        with index._store.writer(0):
            index._store.set(**{PLACE: ["c", 0]})
        ids, codes = list(index), model.encode_query([tmp_path / "photos" / "0.png"])
    shard = Shard(str(tmp_path / "a.mch"), ["c", 0])
    query = Query(codes, np.random.default_rng(0).normal(size=(1, FINE_BITS)).astype(np.float32))
    limits = Budget(None, None, None, 1)
    keys = [1, 2, 3]
    ranks: list[Rank] = ["code", "fine", "best"]
    for rank in ranks:
        chosen = Selection({"b": "é", "a": {"<": 2}}, ids, [ids[:1]])
        search = Search(query, 5, 0, rank, limits, chosen)
        reach = Reach(np.array([9], np.int32), np.array([99], np.uint32))
        for arguments in ((search, 5, None), (search, 5, reach)):
            arrived = copied(("search", arguments))
            assert same(arrived, ("search", arguments))
            part = shard.call(arrived[0], *arrived[1])
            assert same(copied(part), part)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("near", (Search(query, 5, 0, "best", limits, None),)),
        ("facts", ()),
        ("in_bucket", (codes[0],)),
        ("content", ()),
        ("fine_codes", (keys,)),
        ("known", (ids,)),
        ("rows", (keys,)),
        ("rows_of", (ids,)),
        ("row", (ids[0],)),
        ("row", ("none",)),
        ("fine", (keys,)),
        ("page", (0, 10, {"b": "é"})),
        ("copies", (0, 10)),
        ("matching", ({"b": "é"},)),
        ("ids", (keys,)),
        ("facets", (10,)),
        ("decisions", ()),
        ("state", ()),
        ("last_key", ()),
        ("version", ()),
        ("next_id", ()),
        ("stats", ()),
    ]
    for name, arguments in calls:
        arrived = copied((name, arguments))
        assert same(arrived, (name, arguments))
        answer = shard.call(name, *arrived[1])
        assert same(copied((True, answer)), (True, answer)), name
    shard.close()


def test_a_pickle_is_no_message() -> None:
    for value in (Row("a", b""), Known(1, None, None, None, None), Facts(1, 2, 3, 4)):
        with pytest.raises(ValueError, match="not a message"):
            decode(bytearray(pickle.dumps(value)))
