"""`yoga ls`: which datasets a storage holds, and their versions."""

from __future__ import annotations

import click

from ...process.messages import bytes_text
from ...versions.names import natural
from .output import Asked, Table, picked
from .places import storage_command, versions_in


@storage_command("ls")
@click.argument("place", required=False)
@click.option("--long", "-l", is_flag=True, help="Read each manifest: rows, bytes, tags, damage.")
def command(place: str | None, long: bool, asked: Asked) -> None:
    """List datasets and their versions.

    PLACE is a directory or URL; by default that of --storage.

    \b
    Examples:
      yoga ls
      yoga ls --long storage
    """
    from ...stores.history import log_of

    store = versions_in(place or asked.storage)
    versions: dict[str, list[str]] = {}
    for id, version in store.published():
        versions.setdefault(id, []).append(version)
    versions = {id: sorted(versions[id], key=natural) for id in sorted(versions, key=natural)}
    empty = f"{store.name} holds no datasets"
    if not long:
        datasets = [{"id": id, "versions": found} for id, found in versions.items()]
        table = Table(("id", "versions"), [(id, " ".join(found)) for id, found in versions.items()])
        asked.write({"storage": store.name, "datasets": datasets}, table if datasets else empty)
        return
    entries = [(id, entry) for id in versions for entry in log_of(store, id)]
    plain = [
        {
            "id": id,
            **picked(entry, "version rows"),
            "bytes": entry.nbytes,
            "created": entry.created or None,
            **picked(entry, "tags problem"),
        }
        for id, entry in entries
    ]
    rows = [
        (
            id,
            entry.version,
            "" if entry.rows is None else f"{entry.rows:,}",
            "" if entry.nbytes is None else bytes_text(entry.nbytes),
            " ".join(entry.tags),
            "" if entry.problem is None else f"damaged: {entry.problem}",
        )
        for id, entry in entries
    ]
    titles = ("id", "version", "rows", "bytes", "tags", "problem")
    shown = Table(titles, rows, right=("rows", "bytes"))
    if not any(entry.problem for _, entry in entries):
        shown = Table(titles[:-1], [row[:-1] for row in rows], right=("rows", "bytes"))
    asked.write({"storage": store.name, "versions": plain}, shown if rows else empty)
