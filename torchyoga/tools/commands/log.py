"""`yoga log`: the versions of a dataset."""

from __future__ import annotations

import click

from ...process.texts import count_of
from .output import Asked, Table, picked
from .places import id_argument, known_versions, storage_command, versions_in

__all__ = ["command"]

_LAST = ("code", "who", "+rows", "bytes", "parent", "when")  # to be left out first


@storage_command("log", id_argument())
@click.option("--limit", "-n", type=click.IntRange(1), help="Only so many of the newest ones.")
def command(id: str, limit: int | None, asked: Asked) -> None:
    """Show the versions of a dataset, the newest first.

    \b
    Examples:
      yoga log images
      yoga log images -n 1 --json
    """
    from ...stores.history.log import RIGHT, log_of

    store = versions_in(asked.storage)
    known_versions(store, id)
    log = log_of(store, id, limit)
    titles, rows = log.table()
    plain = [
        {
            "version": entry.version,
            "parents": entry.parents[-1:],
            **picked(entry, "rows added"),
            "bytes": entry.nbytes,
            "created": entry.created or None,
            **picked(entry, "fingerprint tags who code message problem"),
        }
        for entry in log
    ]
    more = [f"and {count_of(log.left_out, 'older version')}"] if log.left_out else []
    table = Table(titles, rows, RIGHT, whole=("version", "when"), last=_LAST)
    asked.write({"id": log.id, "versions": plain, "left_out": log.left_out}, [table, *more])
