"""DataRefs as tables of DuckDB: SQL that reads their rows batch by batch, and nothing else.

DuckDB says which columns it needs and which rows it will drop, so no other column is read. It is set to reach
no file, no network and no extension before a query is seen, and its settings are locked then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from ..errors import SchemaError
from ..reading.contract import known_schema
from ..reading.dataref import DataRef
from ..rows.node import path_name
from ..rows.schema import Projection, Schema
from ..rows.types import Row
from .buffers import retyped
from .written import CONTAINERS, batches_of, column_names, schema_of

_BYTES, _ROWS = 2 * 2**20, 2**16  # of a batch
_NUMBERS = "row"  # the column of row numbers, which costs nothing to count
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # variables of Python are no tables
    "temp_directory": "",  # nothing is written, also if memory is short
}
_PLAIN = re.compile(r"^\s*explain\s+(analyze\s+)?", re.IGNORECASE)  # what only a SELECT may not begin with
_NANOSECONDS = re.compile(r"\bTIMESTAMP_NS\b")
_NESTED = re.compile(r'column "([^"]+/[^"]+)" not found')
_MOST_LINES = 3  # of an error


class QueryRows(NamedTuple):
    """The first rows of a result.

    Attributes:
        columns: their names.
        rows: a value for each of them.
        is_cut: whether there are more rows.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Row, ...], ...]
    is_cut: bool


def tables_of(sql: str) -> list[str]:
    """The names of the tables that a query reads, sorted.

    Raises:
        ValueError: it is not one query that only reads.

    Example:
        >>> tables_of('with few as (from digits limit 9) select * from few, "digits@1.0" as old')
        ['digits', 'digits@1.0']
    """
    with _connected() as connection:
        try:
            kinds = [statement.type for statement in connection.extract_statements(sql)]
            if kinds != [duckdb.StatementType.SELECT] and kinds != [duckdb.StatementType.EXPLAIN]:
                named = ", ".join(kind.name for kind in kinds) or "none"
                raise ValueError(f"query takes one SELECT, found {named}: {sql!r:.200}")
            return sorted(_named(connection, sql))
        except duckdb.Error as error:
            raise _refused(error) from None


def answer(sql: str, refs: Mapping[str, DataRef], most: int) -> QueryRows:
    """The rows that a query finds in some DataRefs.

    Args:
        sql: a query, in DuckDB's SQL.
        refs: by the names that it has for them. Each has a column for each key of its rows, those of numbers
            and dates, text, structs and lists; and `row`, the number of the row, if it has none of that name.
        most: rows.

    Raises:
        ValueError: the query is wrong, asks for what is not allowed, or for spans of time that SQL would cut.
        SchemaError: names of columns or tables differ only in case, which SQL does not tell apart.

    Example:
        >>> ref = yoga.from_arrays({"label": np.arange(9) % 2, "score": np.arange(9.0)})
        >>> answer("select label, max(score) from t group by label order by label", {"t": ref}, 10).rows
        ((0, 8.0), (1, 7.0))
    """
    _refuse_twins("tables", refs)
    failed: list[BaseException] = []
    with _connected() as connection:
        try:
            for name, ref in refs.items():
                connection.register(name, _Scanned(ref, failed))
            connection.execute("set lock_configuration = true")
            relation = _with_nanoseconds(connection, sql)
            if relation is None:
                connection.execute(sql)
                columns = tuple(str(one[0]) for one in connection.description or ())
                rows = connection.fetchmany(most + 1)
            else:
                columns, rows = tuple(relation.columns), relation.limit(most + 1).fetchall()
        except (duckdb.Error, pa.ArrowException, RuntimeError) as error:
            if failed:
                raise failed[0] from None
            raise _refused(error) from None
    return QueryRows(columns, tuple(rows[:most]), len(rows) > most)


def _with_nanoseconds(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation | None:
    """The result of a query, with times of nanoseconds as text, which datetimes cut; None without them."""
    if [one.type for one in connection.extract_statements(sql)] != [duckdb.StatementType.SELECT]:
        return None
    relation = connection.sql(sql)
    types = list(map(str, relation.types))
    if not any(map(_NANOSECONDS.search, types)):
        return None
    names = [str(name).replace('"', '""') for name in relation.columns]
    return relation.project(
        ", ".join(
            (f"#{place}::{_NANOSECONDS.sub('VARCHAR', type)}" if _NANOSECONDS.search(type) else f"#{place}")
            + f' as "{name}"'
            for place, (name, type) in enumerate(zip(names, types, strict=True), 1)
        )
    )


def _connected() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config=_CONFIG)


def _named(connection: duckdb.DuckDBPyConnection, sql: str) -> set[str]:
    try:
        return connection.get_table_names(sql)
    except duckdb.BinderException:  # of USING, as it takes tables that it does not know to have no columns
        tree = json.loads(
            connection.execute("select json_serialize_sql(?)", [_PLAIN.sub("", sql)]).fetchall()[0][0]
        )
        if tree["error"]:
            raise
        return set(_tables(tree["statements"], frozenset()))


