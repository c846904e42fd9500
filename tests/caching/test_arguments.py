"""Arguments as bytes: equal for equal values, and for no others."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import io
import itertools
import math
import random
import struct
import types
import uuid
import zoneinfo
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pytest
import torch
from own import Made

import torchyoga as yoga
from torchyoga.caching.arguments import Function, encoded
from torchyoga.rows.schema import Schema


class Color(enum.Enum):
    RED = 1
    BLUE = 2
    ROUGE = 1


class Shade(str, enum.Enum):
    RED = "1"


class Bits(enum.Flag):
    ONE = 1
    TWO = 2


@dataclasses.dataclass
class Config:
    size: int
    folder: Path = Path("x")
    token: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Other:
    size: int
    folder: Path = Path("x")


class Inherits(Config):
    pass


Pair = collections.namedtuple("Pair", "a b")
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 10**30, 0.0, -0.0, 1.0, math.inf, math.nan, 1j),
    *("", "1", "True", "None", "é", "\ud800", "torch.float32", b"", b"1", bytearray(b"1")),
    *((), [], {}, set(), frozenset(), (1,), [1], {1}, frozenset({1}), {1: 1}, {"1": 1}, {1: "1"}, (1, 2)),
    *(("ab", "c"), ("a", "bc"), ("a", ("b", "c")), (("a", "b"), "c"), [["a"], "b"], [[], [[]]], [[[]], []]),
    *({1, 2}, {1, "2"}, {"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}),
    *(range(3), range(0, 4), slice(3), slice(0, 3), Path("1"), PurePosixPath("a/b")),
    *(Color.RED, Color.BLUE, Shade.RED, Bits.ONE, Bits.ONE | Bits.TWO, Color, Config),
    *(Config(1), Config(2), Config(1, Path("y")), Other(1), Pair(1, 2), Pair(1, 3)),
    *(np.int64(1), np.int32(1), np.float32(1), np.bool_(True), np.str_("1"), np.datetime64("2020-01-01")),
    *(np.zeros(2), np.zeros((2, 1)), np.zeros(2, np.float32), np.zeros(2, ">f8"), np.ones(2), np.array(1)),
    *(torch.zeros(2, dtype=torch.float64), torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).bfloat16()),
    *(torch.ones(2), torch.tensor(1), torch.tensor(True), torch.tensor([1j]), torch.float32, torch.float64),
    *(torch.device("cpu"), torch.device("cuda"), torch.device("cuda:0"), np.dtype("f4"), np.dtype("f8")),
    *(len, max, math.sqrt, Schema, Schema.of, np.array(["a", "b"])),
    *(functools.partial(math.pow, 2), functools.partial(math.pow, 3), functools.partial(math.pow)),
]

Ordered, Default, Counted = collections.OrderedDict, collections.defaultdict, collections.Counter
utc = datetime.timezone.utc
noon = (12, 0, 0, 0)
# A time zone with one offset, as TZif; not every machine has a table of time zones.
_ZONE = (
    b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 3600, 0, 0) + b"CET\0"
)
berlin = zoneinfo.ZoneInfo.from_file(io.BytesIO(_ZONE), key="Europe/Berlin")


class Settings(dict[str, Any]):
    def __init__(self, mode: str, **items: Any) -> None:
        super().__init__(**items)
        self.mode = mode


class Dotted(dict[str, Any]):
    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


MORE: list[Any] = [
    *(Ordered(), Ordered(a=1, b=2), Ordered(b=2, a=1), Default(int), Default(int, a=1), Counted("a")),
    *(Settings("x", a=1), Settings("y", a=1), Settings("x", a=2), Dotted(a=1), Dotted(a=2)),
    *(torch.Size([1, 2]), torch.Size([1, 3]), np.add, np.exp, np.mean, np.linalg.norm),
    *(torch.add, torch.relu, torch.sigmoid, torch.nn.functional.gelu, torch.nn.functional.relu),
    *(datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2), datetime.datetime(2020, 1, 2, tzinfo=utc)),
    *(datetime.datetime(2020, 1, 2, tzinfo=berlin), datetime.datetime(2020, 10, 25, 2, 30, fold=1)),
    *(datetime.datetime(2020, 10, 25, 2, 30), datetime.time(*noon), datetime.time(*noon, tzinfo=utc)),
    *(datetime.time(*noon, tzinfo=berlin), datetime.timedelta(1), datetime.timedelta(seconds=1)),
    *(decimal.Decimal("1"), decimal.Decimal("1.0"), fractions.Fraction(1), fractions.Fraction(1, 2)),
    *(uuid.UUID(int=1), uuid.UUID(int=2), argparse.Namespace(a=1), argparse.Namespace(a=2)),
    *(
        argparse.Namespace(),
        types.SimpleNamespace(a=1),
        types.SimpleNamespace(),
        {"x": [argparse.Namespace()]},
    ),
]


def test_different_values_have_different_bytes() -> None:
    values = VALUES + MORE
    found = [encoded(value) for value in values]
    for (i, one), (j, other) in itertools.combinations(enumerate(found), 2):
        assert one != other, (values[i], values[j])


def test_equal_values_have_equal_bytes() -> None:
    same: list[tuple[Any, Any]] = [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"b", "a", "c"}, {"c", "b", "a"}),
        ({0, 8}, {8, 0}),  # each is iterated over in its own order
        (math.nan, -math.nan),
        (Color.RED, Color.ROUGE),
        (Config(1, token="a"), Config(1, token="b")),
        (np.arange(6)[::2], np.array([0, 2, 4])),
        (np.arange(6).reshape(2, 3).T, np.array([[0, 3], [1, 4], [2, 5]])),
        (torch.arange(6).reshape(2, 3).T, torch.tensor([[0, 3], [1, 4], [2, 5]])),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
        (torch.tensor([1 + 1j]).conj(), torch.tensor([1 - 1j])),
        (PureWindowsPath("a\\b"), PurePosixPath("a/b")),
        (Counted("ab"), Counted("ba")),
        (Default(int, a=1, b=2), Default(list, b=2, a=1)),
        (argparse.Namespace(a=1, b=2), argparse.Namespace(b=2, a=1)),
    ]
    for one, other in same:
        assert encoded(one) == encoded(other), one


def test_a_dataref_is_identified_by_its_content(tmp_path: Path) -> None:
    storage = yoga.Storage(tmp_path)
    one, same, other = (storage.submit(rows, str(i), "1") for i, rows in enumerate(([1, 2], [1, 2], [1, 3])))
    assert encoded(one) == encoded(same) != encoded(other)
    assert encoded(one[:1]) != encoded(one)
    with pytest.raises(TypeError, match="Made has no digest"):
        encoded(Made(0))


def test_values_without_a_digest_are_refused() -> None:
    def local() -> None:
        pass

    class Local:
        pass

    class Zone(datetime.tzinfo):
        def utcoffset(self, moment: Any) -> datetime.timedelta:
            return datetime.timedelta(1)

    deep: list[Any] = []
    deep.append(deep)
    odd = [
        *(object(), Local(), Local, local, lambda: 1, [lambda: 1], {"a": local}, deep, iter([]), Inherits(1)),
        *(Ordered(a=object()), Default(int, a=local), argparse.Namespace(a=local), Settings(local)),  # type: ignore[arg-type]
        *(
            np.frompyfunc(local, 0, 1),
            np.vectorize(local),
            dict.fromkeys,
            datetime.datetime(1, 1, 1, tzinfo=Zone()),
        ),
        *(collections.deque(), np.array([None]), np.zeros(2, np.longdouble)),
        *(np.ma.zeros(2), np.zeros(2, [("a", "f4")]), torch.nn.Parameter(torch.zeros(2)), torch.nn.ReLU()),
        *(torch.zeros(2).to_sparse(), torch.Generator(), functools.partial(local), "x".join, math),
        *(Config(1).__eq__, local.__code__),
    ]
    for value in odd:
        with pytest.raises(TypeError) as caught:
            encoded(value)
        assert len(str(caught.value)) < 300
        assert " at 0x" not in str(caught.value)


def test_a_local_class_of_values_is_identified_by_its_values() -> None:
    def made() -> Any:
        @dataclasses.dataclass
        class Local:
            x: int

        return Local

    assert encoded(made()(1)) == encoded(made()(1)) != encoded(made()(2))


def test_the_bytes_are_pinned() -> None:
    # Manifests hold digests of these bytes.
    digest = hashlib.blake2b(b"|".join(map(encoded, VALUES)), digest_size=16).hexdigest()
    assert digest == "2706377b7c1d49c773348966db1b455f"
    digest = hashlib.blake2b(b"|".join(map(encoded, MORE)), digest_size=16).hexdigest()
    assert digest == "a0e674a98c41a1fecf0eb6aa597bf81e"


class Says:
    def __str__(self) -> str:
        return "always the same"


class SaysText(str):
    def __str__(self) -> str:
        return "always the same"


class SaysNumber(int):
    def __str__(self) -> str:
        return "always the same"


class Level(enum.IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((True, "True"), (1, "1"), (1.5, "1.5"), (None, "None"), ("é {x}", "é {x}"), (Path("a/b"), "a/b")),
        *((Color.RED, "Color.RED"), (Shade.RED, "1"), (Level.HIGH, "3"), (Bits.ONE | Bits.TWO, "3")),
        *(
            (np.int64(3), "3"),
            (np.float32(0.1), "0.1"),
            (torch.float32, "torch.float32"),
            ((1, ["a"]), "(1, ['a'])"),
        ),
        *((torch.device("cpu"), "cpu"), (datetime.date(2020, 1, 2), "2020-01-02")),
        *(((np.int64(3),), "(3,)"), ([Path("x"), "x"], "[x, 'x']"), ((), "()"), ([[]], "[[]]"), (1j, "1j")),
        *((decimal.Decimal("1.50"), "1.50"), (uuid.UUID(int=1), f"{uuid.UUID(int=1)}")),
        *((np.bool_(True), "True"), (np.str_("x"), "x"), (np.dtype("f4"), "float32")),
        (datetime.datetime(2020, 1, 2, 3), "2020-01-02 03:00:00"),
    ],
)
def test_the_text_of_a_value_in_a_template(value: Any, text: str) -> None:
    assert Function(lambda x: x, "a-{x}", "1", []).call(value).id == f"a-{text}"


@pytest.mark.parametrize(
    "value",
    [
        *({1}, np.arange(2), torch.tensor(1), Config(1), (1, {2}), [[object()]], b"x", range(3), len, int),
        *(
            np.random.default_rng(0),
            np.random.RandomState(0),
            random.Random(0),
            ValueError("x"),
            Says(),
            SaysText(),
        ),
        *(SaysNumber(1), np.longdouble(1), np.array(1), pytest, argparse.Namespace(), Pair(1, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_a_template_refuses(value: Any) -> None:
    with pytest.raises(
        TypeError, match="whose text is not the same in every process or says only a part of it"
    ):
        Function(lambda x: x, "a-{x}", "1", []).call(value)


def test_a_function_in_c_without_a_signature_takes_anything() -> None:
    function = Function(iter, "a", "1", [])
    assert function.call([1], 2).names == ["args"]
    assert Function(math.sqrt, "a-{x}", "1", []).call(4).id == "a-4"
