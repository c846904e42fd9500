"""`yoga check`: whether versions are whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ...errors import CorruptError
from ...process.messages import short
from .output import Asked, Table
from .places import (
    VersionName,
    id_argument,
    known_versions,
    opened,
    placed,
    storage_command,
    version_argument,
    versions_in,
)

if TYPE_CHECKING:
    from ...stores.contract import Store


@storage_command("check", id_argument(required=False), version_argument())
@click.option("--all", "every", is_flag=True, help="All versions of ID; without ID everything is checked.")
@click.option("--manifests", is_flag=True, help="Only read the manifests, not the rows.")
@click.pass_context
def command(
    ctx: click.Context, id: str | None, version: str | None, every: bool, manifests: bool, asked: Asked
) -> None:
    """Read versions, compare every byte with the checksums, and say what is damaged.

    Without VERSION it is the newest one, without ID all that the storage holds. The exit code is 1 if
    something is damaged.

    \b
    Examples:
      yoga check images 1.1
      yoga check images --all
      yoga check --manifests --json
    """
    store = versions_in(asked.storage)
    places = _places(store, id, version, every)
    look: Callable[[str, str], object] = store.manifest if manifests else opened(asked.storage).check
    found = [(*place, _problem_of(place, look)) for place in places]
    rows = [(short(id), short(name), "ok" if problem is None else "damaged") for id, name, problem in found]
    problems = [f"{id} {name}: {problem}" for id, name, problem in found if problem is not None]
    plain = [
        {"id": id, "version": name, "ok": problem is None, "problem": problem} for id, name, problem in found
    ]
    table = Table(("id", "version", "state"), rows)
    shown: list[str | Table] = [table, *(["", *problems] if problems else [])]
    empty = f"{store.name} holds no datasets"
    asked.write({"storage": store.name, "read": not manifests, "checked": plain}, shown if rows else empty)
    ctx.exit(1 if problems else 0)


def _places(store: Store, id: str | None, version: str | None, every: bool) -> list[VersionName]:
    if id is None:
        return [VersionName(*one) for one in store.published()]
    if not every:
        return [placed(store, id, version)]
    if version is not None:
        raise click.UsageError("--all is of all versions; leave it or the version out")
    return [VersionName(id, one) for one in known_versions(store, id)]


def _problem_of(place: VersionName, look: Callable[[str, str], object]) -> str | None:
    try:
        look(*place)
    except CorruptError as error:
        return str(error)
    return None