def _tables(part: Any, hidden: frozenset[str]) -> Iterator[str]:
    """The tables in a part of a parsed query, where some names stand for subqueries."""
    if isinstance(part, list):
        for one in part:
            yield from _tables(one, hidden)
    elif isinstance(part, dict):
        if part.get("type") == "BASE_TABLE" and part["table_name"].casefold() not in hidden:
            yield part["table_name"]
        if part.get("type") == "RECURSIVE_CTE_NODE":  # which reads what it has found itself
            hidden |= {part["cte_name"].casefold()}
        for subquery in part.get("cte_map", {}).get("map", ()):
            yield from _tables(subquery["value"], hidden)
            hidden |= {subquery["key"].casefold()}
        yield from _tables([value for key, value in part.items() if key != "cte_map"], hidden)


def _refused(error: Exception) -> ValueError:
    """The error of a query without the picture of where in the text it is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    end = next((number for number, line in enumerate(lines) if line.startswith("LINE ")), len(lines))
    text = " ".join(lines[: min(end, _MOST_LINES)]) or type(error).__name__
    if nested := _NESTED.search(text):
        text += f"; in SQL a value within a dict is named by dots, as in {nested[1].replace('/', '.')}"
    return ValueError(text)


def _refuse_twins(what: str, names: Iterable[str]) -> None:
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.casefold(), name)) != name:
            raise SchemaError(
                f"the {what} {other!r} and {name!r} differ only in case, which SQL does not tell apart; "
                "rename one of them, or read them in Python"
            )


class _Scanned(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset of Arrow's that holds no rows: those of a DataRef are read, in batches, when DuckDB scans it.

    Args:
        ref: the rows.
        failed: where errors of reading are put.
    """

    def __init__(self, ref: DataRef, failed: list[BaseException]) -> None:
        schema = schema_of(ref)
        _refuse_twins("columns", schema.names)
        schema = pa.schema([field.with_type(retyped(field.type, _known)) for field in schema])
        self._has_numbers = _NUMBERS not in (name.casefold() for name in schema.names)
        if self._has_numbers:  # first, as DuckDB counts rows by the first column
            schema = schema.insert(0, pa.field(_NUMBERS, pa.int64()))
        super().__init__(schema.empty_table())
        self._ref, self._failed = ref, failed

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: object) -> ds.Scanner:
        """The rows with these columns that meet a filter."""
        text = "" if filter is None else str(filter)  # which holds the names of its columns as they are
        names = [
            name
            for name in self.schema.names
            if columns is None or name in columns or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
        ]
        given = pa.schema([self.schema.field(name) for name in names or self.schema.names[:1]])
        return ds.Scanner.from_batches(
            self._batches(given),
            schema=given,
            columns=columns,
            filter=filter,
            batch_readahead=1,  # instead of 16, which it would hold
        )

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        start, own = 0, [name for name in schema.names if not (self._has_numbers and name == _NUMBERS)]
        try:
            for arrays, size in self._read(own):
                columns = {
                    name: _held(name, array).cast(schema.field(name).type)
                    for name, array in zip(own, arrays, strict=True)
                }
                if len(own) < len(schema.names):
                    columns[_NUMBERS] = pa.array(np.arange(start, start + size))
                yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
                start += size
        except GeneratorExit:  # enough rows were found
            raise
        except BaseException as error:
            self._failed.append(error)
            raise

    def _read(self, names: list[str]) -> Iterator[tuple[list[pa.Array], int]]:
        """The arrays of some columns, and how many rows they have, batch by batch."""
        if not names:
            yield from (([], min(_ROWS, len(self._ref) - at)) for at in range(0, len(self._ref), _ROWS))
            return
        of = _projection(known_schema(self._ref), names)
        ref = self._ref if of is None else self._ref._projected(of)
        yield from ((batch.columns, len(batch)) for batch in batches_of(ref, _BYTES))


def _projection(schema: Schema | None, names: list[str]) -> Projection | None:
    """Columns of Arrow's that are read of rows, in their order; None for rows that are one value each."""
    tree = None if schema is None else schema.tree
    if schema is None or tree is None or tree.kind not in CONTAINERS:
        return None
    if tree.kind == "dict":
        return Projection.of_keys(schema, [key for key in tree.keys if str(key) in names])
    steps = zip(column_names(tree), tree.steps, strict=True)
    return Projection.of(schema, [path_name(step) for name, step in steps if name in names])


def _held(name: str, array: pa.Array) -> pa.Array:
    """An array of a column, unless DuckDB would cut its values."""
    type = array.type
    if pa.types.is_duration(type) and type.unit == "ns":
        counts = array.cast(pa.int64()).drop_null().to_numpy()
        if (counts % 1000).any():
            raise ValueError(
                f"the column {name!r} holds nanoseconds, which spans of time in SQL have no room for; "
                "read it in Python, or ask for other columns"
            )
    return array


def _known(type: pa.DataType) -> pa.DataType:
    """The type of single values as DuckDB knows it, which has no floats of 16 bits."""
    return pa.float32() if pa.types.is_float16(type) else type
