"""`yoga convert`: a version in another file format."""

from __future__ import annotations

import click

from .output import json_option
from .places import id_argument, message_option, opened, placed, storage_option, version_argument
from .published import write_published

__all__ = ["command"]


@click.command("convert")
@id_argument()
@version_argument()
@click.option("--format", type=click.Choice(("lmdb", "hdf5")), required=True, help="The file format.")
@click.option("--compression", help="For hdf5: gzip or lzf, or with hdf5plugin blosc or zstd.")
@click.option("--to", help="Publish under this version and keep the old one; by default it is replaced.")
@message_option
@storage_option
@json_option
def command(
    id: str,
    version: str | None,
    format: str,
    compression: str | None,
    to: str | None,
    message: str | None,
    storage: str,
    as_json: bool,
) -> None:
    """Write a version in another file format: the same rows, the same fingerprint.

    \b
    Examples:
      yoga convert images 1.1 --format hdf5 --to 1.1-hdf5
      yoga convert images --format hdf5 --compression gzip
    """
    place = opened(storage)
    found = placed(place, id, version)
    ref = place.convert(*found, format=format, compression=compression, to=to, message=message)
    write_published(place, ref, as_json)
