"""`yoga append` and `yoga add-columns`: rows or columns of files, added to a version."""

from __future__ import annotations

from collections.abc import Sized
from typing import NamedTuple

import click

from ...errors import SchemaError
from .inputs import rows_of
from .output import Asked
from .places import as_one, fetched, id_argument, message_option, opened, storage_command

__all__ = ["add_columns", "command"]


class _How(NamedTuple):
    """Which version gets the columns, and whether they may replace some."""

    after: str | None
    replace: bool


@storage_command("append", id_argument())
@click.argument("new")
@click.argument("source", nargs=-1, required=True)
@click.option("--after", help="The version that the new one begins with; by default the newest.")
@message_option
def command(
    id: str, new: str, source: tuple[str, ...], after: str | None, message: str | None, asked: Asked
) -> None:
    """Add rows to a version of ID, and publish them as the version NEW.

    SOURCE is one or more files of one kind: Parquet (.parquet), NumPy (.npy, or COLUMN=FILE.npy for each
    column), HDF5 (.h5, .hdf5; all datasets at the root) or JSON lines (.jsonl, .ndjson; one row a line). Or
    it is module:function of your own, which is imported from the current folder and run, and returns rows.

    \b
    Examples:
      yoga append images 1.2 more.parquet more2.parquet
      yoga append images 1.2 rows.jsonl --after 1.0 --message "rows of May"
      yoga append images 1.2 label=labels.npy text=texts.npy
      yoga append images 1.2 mydata:more
    """
    place = opened(asked.storage)
    ref = fetched(place, id, after)
    old = ref.manifest
    rows = rows_of(source, old.schema)
    if isinstance(rows, Sized) and not len(rows):
        raise SchemaError(f"{', '.join(source)} has no rows, so there is nothing to append")
    found = place.append(rows, old.id, new, after=after, message=message)
    asked.write_published(place, found)


@storage_command("add-columns", id_argument())
@click.argument("new")
@click.argument("source", nargs=-1, required=True)
@click.option("--after", help="The version that gets the columns; by default the newest.")
@click.option("--replace", is_flag=True, help="A new column takes the place of one that has its name.")
@message_option
@as_one("how", _How)
def add_columns(
    id: str, new: str, source: tuple[str, ...], how: _How, message: str | None, asked: Asked
) -> None:
    """Add columns to a version of ID, and publish it as the version NEW; only the columns are written.

    SOURCE has a value for each row, in order: files as those of yoga append. Arrays of NumPy are named:
    COLUMN=FILE.npy.

    \b
    Examples:
      yoga add-columns images 1.2 score=scores.npy
      yoga add-columns images 1.3 embeddings.parquet --after 1.2 --message "of model 7"
      yoga add-columns images 1.4 label=labels.npy --replace
    """
    place = opened(asked.storage)
    old = fetched(place, id, how.after).manifest
    rows = rows_of(source, None, named=True)
    found = place.add_columns(rows, old.id, new, after=old.version, replace=how.replace, message=message)
    asked.write_published(place, found)
