"""Parquet files as DataRefs: every row, in any order, wherever they lie, with pyarrow as the oracle."""

from __future__ import annotations

import datetime
import datetime as dt
import logging
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from behind_urls import in_memory
from children import status_of_child
from interrupting import calls_of
from smallfiles import build_with
from types_of_arrow import in_pairs
from waiting import eventually

import torchyoga as yoga
from torchyoga.errors import SchemaError
from torchyoga.tables import arrow
from torchyoga.tables.parquet import files, footers
from torchyoga.tables.parquet import ref as parquet
from torchyoga.tables.parquet.files import ParquetFiles
from torchyoga.tables.parquet.footers import footers_of, nulls_at, nulls_below
from torchyoga.tables.parquet.places import LocalFile
from torchyoga.testing import assert_rows_equal, check_dataref

N = 211
RNG = np.random.default_rng(0)
FLOATS = RNG.random((N, 6), dtype=np.float32)
TABLE = pa.table(
    {
        "id": np.arange(N),
        "x": pa.FixedSizeListArray.from_arrays(FLOATS.reshape(-1), 6),
        "text": [f"row {i}" * (i % 3) for i in range(N)],
        "ids": [list(range(i % 5)) for i in range(N)],
        "box": [{"w": i, "h": float(i)} for i in range(N)],
    }
)
GROUPS = (1, 7, 1000)


def written(
    folder: Path, group: int = 7, table: pa.Table = TABLE, name: str = "x.parquet", **how: Any
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name, row_group_size=group, **how)
    return folder / name


def ids(ref: Any) -> list[int]:
    return [int(i) for i in ref["id"]]


