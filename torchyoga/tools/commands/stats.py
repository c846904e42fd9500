"""`yoga stats`: statistics of each column of a version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from ...process.messages import count_of, short
from ...rows.node import readable_name
from ...rows.schema import Projection
from ...rows.statistics import TITLES, cells_of
from .output import MOST_LINES, Asked, Table, picked, value_text
from .places import (
    column_names,
    columns_option,
    id_argument,
    is_place,
    placed,
    shown,
    storage_command,
    version_argument,
    versions_in,
)

if TYPE_CHECKING:
    from ...rows.statistics import ColumnStats

_NO_FRACTION = re.compile(r"(?<=T[0-9]{2}:[0-9]{2}:[0-9]{2})\.0+$")  # of the second of a date
_MOST_OFTEN = 10  # of the values of a column, in JSON


@storage_command("stats", id_argument(), version_argument())
@columns_option
@click.option("--rows", type=click.IntRange(1), help="Read only so many rows, if they must be read at all.")
def command(id: str, version: str | None, columns: tuple[str, ...], rows: int | None, asked: Asked) -> None:
    """Show statistics of each column.

    They were made when the version was built, so nothing is read; without them, all rows are. ID may be a
    path or URL of files of another library.

    \b
    Examples:
      yoga stats images
      yoga stats images 1.0 --columns label --json
      yoga stats s3://bucket/shards --rows 10000
    """
    manifest = None
    if is_place(asked.storage, id):
        ref, _, named = shown(asked.storage, id, version)
        schema = ref.schema
    else:
        store = versions_in(asked.storage)
        manifest = store.manifest(*placed(store, id, version))
        named, schema = picked(manifest, "id version"), manifest.schema
    names = column_names(columns, schema)
    known = [] if schema is None else [one.name for one in schema.columns]
    known = [
        name for name in known if not name.endswith("}")
    ]  # where values are None, and how long lists are
    if names is None and not asked.as_json and len(known) > MOST_LINES:
        names = known[:MOST_LINES]  # the others are not looked at
    if manifest is not None and manifest.stats and schema is not None:
        stats = manifest.known_stats(None if names is None else Projection.of(schema, names).ordered(names))
    else:
        if manifest is not None:
            ref, *_ = shown(asked.storage, manifest.id, manifest.version)
        stats = (ref if names is None else ref.columns(names)).stats(rows)
    left_out = 0 if columns or asked.as_json else len(known) - len(stats)
    lines = [cells_of(one, short(readable_name(name)), "{:,}".format, _short) for name, one in stats.items()]
    table = Table(TITLES, lines, TITLES[1:-1])
    more = [f"and {count_of(left_out, 'more column')}; --json prints all"] if left_out > 0 else []
    read = count_of(stats.rows, "row")
    if stats.rows_read < stats.rows:
        read = f"{count_of(stats.rows_read, 'row')}, drawn from {stats.rows:,}"
    plain = {
        **named,
        **picked(stats, "rows rows_read"),
        "columns": [_plain(one) for one in stats.values()],
    }
    asked.write(plain, [read, *([table] if stats else []), *more])


def _plain(stats: ColumnStats) -> dict[str, object]:
    lengths, bars = stats.lengths, stats.histogram
    return {
        "name": readable_name(stats.name),
        **picked(stats, "nulls count nan inf zeros min max mean std"),
        "lengths": None if lengths is None else picked(lengths, "min max mean empty"),
        "histogram": None if bars is None else picked(bars, "counts edges"),
        "distinct": stats.distinct,
        "top": None if stats.top is None else stats.top[:_MOST_OFTEN],
    }


def _short(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        value = value_text(_NO_FRACTION.sub("", value))
    return short(value_text(value) if isinstance(value, bytes) else str(value), 30)
