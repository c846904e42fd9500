"""`yoga query`: SQL over versions."""

from __future__ import annotations

from importlib.util import find_spec

import click

from ...process.messages import count_of, short
from .output import Asked, Table, value_text
from .places import id_argument, opened, shown, storage_command, version_argument

_ALIAS = "t"  # of a version that is named beside the query


@storage_command("query")
@click.argument("sql")
@id_argument(required=False)
@version_argument()
@click.option(
    "--limit", default=1000, show_default=True, type=click.IntRange(1, 10**6), help="Most rows to print."
)
def command(sql: str, id: str | None, version: str | None, limit: int, asked: Asked) -> None:
    """Answer a question in SQL about rows, by DuckDB.

    Tables are ids: the newest version, "images@prod" or "images@1.0", in double quotes. A version that is
    named behind the query is the table t. Instead of an id there may be a path or URL of files of another
    library. Only the columns that the query needs are read, batch by batch; the
    column row is the number of a row. A query reads nothing else, neither files nor the network.

    \b
    Examples:
      yoga query "select label, count(*) from images group by label"
      yoga query "select row, text from t where label = 2 limit 3" images@prod
      yoga query 'select max(label) from "images@1.0"' --json
      yoga query "select count(*) from t" s3://bucket/shards
    """
    missing = [name for name in ("duckdb", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"yoga query needs {' and '.join(missing)}, not installed here; pip install 'torchyoga[query]'"
        )
    from ...tables.sql import answer, tables_of

    names = tables_of(sql)
    if id is not None and _ALIAS not in map(str.casefold, names):
        raise click.UsageError(
            f"{id} is the table {_ALIAS} in a query that names it, but this one reads none of it"
        )
    refs = {
        name: shown(asked.storage, id, version)
        if id is not None and name.casefold() == _ALIAS
        else shown(asked.storage, name)
        for name in names
    }
    result = answer(sql, {name: one.ref for name, one in refs.items()}, limit)
    plain = {
        "storage": opened(asked.storage).url if any("id" in one.plain for one in refs.values()) else None,
        "tables": {name: one.plain for name, one in refs.items()},
        "columns": result.columns,
        "rows": result.rows,
        "is_cut": result.is_cut,
    }
    lines = [tuple(map(value_text, row)) for row in result.rows]
    titles = [short(name) for name in result.columns]
    right = [
        title
        for title, *values in zip(titles, *result.rows, strict=True)
        if all(isinstance(value, (int, float, type(None))) for value in values)
    ]
    rows = count_of(len(lines), "row")
    notes: list[str | Table] = [f"the first {rows}; --limit shows more"] if result.is_cut else []
    if titles[:1] == ["explain_key"]:  # a drawing of several lines
        asked.write(plain, [str(text) for row in result.rows for text in row[1:]])
    else:
        asked.write(plain, [Table(titles, lines, right), *notes] if lines else "no rows")
