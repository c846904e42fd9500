"""`yoga query` answers SQL as Python would, reads what it needs, and reaches nothing but the versions."""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import parsed, process, run, said
from hypothesis import given
from hypothesis import strategies as st

import torchyoga as yoga
import torchyoga.errors

pytest.importorskip("duckdb")

from torchyoga.tables.sql import answer, tables_of

ROWS = [
    {
        "label": n % 3,
        "名": None if n % 4 == 0 else f"row {n}",
        "when": datetime.date(2024, 1, 1 + n % 9),
        "box": {"x": n / 2, "size": (n, 2)},
        "ids": list(range(n % 3)),
        "image": np.full((4, 4, 3), n, np.uint8),
        "score": float("nan") if n == 7 else n / 8,
    }
    for n in range(40)
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> yoga.Storage:
    storage = yoga.Storage(tmp_path_factory.mktemp("asked") / "storage")
    storage.submit(ROWS, "rows", "1.9", progress=False)
    storage.append(ROWS[:2], "rows", "1.10", after="1.9")
    storage.tag("rows", "prod", "1.9")
    storage.submit([(n, f"text {n}") for n in range(5)], "pairs", "1", progress=False)
    storage.submit(list(range(5)), "my numbers", "1", progress=False)
    storage.submit([], "empty", "1", progress=False)
    return storage


@pytest.fixture
def storage(template: yoga.Storage, monkeypatch: pytest.MonkeyPatch) -> yoga.Storage:
    monkeypatch.chdir(template.path.parent)
    monkeypatch.delenv("TORCHYOGA_STORAGE", raising=False)
    return template


def asked(sql: str, *more: str) -> list[list[Any]]:
    found: list[list[Any]] = parsed("query", sql, *more)["rows"]
    return found


def test_the_question_of_the_page(storage: yoga.Storage) -> None:
    text = said("query", "select label, count(*) from t group by label order by label", "rows@prod")
    assert text == "label  count_star()\n    0            14\n    1            13\n    2            13\n"
    assert asked("select label, count(*) from rows group by label order by 1") == [[0, 15], [1, 14], [2, 13]]


def test_versions_are_named_as_everywhere(storage: yoga.Storage) -> None:
    count = "select count(*) from "
    assert (
        asked(f"{count} rows") == asked(f"{count} t", "rows") == asked(f"{count} T", "rows", "1.10") == [[42]]
    )
    for name in ('"rows@prod"', '"rows@1.9"'):
        assert asked(count + name) == [[40]]
    assert asked(f"{count} t", "rows", "@prod") == asked(f"{count} t", "rows", "1.9") == [[40]]
    assert asked('select count(*) from rows a join "rows@1.9" b on a.row = b.row') == [[40]]
    assert asked("with t as (from rows limit 3) select count(*) from t") == [[3]]
    assert asked('select count(*) from rows a anti join "rows@1.9" b using(row)') == [[2]]
    assert asked('with b as (from "rows@1.9") select count(*) from rows natural join b') == [
        [30]
    ]  # a None is like no other
    assert tables_of('select * from a, "b c" as x where a.y in (select y from d)') == ["a", "b c", "d"]
    assert tables_of("select 1") == []
    assert tables_of("explain with b as (from b), r as (from B join c using(x)) from r join d using(y)") == [
        *"bcd"
    ]
    assert tables_of("with recursive r as (select 1 n union all select n from R join a using(n)) from r") == [
        "a"
    ]
    found = parsed("query", 'select 1 from "rows@prod" limit 1')
    assert found["tables"] == {"rows@prod": {"id": "rows", "version": "1.9"}}
    assert found["storage"] == storage.url
    assert run("query", "select 1 from rows", "pairs").exit_code == 2
    wrong = run("query", "select * from nosuch")
    assert wrong.exit_code == 2
    assert "there is no dataset 'nosuch'" in wrong.stderr


def test_short_floats_and_nanoseconds_come_whole() -> None:
    short = np.arange(6, dtype=np.float16).reshape(3, 2) / 2
    times = np.datetime64("2024-01-01T00:00:00.123456789", "ns") + np.arange(3)
    ref = yoga.from_arrays({"short": short, "time": times})
    found = answer("select short, [time] as times, time, 1 as time from t where row = 2", {"t": ref}, 9)
    text = "2024-01-01 00:00:00.123456791"
    assert found.rows == (((2.0, 2.5), [text], text, 1),)
    assert found.columns == ("short", "times", "time", "time")
    spans = yoga.from_arrays({"span": times - times[0]})
    with pytest.raises(ValueError, match="'span' holds nanoseconds"):
        answer("select max(span) from t", {"t": spans}, 9)
    assert answer("select max(row) from t", {"t": spans}, 9).rows == ((2,),)


def test_each_kind_of_column(storage: yoga.Storage) -> None:
    assert asked("select row, 名, box.x, box.size, ids from rows where row in (3, 4, 5) order by row") == [
        [3, "row 3", 1.5, {"0": 3, "1": 2}, []],
        [4, None, 2.0, {"0": 4, "1": 2}, [0]],
        [5, "row 5", 2.5, {"0": 5, "1": 2}, [0, 1]],
    ]
    assert asked('select "when", image[1][1] from rows where row = 3') == [["2024-01-04", [3, 3, 3]]]
    assert asked("select count(*) from rows where score = 'nan'::double") == [[1]]
    assert asked('select sum(a), sum(b), count(*) from (select "0" a, length("1") b from pairs)') == [
        [10, 30, 5]
    ]
    assert asked('select sum(value), max(row) from "my numbers"') == [[10, 4]]
    assert asked("select count(*) from empty") == [[0]]
    assert said("query", "select 名 from rows where row < 2") == "名\nNone\nrow 1\n"


def test_rows_are_limited(storage: yoga.Storage) -> None:
    found = parsed("query", "select row from rows order by row", "--limit", "3")
    assert (found["columns"], found["rows"], found["is_cut"]) == (["row"], [[0], [1], [2]], True)
    assert said("query", "from pairs", "--limit", "1").endswith("\nthe first 1 row; --limit shows more\n")
    assert parsed("query", "from pairs", "--limit", "5")["is_cut"] is False
    assert said("query", "from pairs where row > 9") == "no rows\n"


FORBIDDEN = [
    "copy (select 1) to 'out.csv'",
    "create table x (a int)",
    "create or replace view rows as select 1",
    "insert into rows values (1)",
    "attach 'other.db'",
    "install httpfs",
    "load httpfs",
    "set threads = 1",
    "set lock_configuration = false",
    "set enable_external_access = true",
    "pragma database_list",
    "export database 'out'",
    "call pragma_version()",
    "select 1; select 2",
    "",
    "selec 1",
    "select * from read_csv('secret.csv')",
    "select * from read_text('secret.csv')",
    "select * from read_blob('/etc/passwd')",
    "select * from glob('*')",
    "select * from 'secret.csv'",
    "select * from 'https://127.0.0.1:1/x.parquet'",
    "select * from read_parquet('https://127.0.0.1:1/x.parquet')",
    "select * from parquet_scan('s3://bucket/x')",
    "select * from sniff_csv('secret.csv')",
    "select * from duckdb_secrets(), read_json('secret.csv')",
    "select * from (select * from query('select * from read_csv(''secret.csv'')'))",
    "explain analyze select * from read_csv('secret.csv')",
]


@pytest.mark.parametrize("sql", FORBIDDEN)
def test_nothing_else_can_be_reached(storage: yoga.Storage, sql: str) -> None:
    Path("secret.csv").write_text("secret\nsecret\n")
    before = {path for path in Path().rglob("*")}
    found = run("query", sql)
    assert found.exit_code == 2, found.output
    assert found.stderr.startswith("error: ")
    assert "Traceback" not in found.stderr
    assert not found.stdout
    assert {path for path in Path().rglob("*")} == before


def test_variables_of_python_are_no_tables(storage: yoga.Storage) -> None:
    secret = {"a": [1]}
    assert secret
    for name in ("secret", "refs", "connection"):
        with pytest.raises(ValueError, match=r"Catalog Error|does not exist"):
            answer(f"select * from {name}", {}, 1)


def test_what_is_wrong_is_said_on_a_line(storage: yoga.Storage) -> None:
    for sql, message in {
        'select "pair/x" from rows': "in SQL a value within a dict is named by dots, as in pair.x",
        "select lable from rows": '"lable" not found in FROM clause! Candidate bindings: "label"',
        "select sum(名) from rows": "No function matches",
        "select": "without selection list",
        "drop table rows": "query takes one SELECT, found DROP",
    }.items():
        found = run("query", sql)
        assert found.exit_code == 2
        assert message in found.stderr
        assert len(found.stderr.splitlines()) <= 2
        plain = json.loads(run("query", sql, "--json").stdout)
        assert plain["kind"] == "ValueError"
        assert message in plain["error"]


def test_names_that_differ_only_in_case_are_refused(storage: yoga.Storage) -> None:
    ref = yoga.from_arrays({"x": np.arange(3), "X": np.arange(3)})
    with pytest.raises(yoga.errors.SchemaError, match="the columns 'x' and 'X' differ only in case"):
        answer("select * from t", {"t": ref}, 1)
    other = yoga.from_arrays({"x": np.arange(3)})
    with pytest.raises(yoga.errors.SchemaError, match="the tables 't' and 'T' differ only in case"):
        answer("select * from t", {"t": other, "T": other}, 1)


class Counting(yoga.DataRef[Any]):
    """Rows of arrays that counts those that are taken of each column, and fails at one of them."""

    def __init__(
        self, length: int, bad: int | None = None, names: tuple[str, ...] = ("a", "b", "big")
    ) -> None:
        self.length, self.bad, self.names = length, bad, names
        self.taken: dict[str, int] = {}

    def __len__(self) -> int:
        return self.length

    @property
    def schema(self) -> yoga.Schema:
        return yoga.Schema.of({name: 0 for name in self.names})

    def take(self, rows: Any) -> list[Any]:
        if self.bad is not None and self.bad in rows:
            raise yoga.errors.CorruptError(f"row {self.bad} is damaged")
        for name in self.names:
            self.taken[name] = self.taken.get(name, 0) + len(rows)
        return [{name: int(row) for name in self.names} for row in rows]

    def _projected(self, of: Any) -> Counting:
        found = Counting(self.length, self.bad, tuple(column.name for column in of.schema.columns))
        found.taken = self.taken
        return found


def test_only_columns_that_are_needed_are_read() -> None:
    for sql, columns in {
        "select count(*) from t": set(),
        "select max(row) from t where row > 3": set(),
        "select sum(a) from t": {"a"},
        "select sum(a) from t where b > 10": {"a", "b"},
        "select count(*) from t where b > 10 and b < 90": {"b"},
        "select x.a from t x join t y on x.a = y.b where y.row = 3": {"a", "b"},
        "select row from t order by a desc limit 3": {"a"},
    }.items():
        ref = Counting(2000)
        assert answer(sql, {"t": ref}, 10).rows
        assert ref.taken.keys() == columns, sql


def test_reading_ends_when_enough_rows_are_there() -> None:
    ref = Counting(10**7, names=("a",))
    assert answer("select a from t limit 3", {"t": ref}, 10).rows == ((0,), (1,), (2,))
    assert ref.taken["a"] < 5 * 10**6


def test_damage_is_damage() -> None:
    with pytest.raises(yoga.errors.CorruptError, match="row 7 is damaged"):
        answer("select sum(a) from t", {"t": Counting(100, bad=7)}, 10)


@pytest.mark.damages("files are cut on purpose")
def test_a_damaged_version_gives_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = yoga.Storage("storage")
    storage.submit({"x": np.arange(9)}, "cut", "1", progress=False)
    (path,) = storage.path.glob("cut/1/*.mdb")
    os.truncate(path, path.stat().st_size // 2)
    assert run("query", "select sum(x) from cut").exit_code == 1


COMPARISONS = st.sampled_from(["<", "<=", "=", "!=", ">=", ">"])


@given(
    st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=30),
    st.lists(st.one_of(st.just(float("nan")), st.floats(-2, 2), st.sampled_from([0.0, -0.0])), min_size=1),
    COMPARISONS,
    st.integers(-3, 3),
)
def test_filters_that_scans_get_are_those_of_sql(
    ints: list[int | None], floats: list[float], comparison: str, bound: int
) -> None:
    rows = [{"i": i, "f": floats[n % len(floats)]} for n, i in enumerate(ints)]
    schema = yoga.Schema.of({"i": 1, "f": 0.5}, nullable=["i"])
    ref = yoga.from_arrays({"n": np.arange(len(rows))}).map(lambda row: rows[int(row["n"])], schema=schema)
    for name in ("i", "f"):
        given_filter = f"select row from t where {name} {comparison} {bound}"
        # A function of the column is not given to scans.
        own = f"select row from t where [{name}][1] {comparison} {bound}"
        both = answer(f"select array({given_filter}), array({own})", {"t": ref}, 99)
        assert both.rows[0][0] == both.rows[0][1]


def test_without_duckdb_a_line_says_what_to_install(storage: yoga.Storage) -> None:
    code = "import sys\nsys.modules['duckdb'] = None\nfrom torchyoga.tools.commands.group import main\nmain()"
    found = process(sys.executable, "-c", code, "query", "select 1", "-s", storage.url)
    assert found.returncode == 2
    assert found.stderr == (
        "error: yoga query needs duckdb, not installed here; pip install 'torchyoga[query]'\n"
    )
