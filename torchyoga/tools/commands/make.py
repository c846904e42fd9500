"""Commands that make one version from another: rows or columns added or left out, and other files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING

import click

from ...errors import NotFoundError, SchemaError
from ...process.messages import count_of
from . import places
from .output import Asked

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...rows.schema import Schema
    from ...rows.types import Ints

_NUMBERS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


@places.storage_command("append", places.id_argument())
@click.argument("new")
@click.argument("source", nargs=-1, required=True)
@click.option("--after", help="The version that the new one begins with; by default the newest.")
@places.message_option
def append(
    id: str, new: str, source: tuple[str, ...], after: str | None, message: str | None, asked: Asked
) -> None:
    """Add rows of files to a version of ID, and publish them as the version NEW.

    SOURCE is one or more files of one kind: NumPy (.npy, or COLUMN=FILE.npy for each column), or the path or
    URL of files of any other library that yoga head reads, such as JSON lines (one row a line), Parquet and
    HDF5 (all datasets at the root).

    \b
    Examples:
      yoga append images 1.2 more.parquet more2.parquet
      yoga append images 1.2 rows.jsonl --after 1.0 --message "rows of May"
      yoga append images 1.2 label=labels.npy text=texts.npy
    """
    place = places.opened(asked.storage)
    ref = places.fetched(place, id, after)
    old = ref.manifest
    rows = rows_of(source, old.schema)
    if isinstance(rows, Sized) and not len(rows):
        raise SchemaError(f"{', '.join(source)} has no rows, so there is nothing to append")
    found = place.append(rows, old.id, new, after=after, message=message)
    asked.write_published(place, found)


@places.storage_command("add-columns", places.id_argument())
@click.argument("new")
@click.argument("source", nargs=-1, required=True)
@click.option("--after", help="The version that gets the columns; by default the newest.")
@click.option("--replace", is_flag=True, help="A new column takes the place of one that has its name.")
@places.message_option
def add_columns(
    id: str,
    new: str,
    source: tuple[str, ...],
    after: str | None,
    replace: bool,
    message: str | None,
    asked: Asked,
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
    place = places.opened(asked.storage)
    old = places.fetched(place, id, after).manifest
    rows = rows_of(source, None, named=True)
    found = place.add_columns(rows, old.id, new, after=old.version, replace=replace, message=message)
    asked.write_published(place, found)


def rows_of(sources: Sequence[str], schema: Schema | None, named: bool = False) -> object:
    """The rows of files of one kind, one file after the other.

    Args:
        sources: paths or URLs, or `COLUMN=FILE.npy`.
        schema: what rows of the version look like; rows of JSON are turned into such.
        named: rows must be dicts, so arrays have names.

    Raises:
        ValueError: the files are of several kinds, or their format is not recognised.
        NotFoundError: there is no such file.
    """
    kinds = {_kind(source) for source in sources}
    if len(kinds) > 1:
        raise ValueError(f"name files of one kind at a time, found {' and '.join(sorted(kinds))}")
    kind = kinds.pop()
    if kind == "npy":
        return _arrays(sources, named)
    if kind == "jsonl":
        from ... import from_jsonl

        return from_jsonl([source.removeprefix("jsonl://") for source in sources], schema)
    from ..other_formats import read_at

    return _joined([read_at(source) for source in sources])


def _kind(source: str) -> str:
    if "://" not in source and source.lower().endswith(".npy"):  # COLUMN=FILE.npy is not a path
        return "npy"
    from ..other_formats import format_at

    return format_at(source)


def _joined(refs: Sequence[DataRef]) -> DataRef:
    from ... import concat

    return refs[0] if len(refs) == 1 else concat(refs)


def _arrays(sources: Sequence[str], must_be_named: bool) -> object:
    """Rows of .npy files: one after the other, or side by side where they are named."""
    from ... import from_arrays

    named = [source.partition("=") for source in sources if "=" in source and not os.path.exists(source)]
    if must_be_named and len(named) < len(sources):
        raise ValueError(f"name the columns of .npy files, as in score={sources[0]}")
    if named and len(named) < len(sources):
        raise ValueError("name all columns, as in image=images.npy label=labels.npy, or none")
    names = [name for name, _, _ in named]
    if len(set(names)) < len(names):
        raise ValueError(f"each column may come once, found {', '.join(names)}")
    for path in [path for _, _, path in named] or sources:
        if not os.path.isfile(path):
            raise NotFoundError(f"there is no file {path!r}")
    if named:
        return from_arrays({name: path for name, _, path in named})
    return _joined([*map(from_arrays, sources)])


@places.storage_command("delete-rows", places.id_argument(), places.version_argument())
@click.option("--to", required=True, help="The name of the new version.")
@click.option("--rows", help="Numbers of rows from 0 on, as in 3,7-9.")
@click.option("--where", help="In place of --rows: a condition, as in 'label = 3 and score > 0.5'.")
@click.option("--dry-run", is_flag=True, help="Only say how many rows would be deleted.")
@places.message_option
def delete_rows(
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
    place = places.opened(asked.storage)
    ref = places.fetched(place, id, version)
    old = ref.manifest
    if where is not None:
        from ..view.filter import Filter

        chosen = Filter.of(where, ref.schema, ref.info).first(ref)[0]
    else:
        chosen = _numbers(str(rows), old.num_rows)
    if not dry_run:
        new = place.delete_rows(old.id, old.version, rows=chosen, to=to, message=message)
        asked.write_published(place, new)
        return
    places.versions_in(asked.storage).refuse_existing(old.id, to, False)
    gone = len(chosen)
    if not gone:
        raise ValueError(f"no row of {old.id!r} {old.version!r} is to be deleted; nothing would be published")
    plain = {"storage": place.url, "id": old.id, "version": to, "rows": old.num_rows - gone, "deleted": gone}
    what = f"{gone:,} of {count_of(old.num_rows, 'row')} of {old.id} {old.version} in {place.url}"
    asked.write(plain, f"{what} would be deleted")


@places.storage_command("drop-columns", places.id_argument())
@click.argument("new")
@click.argument("names", nargs=-1, required=True)
@click.option("--after", help="The version that has the columns; by default the newest.")
@places.message_option
def drop_columns(
    id: str, new: str, names: tuple[str, ...], after: str | None, message: str | None, asked: Asked
) -> None:
    """Publish a version of ID without the columns NAMES as NEW; it shares the files of the old one.

    The old version stays as it is. To take the bytes away, delete it with yoga rm, and compact the new one.

    \b
    Example:
      yoga drop-columns images 1.3 thumbnail score
    """
    place = places.opened(asked.storage)
    old = places.fetched(place, id, after).manifest
    new_ref = place.drop_columns(names, old.id, new, after=old.version, message=message)
    asked.write_published(place, new_ref)


def _numbers(text: str, length: int) -> Ints:
    """(D,) the numbers of rows that a text such as `3,7-9` names."""
    import numpy as np

    parts = []
    for part in text.split(","):
        match = _NUMBERS.fullmatch(part.strip())
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


@places.storage_command("convert", places.id_argument(), places.version_argument())
@click.option(
    "--format", type=click.Choice(("lmdb", "hdf5")), help="The file format; lmdb for a path or URL."
)
@click.option("--compression", help="For hdf5: gzip, or with hdf5plugin blosc or zstd.")
@click.option(
    "--to",
    help="Publish under this version, ID@VERSION for a path or URL, and keep the old one; by default it is "
    "replaced.",
)
@places.message_option
def convert(
    id: str,
    version: str | None,
    format: str | None,
    compression: str | None,
    to: str | None,
    message: str | None,
    asked: Asked,
) -> None:
    """Write a version in another file format: the same rows, the same fingerprint.

    Or write the rows of files of another library, under a path or URL, as a version.

    \b
    Examples:
      yoga convert images 1.1 --format hdf5 --to 1.1-hdf5
      yoga convert images --format hdf5 --compression gzip
      yoga convert s3://bucket/shards --to shards@1.0
    """
    if places.is_place(asked.storage, id):
        new, sign, of = (to or "").rpartition("@")
        if not (new and sign and of):
            raise click.UsageError(
                f"name what to publish {id} as, with --to ID@VERSION, such as --to images@1.0"
            )
        ref = places.shown(asked.storage, id, version).ref
        place = places.opened(asked.storage, create=True)
        made = place.submit(ref, new, of, format=format, compression=compression, message=message)
        asked.write_published(place, made)
        return
    if format is None:
        raise click.UsageError("name the format to convert to, with --format lmdb or --format hdf5")
    place = places.opened(asked.storage)
    found = places.placed(place, id, version)
    ref = place.convert(*found, format=format, compression=compression, to=to, message=message)
    asked.write_published(place, ref)


@places.storage_command("compact", places.id_argument(), places.version_argument())
@click.option("--to", help="Publish under this version and keep the old one; by default it is replaced.")
def compact(id: str, version: str | None, to: str | None, asked: Asked) -> None:
    """Write a version into files of its own, of ordinary size: the same rows, the same fingerprint.

    The bytes of deleted rows are gone once no other version names the old files.

    \b
    Examples:
      yoga compact images 1.1 --to 1.1-compact
      yoga compact images
    """
    place = places.opened(asked.storage)
    asked.write_published(place, place.convert(*places.placed(place, id, version), to=to))
