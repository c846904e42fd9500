"""`yoga copy`: a version to another directory or store."""

from __future__ import annotations

import os

import click

from .output import write_published
from .places import id_argument, opened, placed, storage_command, version_argument

__all__ = ["command"]


@storage_command("copy", id_argument(), version_argument())
@click.argument("target", required=False, metavar="TARGET")
@click.option("--overwrite", is_flag=True, help="Replace another version of that name in TARGET.")
def command(
    id: str, version: str | None, target: str | None, overwrite: bool, storage: str, as_json: bool
) -> None:
    """Copy a version to another directory or URL; each file is checked before it is sent.

    The next call continues an interrupted copy.

    \b
    Examples:
      yoga copy images 1.1 backup
      yoga copy images@prod backup
    """
    if target is None:
        version, target = None, version
    if target is None:
        raise click.UsageError("name the directory or URL to copy to, as in: yoga copy images 1.1 backup")
    source = opened(storage)
    if version is None and not os.path.isdir(target) and target in source.versions(id):
        raise click.UsageError(
            f"{target} is a version of {id}: name the directory or URL to copy to, as in: yoga copy {id} "
            f"{target} backup; or write ./{target} for a new directory of that name"
        )
    other = opened(target, create=True)
    write_published(other, source.copy(*placed(source, id, version), to=other, overwrite=overwrite), as_json)
