"""`yoga log`: the versions of a dataset."""

from __future__ import annotations

import click

from .output import Table, json_option, write
from .places import id_argument, known_versions, storage_option, versions_in

__all__ = ["command"]

_TITLES = ("version", "parents", "rows", "+rows", "bytes", "when", "who", "tags", "code", "message")


@click.command("log")
@id_argument()
@click.option("--limit", "-n", type=click.IntRange(1), help="Only so many of the newest ones.")
@storage_option
@json_option
def command(id: str, limit: int | None, storage: str, as_json: bool) -> None:
    """Show the versions of a dataset, the newest first.

    \b
    Examples:
      yoga log images
      yoga log images -n 1 --json
    """
    from ...stores.history.log import log_of

    store = versions_in(storage)
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
            "version": entry.version,
            "parents": entry.parents,
            "rows": entry.rows,
            "added": entry.added,
            "bytes": entry.nbytes,
            "created": entry.created or None,
            "fingerprint": entry.fingerprint,
            "tags": entry.tags,
            "who": entry.who,
            "code": entry.code,
            "message": entry.message,
            "problem": entry.problem,
        }
        for entry in log
    ]
    more = [f"and {log.left_out:,} older versions"] if log.left_out else []
    write({"id": log.id, "versions": plain, "left_out": log.left_out}, as_json, [table, *more])
