"""What differs between two datasets: multisets of rows against Python's own, keys, files, hashes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupting import calls_of
from quick import examples

import torchyoga as yoga
from torchyoga.caching import diff as diffs
from torchyoga.caching.diff import apart
from torchyoga.errors import NotFoundError, SchemaError
from torchyoga.rows.block import Block
from torchyoga.rows.comparing import row_hashes
from torchyoga.rows.schema import Schema

NUMBERS = itertools.count()
MANY = 2**14
NUMBER_ROWS = Schema.of({"x": 0})


@pytest.fixture
def storage(tmp_path: Path) -> yoga.Storage:
    return yoga.Storage(tmp_path / "storage")


def hash_rows_by(function: Callable[[Block], Any], patch: pytest.MonkeyPatch) -> None:
    """What is asked for the hashes of rows that are read, in place of `row_hashes`."""
    patch.setattr("torchyoga.rows.comparing.row_hashes", function)


def compare_parts_of(rows: int, patch: pytest.MonkeyPatch) -> None:
    """So many rows are compared at a time."""
    patch.setattr(diffs, "PART_ROWS", rows)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parts of four rows, in a file from the first bytes on."""
    compare_parts_of(4, monkeypatch)
    monkeypatch.setattr(diffs, "MEMORY_BYTES", 64)
    return


def fixed(values: Any) -> yoga.DataRef:
    return yoga.from_arrays({"x": np.array(values, np.int64)})


def check_content(d: diffs.Diff, old: list[Any], new: list[Any]) -> None:
    """Against Python's own multisets; the rows named are the last ones of their like."""
    before, after = Counter(old), Counter(new)
    assert Counter(old[n] for n in d.removed.tolist()) == before - after
    assert Counter(new[n] for n in d.added.tolist()) == after - before
    assert d.unchanged == sum((before & after).values())
    for found, whole, other in ((d.removed.tolist(), old, after), (d.added.tolist(), new, before)):
        assert found == [n for n, row in enumerate(whole) if whole[: n + 1].count(row) > other[row]]
    assert len(d.changed) == 0
    assert d.same == (before == after)


def check_keyed(d: diffs.Diff, old: dict[Any, Any], new: dict[Any, Any]) -> None:
    first, second = list(old), list(new)
    assert [first[n] for n in d.removed.tolist()] == [key for key in old if key not in new]
    assert [second[n] for n in d.added.tolist()] == [key for key in new if key not in old]
    changed = [(first.index(k), second.index(k)) for k in old if k in new and old[k] != new[k]]
    assert d.changed.tolist() == [list(pair) for pair in changed]
    assert d.unchanged == sum(key in new and new[key] == old[key] for key in old)


def first_in_order(values: Any) -> bool:
    """True of one of those that differ only in which number is which: 0 comes first, then 1, and so on."""
    return [*dict.fromkeys(values)] == [*range(len({*values}))]


def test_all_small_multisets() -> None:
    every = [rows for count in range(4) for rows in itertools.product(range(3), repeat=count)]
    for old, new in itertools.product(filter(first_in_order, every), every):
        check_content(yoga.diff(fixed(old), fixed(new)), list(old), list(new))


def test_all_small_sets_by_key() -> None:
    every = [
        dict(zip(order, values, strict=True))
        for count in range(3)
        for order in itertools.permutations(range(3), count)
        for values in itertools.product(range(2), repeat=count)
    ]
    for old, new in itertools.product(filter(first_in_order, every), every):
        refs = [
            yoga.from_arrays({"id": np.array([*found], np.int64), "x": np.array([*found.values()], np.int64)})
            for found in (old, new)
        ]
        check_keyed(yoga.diff(*refs, key="id"), old, new)


TEXTS = st.sampled_from(["", "a", "b", "ab"])
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 30),
        "text": st.none() | TEXTS,
        "ids": st.lists(st.integers(0, 1), max_size=2),
        "box": st.sampled_from([None, {"at": (0, 1), "tags": []}, {"at": (0, 1), "tags": ["a", ""]}]),
    }
)
SCHEMA = Schema.of(
    {"id": 1, "text": "a", "ids": [1], "box": {"at": (1, 2), "tags": ["a"]}},
    ragged=["ids", "box/tags"],
    nullable=["text", "box"],
)


