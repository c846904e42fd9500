"""`yoga delete-rows` and `yoga drop-columns`: a version without some rows, or without some columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from ...process.messages import count_of
from .output import Asked
from .places import fetched, id_argument, message_option, opened, storage_command, version_argument

if TYPE_CHECKING:
    from ...reading.version_ref import VersionRef
    from ...rows.types import Ints

_PART = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


@storage_command("delete-rows", id_argument(), version_argument())
@click.option("--to", required=True, help="The name of the new version.")
@click.option("--rows", help="Numbers of rows from 0 on, as in 3,7-9.")
@click.option("--where", help="In place of --rows: a condition, as in 'label = 3 and score > 0.5'.")
@click.option("--dry-run", is_flag=True, help="Only say how many rows would be deleted.")
@message_option
def command(
    id: str,
    version: str | None,
    to: str,
    rows: str | None,
    where: str | None,
    dry_run: bool,
    message: str | None,
    asked: Asked,
) -> None:
    """Publish a version without some rows; it shares the files of the old one, which stays as it is.

    The condition of --where is a filter as in yoga view. To take the bytes of the rows away, delete the old
    version with yoga rm, and compact the new one.

    \b
    Examples:
      yoga delete-rows images 1.0 --to 1.0-less --where "label = 2" --dry-run
      yoga delete-rows images 1.0 --to 1.0-less --where "label = 2"
      yoga delete-rows images 1.1 --to 1.2 --rows 3,7-9 --message "found to be broken"
    """
    if (rows is None) == (where is None):
        raise click.UsageError("pass either --rows or --where")
    place = opened(asked.storage)
    ref = fetched(place, id, version)
    old = ref.manifest
    chosen = _meeting(ref, where) if where else _numbers(str(rows), old.num_rows)
    if not dry_run:
        new = place.delete_rows(old.id, old.version, rows=chosen, to=to, message=message)
        asked.write_published(place, new)
        return
    from ...caching.grown import deleted_rows
    from ...storage import store_of

    store_of(place).refuse_existing(old.id, to, False)
    gone = len(deleted_rows(ref, chosen, None))
    plain = {"storage": place.url, "id": old.id, "version": to, "rows": old.num_rows - gone, "deleted": gone}
    what = f"{gone:,} of {count_of(old.num_rows, 'row')} of {old.id} {old.version} in {place.url}"
    asked.write(plain, f"{what} would be deleted")


@storage_command("drop-columns", id_argument())
@click.argument("new")
@click.argument("names", nargs=-1, required=True)
@click.option("--after", help="The version that has the columns; by default the newest.")
@message_option
def drop_columns(
    id: str, new: str, names: tuple[str, ...], after: str | None, message: str | None, asked: Asked
) -> None:
    """Publish a version of ID without the columns NAMES as NEW; it shares the files of the old one.

    The old version stays as it is. To take the bytes away, delete it with yoga rm, and compact the new one.

    \b
    Example:
      yoga drop-columns images 1.3 thumbnail score
    """
    place = opened(asked.storage)
    old = fetched(place, id, after).manifest
    new_ref = place.drop_columns(names, old.id, new, after=old.version, message=message)
    asked.write_published(place, new_ref)


def _numbers(text: str, length: int) -> Ints:
    """(D,) the numbers of rows that a text such as `3,7-9` names."""
    import numpy as np

    parts = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise click.UsageError(
                f"--rows is a list of numbers and ranges such as 3,7-9, found {part!r:.40}"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= length:
            raise IndexError(
                f"there is no row {last}: the version has {count_of(length, 'row')}, counted from 0"
            )
        parts.append(np.arange(first, last + 1))
    return np.unique(np.concatenate(parts))


def _meeting(ref: VersionRef, text: str) -> Ints:
    """(D,) the numbers of the rows that meet a condition."""
    import numpy as np

    from ..view.filter import Filter

    found = Filter.of(text, ref.schema, ref.info).found(ref)
    return np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in found)])
