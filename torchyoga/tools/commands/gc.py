"""`yoga gc` and `yoga rm`: leftovers and versions, deleted."""

from __future__ import annotations

import click

from ...process.messages import bytes_text, count_of, short
from .output import Asked, Table
from .places import id_argument, known_versions, placed, storage_command, version_argument, versions_in


@storage_command("gc", id_argument(required=False))
@click.option(
    "--keep", type=click.IntRange(0), help="Keep so many of the newest versions of each id; by default all."
)
@click.option("--untagged", is_flag=True, help="With --keep: also delete versions that a tag names.")
@click.option(
    "--grace",
    default=86400.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds; what is younger stays.",
)
@click.option("--yes", "-y", is_flag=True, help="Delete it.")
def command(id: str | None, keep: int | None, untagged: bool, grace: float, yes: bool, asked: Asked) -> None:
    """List what could be deleted; with --yes, delete it.

    This is what interrupted builds have left, and files that were replaced; with --keep also old versions,
    except those that a tag names, and those that a kept one was made from.

    \b
    Examples:
      yoga gc
      yoga gc images --keep 5 --grace 0
      yoga gc --keep 5 --yes
    """
    from ...stores.spare import cleaned

    if untagged and keep is None:
        raise click.UsageError("--untagged is about versions; say with --keep how many stay")
    store = versions_in(asked.storage)
    if id is not None:
        known_versions(store, id)
    kept = grace, keep, not untagged, id
    found = cleaned(store, *kept, dry_run=True)
    if yes:
        found = {name: found.get(name, 0) for name in cleaned(store, *kept)}
    total = sum(found.values())
    plain = [{"name": name, "bytes": nbytes} for name, nbytes in found.items()]
    table = Table(
        ("name", "bytes"), [(short(n, 120), bytes_text(b)) for n, b in found.items()], right=("bytes",)
    )
    done = "deleted" if yes else "could be deleted"
    what = f"{count_of(len(found), 'item')}, {bytes_text(total)}, {done}"
    what += "" if yes else f"; --yes deletes {'it' if len(found) == 1 else 'them'}"
    shown: list[str | Table] = [table, what]
    found_json = {"storage": store.name, "deleted": yes, "bytes": total, "things": plain}
    asked.write(found_json, shown if found else "there is nothing to delete")


@storage_command("rm", id_argument(), version_argument(required=True))
@click.option("--force", is_flag=True, help="Also a version that a tag names.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def rm(id: str, version: str, force: bool, dry_run: bool, asked: Asked) -> None:
    """Delete a version, but not the files that other versions share with it.

    A version that a tag names stays, unless --force is given. Many old versions go with yoga gc --keep.
    In a long history, what is smaller than 64 KiB is left to yoga gc.

    \b
    Examples:
      yoga rm images 1.1 --dry-run
      yoga rm images 1.1
      yoga rm images @prod --force
    """
    from ...stores.history import refuse_tagged
    from ...stores.spare import freed, removed

    store = versions_in(asked.storage)
    id, version = placed(store, id, version)
    nbytes = freed(store, id, version)
    if not dry_run:
        removed(store, id, version, -1, force)
    elif not force:
        refuse_tagged(store, id, version)
    plain = {"storage": store.name, "id": id, "version": version, "deleted": not dry_run, "bytes": nbytes}
    done = "would be deleted" if dry_run else "deleted"
    asked.write(plain, f"{id} {version} in {store.name}: {done}, {bytes_text(nbytes)}")
