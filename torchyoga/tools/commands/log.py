"""`yoga log`: the versions of a dataset, or what a run has read of the sources of its mixture."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...process.texts import count_of
from .output import Asked, Table, picked
from .places import id_argument, known_versions, storage_command, versions_in

__all__ = ["command"]

_LAST = ("code", "who", "+rows", "bytes", "parent", "when")  # to be left out first
_MOST_BYTES = 2**26


@storage_command("log", id_argument(required=False))
@click.option("--limit", "-n", type=click.IntRange(1), help="Only so many of the newest ones.")
@click.option(
    "--run",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A state that a loader of a mixture saved, as JSON: shows what was read of each source.",
)
@click.option("--markdown", is_flag=True, help="With --run: as Markdown, for a model card.")
def command(id: str | None, limit: int | None, run: Path | None, markdown: bool, asked: Asked) -> None:
    """Show the versions of a dataset, the newest first; or the sources that a run has read.

    \b
    Examples:
      yoga log images
      yoga log images -n 1 --json
    """
    if run is not None and id is None:
        _of_run(run, markdown, asked)
        return
    if id is None or run is not None or markdown:
        raise click.UsageError("name a dataset, as in: yoga log images; or a state, by --run state.json")
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


def _of_run(path: Path, markdown: bool, asked: Asked) -> None:
    """Shows what was read of each source up to a state in a file."""
    from ...order.state import State
    from ...views.mixes.account import account_of_state

    if path.stat().st_size > _MOST_BYTES:
        raise click.UsageError(f"{path} is too large to be a state of a loader, which is JSON of a few kB")
    try:
        saved = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise click.UsageError(
            f"{path} is no JSON ({error}); write it by json.dump(loader.state_dict(), file)"
        ) from error
    state = State.from_dict(_found(saved))
    account = account_of_state(state)
    titles, rows = account.table()
    plain = {"at": account.where, "sources": [source._asdict() for source in account.sources]}
    shown: list[str | Table] = [f"up to {account.where}", Table(titles, rows, titles[1:])]
    asked.write(plain, account.markdown() if markdown else shown)


def _found(saved: object) -> dict[str, object]:
    """The state in what a program has saved: itself, or the one entry that is one."""
    entries = saved.values() if isinstance(saved, dict) and "position" not in saved else []
    inner = [one for one in entries if isinstance(one, dict) and "position" in one]
    one = inner[0] if len(inner) == 1 else saved
    return one if isinstance(one, dict) else {}