def test_a_fork_in_the_middle_of_reading_goes_on(tmp_path: Path) -> None:
    ref = yoga.from_parquet(written(tmp_path, 7), ["id", "x"], cache_bytes=3000)
    batches = iter(yoga.DataLoader(ref, 8, shuffle="block", seed=3))
    next(batches)

    def work() -> None:
        assert ids(ref) == list(range(N))
        assert sorted(int(i) for b in yoga.DataLoader(ref, 8, shuffle="block", seed=3) for i in b["id"]) == [
            *range(N)
        ]

    assert status_of_child(work) == 0
    assert len(list(batches)) == -(-N // 8) - 1
    check_dataref(ref)  # which reads many groups in turns


def test_each_group_is_decoded_once_in_a_block_shuffle(tmp_path: Path) -> None:
    table = pa.table({"id": np.arange(2000), "x": np.zeros(2000)})
    ref = yoga.from_parquet(written(tmp_path, 100, table), cache_bytes=10 * 1700)
    loader = yoga.DataLoader(ref, 10, shuffle="block", shuffle_window=4, seed=1, prefetch_factor=0)
    with calls_of(ParquetFiles.table) as decoded:
        loader_reads_one_batch_at_a_time = [int(i) for batch in loader for i in batch["id"]]
    assert sorted(loader_reads_one_batch_at_a_time) == list(range(2000))
    assert sorted(call["group"] for call in decoded) == list(range(20))
    with calls_of(ParquetFiles.table) as decoded:
        assert ids(ref)[:5] == [0, 1, 2, 3, 4]
    assert {*decoded[0]["self"].fields.names} == {"id"}, "only the column that is read is decoded"


def test_the_next_group_is_decoded_ahead(tmp_path: Path) -> None:
    ref = yoga.from_parquet(written(tmp_path, 50), ["id"])
    order = np.arange(N)
    with calls_of(ParquetFiles.table) as decoded:
        ref._readahead.follow(iter([order[:60], order[60:]]), lambda: 0)
        time.sleep(0.05)
        assert not decoded, "not before rows are taken: others may read them"
        ref.take(order[:8])
        eventually(lambda: len(decoded) > 1)
    assert [call["group"] for call in decoded] == [0, 1]
    assert [int(row["id"]) for row in ref.take(order)] == list(range(N))


def test_a_full_shuffle_warns_of_its_cost_and_names_the_conversion(tmp_path: Path) -> None:
    table = pa.table({"id": np.arange(20_000), "x": np.zeros(20_000)})
    ref = yoga.from_parquet(written(tmp_path, 500, table), cache_bytes=50_000)
    with pytest.warns(UserWarning, match=r"storage\.submit\(yoga\.from_parquet\(\.\.\.\), id, version\)"):
        list(yoga.DataLoader(ref, 64, shuffle=True, seed=0))
    list(yoga.DataLoader(ref, 64, shuffle=True, seed=0))  # once
    for options in ({"shuffle": "block", "shuffle_window": 4}, {"shuffle": False}):
        quiet = yoga.from_parquet(tmp_path, cache_bytes=50_000)
        list(yoga.DataLoader(quiet, 64, seed=0, **options))
    in_memory = yoga.from_parquet(tmp_path)
    list(yoga.DataLoader(in_memory, 64, shuffle=True, seed=0))  # where all groups are kept it is quick


def test_a_full_shuffle_of_what_fits_into_memory_decodes_each_group_once(tmp_path: Path) -> None:
    count = 10 * 2**20  # of 8 bytes: a little more than 64 MiB
    ref = yoga.from_parquet(written(tmp_path, 2**20, pa.table({"id": np.zeros(count, np.int64)})))
    with calls_of(ParquetFiles.table) as decoded:
        for _ in range(4):
            ref.take(RNG.integers(0, count, 1000))
    assert sorted(call["group"] for call in decoded) == list(range(10))


def test_a_group_larger_than_the_cache_is_refused_with_numbers(tmp_path: Path) -> None:
    ref = yoga.from_parquet(written(tmp_path, 1000), cache_bytes=1000)
    with pytest.raises(ValueError, match=r"row group 0 has about .* decoded, and cache_bytes is 1\.0 kB"):
        ref[0]


# -- which files


def test_files_of_folders_patterns_and_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(
        ["b.parquet", "a.parquet", "deep/er/c.parquet", "_hidden.parquet", "x.crc"]
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        written((tmp_path / name).parent, 7, TABLE[number * 10 : number * 10 + 10], Path(name).name)
    (tmp_path / "notes.txt").write_text("not rows")
    in_folder = [*range(10, 20), *range(10), *range(20, 30)]
    assert ids(yoga.from_parquet(tmp_path)) == in_folder
    assert ids(yoga.from_parquet(str(tmp_path / "*.parquet"))) == [*range(30, 40), *range(10, 20), *range(10)]
    assert ids(yoga.from_parquet(f"{tmp_path}/**/c.parquet")) == [*range(20, 30)]
    assert ids(yoga.from_parquet([tmp_path / "b.parquet", tmp_path / "a.parquet"])) == [*range(20)]
    assert ids(yoga.from_parquet(f"file://{tmp_path}/[ab].parquet")) == in_folder[:20]
    (tmp_path / "deep" / "back").symlink_to(tmp_path, target_is_directory=True)
    assert ids(yoga.from_parquet(tmp_path)) == in_folder
    monkeypatch.chdir(tmp_path)
    ref = yoga.from_parquet("a.parquet")
    monkeypatch.chdir("/")
    assert ids(pickle.loads(pickle.dumps(ref))) == [*range(10, 20)]


def test_folders_called_key_value_are_columns(tmp_path: Path) -> None:
    pq.write_to_dataset(
        pa.table({"id": np.arange(30), "year": np.arange(30) % 3 + 2020, "lang": ["de", "f r/é", None] * 10}),
        tmp_path,
        ["year", "lang"],
    )
    ref = yoga.from_parquet(tmp_path)
    assert {int(r["id"]): (int(r["year"]), r["lang"]) for r in ref} == {
        i: (i % 3 + 2020, ["de", "f r/é", None][i % 3]) for i in range(30)
    }
    check_dataref(ref)
    assert sorted(ids(yoga.from_parquet(tmp_path, filters=[("year", "=", 2021)]))) == [*range(1, 30, 3)]
    assert sorted(ids(yoga.from_parquet(tmp_path, ["id"], ds.field("lang").is_null()))) == [*range(2, 30, 3)]


def test_patterns_behind_a_url(tmp_path: Path) -> None:
    written(tmp_path / "year=1", 7, TABLE[:100], "a.parquet")
    written(tmp_path / "year=2", 7, TABLE[100:], "b.parquet")
    here, url = yoga.from_parquet(tmp_path), in_memory(tmp_path)
    for path in (f"{url}/**/*.parquet", f"{url}/*/[ab].parquet"):
        there = yoga.from_parquet(path)
        assert_rows_equal(list(there), list(here))
        assert there.fingerprint == here.fingerprint


# -- conditions

CONDITIONS: list[Any] = [
    [("id", ">", 20), ("id", "<=", 130)],
    [("id", "in", [3, 77, 500])],
    [[("id", "<", 5)], [("text", "==", ""), ("id", ">", 200)]],
    pc.bit_wise_and(ds.field("id"), 7) == 3,
    ds.field("box", "w") > 190,
    ds.field("id") < 0,
    pc.starts_with(ds.field("text"), "row 1"),
]


@pytest.mark.quick("*-7")
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("number", range(len(CONDITIONS)))
def test_conditions_keep_the_rows_that_pyarrow_keeps(number: int, group: int, tmp_path: Path) -> None:
    path, condition = written(tmp_path, group), CONDITIONS[number]
    expected = pq.read_table(path, filters=condition)["id"].to_pylist()
    ref = yoga.from_parquet(path, ["text", "id"], condition)
    assert ids(ref) == expected
    assert len(ref) == len(expected) == ref.file_starts[-1]
    if expected:
        check_dataref(ref)
        assert ref[-1]["text"] == TABLE["text"][expected[-1]].as_py()
    assert ref.fingerprint != yoga.from_parquet(path, ["text", "id"]).fingerprint


# -- what becomes of values


LATE = dt.datetime(9999, 12, 31, 23, 59, 59)


def test_times_of_96_bits_have_microseconds(tmp_path: Path) -> None:
    times = [dt.datetime(2000, 1, 1, microsecond=9), None, dt.datetime(1500, 1, 1), LATE]
    lists = [[times[0], None], [], None, [LATE]]
    columns = {"id": range(4), "at": pa.array(times, pa.timestamp("us")), "list": lists}
    path = written(tmp_path, 2, pa.table(columns), use_deprecated_int96_timestamps=True)
    assert pq.read_metadata(path).schema.column(1).physical_type == "INT96"
    ref = yoga.from_parquet(path)
    assert ref.schema is not None
    assert ref.schema.columns[1].dtype == "<M8[us]"
    assert ref.to_arrow().to_pylist() == pa.table(columns).to_pylist()
    assert pickle.loads(pickle.dumps(ref))[3]["at"] == np.datetime64(LATE)
    for condition in ([("at", ">", "2024-01-01")], ds.field("at") > pa.scalar(dt.datetime(2024, 1, 1))):
        assert ids(yoga.from_parquet(path, ["id"], condition)) == [3]


def test_a_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    here, there = written(tmp_path / "a", 7), written(tmp_path / "b", 7, name="other.parquet")
    assert yoga.from_parquet(here).fingerprint == yoga.from_parquet(there).fingerprint
    assert yoga.from_parquet(here).fingerprint != yoga.from_parquet(here, ["id"]).fingerprint
    assert yoga.from_parquet(here).fingerprint != yoga.from_parquet([here, there]).fingerprint
    ref = yoga.from_parquet(here)
    os.utime(here, (1, 1))
    assert ids(ref) == list(range(N))  # a file that was only touched is the same
    assert yoga.from_parquet(here).fingerprint == yoga.from_parquet(there).fingerprint
    written(tmp_path / "a", 7, TABLE.set_column(0, "id", pa.array(np.arange(N) + 1)))
    assert yoga.from_parquet(here).fingerprint != yoga.from_parquet(there).fingerprint


def test_footers_are_read_once_and_parsed_once_on_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    first = yoga.from_parquet(path)
    with calls_of(pq.read_metadata) as read:
        assert ids(yoga.from_parquet(path)) == ids(pickle.loads(pickle.dumps(first))) == list(range(N))
    assert not read
    monkeypatch.setattr(footers, "described", lambda footer: pytest.fail("it was parsed again"))
    monkeypatch.setattr(footers, "_known", footers._Known())  # as in another process
    again = yoga.from_parquet(path)
    assert ids(again) == list(range(N))
    assert (again.fingerprint, str(again.schema)) == (first.fingerprint, str(first.schema))


# -- tables that others wrote

SAMPLES = Path(pa.__file__).parent / "tests" / "data" / "parquet"


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.parquet")), ids=lambda path: path.stem)
def test_files_that_come_with_pyarrow(path: Path) -> None:
    ref, table = yoga.from_parquet(path), pq.ParquetFile(path).read()
    for name in ref.schema.tree.keys:
        expected, found = table.column(name).to_pylist(), list(ref[name])
        if hasattr(expected[0], "utcoffset"):
            found = [np.datetime64(value, "us").astype(int) for value in found]
            expected = [int(value.timestamp() * 1e6) for value in expected]
        assert list(found) == expected


# -- nulls at any place of nested columns


PAIR = pa.struct([("a", pa.int16()), pa.field("b", pa.string(), nullable=False)])
# Of each type, values whose nulls lie at different places; the last one has none.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.list_(pa.int32()): [None, [], [None, 1], [2, 3]],
    pa.list_(pa.field("item", pa.int32(), nullable=False)): [None, [], [1]],
    pa.large_list(pa.list_(pa.string())): [None, [], [None], [[]], [[None]], [["a"]]],
    pa.list_(pa.bool_(), 2): [None, [None, True], [True, False]],
    PAIR: [None, {"a": None, "b": "x"}, {"a": 1, "b": "y"}],
    pa.list_(PAIR): [None, [], [None], [{"a": None, "b": "x"}], [{"a": 1, "b": "y"}]],
    pa.struct([("in", PAIR), ("ids", pa.list_(pa.int8()))]): [
        None,
        {"in": None, "ids": [1]},
        {"in": {"a": None, "b": ""}, "ids": None},
        {"in": {"a": 1, "b": ""}, "ids": []},
        {"in": {"a": 1, "b": ""}, "ids": [None]},
        {"in": {"a": 1, "b": ""}, "ids": [1]},
    ],
    pa.map_(pa.string(), pa.float32()): [None, [], [("k", None)], [("k", 1.5)]],
    pa.map_(pa.int8(), pa.list_(pa.date32())): [[], [(1, None)], [(1, [datetime.date(2024, 1, 1)])]],
    pa.struct([("words", pa.dictionary(pa.int8(), pa.string()))]): [None, {"words": None}, {"words": "a"}],
}
CASES = [
    pytest.param(kind, value, id=f"{kind}-{value}") for kind, values in VALUES.items() for value in values
]


def file_of(folder: Path, column: pa.Array) -> Path:
    pq.write_table(pa.table({"c": column}), folder / "x.parquet", row_group_size=1)
    return folder / "x.parquet"


@pytest.fixture
def leave_levels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it to be as with pyarrow before 19."""
    return lambda: monkeypatch.setattr(files, "nulls_below", lambda *_: None)


@pytest.mark.parametrize(("kind", "value"), CASES)
def test_levels_say_where_nulls_are(
    kind: pa.DataType, value: Any, tmp_path: Path, leave_levels: Callable[[], None]
) -> None:
    plain = VALUES[kind][-1]
    path = file_of(tmp_path, pa.array([plain, plain, value, plain], kind))
    table = pq.read_table(path)
    found = nulls_below("c", footers_of([LocalFile(str(path))]))
    assert found == arrow.found_in(table.to_batches()).nulls
    assert yoga.from_parquet(path, words=True).to_arrow().to_pylist() == in_pairs(table.to_pylist())
    if "dictionary" not in str(kind):  # of dictionaries within others, pyarrow does not count nulls
        leave_levels()  # some groups are looked at
        assert yoga.from_parquet(path, words=True).to_arrow().to_pylist() == in_pairs(table.to_pylist())


def test_what_is_found_in_none_of_the_groups_that_were_looked_at_is_refused(
    tmp_path: Path, leave_levels: Callable[[], None]
) -> None:
    leave_levels()
    path = file_of(tmp_path, pa.array([[], [1], [None], [2], [], []], pa.list_(pa.int32())))
    with pytest.raises(SchemaError, match=r"row group 2.*name it in nulls=, as in nulls=\['c{items}'\]"):
        list(yoga.from_parquet(path))
    ref = yoga.from_parquet(path, nulls=["c{items}"])
    assert [row["c"] for row in ref] == [[], [1], [None], [2], [], []]
    assert [[*map(int, row["c"])] for row in ref.filled({"c{items}": 0})] == [[], [1], [0], [2], [], []]
    with pytest.raises(KeyError, match=r"nulls= names \['d'\]"):
        yoga.from_parquet(path, nulls=["d"])
    with pytest.raises(TypeError, match=r"use ref\.filled"):
        yoga.from_parquet(path, nulls={"c{items}": 0})  # type: ignore[arg-type]


def test_levels_that_do_not_fit_are_not_used() -> None:
    field = pa.field("c", pa.list_(pa.int8()))
    assert nulls_at(field, [[0, 0, 0, 1]]) == set()  # type: ignore[list-item]
    assert nulls_at(field, [[0, 0, 1]]) is None  # type: ignore[list-item]
    assert nulls_at(field, [[0, 0, 0, 1]] * 2) is None  # type: ignore[list-item]
    assert nulls_at(field, []) is None


# -- files into versions


COUNT = 300
BUILT = pa.table(
    {
        "id": np.arange(COUNT),
        "x": np.random.default_rng(0).random(COUNT),
        "text": [f"row {i}" for i in range(COUNT)],
    }
)


@pytest.mark.parametrize("group", [1, 7, 1000])
def test_all_rows_are_converted_in_order(group: int, tmp_path: Path) -> None:
    pq.write_table(BUILT, tmp_path / "x.parquet", row_group_size=group)
    ref = yoga.from_parquet(tmp_path / "x.parquet")
    with calls_of(ParquetFiles.table) as decoded:
        made = yoga.Storage(tmp_path / "storage").submit(ref, "x", "1", progress=False)
    groups = [call["group"] for call in decoded]
    assert groups == list(range(len(ref.file_starts) - 1)), "each group is decoded once"
    assert made.schema == ref.schema
    assert_rows_equal(list(made), list(ref))
    some = yoga.from_parquet(tmp_path / "x.parquet", ["text"], [("id", "in", [3, 4, 299])])
    kept = yoga.Storage(tmp_path / "storage").submit(some, "x", "some", progress=False)
    assert [row["text"] for row in kept] == ["row 3", "row 4", "row 299"]


@pytest.mark.parametrize("are_others", [False, True])
def test_an_interrupted_conversion_continues_unless_files_are_others(
    are_others: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build_with(monkeypatch.setattr, file_bytes=1, block_bytes=300)  # each block not much larger than a group
    storage, path, table = yoga.Storage(tmp_path / "storage"), tmp_path / "x.parquet", ParquetFiles.table

    def fails(files: ParquetFiles, group: int) -> pa.Table:
        if group == 25:
            raise ConnectionError("offline")
        return table(files, group)

    pq.write_table(BUILT, path, row_group_size=10)
    with monkeypatch.context() as patch:
        patch.setattr(ParquetFiles, "table", fails)
        with pytest.raises(ConnectionError):
            storage.submit(yoga.from_parquet(path), "x", "1", progress=False)
    assert storage.list() == []
    if are_others:  # in one row, at the end
        other = BUILT.set_column(0, "id", pa.array([*range(COUNT - 1), 7]))
        pq.write_table(other, path, row_group_size=10)
    ref = yoga.from_parquet(path)
    with calls_of(ParquetFiles.table) as decoded, caplog.at_level(logging.WARNING, "torchyoga"):
        made = storage.submit(ref, "x", "1", progress=False)
    assert ("starting over" in caplog.text) == are_others
    assert decoded[0]["group"] in ([0] if are_others else [24, 25]), "the group at which it stopped"
    assert_rows_equal(list(made), list(ref))
    assert storage.submit(ref, "x", "2", progress=False).fingerprint == made.fingerprint


def test_large_groups_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_LARGE_GROUP", 1)
    path = tmp_path / "x.parquet"
    pq.write_table(BUILT, path, row_group_size=130)
    ref = yoga.from_parquet(path, cache_bytes=500)
    with calls_of(ParquetFiles.table) as decoded:
        for start in (0, 5, 129, 130, 299):
            blocks = list(ref.blocks(start, 600))
            assert [int(i) for block in blocks for i in block.data[0].values] == list(range(start, COUNT))
            assert max(block.num_rows for block in blocks) < 130
        some = yoga.from_parquet(path, filters=[("id", ">", 100), ("id", "<", 200)])
        found = [int(i) for block in some.blocks(20, 600) for i in block.data[0].values]
        assert found == list(range(121, 200))
    assert not decoded
    made = yoga.Storage(tmp_path / "storage").submit(ref, "x", "1", progress=False)
    assert [int(i) for i in made["id"]] == list(range(COUNT))
