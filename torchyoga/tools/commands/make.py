"""`yoga append` and `convert`: a version with more rows, and one of other files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ...errors import SchemaError
from . import places
from .output import Asked

if TYPE_CHECKING:
    from ...reading.dataref import DataRef
    from ...rows.schema import Schema


@places.storage_command("append", places.id_argument())
@click.argument("new")
@click.argument("source", nargs=-1, required=True)
@click.option("--after", help="The version that the new one begins with; by default the newest.")
@places.message_option
def append(
    id: str, new: str, source: tuple[str, ...], after: str | None, message: str | None, asked: Asked
) -> None:
    """Add rows of files to a version of ID, and publish them as the version NEW.

    SOURCE is one or more paths or URLs of files of one kind that yoga head reads, such as JSON lines (one row
    a line), Parquet, HDF5 (all datasets at the root) and NumPy (.npy).

    \b
    Examples:
      yoga append images 1.2 more.parquet more2.parquet
      yoga append images 1.2 rows.jsonl --after 1.0 --message "rows of May"
    """
    place = places.opened(asked.storage)
    ref = places.fetched(place, id, after)
    old = ref.manifest
    rows = _rows_of(source, old.schema)
    if not len(rows):
        raise SchemaError(f"{', '.join(source)} has no rows, so there is nothing to append")
    found = place.append(rows, old.id, new, after=after, message=message)
    asked.write_published(place, found)


def _rows_of(sources: Sequence[str], schema: Schema | None) -> DataRef:
    """The rows of files of one kind, one file after the other.

    Args:
        sources: paths or URLs.
        schema: what rows of the version look like; rows of JSON are turned into such.

    Raises:
        ValueError: the files are of several kinds, or their format is not recognised.
        NotFoundError: there is no such file.
    """
    from ... import concat, from_jsonl
    from ..other_formats import format_at, read_at

    kinds = {format_at(source) for source in sources}
    if len(kinds) > 1:
        raise ValueError(f"name files of one kind at a time, found {' and '.join(sorted(kinds))}")
    if kinds == {"jsonl"}:
        return from_jsonl([source.removeprefix("jsonl://") for source in sources], schema)
    refs = [read_at(source) for source in sources]
    return refs[0] if len(refs) == 1 else concat(refs)


@places.storage_command("convert", places.id_argument(), places.version_argument())
@click.option(
    "--format",
    type=click.Choice(("lmdb", "hdf5")),
    help="The file format; by default that of the version, and lmdb for a path or URL.",
)
@click.option("--compression", help="For hdf5: gzip.")
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
    """Write a version into new files, or in another format: the same rows, the same fingerprint.

    The new files are of ordinary size, and have no deleted rows. Or write the rows of files of another
    library, under a path or URL, as a version.

    \b
    Examples:
      yoga convert images 1.1 --format hdf5 --to 1.1-hdf5
      yoga convert images --format hdf5 --compression gzip
      yoga convert images 1.1 --to 1.1-new
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
    place = places.opened(asked.storage)
    found = places.placed(place, id, version)
    ref = place.convert(*found, format=format, compression=compression, to=to, message=message)
    asked.write_published(place, ref)
