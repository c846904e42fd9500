"""`yoga head`: the first rows of a version, or those that meet a condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ...process.messages import count_of, short
from ..cells.flat import flat, flat_names
from .output import Asked, Table, value_text
from .places import column_names, columns_option, id_argument, shown, storage_command

if TYPE_CHECKING:
    from ...reading.dataref import DataRef

_MOST_ROWS = 10_000
_MOST_COLUMNS = 12  # that are shown unless they are named


@storage_command("head", id_argument())
@click.argument("count", default=10, type=click.IntRange(1, _MOST_ROWS))
@click.option("--version", "version", help="Which version; by default the newest.")
@columns_option
@click.option("--where", help="Only rows that meet a condition, as in 'label = 3 and score > 0.5'.")
@click.option("--start", default=0, type=click.IntRange(0), help="The first row to show, or to look at.")
@click.option("--decoded", is_flag=True, help="Decode images and other encoded values.")
def command(
    id: str,
    count: int,
    version: str | None,
    columns: tuple[str, ...],
    where: str | None,
    start: int,
    decoded: bool,
    asked: Asked,
) -> None:
    """Show the first COUNT rows of a version, by default 10.

    ID may name a tag or a version, as in images@prod or images@1.0; or it is a path or URL of files of
    another library. A condition is a filter as in yoga view.

    \b
    Examples:
      yoga head images
      yoga head images 5 --columns label,text
      yoga head images 5 --where "label = 2"
      yoga head images@1.0 2 --start 3 --json
      yoga head s3://bucket/shards
      yoga head mds://folder 3
    """
    ref, title, named = shown(asked.storage, id, version)
    total = len(ref)
    names = column_names(columns, ref.schema)
    known = [] if ref.schema is None else list(flat_names(ref.schema.tree))
    if names is None and not asked.as_json and len(known) > _MOST_COLUMNS:
        names = known[:_MOST_COLUMNS]  # nothing is read of the others
    left_out = len(known) - len(names or known) if not columns else 0
    chosen = ref if names is None else ref.columns(names)
    chosen = chosen.decoded() if decoded else chosen
    numbers: Sequence[int] = range(start, min(start + count, total))
    looked = None
    if where is not None:
        numbers, looked = _meeting(ref, where, start, count)
    taken = chosen[list(numbers)] if len(numbers) else []
    rows = [(number, dict(flat(row))) for number, row in zip(numbers, taken, strict=True)]
    plain = {
        **named,
        "total": total,
        **({} if looked is None else {"where": where, "looked_until": looked}),
        "rows": [{"row": number, "values": row} for number, row in rows],
    }
    of = f"{title} has {count_of(total, 'row')}"
    if looked is not None:
        part = "" if not start and looked == total else f" in rows {start:,} to {max(start, looked - 1):,}"
        what = f"{count_of(len(rows), 'row')} found{part} of {total:,}"
    elif rows:
        first, last = f"{start:,}", f"{numbers[-1]:,}"
        what = (f"row {first}" if len(rows) == 1 else f"rows {first} to {last}") + f" of {total:,}"
    else:
        what = of
    more = [f"and {count_of(left_out, 'more column')}; --columns names some"] if rows and left_out else []
    asked.write(plain, [*([_table(rows)] if rows else []), *more, what])


def _meeting(ref: DataRef, text: str, start: int, count: int) -> tuple[list[int], int]:
    """The first rows from one on that meet a condition, and the first row that was not looked at."""
    from ..view.filter import Filter

    if ref.schema is None:  # a version without rows
        return [], len(ref)
    condition = Filter.of(text, ref.schema, ref.info)
    numbers: list[int] = []
    looked = start
    for stop, found in condition.found(ref, start):
        numbers += found.tolist()
        if len(numbers) >= count:
            return numbers[:count], numbers[count - 1] + 1
        looked = stop
    return numbers, looked


def _table(rows: Sequence[tuple[int, Mapping[str, object]]]) -> Table:
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    lines = [
        (f"{number:,}", *(value_text(row[name]) if name in row else "" for name in names))
        for number, row in rows
    ]
    return Table(("row", *map(short, names)), lines, ("row",))
