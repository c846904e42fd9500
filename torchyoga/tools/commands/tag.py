"""`yoga tag`: names of versions, and what they named before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...process.messages import short
from .output import Asked, Table, picked
from .places import (
    id_argument,
    known_versions,
    message_option,
    placed,
    storage_command,
    version_argument,
    versions_in,
)

if TYPE_CHECKING:
    from ...stores.history import TagEntry

_PATIENCE = 60.0  # seconds to wait for whoever builds the version


@storage_command("tag", id_argument(), click.argument("tag", required=False), version_argument())
@click.option("--remove", is_flag=True, help="Take the tag away; its history stays.")
@message_option
def command(
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

    store = versions_in(asked.storage)
    if tag is None:
        known_versions(store, id)
        tags = tags_of(store, id)
        plain: dict[str, object] = {"id": id, "tags": tags}
        table = Table(("tag", "version"), [(short(name), short(found)) for name, found in tags.items()])
        asked.write(plain, table if tags else f"{id} has no tags")
    elif remove:
        if version is not None:
            raise click.UsageError("--remove takes no version; leave one of them out")
        _write_entries([untagged(store, id, tag, message)], asked)
    elif version is not None:
        _, version = placed(store, id, version)
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
    plain = [
        {
            **picked(entry, "number version fingerprint"),
            "when": entry.when.isoformat(),
            **picked(entry, "who message"),
        }
        for entry in entries
    ]
    table = Table(("tag", "version", "when", "who", "message"), rows)
    asked.write({"id": entries[0].id, "tag": entries[0].tag, "moves": plain}, table)