@settings(max_examples=examples(40))
@given(st.lists(ROWS, max_size=12), st.lists(ROWS, max_size=12), st.sampled_from(["lmdb", "hdf5"]))
@pytest.mark.usefixtures("small_parts")
def test_rows_of_all_kinds_in_both_formats(
    tmp_path_factory: pytest.TempPathFactory, old: list[Any], new: list[Any], format: str
) -> None:
    storage = yoga.Storage(tmp_path_factory.mktemp("s") / "s")
    new = [*new, *old[::2]]
    name = str(next(NUMBERS))
    refs = [
        storage.submit(rows, name, version, schema=SCHEMA, progress=False, format=form)
        for rows, version, form in ((old, "1", "lmdb"), (new, "2", format))
    ]
    check_content(yoga.diff(*refs), list(map(repr, old)), list(map(repr, new)))
    by_id = [{row["id"]: repr(row) for row in rows} for rows in (old, new)]
    if all(len(found) == len(rows) for found, rows in zip(by_id, (old, new), strict=True)):
        check_keyed(yoga.diff(*refs, key="id"), *by_id)
    else:
        with pytest.raises(ValueError, match="the key 'id' must be another one in each row"):
            yoga.diff(*refs, key=["id"])


@pytest.mark.usefixtures("small_parts")
def test_views(storage: yoga.Storage) -> None:
    ref = storage.submit({"x": np.arange(20), "y": np.arange(20) % 3}, "a", "1", progress=False)
    assert yoga.diff(ref, ref.select(range(19, -1, -1))).same
    assert yoga.diff(ref[:10], ref[5:]).removed.tolist() == list(range(5))
    assert yoga.diff(ref["x"], ref["y"]).added.tolist() == list(range(3, 20))
    assert yoga.diff(ref.columns(["x"]), ref.columns(["x"])).unchanged == 20
    change = ref.map(lambda row: {"x": row["x"], "y": row["y"] + (row["x"] == 7)}, schema=ref.schema)
    assert yoga.diff(ref, change, key="x").changed.tolist() == [[7, 7]]
    with pytest.raises(TypeError, match="does not say what its rows look like"):
        yoga.diff(ref.map(lambda row: row), ref)
    packed = ref.columns(["x"]).repeat(2)
    assert yoga.diff(ref.columns(["x"]), packed).added.tolist() == list(range(20, 40))


def test_versions_of_one_fingerprint_are_not_read(storage: yoga.Storage) -> None:
    old = storage.submit({"x": np.arange(9)}, "a", "1", progress=False)
    new = storage.convert("a", "1", format="hdf5", to="2", progress=False)
    with calls_of(row_hashes) as read:
        d = yoga.diff(old, new)
    assert not read
    assert d.same
    assert d.unchanged == 9
    with pytest.raises(KeyError, match="there is no column 'id'"):
        yoga.diff(old, new, key="id")


def rows_of(numbers: Any) -> list[Any]:
    return [{"id": int(n), "x": int(n) % 4} for n in numbers]


