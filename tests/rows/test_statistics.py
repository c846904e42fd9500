"""Statistics of columns against oracles in plain Python, in any parts and order."""

from __future__ import annotations

import copy
import datetime
import json
import math
import random
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from quick import examples

import torchyoga as yoga
from torchyoga.reading.counting import merged
from torchyoga.rows.block import Block
from torchyoga.rows.collector import block_of
from torchyoga.rows.numbers import MOST_BINS, MOST_DISTINCT, Numbers, bins_of
from torchyoga.rows.statistics import MOST_BYTES, ColumnStats, TableStatistics, TableStats

INTS = ["u1", "i1", "<u2", ">i2", "<u4", "<i4", ">u4", "<i8", "<u8", ">i8"]
FLOATS = ["<f2", "<f4", ">f4", "<f8", ">f8"]


def in_one(block: Block) -> TableStatistics:
    found = TableStatistics(block.schema)
    found.add(block)
    return found


def in_parts(block: Block, cuts: list[int], seed: int) -> TableStatistics:
    """Each part on its own, through JSON, merged in a random order."""
    bounds = sorted({0, block.num_rows, *(cut % (block.num_rows + 1) for cut in cuts)})
    parts = []
    for start, stop in pairwise(bounds):
        part = TableStatistics(block.schema)
        part.add(block.slice(start, stop), start)
        text = json.dumps(part.to_json(), allow_nan=False)
        parts.append(TableStatistics.from_json(json.loads(text), block.schema, stop - start))
    random.Random(seed).shuffle(parts)
    found = TableStatistics(block.schema)
    for part in parts:
        found.merge(part)
    return found


