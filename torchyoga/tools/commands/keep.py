"""`yoga tag`, `copy`, `rm` and `gc`: what versions are called, where they lie, and which of them stay."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ...process.messages import bytes_text, count_of, short
from . import places
from .output import Asked, Table, picked

if TYPE_CHECKING:
    from ...stores.history import TagEntry

_PATIENCE = 60.0  # seconds to wait for whoever builds a version that gets a tag


@places.storage_command(
    "tag", places.id_argument(), click.argument("tag", required=False), places.version_argument()
)
@click.option("--remove", is_flag=True, help="Take the tag away; its history stays.")
@places.message_option
def tag(
    id: str, tag: str | None, version: str | None, remove: bool, message: str | None, asked: Asked
) -> None:
    """Show, set or take away names of versions.

    With ID, its tags; with TAG, what that has named; with VERSION, it names that version from now on.

    \b
    Examples:
      yoga tag images
      yoga tag images prod 1.1 --message reviewed
      yoga tag images prod
      yoga tag images prod --remove
    """
    from ...stores.history import tag_history, tagged, tags_of, untagged

    store = places.versions_in(asked.storage)
    if tag is None:
        places.known_versions(store, id)
        tags = tags_of(store, id)
        table = Table(("tag", "version"), [(short(name), short(found)) for name, found in tags.items()])
        asked.write({"id": id, "tags": tags}, table if tags else f"{id} has no tags")
    elif remove:
        if version is not None:
            raise click.UsageError("--remove takes no version; leave one of them out")
        _write_entries([untagged(store, id, tag, message)], asked)
    elif version is not None:
        _, version = places.placed(store, id, version)
        _write_entries([tagged(store, id, tag, version, message, _PATIENCE)], asked)
    else:
        _write_entries(tag_history(store, id, tag), asked)


def _write_entries(entries: list[TagEntry], asked: Asked) -> None:
    """Moves of one tag, the newest last."""
    rows = [
        (
            short(entry.tag),
            "taken away" if entry.version is None else short(entry.version),
            f"{entry.when:%Y-%m-%d %H:%M}",
            short(entry.who or ""),
            short(entry.message or ""),
        )
        for entry in entries
    ]
    names = "number version fingerprint when who message"
    plain = [picked(entry, names) | {"when": entry.when.isoformat()} for entry in entries]
    table = Table(("tag", "version", "when", "who", "message"), rows)
    asked.write({"id": entries[0].id, "tag": entries[0].tag, "moves": plain}, table)


@places.storage_command("copy", places.id_argument(), places.version_argument())
@click.argument("target", required=False, metavar="TARGET")
@click.option("--overwrite", is_flag=True, help="Replace another version of that name in TARGET.")
def copy(id: str, version: str | None, target: str | None, overwrite: bool, asked: Asked) -> None:
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
    source = places.opened(asked.storage)
    if version is None and not os.path.isdir(target) and target in source.versions(id):
        raise click.UsageError(
            f"{target} is a version of {id}: name the directory or URL to copy to, as in: yoga copy {id} "
            f"{target} backup; or write ./{target} for a new directory of that name"
        )
    other = places.opened(target, create=True)
    ref = source.copy(*places.placed(source, id, version), to=other, overwrite=overwrite)
    asked.write_published(other, ref)


@places.storage_command("gc", places.id_argument(required=False))
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
def gc(id: str | None, keep: int | None, untagged: bool, grace: float, yes: bool, asked: Asked) -> None:
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
    store = places.versions_in(asked.storage)
    if id is not None:
        places.known_versions(store, id)
    kept = grace, keep, not untagged, id
    found = cleaned(store, *kept, dry_run=True)
    if yes:
        found = {name: found.get(name, 0) for name in cleaned(store, *kept)}
    total = sum(found.values())
    things = [{"name": name, "bytes": nbytes} for name, nbytes in found.items()]
    rows = [(short(name, 120), bytes_text(nbytes)) for name, nbytes in found.items()]
    table = Table(("name", "bytes"), rows, right=("bytes",))
    done = "deleted" if yes else "could be deleted"
    what = f"{count_of(len(found), 'item')}, {bytes_text(total)}, {done}"
    what += "" if yes else f"; --yes deletes {'it' if len(found) == 1 else 'them'}"
    plain = {"storage": store.name, "deleted": yes, "bytes": total, "things": things}
    asked.write(plain, [table, what] if found else "there is nothing to delete")


@places.storage_command("rm", places.id_argument(), places.version_argument(required=True))
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

    store = places.versions_in(asked.storage)
    id, version = places.placed(store, id, version)
    nbytes = freed(store, id, version)
    if not dry_run:
        removed(store, id, version, -1, force)
    elif not force:
        refuse_tagged(store, id, version)
    plain = {"storage": store.name, "id": id, "version": version, "deleted": not dry_run, "bytes": nbytes}
    done = "would be deleted" if dry_run else "deleted"
    asked.write(plain, f"{id} {version} in {store.name}: {done}, {bytes_text(nbytes)}")
