"""`yoga head`: the first rows of a version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from .output import Asked, Table, cell, picked, value_text
from .places import fetched, id_argument, opened, storage_command

__all__ = ["command"]

_MOST_ROWS = 10_000
_MOST_COLUMNS = 12  # that are shown unless they are named


@storage_command("head", id_argument())
@click.argument("count", default=10, type=click.IntRange(1, _MOST_ROWS))
@click.option("--version", "version", help="Which version; by default the newest.")
@click.option("--columns", "-c", help="Only these columns, as in image,label.")
@click.option("--start", default=0, type=click.IntRange(0), help="The first row to show.")
@click.option("--decoded", is_flag=True, help="Decode images and other encoded values.")
def command(
    id: str, count: int, version: str | None, columns: str | None, start: int, decoded: bool, asked: Asked
) -> None:
    """Show the first COUNT rows of a version, by default 10.

    ID may name a tag or a version, as in images@prod or images@1.0.

    \b
    Examples:
      yoga head images
      yoga head images 5 --columns label,text
      yoga head images@1.0 2 --start 3 --json
    """
    ref = fetched(opened(asked.storage), id, version)
    manifest, total = ref.manifest, len(ref)
    chosen = ref if columns is None else ref.columns(columns.split(","))
    chosen = chosen.decoded() if decoded else chosen
    numbers = range(start, min(start + count, total))
    rows = [(number, dict(_flat(chosen[number]))) for number in numbers]
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    shown = names if columns is not None else names[:_MOST_COLUMNS]
    left_out = len(names) - len(shown)
    table = Table(
        ("row", *(cell(name) for name in shown)),
        [(f"{number:,}", *(value_text(row.get(name)) for name in shown)) for number, row in rows],
        right=("row",),
    )
    where = f"{manifest.id} {manifest.version}"
    what = f"{where} has {total:,} rows" if not rows else f"rows {start:,} to {numbers[-1]:,} of {total:,}"
    more = [f"and {left_out:,} more columns; name them with --columns"] if left_out > 0 else []
    plain = {
        **picked(manifest, "id version"),
        "total": total,
        "rows": [{"row": number, "values": row} for number, row in rows],
    }
    asked.write(plain, [*([table] if rows else []), what, *more])


def _flat(row: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Each value of a row with its name, as the schema has it."""
    if isinstance(row, Mapping):
        for key, value in row.items():
            yield from _flat(value, f"{name}/{key}" if name else str(key))
    else:
        yield name or "value", row