def assert_alike(one: Any, other: Any) -> None:
    """Equal plain data; floats but for their last bits."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, float):
        assert one == other or math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-300), (one, other)
    else:
        assert one == other


def assert_known(stats: ColumnStats, values: np.ndarray) -> None:
    """What is known of numbers is what fractions say."""
    listed = [value for value in values.reshape(-1).tolist()]
    finite = [value for value in listed if math.isfinite(value)]
    assert stats.count == len(listed)
    assert stats.nan == sum(map(math.isnan, listed))
    assert (stats.inf, stats.minus_inf) == (sum(map(math.isinf, listed)), listed.count(-math.inf))
    assert stats.zeros == finite.count(0)
    assert stats.sampled == len(finite)
    if not finite:
        assert (stats.min, stats.max, stats.mean, stats.std) == (None,) * 4
        assert stats.histogram.counts == ()
        return
    assert (stats.min, stats.max) == (min(finite), max(finite))
    exact = [Fraction(value) for value in finite]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    size = float(max(map(abs, exact)))
    assert stats.std is not None
    assert abs(stats.mean - float(mean)) <= 1e-15 * len(exact) * size
    if variance < 2**1000:
        assert math.isclose(stats.std, math.sqrt(variance), rel_tol=1e-9, abs_tol=1e-14 * len(exact) * size)
    bars = stats.histogram
    assert len(bars.counts) <= MOST_BINS
    edges = [Fraction(edge) for edge in bars.edges]
    assert list(bars.counts) == [sum(low <= value < high for value in exact) for low, high in pairwise(edges)]


def arrays(dtype: str, width: int) -> Any:
    shape = st.tuples(st.integers(1, 12), st.just(width)) if width else st.integers(1, 12).map(lambda n: (n,))
    kind = np.dtype(dtype).kind
    extremes = hnp.from_dtype(np.dtype(dtype), **({"allow_nan": True} if kind in "fc" else {}))
    return hnp.arrays(
        dtype, shape, elements=st.one_of(extremes, st.sampled_from([0, 1, 2]).map(np.dtype(dtype).type))
    )


@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("dtype", [*INTS, *FLOATS])
@settings(max_examples=examples(25))
@given(data=st.data())
def test_numbers(dtype: str, width: int, data: Any) -> None:
    values = data.draw(arrays(dtype, width))
    block = block_of([{"x": row} for row in values])
    whole = in_one(block)
    with np.errstate(all="ignore"):
        assert_known(whole.known()["x"], values)
    parts = in_parts(block, data.draw(st.lists(st.integers(0, 12), max_size=4)), data.draw(st.integers(0, 9)))
    if dtype in INTS:
        assert parts.to_json() == whole.to_json()
    else:
        one, other = parts.known()["x"], whole.known()["x"]
        for name in ("count", "nan", "inf", "zeros", "min", "max", "histogram", "top"):
            assert getattr(one, name) == getattr(other, name), name
        with np.errstate(all="ignore"):
            assert_known(one, values)


def test_the_bins_reach_from_the_smallest_to_the_largest_and_are_the_finest() -> None:
    numbers = [*range(-70, 71, 7), 2**63 - 1, -(2**63), 2**64 - 1, 2**31]
    for low, high in product(numbers, numbers):
        if low > high:
            continue
        k = bins_of(low, high)[0]
        assert (high >> k) - (low >> k) < MOST_BINS
        assert k == 0 or (high >> (k - 1)) - (low >> (k - 1)) >= MOST_BINS
    floats = [0.0, 1e-310, -1e-310, 5e-324, -5e-324, 1.0, -1.5, 3.0, 1e300, -1e300, 1.7976931348623157e308]
    floats += [-1.7976931348623157e308]
    for low, high in product(floats, floats):
        if low <= high:
            k = bins_of(low, high)[0]
            width = Fraction(2) ** k
            bins = [Fraction(value) // width for value in (low, high)]
            assert bins[1] - bins[0] < MOST_BINS
            found = Numbers.of(np.array([low, high]), is_int=False)
            assert sum(found.bars) == 2
            assert bins_of(low, high)[1:] == tuple(bins)


def test_of_wide_rows_some_are_sampled_alike_in_any_parts() -> None:
    rng = np.random.default_rng(0)
    for dtype, width in (("u1", 784), ("<f4", 1024), ("<f8", 100)):
        rows = 700 if width > 500 else 5000
        values = (rng.normal(size=(rows, width)) * 20 + 100).astype(dtype)
        values[3, 5] = 0
        block = block_of(list(values))
        whole = in_one(block).known()["value"]
        assert 2**16 * 0.9 < whole.sampled < values.size
        assert (whole.min, whole.max, whole.count) == (values.min(), values.max(), values.size)
        exact = values.astype(np.float64)
        assert math.isclose(whole.mean, exact.mean(), rel_tol=1e-6)
        assert math.isclose(whole.std, exact.std(), rel_tol=0.02)
        assert whole.zeros >= 1
        parts = in_parts(block, [1, 17, 90, 333, 350], 0).known()["value"]
        assert (parts.sampled, parts.histogram, parts.zeros) == (whole.sampled, whole.histogram, whole.zeros)
        assert math.isclose(parts.mean, whole.mean, rel_tol=1e-6)
        assert "the histogram" in str(whole)


def test_of_many_rows_of_any_length_some_are_sampled_alike_in_any_parts() -> None:
    sizes = [number * number % 13 + (90 if 1300 < number < 1500 else 0) for number in range(2000)]
    rows = [np.arange(size) for size in sizes]
    block = block_of(rows, yoga.Schema.of(rows[1], ragged=["value"]))
    whole = in_one(block).known()["value"]
    kept = [size for number, size in enumerate(sizes) if number < 1024 or number % 64 == 0]
    assert whole.sampled == sum(kept) < whole.count == sum(sizes)
    assert whole.zeros == len([size for size in kept if size])
    assert (whole.lengths.min, whole.lengths.max, whole.lengths.total) == (0, max(sizes), sum(sizes))
    for seed, cuts in enumerate(([5, 700], [1024, 1301, 1499], [1023, 1025, 1900])):
        assert in_parts(block, cuts, seed).to_json() == in_one(block).to_json()


def test_lists_with_none_are_counted_alike_in_any_parts() -> None:
    rows = [{"a": [1, 2, None if number == 1500 else 3]} for number in range(1600)]
    block = block_of(rows, yoga.Schema.of({"a": [1]}, ragged=["a"], nullable=["a{items}"]))
    (stats,) = in_one(block).known().values()
    assert (stats.nulls, stats.count, stats.sampled) == (1, 4799, 4799)
    assert in_parts(block, [1400, 1550], 0).to_json() == in_one(block).to_json()


def test_infinities_and_nan_in_wide_rows_are_all_counted() -> None:
    values = np.ones((400, 1000), np.float32)
    values[7, 3] = np.nan
    values[399, 999], values[398, 0] = np.inf, -np.inf
    values[1] = 3e38
    found = in_one(block_of(list(values))).known()["value"]
    assert (found.nan, found.inf, found.minus_inf) == (1, 2, 1)
    assert (found.min, found.max) == (1, float(np.float32(3e38)))
    finite = values[np.isfinite(values)].astype(np.float64)
    assert math.isclose(found.mean, finite.mean(), rel_tol=1e-6)
    all_bad = in_one(block_of(list(np.full((400, 1000), np.nan, np.float32)))).known()["value"]
    assert (all_bad.nan, all_bad.count, all_bad.mean) == (400_000, 400_000, None)


@given(
    texts=st.lists(st.one_of(st.none(), st.text(st.characters(), max_size=6)), min_size=2, max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=3),
)
def test_texts_and_none(texts: list[str | None], cuts: list[int]) -> None:
    schema = yoga.Schema.of({"t": "a"}, nullable=["t"])
    block = block_of([{"t": text} for text in texts], schema)
    whole = in_one(block)
    found = whole.known()
    assert list(found) == ["t"]
    there = [text for text in texts if text is not None]
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in there]
    stats, lengths = found["t"], found["t"].lengths
    assert (stats.rows, stats.nulls, stats.count) == (len(texts), len(texts) - len(there), len(there))
    assert lengths.count == len(there)
    if sizes:
        assert (lengths.min, lengths.max, lengths.total) == (min(sizes), max(sizes), sum(sizes))
        assert lengths.empty == sizes.count(0)
    counts = Counter(there)
    wanted = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    assert stats.top == tuple(wanted)
    assert stats.distinct == len(counts)
    assert in_parts(block, cuts, len(cuts)).to_json() == whole.to_json()


ROWS: list[dict[str, Any]] = [
    {
        "flag": number % 3 == 0,
        "day": datetime.date(2020, 1, 1) + datetime.timedelta(number),
        "at": datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(hours=number),
        "time": datetime.time(number % 24, 5),
        "took": datetime.timedelta(seconds=number),
        "price": Decimal(number - 3) / 4,
        "z": complex(3 * number, 4 * number),
        "raw": b"\xff" * (number % 3),
        "half": torch.full((2,), float(number), dtype=torch.bfloat16),
        "nothing": None,
        "tags": [None, "ab", "c"][: number % 4],
        "ids": list(range(number % 5)),
        "boxes": [{"label": "x", "area": None if item else 2.5} for item in range(number % 3)],
        "name": np.array(["ab"]),
        "maybe": {"x": 1.0} if number % 2 else None,
    }
    for number in range(20)
]
for row in ROWS:
    row["price"] = row["price"].quantize(Decimal("0.01"))
SCHEMA = yoga.Schema.of(
    {**ROWS[7], "tags": ["a"], "boxes": [{"label": "x", "area": 2.5}], "maybe": {"x": 1.0}},
    ragged=["tags", "ids", "boxes"],
    nullable=["tags{items}", "boxes{items}/area", "maybe"],
)


def test_every_other_kind_of_column() -> None:
    block = block_of(ROWS, SCHEMA)
    whole = in_one(block)
    found = whole.known()
    assert found["flag"].top == ((False, 13), (True, 7))
    assert (found["day"].min, found["day"].max, found["day"].mean) == ("2020-01-01", "2020-01-20", None)
    assert str(found["at"].max).startswith("2020-01-01T19:00:00")
    assert (found["time"].min, found["time"].max) == ("00:05:00", "19:05:00")
    assert found["took"].max == "19000000 microseconds"
    assert (found["price"].min, found["price"].max, found["price"].mean) == (
        *(Decimal("-0.75"), Decimal("4.00")),
        sum(float(row["price"]) for row in ROWS) / 20,
    )
    assert (found["z"].max, found["z"].mean) == (95.0, 47.5)
    assert found["raw"].top == ((b"", 7), (b"\xff", 7), (b"\xff\xff", 6))
    assert (found["half"].max, found["half"].mean, found["half"].count) == (19.0, 9.5, 40)
    assert (found["nothing"].nulls, found["nothing"].count) == (20, 0)
    tags = [tag for row in ROWS for tag in row["tags"]]
    assert found["tags{items}"].nulls == tags.count(None)
    assert found["tags{items}"].top == (("ab", tags.count("ab")), ("c", tags.count("c")))
    ids = [number for row in ROWS for number in row["ids"]]
    assert (found["ids"].count, found["ids"].mean) == (len(ids), sum(ids) / len(ids))
    areas = [box["area"] for row in ROWS for box in row["boxes"]]
    area = found["boxes{items}/area"]
    assert (area.nulls, area.count, area.min, area.zeros) == (areas.count(None), areas.count(2.5), 2.5, 0)
    assert (found["name"].count, found["maybe/x"].nulls, found["maybe/x"].min) == (20, 10, 1.0)
    for seed in range(5):
        assert_alike(in_parts(block, [seed, 3 * seed, 11], seed).to_json(), whole.to_json())
    assert str(found)
    assert repr(found)
    assert all(str(stats) and repr(stats) for stats in found.values())


def test_what_is_always_none_in_what_may_be_none_is_none_once_a_row() -> None:
    rows = [{"x": (None, 1)}, {"x": None}]
    whole = in_one(block_of(rows))
    assert whole.known()["x/0"].nulls == 2
    assert in_parts(block_of(rows), [1], 0).to_json() == whole.to_json()


def test_times_that_are_none_are_counted_as_such() -> None:
    days = np.array(["2020-01-01", "NaT", "1969-12-31"], "M8[ns]")
    found = in_one(block_of(list(days))).known()["value"]
    assert (found.count, found.nan, found.zeros) == (3, 1, 0)
    assert str(found.min).startswith("1969-12-31T00")


def test_beyond_ten_thousand_values_none_are_counted_wherever_they_are_cut() -> None:
    for size in (MOST_DISTINCT, MOST_DISTINCT + 1):
        for values in (np.arange(size), np.arange(size) * 1e6, np.arange(size) * 10**6):
            twice = np.concatenate([values, values[::-1]])
            block = yoga.from_arrays({"x": twice}).take(np.arange(len(twice))).block
            whole = in_one(block)
            stats = whole.known()["x"]
            assert stats.distinct == (size if size == MOST_DISTINCT else None)
            assert (stats.top is not None) == (size == MOST_DISTINCT)
            if stats.top is not None:
                assert stats.top[0] == (0, 2)
                assert len(stats.top) == 100
            assert in_parts(block, [9000, 9999, 10_001], 1).known()["x"].top == stats.top
    long = block_of(["a", "b" * 65, "c"])
    assert in_one(long).known()["value"].top is None
    assert in_parts(long, [1, 2], 1).known()["value"].top is None


def test_lists_of_the_most_frequent_values_are_never_merged_to_wrong_ones() -> None:
    block = block_of([number % 150 for number in range(1000)])
    whole = in_one(block)
    kept = TableStatistics.from_json(whole.published(), block.schema, 1000)
    assert kept.known()["value"].distinct == 150
    assert len(kept.known()["value"].top or ()) <= 100
    empty = TableStatistics(block.schema)
    empty.merge(kept)
    assert empty.known()["value"].top == kept.known()["value"].top
    kept.merge(whole)
    assert (kept.known()["value"].top, kept.known()["value"].distinct) == (None, None)
    few = block_of([1, 2, 2])
    again = TableStatistics.from_json(in_one(few).published(), few.schema, 3)
    again.merge(in_one(few))
    assert again.known()["value"].top == ((2, 4), (1, 2))


def test_a_column_takes_at_most_4_kilobytes_of_a_manifest() -> None:
    values = [f"{number % 100:060d}" for number in range(5000)]
    rng = np.random.default_rng(0)
    rows = [
        {
            "t": text,
            "x": float(round(x, 2)) * 1e300,
            "n": int(x * 2) * 10**17,
            "r": np.arange(int(abs(x) * 9)),
        }
        for text, x in zip(values, rng.normal(size=5000), strict=True)
    ]
    block = block_of(rows, yoga.Schema.of(rows[0], ragged=["r"]))
    published = in_one(block).published()
    nested = json.dumps({"stats": published}, indent=1)
    for name, column in published.items():
        others = {key: value for key, value in published.items() if key != name}
        assert len(nested) - len(json.dumps({"stats": others}, indent=1)) <= MOST_BYTES, name
        assert column["top"]["values"] if "top" in column else name == "r"
    TableStatistics.from_json(json.loads(nested)["stats"], block.schema, 5000)


def test_forged_statistics_are_refused_and_never_crash() -> None:
    block = block_of(ROWS, SCHEMA)
    good = json.loads(json.dumps(in_one(block).to_json()))
    assert TableStatistics.from_json(good, SCHEMA, 20).to_json() == good
    refused = 0
    wrong: list[Any] = [None, -1, 2**70, "x", [], {}, 1e308, True, [1, 2], [None], 10**400]
    for name, column in good.items():
        for path in _paths(column):
            for value in wrong:
                forged = {**good, name: copy.deepcopy(column)}
                _put(forged[name], path, value)
                try:
                    TableStatistics.from_json(forged, SCHEMA, 20).known()
                except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                    refused += 1
    assert refused > 1000
    for path, value in ((("numbers", "zeros"), 41), (("numbers", "histogram", "exponent"), 70)):
        forged = copy.deepcopy(good)
        _put(forged["ids"], path, value)
        with pytest.raises(ValueError, match=r"contradict|bins do not reach"):
            TableStatistics.from_json(forged, SCHEMA, 20)
    for rows in (0, 19, 21):
        with pytest.raises(ValueError, match="rows"):
            TableStatistics.from_json(good, SCHEMA, rows)
    with pytest.raises(KeyError):
        TableStatistics.from_json({}, SCHEMA, 20)


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(data, dict):
        for key, value in data.items():
            found += _paths(value, (*path, key))
    return found


def _put(data: Any, path: tuple[Any, ...], value: object) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def test_parts_of_a_build_are_merged_to_what_a_manifest_has(caplog: pytest.LogCaptureFixture) -> None:
    block = block_of(ROWS, SCHEMA)
    parts = []
    for start, stop in ((13, 20), (0, 6), (6, 6), (6, 13)):
        part = TableStatistics(SCHEMA)
        part.add(block.slice(start, stop), start)
        parts.append((part.to_json(), stop - start))
    assert_alike(merged(parts, SCHEMA, "a"), in_one(block).published())
    assert merged([*parts, ({}, 3)], SCHEMA, "a") == merged([], None, "a") == {}
    assert merged([(parts[0][0], 4)], SCHEMA, "a") == {}  # they are not of 4 rows
    assert "a has no statistics" in caplog.text
    one, other = (TableStatistics(yoga.Schema.of(row)) for row in ({"x": 1}, {"x": "a"}))
    with pytest.raises(ValueError, match="are not those of"):
        one.merge(other)


def test_what_has_no_rows_has_statistics() -> None:
    found = TableStatistics(SCHEMA)
    assert TableStatistics.from_json(found.to_json(), SCHEMA, 0).to_json() == found.to_json()
    known = found.known()
    assert (known["price"].min, known["flag"].top) == (None, ())
    assert isinstance(known, TableStats)
    with pytest.raises(KeyError, match="there are of flag"):
        known["fla"]


def test_sums_beyond_floats_are_neither_nan_nor_an_error() -> None:
    huge = Numbers.of(np.array([1.7e308, 1.7e308, -1.7e308, 1.7e308]), is_int=False)
    huge += Numbers.of(np.array([-1.7e308]), is_int=False)
    assert math.isclose(huge.mean, 1.7e308 / 5)
    assert huge.deviation == math.inf
    again = Numbers.from_json(json.loads(json.dumps(huge.to_json(), allow_nan=False)), is_int=False)
    assert again.deviation == math.inf
    assert again.bars == huge.bars
