"""`yoga log`: the versions of a dataset, or what a run has read of the sources of its mixture."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ...errors import CorruptError, NotFoundError, StateError
from ...process.messages import count_of
from .output import Asked, Table, picked
from .places import id_argument, known_versions, storage_command, versions_in

_MOST_BYTES = 2**26


@storage_command("log", id_argument(required=False))
@click.option("--limit", "-n", type=click.IntRange(1), help="Only so many of the newest ones.")
@click.option(
    "--run",
    type=click.Path(path_type=Path, exists=True),
    help="What a Checkpoint saved, or a loader's state as JSON: shows what was read of each source.",
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
    from ...stores.history import RIGHT, log_of

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
    table = Table(titles, rows, RIGHT)
    asked.write({"id": log.id, "versions": plain, "left_out": log.left_out}, [table, *more])


def _of_run(path: Path, markdown: bool, asked: Asked) -> None:
    """Shows what was read of each source up to the states that a program has saved."""
    from ...order.state import State
    from ...views.mixes.arranged import account_of_state

    at = _newest_in(path) if path.is_dir() else path
    accounts, others = {}, {}
    states = _states_in(at)
    for name, state in states.items():
        try:
            accounts[name] = account_of_state(State.from_dict(state))
        except StateError as error:
            if len(states) == 1:
                raise
            others[name] = str(error)
    step = [f"in {at}"] if at is not path else []
    plain: dict[str, object] = {}
    texts, shown = [], list[str | Table](step)
    for name, account in accounts.items():
        titles, rows = account.table()
        plain[name] = {"at": account.where, "sources": [source._asdict() for source in account.sources]}
        texts.append((f"**{name}**\n\n" if name and len(states) > 1 else "") + account.markdown())
        up_to = f"up to {account.where}"
        shown += [f"{name}, {up_to}" if name else up_to, Table(titles, rows, titles[1:])]
    shown += [f"{name}: {why}" for name, why in others.items()]
    whole = plain[""] if "" in plain else {"file": str(at), "loaders": plain, "others": others}
    asked.write(whole, "\n\n".join(texts) if markdown else shown)


def _newest_in(folder: Path) -> Path:
    """The file of rank 0 in a step of a `Checkpoint`, or in the newest whole one of its folder."""
    from ...checkpoint.steps import INDEX, steps_at

    folder = folder.resolve()
    is_step = (folder / INDEX).exists()
    place = folder.parent if is_step else folder
    steps = steps_at(place)
    problem: Exception | None = None
    for name in [folder.name] if is_step else steps.names():
        try:
            with steps.read(name, steps.index(name), "rank-0.json"):
                return place / name / "rank-0.json"
        except (CorruptError, NotFoundError) as error:
            problem = problem or error
    if problem is not None:
        raise problem
    raise click.UsageError(
        f"{folder} has no steps of a Checkpoint; name the folder of a run, of one of its steps, or a file "
        "that json.dump(loader.state_dict(), file) wrote"
    )


def _states_in(path: Path) -> dict[str, dict[str, object]]:
    """The states in a file, by the names of their loaders in a `Checkpoint`; "" for a single one without."""
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        raise click.UsageError(f"{path} is no file, or too large to be a state of a loader: JSON of a few kB")
    try:
        saved = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise click.UsageError(
            f"{path} is no JSON ({error}); write it by json.dump(loader.state_dict(), file)"
        ) from error
    entries = saved if isinstance(saved, dict) else {}
    loaders = entries.get("loaders")
    if "position" not in entries and isinstance(loaders, dict):
        if not loaders:
            raise click.UsageError(f"{path} has no loader: pass Checkpoint(loaders={{'train': loader}})")
        return {name: state if isinstance(state, dict) else {} for name, state in loaders.items()}
    inner = [one for one in entries.values() if isinstance(one, dict) and "position" in one]
    return {"": inner[0] if len(inner) == 1 and "position" not in entries else entries}
