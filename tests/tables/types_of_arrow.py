"""Arrow arrays of every type that is kept, with nulls."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

DAY, NOON = dt.date(2024, 2, 29), dt.time(12, 30, 1)
MOMENT = dt.datetime(2024, 2, 29, 23, 59, 59)
# Values of each type; None stands between them.
VALUES: dict[pa.DataType, list[object]] = {
    pa.int8(): [-1, 0, 127, 3],
    pa.uint64(): [0, 2**64 - 1, 5, 6],
    pa.float16(): [0.5, -2.0, 0.0, 1.0],
    pa.float64(): [0.5, float("inf"), -0.0, 1.0],
    pa.bool_(): [True, False, True, True],
    pa.timestamp("us", "Europe/Berlin"): [MOMENT, MOMENT, MOMENT, MOMENT],
    pa.timestamp("s"): [MOMENT, MOMENT, MOMENT, MOMENT],
    pa.duration("ms"): [dt.timedelta(days=-1), dt.timedelta(0), dt.timedelta(1), dt.timedelta(2)],
    pa.date32(): [DAY, dt.date(1900, 1, 1), DAY, DAY],
    pa.date64(): [DAY, dt.date(1900, 1, 1), DAY, DAY],
    pa.time32("s"): [NOON, dt.time(0), NOON, NOON],
    pa.time64("us"): [NOON, dt.time(0, 0, 0, 1), NOON, NOON],
    pa.decimal128(18, 2): [
        Decimal("-1.50"),
        Decimal("9999999999999999.99"),
        Decimal("0.00"),
        Decimal("2.00"),
    ],
    pa.decimal128(5, 0): [Decimal("-15"), Decimal("99999"), Decimal("0"), Decimal("2")],
    pa.string(): ["a", "", "größer", "d"],
    pa.large_string(): ["a", "", "größer", "d"],
    pa.string_view(): ["a", "", "a text that is longer than a view", "d"],
    pa.binary(): [b"a", b"", b"\xff\x00", b"d"],
    pa.binary(2): [b"ab", b"cd", b"\xff\x00", b"gh"],
    pa.binary_view(): [b"a", b"", b"\xff" * 20, b"d"],
    pa.list_(pa.int32()): [[1, 2], [], [3], [4, 5, 6]],
    pa.large_list(pa.float32()): [[1.0, 2.0], [], [3.0], [4.0]],
    pa.list_view(pa.int16()): [[1, 2], [], [3], [4]],
    pa.list_view(pa.list_(pa.string_view())): [[["a"], ["longer than a view"]], [], [[]], [["b"]]],
    pa.list_(pa.int64(), 2): [[1, 2], [3, 4], [5, 6], [7, 8]],
    pa.list_(pa.list_(pa.int8(), 2), 2): [[[1, 2], [3, 4]]] * 4,
    pa.list_(pa.list_(pa.int8(), 2)): [[[1, 2], [3, 4]], [], [[5, 6]], [[7, 8]]],
    pa.list_(pa.string()): [["a", "bc"], [], [""], ["d"]],
    pa.list_(pa.list_(pa.int16())): [[[1], []], [], [[2, 3]], [[4]]],
    pa.list_(pa.list_(pa.string())): [[["a"], []], [], [["b", ""]], [["c"]]],
    pa.list_(pa.bool_()): [[True], [], [False, True], [True]],
    pa.struct({"x": pa.int32(), "y": pa.string()}): [{"x": i, "y": str(i)} for i in range(4)],
    pa.struct({"x": pa.struct({"z": pa.list_(pa.int8())})}): [{"x": {"z": [i] * i}} for i in range(4)],
    pa.list_(pa.struct({"x": pa.int32(), "y": pa.list_(pa.string())})): [
        [{"x": 1, "y": ["a", "b"]}, {"x": 2, "y": []}],
        [],
        [{"x": 3, "y": [""]}],
        [{"x": 4, "y": ["d"]}],
    ],
    pa.map_(pa.string(), pa.int8()): [[("a", 1)], [], [("b", 2), ("c", 3)], [("d", 4)]],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b", "a", "c"],
    pa.dictionary(pa.int32(), pa.int64()): [7, 8, 7, 9],
    pa.null(): [None] * 4,
}
SHAPES = ("whole", "nulls", "slice", "chunks")


def column(kind: pa.DataType, shape: str) -> pa.ChunkedArray:
    """A column of a type: without nulls, with some, cut out of a longer one, or in several chunks."""
    values = VALUES[kind]
    some = [values[0], None, *values[1:], None, values[0]]
    if shape == "whole":
        return pa.chunked_array([pa.array(values, kind)])
    if shape == "nulls":
        return pa.chunked_array([pa.array(some, kind)])
    if shape == "slice":
        return pa.chunked_array([pa.array([*values, *some, *values], kind).slice(5, 6)])
    pieces = [pa.array(some, kind).slice(1), pa.array(values, kind), pa.array([], kind), pa.array(some, kind)]
    return pa.chunked_array(pieces, kind)


def in_pairs(value: Any) -> Any:
    """What `to_pylist` gives, with maps as rows have them: lists of dicts."""
    if isinstance(value, tuple):
        return {"key": value[0], "value": in_pairs(value[1])}
    if isinstance(value, dict):
        return {key: in_pairs(item) for key, item in value.items()}
    return [in_pairs(item) for item in value] if isinstance(value, list) else value


def plain(value: Any, words: tuple[str, ...] | None = None) -> Any:
    """A value of a row as Python's own, to be compared with Arrow's."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return [plain(inner) for inner in value] if value.ndim else plain(value[()])
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return value.item()
    if isinstance(value, np.generic):
        return words[int(value)] if words else value.item()
    return value