@pytest.mark.parametrize("parts", [4, 2**21])
def test_files_in_common_are_not_read(
    storage: yoga.Storage, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    compare_parts_of(parts, monkeypatch)
    storage.submit(rows_of(range(30)), "a", "1", progress=False)
    old = storage.append(rows_of([40, 41, 42]), "a", "2", after="1")
    new = storage.append(rows_of([42, 43]), "a", "3", after="1")
    read: list[int] = []

    def noted(block: Block) -> Any:
        read.append(block.num_rows)
        return row_hashes(block)

    hash_rows_by(noted, monkeypatch)
    d = yoga.diff(old, new)
    assert sum(read) == 5
    assert (d.removed.tolist(), d.added.tolist(), d.unchanged) == ([30, 31], [31], 31)
    d = yoga.diff(old, new, key="id")
    assert (d.removed.tolist(), d.added.tolist(), d.unchanged, len(d.changed)) == ([30, 31], [31], 31, 0)
    for again, side in (([42, 3], "new"), ([42, 44, 3, 4, 5, 6, 7], "new"), ([3], "old")):
        other = storage.append(rows_of(again), "a", str(4 + next(NUMBERS)), after="1")
        with pytest.raises(ValueError, match=r"the key 'id' must be .*\{'id': \d\}.* occur several times"):
            yoga.diff(*((old, other) if side == "new" else (other, old)), key="id")
        assert yoga.diff(old, other).unchanged == 30 + (42 in again)


def test_keys_must_differ(storage: yoga.Storage) -> None:
    old = yoga.from_arrays({"id": np.array([1, 2, 2, 3, 3, 4, 4, 5, 5]), "x": np.arange(9)})
    new = yoga.from_arrays({"id": np.arange(9), "x": np.arange(9)})
    with pytest.raises(
        ValueError, match=r"\{'id': np.int64\(2\)\}, .* and 1 more occur several times in DataRef"
    ):
        yoga.diff(old, new, key="id")
    with pytest.raises(ValueError, match="occur several times"):
        yoga.diff(new, old, key="id")
    assert yoga.diff(old, new, key=["id", "x"]).unchanged == 2
    with pytest.raises(KeyError, match="there is no column 'ids'; there are 'id', 'x'"):
        yoga.diff(old, new, key="ids")
    with pytest.raises(ValueError, match="key names no column"):
        yoga.diff(old, new, key=[])
    with pytest.raises(TypeError, match="diff compares DataRefs, found a list"):
        yoga.diff([1], new)  # type: ignore[arg-type]


def test_other_columns() -> None:
    old = yoga.from_arrays({"id": np.arange(4), "x": np.arange(4), "y": np.arange(4)})
    new = yoga.from_arrays({"id": np.arange(1, 5), "x": np.array([1, 9, 3, 4]), "z": np.zeros((4, 2))})
    d = yoga.diff(old, new)
    assert not d.are_rows_compared
    assert not d.same
    assert str(d).splitlines() == [
        "4 rows -> 4 rows",
        "removed: y: scalar <i8 [scalar]",
        "added: z: ndarray <f8 [2]",
        "rows were not compared, since their columns differ; pass key= to compare what both have",
    ]
    d = yoga.diff(old, new, key="id")
    assert (d.added.tolist(), d.removed.tolist(), d.changed.tolist()) == ([3], [0], [[2, 1]])
    assert d.columns == ("id", "x")
    assert str(d).splitlines()[0] == "4 rows -> 4 rows: 1 added, 1 removed, 1 changed, 2 unchanged"
    assert str(d).splitlines()[-1] == "compared: id, x"
    assert (d.schema.added, d.schema.removed, d.schema.changed) == (("z",), ("y",), ())
    with pytest.raises(SchemaError, match=r"the key is id: .* in the old dataset and id: .* in the new one"):
        yoga.diff(old, yoga.from_arrays({"id": np.arange(4.0), "x": np.arange(4)}), key="id")
    with pytest.raises(KeyError):
        yoga.diff(old, new, key="y")


def test_types_and_orders_that_hold_the_same(storage: yoga.Storage) -> None:
    old = storage.submit([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], "a", "1", progress=False)
    new = storage.submit(
        [{"b": "y", "a": np.int64(2)}, {"b": "x", "a": np.int64(1)}], "a", "2", progress=False
    )
    d = yoga.diff(old, new)
    assert d.unchanged == 2
    assert not d.same
    assert str(d.schema).splitlines() == [
        "other type: a: int <i8 [scalar] -> scalar <i8 [scalar]",
        "the rows nest otherwise, or have their keys in another order",
    ]
    assert yoga.diff(old, new, key="a").unchanged == 2


def test_none_is_not_zero_where_only_one_version_has_none(storage: yoga.Storage) -> None:
    old = storage.submit([{"id": 1, "x": 0}, {"id": 2, "x": 5}], "a", "1", progress=False)
    new = storage.submit([{"id": 1, "x": None}, {"id": 2, "x": 5}], "a", "2", progress=False)
    d = yoga.diff(old, new, key="id")
    assert d.columns == ("id",)
    assert d.schema.changed == ("x",)


def test_versions_without_rows(storage: yoga.Storage) -> None:
    empty = storage.submit([], "a", "0", progress=False)
    ref = storage.submit([1, 2], "a", "1", progress=False)
    assert yoga.diff(empty, ref).added.tolist() == [0, 1]
    assert yoga.diff(ref, empty, key="value").removed.tolist() == [0, 1]
    assert yoga.diff(empty, empty).same
    assert str(yoga.diff(empty, empty)) == "0 rows -> 0 rows: 0 added, 0 removed, 0 unchanged"


def test_an_overwritten_version_is_said(storage: yoga.Storage) -> None:
    old = storage.submit(rows_of(range(5)), "a", "1", progress=False)
    new = storage.submit(rows_of(range(6)), "a", "2", progress=False)
    closed = type(old)(old.location, old.manifest)  # type: ignore[attr-defined]
    storage.submit(rows_of(range(7)), "a", "1", overwrite=True, progress=False)
    with pytest.raises(NotFoundError, match="overwritten"):
        yoga.diff(closed, new)
    assert yoga.diff(old, new).added.tolist() == [5]  # it is open, and stays as it is


# -- hashes


@pytest.mark.parametrize("word", [0, 1])
def test_both_words_of_a_hash_count(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def hashes(block: Block) -> Any:
        found = row_hashes(block).copy()
        found[:, word] = 7
        return found

    hash_rows_by(hashes, monkeypatch)
    old = yoga.from_arrays({"id": np.arange(5), "x": np.arange(5)})
    new = yoga.from_arrays({"id": np.arange(5), "x": np.array([0, 1, 9, 3, 4])})
    assert yoga.diff(old, new, key="id").changed.tolist() == [[2, 2]]
    assert yoga.diff(old, new).added.tolist() == [2]


def test_only_files_of_one_build_are_in_common(storage: yoga.Storage) -> None:
    rows = {"x": np.arange(9)}
    one, other = (storage.submit(rows, "a", version, progress=False) for version in "12")
    assert apart(one, other, ["x"]) == ([(0, 9)], [(0, 9)], [])
    assert apart(one, storage.fetch("a", "1"), ["x"]) == ([], [], [(0, 9)])
    assert apart(one, other[1:], ["x"]) == ([(0, 9)], [(0, 8)], [])


# -- arithmetic


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2**63]), st.sampled_from([0, 1, 5, 2**63, 2**63 + 1])), max_size=20
    ),
    st.integers(0, 20),
)
def test_groups_of_hashes_whose_first_bits_agree(words: list[tuple[int, int]], cut: int) -> None:
    hashes = np.array(words, np.uint64).reshape(-1, 2)
    order, starts, olds = diffs.grouped(hashes[:cut], hashes[cut:])
    assert sorted(order.tolist()) == list(range(len(words)))
    groups = [order[a:b].tolist() for a, b in itertools.pairwise(starts.tolist())]
    assert all(group == sorted(group) for group in groups)
    assert sorted(map(tuple, groups)) == sorted(
        tuple(n for n, found in enumerate(words) if found == word) for word in set(words)
    )
    assert olds.tolist() == [sum(n < cut for n in group) for group in groups]


