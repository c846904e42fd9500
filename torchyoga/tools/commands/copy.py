"""`yoga copy`: a version, or all of them, to another directory or store."""

from __future__ import annotations

import os

import click

from ...process.messages import bytes_text, count_of, short
from .output import Asked, Table
from .places import id_argument, opened, placed, storage_command, version_argument


@storage_command("copy", id_argument(), version_argument())
@click.argument("target", required=False, metavar="TARGET")
@click.option("--overwrite", is_flag=True, help="Replace another version of that name in TARGET.")
@click.option("--history", is_flag=True, help="All versions and tags, or VERSION and what it is made from.")
@click.option("--dry-run", is_flag=True, help="With --history: only say what would be sent.")
def command(
    id: str,
    version: str | None,
    target: str | None,
    overwrite: bool,
    history: bool,
    dry_run: bool,
    asked: Asked,
) -> None:
    """Copy a version to another directory or URL; each file is checked before it is sent.

    The next call continues an interrupted copy.

    \b
    Examples:
      yoga copy images 1.1 backup
      yoga copy images@prod backup
      yoga copy images backup --history
    """
    if target is None:
        version, target = None, version
    if target is None:
        raise click.UsageError("name the directory or URL to copy to, as in: yoga copy images 1.1 backup")
    if dry_run and not history:
        raise click.UsageError("--dry-run is about many versions; it needs --history")
    source = opened(asked.storage)
    if version is None and not os.path.isdir(target) and target in source.versions(id):
        raise click.UsageError(
            f"{target} is a version of {id}: name the directory or URL to copy to, as in: yoga copy {id} "
            f"{target} backup; or write ./{target} for a new directory of that name"
        )
    other = opened(target, create=True)
    if not history:
        ref = source.copy(*placed(source, id, version), to=other, overwrite=overwrite)
        asked.write_published(other, ref)
        return
    if version is not None or not source.versions(id):
        id, version = placed(source, id, version)
    plain = {"storage": other.url, "id": id}
    if dry_run:
        sizes = source.copy(id, version, to=other, overwrite=overwrite, history=True, dry_run=True)
        rows = [(short(name), bytes_text(nbytes)) for name, nbytes in sizes.items()]
        count, total = count_of(len(sizes), "version"), bytes_text(sum(sizes.values()))
        what = f"{count}, {total}, would be sent to {other.url}"
        table = Table(("version", "bytes"), rows, right=("bytes",))
        asked.write({**plain, "missing": sizes}, [table, what] if rows else what)
        return
    sent = source.copy(id, version, to=other, overwrite=overwrite, history=True)
    asked.write({**plain, "sent": [*sent]}, f"{id} in {other.url}: {count_of(len(sent), 'version')} sent")
