"""`yoga ls`: which datasets a storage holds, and their versions."""

from __future__ import annotations

import click

from .output import Table, bytes_text, json_option, write
from .places import opened, storage_option

__all__ = ["command"]


@click.command("ls")
@click.argument("place", required=False)
@storage_option
@click.option("--long", "-l", is_flag=True, help="Read each manifest: rows, bytes, tags, damage.")
@json_option
def command(place: str | None, storage: str, long: bool, as_json: bool) -> None:
    """List datasets and their versions.

    PLACE is a directory or URL; by default that of --storage.

    \b
    Example:
      yoga ls storage
      yoga ls --long --json
    """
    found = opened(place or storage)
    versions: dict[str, list[str]] = {}
    for id, version in found.list():
        versions.setdefault(id, []).append(version)
    if not long:
        plain = {"storage": found.url, "datasets": [{"id": i, "versions": v} for i, v in versions.items()]}
        table = Table(("id", "versions"), [(i, " ".join(v)) for i, v in versions.items()])
        write(plain, as_json, table if versions else f"{found.url} holds no datasets")
        return
    entries = [(id, entry) for id in versions for entry in found.log(id)]
    write(
        {
            "storage": found.url,
            "versions": [
                {
                    "id": id,
                    "version": entry.version,
                    "rows": entry.rows,
                    "bytes": entry.nbytes,
                    "created": entry.created or None,
                    "tags": list(entry.tags),
                    "problem": entry.problem,
                }
                for id, entry in entries
            ],
        },
        as_json,
        Table(
            ("id", "version", "rows", "bytes", "tags", "problem"),
            [
                (
                    id,
                    entry.version,
                    "" if entry.rows is None else f"{entry.rows:,}",
                    "" if entry.nbytes is None else bytes_text(entry.nbytes),
                    " ".join(entry.tags),
                    "" if entry.problem is None else f"damaged: {entry.problem}",
                )
                for id, entry in entries
            ],
            right=("rows", "bytes"),
        )
        if entries
        else f"{found.url} holds no datasets",
    )
