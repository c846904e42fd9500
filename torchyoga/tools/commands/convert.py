"""`yoga convert` and `yoga compact`: a version in other files."""

from __future__ import annotations

import click

from ...process.messages import bytes_text, count_of
from .output import Asked
from .places import (
    fetched,
    id_argument,
    is_place,
    message_option,
    opened,
    placed,
    shown,
    storage_command,
    version_argument,
)


@storage_command("convert", id_argument(), version_argument())
@click.option(
    "--format", type=click.Choice(("lmdb", "hdf5")), help="The file format; lmdb for a path or URL."
)
@click.option("--compression", help="For hdf5: gzip, or with hdf5plugin blosc or zstd.")
@click.option(
    "--to",
    help="Publish under this version, ID@VERSION for a path or URL, and keep the old one; by default it is "
    "replaced.",
)
@message_option
def command(
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
    if is_place(asked.storage, id):
        new, sign, of = (to or "").rpartition("@")
        if not (new and sign and of):
            raise click.UsageError(
                f"name what to publish {id} as, with --to ID@VERSION, such as --to images@1.0"
            )
        ref = shown(asked.storage, id, version).ref
        place = opened(asked.storage, create=True)
        made = place.submit(ref, new, of, format=format, compression=compression, message=message)
        asked.write_published(place, made)
        return
    if format is None:
        raise click.UsageError("name the format to convert to, with --format lmdb or --format hdf5")
    place = opened(asked.storage)
    found = placed(place, id, version)
    ref = place.convert(*found, format=format, compression=compression, to=to, message=message)
    asked.write_published(place, ref)


@storage_command("compact", id_argument(), version_argument())
@click.option("--to", help="Publish under this version and keep the old one; by default it is replaced.")
@click.option("--dry-run", is_flag=True, help="Only say what would be written and deleted.")
def compact(id: str, version: str | None, to: str | None, dry_run: bool, asked: Asked) -> None:
    """Write a version into files of its own, of ordinary size: the same rows, the same fingerprint.

    The bytes of deleted rows are gone once no other version names the old files.

    \b
    Examples:
      yoga compact images 1.1 --dry-run
      yoga compact images 1.1 --to 1.1-compact
      yoga compact images
    """
    place = opened(asked.storage)
    old = fetched(place, id, version).manifest
    if not dry_run:
        asked.write_published(place, place.convert(old.id, old.version, to=to))
        return
    from ...storage import store_of
    from ...stores.spare import freed

    store = store_of(place)
    if to is not None:
        store.refuse_existing(old.id, to, False)
    nbytes = 0 if to is not None else freed(store, old.id, old.version)
    plain = {
        "storage": place.url,
        "id": old.id,
        "version": old.version if to is None else to,
        "rows": old.num_rows,
        "files": len(old.each_file),
        "bytes": old.nbytes,
        "freed": nbytes,
    }
    rows = f"{count_of(old.num_rows, 'row')} of {count_of(len(old.each_file), 'file')}"
    what = f"{old.id} {old.version} in {place.url}: {rows}"
    asked.write(plain, f"{what} would be rewritten, and {bytes_text(nbytes)} of old files deleted")
