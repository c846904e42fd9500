"""`yoga stats`: statistics of each column of a version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...rows.projection import Projection
from .output import Asked, Table, cell, first, picked
from .places import fetched, id_argument, opened, placed, storage_command, version_argument, versions_in

if TYPE_CHECKING:
    from ...rows.stats.column_stats import ColumnStats

__all__ = ["command"]

_TITLES = ("column", "nulls", "values", "NaN", "zeros", "min", "max", "mean", "std", "lengths", "most often")
_MOST_OFTEN = 10  # of the values of a column, in JSON


@storage_command("stats", id_argument(), version_argument())
@click.option("--columns", "-c", help="Only these columns, as in image,label.")
@click.option("--rows", type=click.IntRange(1), help="Read only so many rows, if they must be read at all.")
def command(id: str, version: str | None, columns: str | None, rows: int | None, asked: Asked) -> None:
    """Show statistics of each column.

    They were made when the version was built, so nothing is read; without them, all rows are.

    \b
    Examples:
      yoga stats images
      yoga stats images 1.0 --columns label --json
    """
    store, names = versions_in(asked.storage), None if columns is None else columns.split(",")
    manifest = store.manifest(*placed(store, id, version))
    if manifest.stats and manifest.schema is not None:
        stats = manifest.known_stats(
            None if names is None else Projection.of(manifest.schema, names).ordered(names)
        )
    else:
        ref = fetched(opened(asked.storage), manifest.id, manifest.version)
        stats = (ref if names is None else ref.columns(names)).stats(rows)
    some, more = first(list(stats.values()), "columns")
    table = Table(_TITLES, [_cells(one) for one in some], right=_TITLES[1:-1])
    read = f"{stats.rows:,} rows"
    if stats.rows_read < stats.rows:
        read = f"{stats.rows_read:,} rows, drawn from {stats.rows:,}"
    plain = {
        **picked(manifest, "id version"),
        **picked(stats, "rows rows_read"),
        "columns": [_plain(one) for one in stats.values()],
    }
    asked.write(plain, [read, *([table] if some else []), *more])


def _plain(stats: ColumnStats) -> dict[str, object]:
    lengths, bars = stats.lengths, stats.histogram
    return {
        **picked(stats, "name nulls count nan inf zeros min max mean std"),
        "lengths": None if lengths is None else picked(lengths, "min max mean empty"),
        "histogram": None if bars is None else picked(bars, "counts edges"),
        "distinct": stats.distinct,
        "top": None if stats.top is None else stats.top[:_MOST_OFTEN],
    }


def _cells(stats: ColumnStats) -> tuple[str, ...]:
    is_number = stats.mean is not None
    lengths, top = stats.lengths, stats.top
    return (
        cell(stats.name),
        f"{stats.nulls:,}",
        f"{stats.count:,}",
        f"{stats.nan:,}" if is_number or stats.nan else "",
        f"{stats.zeros:,}" if is_number else "",
        *(_short(value) for value in (stats.min, stats.max, stats.mean, stats.std)),
        "" if lengths is None or not lengths.count else f"{lengths.min}..{lengths.max}",
        f"{cell(top[0][0], 30)} ({top[0][1]:,})" if top else "",
    )


def _short(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else cell(value)
