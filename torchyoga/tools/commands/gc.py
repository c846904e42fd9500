"""`yoga gc`: what nobody needs, and its deletion."""

from __future__ import annotations

import click

from .output import Table, bytes_text, cell, json_option, write
from .places import id_argument, known_versions, storage_option, versions_in

__all__ = ["command"]


@click.command("gc")
@id_argument(required=False)
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
@storage_option
@json_option
def command(
    id: str | None,
    keep: int | None,
    untagged: bool,
    grace: float,
    yes: bool,
    storage: str,
    as_json: bool,
) -> None:
    """Say what could be deleted; with --yes, delete it.

    That is what interrupted builds have left and files that were replaced; with --keep also old versions,
    except those that a tag names, and those that a kept one was made from.

    \b
    Examples:
      yoga gc
      yoga gc images --keep 5 --grace 0
      yoga gc --keep 5 --yes
    """
    from ...caching.spare import cleanable, cleaned
    from ...stores.history.keep import Keep

    if untagged and keep is None:
        raise click.UsageError("--untagged is about versions; say with --keep how many stay")
    store = versions_in(storage)
    if id is not None:
        known_versions(store, id)
    kept = None if keep is None else Keep(last=keep, tagged=not untagged)
    found = cleanable(store, grace, kept, id)
    if yes:
        sizes, found = found, {}
        for name in cleaned(store, grace, kept, id):
            found[name] = sizes.get(name, 0)
    total = sum(found.values())
    plain = [{"name": name, "bytes": nbytes} for name, nbytes in found.items()]
    table = Table(
        ("name", "bytes"), [(cell(n, 120), bytes_text(b)) for n, b in found.items()], right=("bytes",)
    )
    done = "deleted" if yes else "could be deleted"
    what = f"{len(found):,} things, {bytes_text(total)}, {done}" + ("" if yes else "; --yes deletes them")
    shown: list[str | Table] = [table, what]
    found_json = {"storage": store.name, "deleted": yes, "bytes": total, "things": plain}
    write(found_json, as_json, shown if found else "there is nothing to delete")
