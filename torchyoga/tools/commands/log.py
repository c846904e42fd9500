"""`yoga log`: the versions of a dataset."""

from __future__ import annotations

import click

from .output import Asked, Table, picked
from .places import id_argument, known_versions, storage_command, versions_in

__all__ = ["command"]

_TITLES = ("version", "parents", "rows", "+rows", "bytes", "when", "who", "tags", "code", "message")


@storage_command("log", id_argument())
@click.option("--limit", "-n", type=click.IntRange(1), help="Only so many of the newest ones.")
def command(id: str, limit: int | None, asked: Asked) -> None:
    """Show the versions of a dataset, the newest first.

    \b
    Examples:
      yoga log images
      yoga log images -n 1 --json
    """
    from ...stores.history.log import log_of

    store = versions_in(asked.storage)
    known_versions(store, id)
    log = log_of(store, id, limit)
    cells = [entry.cells() for entry in log]
    used = [n for n in range(len(_TITLES)) if n == 0 or any(row[n] for row in cells)]
    table = Table(
        [_TITLES[n] for n in used],
        [[row[n] for n in used] for row in cells],
        right=("rows", "+rows", "bytes"),
    )
    plain = [
        {
            **picked(entry, "version parents rows added"),
            "bytes": entry.nbytes,
            "created": entry.created or None,
            **picked(entry, "fingerprint tags who code message problem"),
        }
        for entry in log
    ]
    more = [f"and {log.left_out:,} older versions"] if log.left_out else []
    asked.write({"id": log.id, "versions": plain, "left_out": log.left_out}, [table, *more])