@pytest.mark.usefixtures("small_parts")
def test_parts_hold_each_row_once() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**64, (100, 3), np.uint64)
    parts = diffs.Parts(3, 200)
    assert len(parts) == 64
    for start in range(0, 100, 7):
        parts.append(words[start : start + 7])
    found = list(parts)
    assert sorted(map(tuple, np.concatenate(found).tolist())) == sorted(map(tuple, words.tolist()))
    for part in found:
        assert len({int(word) >> 58 for word in part[:, 0]}) <= 1
    assert json.dumps(len(found)) == "64"


def test_codes_are_compared_by_their_words(storage: yoga.Storage, tmp_path: Path) -> None:
    def folder(name: str, *paths: str) -> yoga.DataRef:
        for path in paths:
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"\x89PNG\r\n\x1a\n" + file.name.encode())
        return yoga.image_folder(tmp_path / name)

    first = storage.submit(folder("1", "ant/0.png", "bee/1.png", "bee/2.png"), "a", "1", progress=False)
    grown = storage.append(folder("2", "bat/3.png", "ant/4.png"), "a", "2", after="1")
    d = yoga.diff(first, grown)
    assert d.are_rows_compared
    assert (d.added.tolist(), d.removed.tolist(), d.unchanged) == ([3, 4], [], 3)
    assert str(d).splitlines()[1:] == ["words of label: added bat"]
    back = yoga.diff(grown, first)
    assert (back.added.tolist(), back.removed.tolist(), back.unchanged) == ([], [3, 4], 3)
    assert str(back).splitlines()[1:] == ["words of label: removed bat"]
    assert [d.schema.changed, d.schema.retyped, d.schema.is_comparable] == [(), ("label",), True]
    assert not d.same

    # The codes of all classes but the first are others here: 1 is bat, 2 is bee.
    now = folder("3", "bat/0.png", "bee/1.png", "bee/2.png", "ant/5.png").columns(["image", "label"])
    before = first.columns(["image", "label"])
    d = yoga.diff(before, now)
    assert (d.removed.tolist(), d.unchanged) == ([0], 2)
    kept = storage.submit(now, "b", "1", progress=False)
    for ref in (now, kept):
        d = yoga.diff(before, ref, key="image")
        assert [(first[int(one)]["path"], ref[int(other)]["label"]) for one, other in d.changed] == [
            ("ant/0.png", 1)
        ]
        assert (d.unchanged, len(d.added), d.columns) == (2, 1, ("image", "label"))
    d = yoga.diff(before, now, key=["image", "label"])
    assert (len(d.added), len(d.removed), d.unchanged) == (2, 1, 2)


def test_codes_of_files_that_both_have_mean_what_each_says(storage: yoga.Storage) -> None:
    def coded(*words: str) -> yoga.DataRef:
        return yoga.from_arrow(pa.table({"label": pa.DictionaryArray.from_arrays([0, 1, 1], list(words))}))

    old, new = coded("ant", "bee"), coded("bee", "ant")
    d = yoga.diff(old, new)
    assert (d.unchanged, d.added.tolist(), d.removed.tolist()) == (2, [2], [2])
    assert str(d.schema) == "words of label: in another order"
    few = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), [f"a{n}" for n in range(100)])
    more = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), [f"b{n}" for n in range(100)])
    one, other = (yoga.from_arrow(pa.table({"label": codes})) for codes in (few, more))
    with pytest.raises(SchemaError, match="too small for the 200 names of all; convert its codes to int64"):
        yoga.diff(one, other)
